"""hflray.world.fate: what happened to a device, in words."""

from __future__ import annotations

import numpy as np

from hflray.cost import Schedule, Workload
from hflray.timeline import Durations, EdgeRule, Ends, Hops, timeline
from hflray.world.fate import fates

INF = np.inf


def arr(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_example_4_of_the_design() -> None:
    """B leaves at 5 s as it computes in its second iteration, and C's charge ends at 4.5 s; A counts."""
    durations = Durations(arr(1, 2, 1), arr(2, 6, 2), arr(1, 2, 3), arr(1, 1, 3))
    ends = Ends(arr(INF, 5, INF), arr(10, 20, 6), arr(INF))
    work = Workload(1e6, edge_iterations=2)
    happens = timeline(Schedule([0, 1, 2], [0, 0, 0]), [1, 1, 1], work, durations, Hops.none(1), ends=ends)
    assert fates(happens, ends) == ["", "left at 5.0 s while computing", "ran out of charge at 4.5 s while computing"]


def test_a_charge_may_end_in_the_first_and_in_the_last_of_three_iterations() -> None:
    """An iteration has 1 s of computing at 2 W and 1 s of sending at 1 W. The charges are 1 J and 2 · 3 + 2.5 J."""
    durations = Durations(arr(1, 1), arr(2, 2), arr(1, 1), arr(1, 1))
    ends = Ends(arr(INF, INF), arr(1, 8.5), arr(INF))
    work = Workload(1e6, edge_iterations=3)
    happens = timeline(Schedule([0, 1], [0, 0]), [1, 1], work, durations, Hops.none(1), ends=ends)
    assert fates(happens, ends) == [
        "ran out of charge at 0.5 s while computing",
        "ran out of charge at 5.5 s while sending",
    ]


def test_a_device_without_charge_never_begins() -> None:
    durations = Durations(arr(1, 1), arr(2, 2), arr(1, 1), arr(1, 1))
    ends = Ends(arr(INF, INF), arr(0, INF), arr(INF))
    happens = timeline(Schedule([0, 1], [0, 0]), [1, 1], Workload(1e6), durations, Hops.none(1), ends=ends)
    assert fates(happens, ends) == ["ran out of charge at 0.0 s while waiting", ""]


def test_a_device_may_leave_as_it_sends_or_waits() -> None:
    durations = Durations(arr(2, 1, 3), arr(1, 1, 1), arr(2, 1, 3), arr(1, 1, 1))
    ends = Ends(arr(3.2, 4, INF), arr(INF, INF, INF), arr(INF))
    work = Workload(1e6, edge_iterations=2)
    happens = timeline(Schedule([0, 1, 2], [0, 0, 0]), [1, 1, 1], work, durations, Hops.none(1), ends=ends)
    assert fates(happens, ends) == ["left at 3.2 s while sending", "left at 4.0 s while waiting", ""]


def test_a_device_may_lose_its_edge_or_come_too_late() -> None:
    durations = Durations(arr(1, 2), arr(2, 4), arr(1, 1), arr(1, 1))
    ends = Ends(arr(INF, INF), arr(INF, INF), arr(INF, 4))
    hops = Hops(arr(0.5, 0.5), arr(0.1, 0.1), np.array([True, True]))
    happens = timeline(Schedule([7, 8], [0, 1]), [1, 1], Workload(1e6, edge_iterations=2), durations, hops, ends=ends)
    assert fates(happens, ends) == ["", "lost its edge at 4.0 s while computing"]
    never = Ends.never(2, 1)
    rule = EdgeRule(deadline_s=2.5)
    happens = timeline(
        Schedule([7, 8], [0, 0]),
        [1, 1],
        Workload(1e6, edge_iterations=2),
        durations,
        Hops.none(1),
        rule=rule,
        ends=never,
    )
    assert fates(happens, never) == ["", "came too late in 2 of 2 edge iterations"]
