"""Policies on held-out fleets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hflray import DivergedError
from hflray.assignment import build_assigner
from hflray.assignment.network import NetworkSpec, QNetwork, build_network
from hflray.rl import evaluation
from hflray.rl.evaluation import Evaluation, references
from hflray.rl.fleets import FleetSpec, held_out, objective_of
from hflray.rl.pool import prepare

SPEC = held_out(FleetSpec(num_scheduled=(3, 7), num_edges=(3, 3)))


class Told(QNetwork):
    """Gives every device of every fleet the edge it was told."""

    def __init__(self, answers: list[np.ndarray]) -> None:
        super().__init__()
        self.answers, self.seen = answers, 0

    def forward(self, rows: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        q = torch.zeros((*rows.shape[:2], 3))
        for i, n in enumerate(lengths.tolist()):
            answer = self.answers[self.seen + i]
            assert len(answer) == n
            q[i, torch.arange(n), torch.as_tensor(answer).long()] = 1.0
        self.seen += len(lengths)
        return q


def test_a_policy_that_answers_as_the_teacher(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "AT_ONCE", 2)
    pool = prepare(SPEC, 5, tmp_path)
    quality = Evaluation(pool, "db", 3)(Told([fleet.labels for fleet in pool.fleets]))
    assert quality.agreement == 1.0
    assert quality.greedy_return == np.mean([len(fleet.labels) for fleet in pool.fleets])
    assert quality.ratio["teacher"] == pytest.approx(1.0, rel=1e-9)
    assert quality.objectives.tolist() == pytest.approx([fleet.objective for fleet in pool.fleets])
    worse = [np.zeros_like(fleet.labels) for fleet in pool.fleets]
    one_edge = Evaluation(pool, "db", 3)(Told(worse))
    assert one_edge.objective > quality.objective
    assert one_edge.agreement == np.mean(np.concatenate([fleet.labels == 0 for fleet in pool.fleets]))


def test_references_are_solved_once_and_grow(tmp_path, monkeypatch) -> None:
    pool = prepare(SPEC, 3, tmp_path)
    found = references(pool)
    fleet, work = SPEC.draw(1)
    devices = np.arange(fleet.num_devices)
    search = build_assigner("local_search").assign(fleet, work, devices, np.random.default_rng(0))
    assert found["local_search"][1] == pytest.approx(objective_of(pool[1].problem, search))
    for name in ("teacher", "hfel-100", "hfel-300", "local_search"):
        assert (found["lower_bound"] <= found[name]).all()
    more = references(prepare(SPEC, 5, tmp_path))
    assert all(np.array_equal(more[name][:3], found[name]) for name in found)
    assert len(more["hfel-300"]) == 5
    monkeypatch.setattr(evaluation, "_solve", lambda *_: pytest.fail("solved again"))
    again = references(pool)
    assert all(np.array_equal(again[name], found[name]) for name in found)


def test_values_that_are_not_finite(tmp_path) -> None:
    pool = prepare(SPEC, 2, tmp_path)
    network = build_network(NetworkSpec(num_edges=3, hidden=4))
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite"):
        Evaluation(pool, "db", 3)(network)
