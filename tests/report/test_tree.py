"""Runs with a tree above the edges, from their journals: details follow again, and settings stay apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hflray.experiment.record import RoundRecord
from hflray.report import page
from hflray.report.detail import Replay
from tests.report.kept import swept

FEW = ("max_rounds=2", "fleet.num_edges=3", "scheduling.name=fedavg", "assignment.name=load_balanced")
REGION = "tree.region={count: 2, iterations: 2, bandwidth_mhz: 5}"
SMALLER = "tree.region={count: 2, iterations: 2, compression: {name: sign}}"


def objectives(records: dict[str, list[RoundRecord]]) -> list[float]:
    """Return the objectives of the rounds of the only run."""
    (rounds,) = records.values()
    return [record.cost.objective for record in rounds]


@pytest.mark.parametrize(
    "overrides",
    [
        (REGION,), (SMALLER, "compression.edge={name: top_k, options: {share: 0.2}}"),
        (SMALLER, "world.compute_jitter.sigma=0.4"), ("tree.gossip={graph: complete}",),
        ("tree.gossip={graph: path}", "world.edge_failure={mtbf_s: 6, mttr_s: 3}", "cost.model_kb=100"),
    ],
)  # fmt: skip
def test_rounds_follow_again_from_the_journal(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    sweep, records = swept(tmp_path, *FEW, *overrides)
    replay, expected = Replay(sweep.runs[0]), objectives(records)
    details = [replay.round(number) for number in replay.numbers]
    np.testing.assert_allclose([detail.cost.objective for detail in details], expected, rtol=1e-9)
    text, missing = page.render(sweep)
    assert missing == []
    assert sweep.runs[0].name in text


def test_runs_of_two_trees_are_two_groups(tmp_path: Path) -> None:
    sweep, _ = swept(tmp_path, *FEW, "sweep={tree.region: {grid: [null, {count: 2}, {count: 2, iterations: 2}]}}")
    labels = list(sweep.groups())
    assert len(labels) == len(set(labels)) == 3
    assert any("2 regions, iterations 2" in label for label in labels)
    assert len({run.identity for run in sweep.runs}) == 3
