"""Evaluation of policies on held-out fleets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hflray import DivergedError
from hflray.assignment import build_assigner
from hflray.assignment.network import NetworkSpec, QNetwork, build_network
from hflray.rl import evaluation
from hflray.rl.evaluation import Evaluation, references
from hflray.rl.fleets import FleetSpec, assignment_objective, held_out
from hflray.rl.solved_fleets import prepare

SPEC = held_out(FleetSpec(num_scheduled=(3, 7), num_edges=(3, 3)))


class FixedAnswers(QNetwork):
    """A network whose best edges are the given `answers`, fleet by fleet."""

    def __init__(self, answers: list[np.ndarray]) -> None:
        super().__init__()
        self.answers, self.answered = answers, 0

    def forward(self, rows: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        q = torch.zeros((*rows.shape[:2], 3))
        for i, n in enumerate(lengths.tolist()):
            answer = self.answers[self.answered + i]
            assert len(answer) == n
            q[i, torch.arange(n), torch.as_tensor(answer).long()] = 1.0
        self.answered += len(lengths)
        return q


def test_a_policy_that_answers_as_its_teacher_agrees_fully(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "AT_ONCE", 2)
    pool = prepare(SPEC, 5, tmp_path)
    quality = Evaluation(pool, "db", 3)(FixedAnswers([fleet.labels for fleet in pool.fleets]))
    assert quality.agreement == 1.0
    assert quality.greedy_return == np.mean([len(fleet.labels) for fleet in pool.fleets])
    assert quality.ratio["teacher"] == pytest.approx(1.0, rel=1e-9)
    assert quality.objectives.tolist() == pytest.approx([fleet.objective for fleet in pool.fleets])
    worse = [np.zeros_like(fleet.labels) for fleet in pool.fleets]
    one_edge = Evaluation(pool, "db", 3)(FixedAnswers(worse))
    assert one_edge.objective > quality.objective
    assert one_edge.agreement == np.mean(np.concatenate([fleet.labels == 0 for fleet in pool.fleets]))


def test_damaged_references_are_solved_again(tmp_path) -> None:
    pool = prepare(SPEC, 2, tmp_path)
    first = references(pool)
    path = tmp_path / "references.npz"
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (b"", whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        path.write_bytes(damaged)
        again = references(pool)
        assert all(np.array_equal(again[name], first[name]) for name in first)
        with np.load(path) as file:  # and the file is whole again
            assert set(first) - {"teacher"} == set(file.files)


def test_references_are_solved_once_and_grow_with_the_pool(tmp_path, monkeypatch) -> None:
    pool = prepare(SPEC, 3, tmp_path)
    first = references(pool)
    fleet, work = SPEC.draw(1)
    devices = np.arange(fleet.num_devices)
    search = build_assigner("local_search").assign(fleet, work, devices, np.random.default_rng(0))
    assert first["local_search"][1] == pytest.approx(assignment_objective(pool[1].problem, search))
    for name in ("teacher", "hfel-100", "hfel-300", "local_search"):
        assert (first["lower_bound"] <= first[name]).all()
    grown = references(prepare(SPEC, 5, tmp_path))
    assert all(np.array_equal(grown[name][:3], first[name]) for name in first)
    assert len(grown["hfel-300"]) == 5
    monkeypatch.setattr(evaluation, "_solve", lambda *_: pytest.fail("solved again"))
    cached = references(pool)
    assert all(np.array_equal(cached[name], first[name]) for name in first)


def test_q_values_that_are_not_finite_are_an_error(tmp_path) -> None:
    pool = prepare(SPEC, 2, tmp_path)
    network = build_network(NetworkSpec(num_edges=3, hidden=4))
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite"):
        Evaluation(pool, "db", 3)(network)
