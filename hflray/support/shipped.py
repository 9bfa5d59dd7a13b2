"""Where the shipped sweep files are."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# The folder is inside the package if a wheel is installed, and beside the package in a checkout.
CONFIGS = PACKAGE / "tune_configs" if (PACKAGE / "tune_configs").is_dir() else PACKAGE.parent / "tune_configs"
