"""Hashes of configurations: of the trials of every third shipped sweep file, with their names, and of single settings.

``python -m tests.golden.configurations`` writes ``configurations.json`` again. A hash names trials, cached fleets and
folders, so that it must never change for a setting that stays.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from hflray.config import ExperimentConfig, load_config
from hflray.support.checksum import canonical, digest
from hflray.support.shipped import sweep_files
from hflray.sweep import expand, load_sweep

HASHES = Path(__file__).with_name("configurations.json")
PLACED = "world_edges.yaml"  # it names a trace, whose path depends on where the checkout lies
LATER = ("access.yaml", "gossip.yaml", "plan_digits.yaml", "tiers.yaml")  # sweep files that came after the hashes
OVERRIDES = yaml.safe_load(Path(__file__).with_name("configurations.yaml").read_text(encoding="utf-8"))


def hash_of(config: ExperimentConfig) -> str:
    """Return the SHA-256 of a configuration as it is written."""
    return digest(canonical(config.model_dump(mode="json")))[:24]


def hashes() -> dict[str, str]:
    """Return the hash of each configuration."""
    of_settings = {" ".join(overrides): hash_of(load_config(None, overrides)) for overrides in OVERRIDES}
    shipped = [path for path in sweep_files() if path.name not in LATER]
    of_trials = {
        path.name: digest(json.dumps([[trial.name, hash_of(trial.config)] for trial in trials]).encode())[:24]
        for path, trials in ((path, expand(load_sweep(path))) for path in shipped[::3] if path.name != PLACED)
    }
    return of_settings | of_trials


if __name__ == "__main__":
    HASHES.write_text(json.dumps(hashes(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
