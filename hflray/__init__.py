"""hflray: experiments in hierarchical federated learning, on Ray.

The public names are imported on first use, so that ``import hflray`` is fast. `dir` lists them all, and type checkers
read them from the block below.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hflray.aggregation import Aggregator as Aggregator
    from hflray.allocation import Allocation as Allocation
    from hflray.allocation import allocate_round as allocate_round
    from hflray.assignment import Assigner as Assigner
    from hflray.assignment import build_assigner as build_assigner
    from hflray.compression import Compressor as Compressor
    from hflray.config import ExperimentConfig as ExperimentConfig
    from hflray.config import FleetConfig as FleetConfig
    from hflray.config import load_config as load_config
    from hflray.cost import RoundCost as RoundCost
    from hflray.cost import Workload as Workload
    from hflray.cost import round_cost as round_cost
    from hflray.data import Dataset as Dataset
    from hflray.data import build_partition as build_partition
    from hflray.data import load_dataset as load_dataset
    from hflray.data.partition import Partition as Partition
    from hflray.errors import ConfigError as ConfigError
    from hflray.errors import DataError as DataError
    from hflray.errors import DivergedError as DivergedError
    from hflray.errors import HflrayError as HflrayError
    from hflray.errors import InfeasibleError as InfeasibleError
    from hflray.errors import WorkerLostError as WorkerLostError
    from hflray.experiment import Experiment as Experiment
    from hflray.experiment.observers import Observer as Observer
    from hflray.experiment.record import RoundRecord as RoundRecord
    from hflray.experiment.scenario import Scenario as Scenario
    from hflray.fleet import Fleet as Fleet
    from hflray.fleet import build_fleet as build_fleet
    from hflray.fleet import sample_fleet as sample_fleet
    from hflray.physics import Access as Access
    from hflray.physics import Compute as Compute
    from hflray.physics import Download as Download
    from hflray.report.frame import read as read
    from hflray.report.runs import read_sweep as read_sweep
    from hflray.scheduling import Scheduler as Scheduler
    from hflray.scheduling import build_scheduler as build_scheduler
    from hflray.sweep.loop import keep as keep
    from hflray.tracking.sink import Sink as Sink
    from hflray.training.rules import LocalRule as LocalRule
    from hflray.world.availability import Availability as Availability
    from hflray.world.fading import Fading as Fading
    from hflray.world.mobility import Mobility as Mobility

__version__ = "0.2.0"

# The public names of each module. A test checks that they equal the imports above.
_PUBLIC = {
    "hflray.aggregation": ("Aggregator",),
    "hflray.allocation": ("Allocation", "allocate_round"),
    "hflray.assignment": ("Assigner", "build_assigner"),
    "hflray.compression": ("Compressor",),
    "hflray.config": ("ExperimentConfig", "FleetConfig", "load_config"),
    "hflray.cost": ("RoundCost", "Workload", "round_cost"),
    "hflray.data": ("Dataset", "build_partition", "load_dataset"),
    "hflray.data.partition": ("Partition",),
    "hflray.errors": ("ConfigError", "DataError", "DivergedError", "HflrayError", "InfeasibleError", "WorkerLostError"),
    "hflray.experiment": ("Experiment",),
    "hflray.experiment.observers": ("Observer",),
    "hflray.experiment.record": ("RoundRecord",),
    "hflray.experiment.scenario": ("Scenario",),
    "hflray.fleet": ("Fleet", "build_fleet", "sample_fleet"),
    "hflray.physics": ("Access", "Compute", "Download"),
    "hflray.report.frame": ("read",),
    "hflray.report.runs": ("read_sweep",),
    "hflray.scheduling": ("Scheduler", "build_scheduler"),
    "hflray.sweep.loop": ("keep",),
    "hflray.tracking.sink": ("Sink",),
    "hflray.training.rules": ("LocalRule",),
    "hflray.world.availability": ("Availability",),
    "hflray.world.fading": ("Fading",),
    "hflray.world.mobility": ("Mobility",),
}
_MODULE = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE)]


if not TYPE_CHECKING:  # because with this function a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULE:
            raise AttributeError(f"module 'hflray' has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULE[name]), name)
        globals()[name] = value  # later uses do not call this function again
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
