"""hflray.report.turns: the turns of an asynchronous run are those of its timelines, in seconds since the start."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hflray.config import load_config
from hflray.experiment import Experiment, RoundRecord
from hflray.report.turns import turns_of

SETTINGS = (
    "data.name=digits", "fleet.num_devices=20", "fleet.num_edges=3", "scheduling.name=fedavg",
    "scheduling.num_scheduled=9", "assignment.name=best_gain", "training.edge_iterations=2", "model.name=mlp",
    "training.backend=serial", "training.kernel=batched", "training.threads=1", "max_rounds=6",
    "world.compute_jitter.sigma=0.4",
)  # fmt: skip


def rounds_of(cloud: str) -> Iterator[RoundRecord]:
    with Experiment(load_config(None, [*SETTINGS, f"clock.cloud={cloud}"]), cpus=1) as experiment:
        yield from experiment


def test_other_clouds_have_no_turns() -> None:
    assert turns_of((record.timeline, record.cost.delay_s) for record in rounds_of("synchronous")) is None


@pytest.mark.parametrize("cloud", ["asynchronous", "{asynchronous: {buffer: 2}}", "{asynchronous: {rule: fedat}}"])
def test_an_edge_begins_a_turn_when_its_model_has_arrived(cloud: str) -> None:
    records = list(rounds_of(cloud))
    turns = turns_of((record.timeline, record.cost.delay_s) for record in records)
    assert turns is not None
    assert len(turns["edge"]) == sum(len(record.timeline.runs.updates) for record in records) == 18
    assert turns["end"] == sorted(turns["end"])
    assert turns["rounds"] == pytest.approx(np.cumsum([record.cost.delay_s for record in records]), abs=1e-5)
    assert turns["end"][-1] <= turns["rounds"][-1] + 1e-5
    for edge in range(3):
        own = [i for i, each in enumerate(turns["edge"]) if each == edge]
        starts, sent, ends = ([turns[name][i] for i in own] for name in ("start", "sent", "end"))
        assert starts[0] == 0
        assert all(start < middle < end for start, middle, end in zip(starts, sent, ends, strict=True))
        # No edge starts a turn before the last one has arrived; it may wait for a plan that gives it devices.
        assert all(start >= end - 1e-5 for start, end in zip(starts[1:], ends, strict=False))
    assert turns["stale"][0] == 0
    assert max(turns["stale"]) > 0
    assert all(version >= 0 for version in turns["version"])


@pytest.mark.parametrize("cloud", ["synchronous", "asynchronous"])
def test_asynchronous_edges_have_turns_too(cloud: str) -> None:
    settings = [*SETTINGS, f"clock.cloud={cloud}", "clock.edge=asynchronous"]
    with Experiment(load_config(None, settings), cpus=1) as experiment:
        turns = turns_of((record.timeline, record.cost.delay_s) for record in experiment)
    assert turns is not None
    assert len(turns["edge"]) > 9
    assert all(
        start <= sent <= end for start, sent, end in zip(turns["start"], turns["sent"], turns["end"], strict=True)
    )
