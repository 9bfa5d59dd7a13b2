"""hflray: experiments in hierarchical federated learning, on Ray.

The public names are imported on first use, so that ``import hflray`` stays fast and light.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "ConfigError": "hflray.errors",
    "DataError": "hflray.errors",
    "DivergedError": "hflray.errors",
    "HflrayError": "hflray.errors",
    "InfeasibleError": "hflray.errors",
    "ExperimentConfig": "hflray.config",
    "load_config": "hflray.config",
    "Fleet": "hflray.fleet",
    "FleetConfig": "hflray.fleet",
    "sample_fleet": "hflray.fleet",
    "RoundCost": "hflray.cost",
    "Workload": "hflray.cost",
    "round_cost": "hflray.cost",
    "Allocation": "hflray.allocation",
    "allocate_round": "hflray.allocation",
    "build_assigner": "hflray.assignment",
    "build_scheduler": "hflray.scheduling",
    "build_partition": "hflray.data",
    "load_dataset": "hflray.data",
    "Experiment": "hflray.experiment",
    "RoundRecord": "hflray.record",
    "Scenario": "hflray.scenario",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hflray' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
