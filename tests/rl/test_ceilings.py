"""The largest return that imitation of a random teacher can reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hflray.rl import ceilings as module
from hflray.rl.ceilings import ceiling, ceilings, labels_of
from tests.rl.small import TINY

SPEC = replace(TINY, teacher="hfel", options={"exchanges": 20, "start": "geographic"})


def test_a_deterministic_teacher_can_be_imitated_fully() -> None:
    assert ceiling(np.tile([0, 2, 1, 1], (10, 1))) == (4.0, 4.0)


def test_a_ceiling_worked_out_by_hand() -> None:
    # Device 0: edge 0 in 3 of 4 runs, +0.5. Device 1: each of two edges in 2 of 4 runs, 0.
    labels = np.array([[0, 0], [0, 0], [0, 1], [1, 1]])
    all_runs, left_out = ceiling(labels)
    assert all_runs == pytest.approx(0.5)
    # The other runs always choose edge 0 for device 0, correctly in 3 of 4 runs, and always the wrong one for device 1.
    assert left_out == pytest.approx(0.5 - 1.0)


def test_a_leave_one_out_ceiling_of_coin_tosses_is_about_zero() -> None:
    labels = np.random.default_rng(0).integers(2, size=(400, 50))
    all_runs, left_out = ceiling(labels)
    assert 0 < all_runs < 5
    assert abs(left_out) < 3
    assert left_out < all_runs


def test_each_fleet_and_run_has_a_stream_of_its_own() -> None:
    labels = labels_of(SPEC, 0, 6)
    assert labels.shape == (6, SPEC.draw(0)[0].num_devices)
    np.testing.assert_array_equal(labels, labels_of(SPEC, 0, 6))
    np.testing.assert_array_equal(labels[:3], labels_of(SPEC, 0, 3))
    assert len({row.tobytes() for row in labels}) > 1
    assert list(ceilings(SPEC, 2, 6)) == [ceiling(labels), ceiling(labels_of(SPEC, 1, 6))]


def test_the_command_prints_a_line_for_each_start(capsys) -> None:
    small = ["scheduling.num_scheduled=8", "fleet.num_edges=3"]
    arguments = ["--fleets", "2", "--runs", "3", *(part for item in small for part in ("--set", item))]
    assert module.main(arguments) == 0
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "hfel from the geographic start, H = 8",
        "hfel from the best_gain start, H = 8",
    ]
    assert "best_gain: 2 of 2 fleets" in err
    assert module.main(["--runs", "1"]) == 2
    assert module.main(["--set", "learning.teacher.name=hfle"]) == 2
    assert "did you mean 'hfel'" in capsys.readouterr().err
