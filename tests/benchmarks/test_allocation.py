"""tests/benchmarks/allocation.py runs on a few edges, with equal threads, and a moved batch has other gains."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.training.machine import available_cpus
from tests.allocation.instances import random_edge, solve_all
from tests.benchmarks import allocation


def problems(count: int = 6):
    rng = np.random.default_rng(0)
    return [random_edge(rng, max_devices=5) for _ in range(count)]


def test_every_link_of_a_moved_batch_moves_by_a_decibel_up_or_down() -> None:
    before = problems()
    after = allocation.moved(before, np.random.default_rng(1))
    db = np.concatenate([10 * np.log10(b.snr_hz / a.snr_hz) for a, b in zip(before, after, strict=True)])
    np.testing.assert_allclose(np.abs(db), 1.0, rtol=1e-9)
    assert {-1, 1} == set(np.sign(db))
    for a, b in zip(before, after, strict=True):
        for field in dataclasses.fields(a):
            if field.name != "snr_hz":
                np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_a_batch_that_does_not_move_is_refused_as_a_moved_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "moved", lambda problems, rng: list(problems))
    with pytest.raises(AssertionError, match="the moved batch has the objectives"):
        allocation.rows([], problems(), 2, 12)


def test_a_flat_batch_has_the_solution_of_solve_all() -> None:
    flat, reference = allocation.solve_batch(*allocation.flat(problems())), solve_all(problems())[0]
    np.testing.assert_array_equal(flat.feasible.bandwidth_hz, reference.feasible.bandwidth_hz)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.timeout(600)  # for a busy machine, because each process imports CVXPY
def test_both_sides_have_the_threads_of_the_rows(threads: int) -> None:
    if len(available_cpus()) < threads:
        pytest.skip("one CPU")
    table = allocation.speed(threads, edges=8, repeats=2, batch=64)
    assert len(table.rows) == (6 if threads == 1 else 4)
    for row in table.rows:
        assert row["threads"] == row["cvxpy_threads"] == threads
        # One thread more would give about one CPU more; short measurements are off by some 15 %.
        assert 0 < row["cpus_had"] <= threads + 0.5
        assert 0 < row["cvxpy_cpus_had"] <= threads + 0.5
        assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
    names = [row["row"] for row in table.rows]
    assert names[-3:] == ["moved by 1 dB a link, cold", "moved by 1 dB a link, warm", "not moved at all, warm"]
    assert "alike for the moved edges" in table.text()
    assert table.key == f"allocation/{'one thread' if threads == 1 else 'two threads'}"
    assert table.ratios == {row["row"]: row["ratio"] for row in table.rows}


def test_the_hard_instances_are_returned_as_data() -> None:
    table = allocation.stress(50)
    assert table.key == "allocation/hard instances"
    assert table.facts["instances"] == 50
    assert table.facts["kkt_residual"] < 1e-9
    assert "largest KKT residual" in table.text()
