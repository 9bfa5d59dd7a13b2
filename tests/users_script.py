"""A script as a user writes it: mypy, run by ``make type``, must see the types of the public names, and not ``Any``."""

from __future__ import annotations

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import hflray
from hflray import Assigner, Dataset, Experiment, Fleet, RoundRecord, Scheduler, Workload, load_config


class Carousel(Scheduler):
    def schedule(self, rng: np.random.Generator) -> NDArray[np.intp]:
        return np.arange(self.num_scheduled)


def main() -> None:
    config = load_config(None, ["max_rounds=2"])
    assert_type(config, hflray.ExperimentConfig)
    assert_type(config.training.learning_rate, float)
    for record in Experiment(config):
        assert_type(record, RoundRecord)
        assert_type(record.metrics(), dict[str, float])
    assert_type(hflray.load_dataset("digits"), Dataset)
    assert_type(hflray.Workload.of(config, model_bits=1e6), Workload)
    fleet = hflray.sample_fleet(config.fleet, np.random.default_rng(0))
    assert_type(fleet, Fleet)
    assigner = hflray.build_assigner("hfel", exchanges=300)
    assert_type(assigner, Assigner)
    scheduler: Scheduler = Carousel(num_devices=5, num_scheduled=3)
    assert_type(scheduler.schedule(np.random.default_rng(0)), NDArray[np.intp])
    hflray.Experimnt  # type: ignore[attr-defined]  # noqa: B018
    Carousel(num_devices=5.0, num_scheduled=3)  # type: ignore[arg-type]
