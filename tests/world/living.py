"""Small experiments in a living world, for the tests of its parts and of the loop."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd

from hflray.experiment import Experiment
from hflray.scheduling import RoundContext, Scheduler
from hflray.support.arrays import IntArray
from tests.conftest import small_config

SCHEDULER = "scheduling.name=of_the_available"


class OfTheAvailable(Scheduler):
    """A scheduler that draws uniformly among the available devices."""

    def schedule(self, context: RoundContext) -> IntArray:
        """Return min(H, available) devices."""
        available = np.flatnonzero(context.available)
        return np.sort(context.rng.choice(available, min(self.num_scheduled, len(available)), replace=False))


def living(*overrides: str) -> Experiment:
    """Return a small experiment."""
    return Experiment(small_config(SCHEDULER, *overrides), cpus=2)


def results(experiment: Experiment) -> list[tuple[object, ...]]:
    """Return hash, metrics without measured times, and schedule of each remaining round."""
    with experiment:
        return [
            (
                record.model_hash,
                {name: value for name, value in record.metrics().items() if not name.startswith("wall/")},
                record.schedule(),
            )
            for record in experiment
        ]


def as_run(experiment: Experiment) -> SimpleNamespace:
    """Run an experiment; return what the report reads of its run, see `hflray.report.runs.Run`."""
    with experiment:
        rows = [{"round": r.round, **r.metrics(), **r.schedule()} for r in experiment]
        counts = experiment.scenario.class_counts
    devices = pd.DataFrame({"device": range(len(counts)), "samples": counts.sum(axis=1)})
    for label, column in enumerate(counts.T):
        devices[f"class/{label}"] = column
    return SimpleNamespace(
        without_schedules="",
        fleet=None,
        name="living",
        main_metric="accuracy",
        config=experiment.config,
        rounds=pd.DataFrame(rows),
        devices=devices,
        labels={},
    )
