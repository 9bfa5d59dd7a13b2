"""Where the shipped sweep files are, and the claims that are judged by their runs."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# The folder is inside the package if a wheel is installed, and beside the package in a checkout.
CONFIGS = PACKAGE / "tune_configs" if (PACKAGE / "tune_configs").is_dir() else PACKAGE.parent / "tune_configs"
CLAIMS = "claims.yaml"  # the name of a file of protocols (`hflray.reproduction.protocol`), which is no sweep file


def sweep_files() -> list[Path]:
    """Return the shipped sweep files by name."""
    return [path for path in sorted(CONFIGS.glob("*.yaml")) if path.name != CLAIMS]
