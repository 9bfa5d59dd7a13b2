"""The exponents of time and memory: known ones are measured, and the tables vary what they say."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks import scale


def test_the_exponents_of_known_steps_are_measured(monkeypatch) -> None:
    """A step whose seconds go with N·M and whose memory goes with H² has these exponents, and no others."""

    def steps_of(n: int, h: int, m: int) -> dict[str, tuple[float, float]]:
        return dict.fromkeys(scale.STEPS, (1e-9 * n * m, 3.0 * h**2))

    monkeypatch.setattr(scale, "steps_of", steps_of)
    monkeypatch.setattr(scale, "spent", lambda step: step)
    table = scale.exponents()
    assert [row["row"] for row in table.rows] == list(scale.STEPS)
    for row in table.rows:
        slopes = {key: value for key, value in row.items() if str(key).startswith(("time ", "memory "))}
        expected = {"time N": 1, "time H": 0, "time M": 1, "memory N": 0, "memory H": 2, "memory M": 0}
        assert slopes == pytest.approx(expected, abs=1e-9)
        assert row["seconds"] == pytest.approx(1e-9 * scale.BASE["N"] * scale.BASE["M"])


def test_the_memory_of_a_call_is_the_peak_of_its_arrays() -> None:
    seconds, memory_mb = scale.spent(lambda: np.zeros(2**20).sum())
    assert seconds > 0
    assert memory_mb == pytest.approx(8, abs=0.5)


def test_every_step_of_a_small_fleet_can_be_called_twice() -> None:
    steps = scale.steps_of(500, 50, 5)
    assert tuple(steps) == scale.STEPS
    for call in steps.values():
        call()
        call()
