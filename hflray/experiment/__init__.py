"""One experiment (Algorithm 6) and its parts: the scenario, the plan of a round, its record, its target, and a study.

`Experiment`, `RoundRecord` and `Scenario` are imported on first use, so that a part does not load the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hflray.experiment.experiment import Experiment as Experiment
    from hflray.experiment.record import RoundRecord as RoundRecord
    from hflray.experiment.scenario import Scenario as Scenario

_MODULE = {"Experiment": "experiment", "RoundRecord": "record", "Scenario": "scenario"}

__all__ = ["Experiment", "RoundRecord", "Scenario"]


if not TYPE_CHECKING:  # because with this function a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULE:
            raise AttributeError(f"module 'hflray.experiment' has no attribute {name!r}")
        return getattr(importlib.import_module(f"hflray.experiment.{_MODULE[name]}"), name)
