"""hflray.clock.waiting: which edges go on in a period, with the numbers of design-next.md, example 2."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hflray.clock.waiting import Period, planned_s
from hflray.config.clock import EdgeClockConfig
from hflray.cost import Schedule, Workload
from hflray.errors import ConfigError
from hflray.timeline import Durations, Ends, Hops, Timeline, timeline

NONE = np.zeros(2)
WORK = Workload(model_bits=1.0, edge_iterations=5)
HOPS = Hops(np.array([0.5, 0.5]), NONE, np.ones(2, dtype=bool))


def played(
    period_s: float, max_iterations: int | None = None, ends: Ends | None = None, actual_s: tuple[float, float] = (2, 3)
) -> Timeline:
    """Return a round of two edges of a device each, whose planned iterations take 2 s and 3 s."""
    durations = Durations(np.array(actual_s) - 1.0, np.ones(2), np.ones(2), np.ones(2))
    period = Period(period_s, np.array([2.0, 3.0]), max_iterations)
    schedule = Schedule(np.arange(2), np.arange(2))
    return timeline(schedule, [300, 100], WORK, durations, HOPS, ends=ends, period=period)


def test_the_worked_example() -> None:
    happens = played(7.0)
    assert happens.participates.sum(axis=0).tolist() == [3, 2]
    assert happens.edge_delay_s.tolist() == [6.5, 6.5]
    assert happens.delay_s == 7.0
    assert happens.total_j == 5 * 2.0
    assert happens.message_bits == 5 + 2
    assert happens.edge_weight().tolist() == [300, 100]
    assert len(happens.table()["device"]) == 5


@pytest.mark.parametrize(("period_s", "iterations"), [(0.1, [1, 1]), (4.5, [2, 1]), (4.49, [1, 1]), (6.5, [3, 2])])
def test_an_edge_goes_on_if_it_can_send_in_time(period_s: float, iterations: list[int]) -> None:
    happens = played(period_s)
    assert happens.participates.sum(axis=0).tolist() == iterations
    assert happens.delay_s == max(period_s, happens.edge_delay_s.max())  # T is the period or the slowest edge


def test_what_really_elapsed_counts_beside_what_is_planned() -> None:
    assert played(9.0, actual_s=(4, 3)).participates.sum(axis=0).tolist() == [2, 2]


def test_a_limit_of_iterations() -> None:
    assert played(100.0, max_iterations=4).participates.sum(axis=0).tolist() == [4, 4]


def test_an_edge_without_living_devices_begins_no_iteration() -> None:
    ends = replace(Ends.never(2, 2), vanish_s=np.array([2.5, np.inf]))
    happens = played(7.0, ends=ends)
    assert happens.participates.sum(axis=0).tolist() == [1, 2]
    assert np.isfinite(happens.start_s).sum(axis=0).tolist() == [2, 2]


def test_a_planned_iteration_has_the_limits_of_the_edge() -> None:
    edges, delay_s = np.array([0, 0, 0, 2]), np.array([1.0, 2.0, 4.0, 3.0])

    def planned(**limits: float) -> list[float]:
        return planned_s(EdgeClockConfig(**limits), edges, delay_s, 3).tolist()

    assert planned() == [4, 0, 3]
    assert planned(deadline=0.5) == [2, 0, 1.5]
    assert planned(deadline_s=2.5) == [2.5, 0, 2.5]
    assert planned(first=1) == [1, 0, 3]
    assert planned(first=0.5, deadline_s=1.5) == [1.5, 0, 1.5]


def test_a_period_with_too_many_iterations_is_refused() -> None:
    seconds = np.array([0.0, 1e-4, 3.0])  # an edge without devices does not count
    Period(1.0, seconds).check(1)
    Period(9.0, seconds, max_iterations=5).check(1)
    with pytest.raises(
        ConfigError, match=r"period_s: got 9; an edge whose iterations take 0\.0001 s in round 3 .* max_it"
    ):
        Period(9.0, seconds).check(3)
