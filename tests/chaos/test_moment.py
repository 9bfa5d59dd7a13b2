"""Moments are uniform over the unbroken run, and are found again in a command that goes on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.chaos.moment import Moment, Timeline

LINE = Timeline([10.0, 12.0, 14.0, 16.0], 20.0, {"driver": (0.0, 20.0), "trial": (6.0, 18.0)})


@pytest.mark.parametrize(
    "time_s, moment",
    [(4.0, Moment(0, 4.0)), (10.0, Moment(1, 0.0)), (15.0, Moment(3, 1.0)), (19.0, Moment(4, 3.0))],
)
def test_a_time_is_kept_as_rounds_and_the_time_since_then(time_s: float, moment: Moment) -> None:
    assert LINE.at(time_s) == moment


def test_moments_of_a_whole_run_are_uniform_over_the_life_of_the_place() -> None:
    for place, (low, high) in LINE.spans_s.items():
        for fraction in (0.0, 0.3, 0.99):
            moment, expected = LINE.draw(place, fraction), LINE.at(low + fraction * (high - low))
            assert moment.rounds == expected.rounds
            assert moment.delay_s == pytest.approx(expected.delay_s)
    assert LINE.draw("mlflow", 0.5) == LINE.at(10.0)  # a place that was not seen has the life of the driver


def test_a_command_that_goes_on_has_its_start_and_the_rounds_that_are_left() -> None:
    assert LINE.parts_s("driver", made=3) == [(0.0, 10.0), (14.0, 20.0)]
    assert LINE.parts_s("trial", made=3) == [(6.0, 10.0), (14.0, 18.0)]
    moments = [LINE.draw("driver", fraction, made=3) for fraction in np.linspace(0, 1, 17)]
    assert {moment.rounds for moment in moments[:10]} == {0}  # ten of sixteen seconds are the start
    assert {moment.rounds for moment in moments[11:]} == {3, 4}
