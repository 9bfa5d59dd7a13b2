"""The timeline of a round has the numbers of the worked examples, and those of `round_cost` where all goes as planned.

The examples 1, 4, 5 and 6 have numbers that are worked out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hflray.clock.waiting import WAITS, arrivals
from hflray.config import FleetConfig
from hflray.config.clock import EdgeClockConfig
from hflray.cost import Schedule, Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import sample_fleet
from hflray.timeline import Durations, Ends, Hops, Timeline, timeline

Z = 6e6
Row = Sequence[Any]  # of the devices: seconds and joules


def arr(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def play(
    compute: Row, upload: Row, q: int = 1, edges: Sequence[int] = (), samples: Sequence[int] = (),
    hops: Hops | None = None, devices: Sequence[int] = (), **options: Any,
) -> Timeline:  # fmt: skip
    """Return the timeline of devices from the seconds and joules of computing and uploads; at one edge if none."""
    durations = Durations(*(np.array(part, dtype=np.float64) for part in (*compute, *upload)))
    count = durations.compute_s.shape[-1]
    schedule = Schedule(devices or range(count), edges or [0] * count)
    work, samples = Workload(Z, edge_iterations=q), samples or [1] * count
    return timeline(schedule, samples, work, durations, hops or Hops.none(max(edges, default=0) + 1), **options)


def one_edge(rule: EdgeClockConfig = WAITS, ends: Ends | None = None) -> Timeline:
    """Example 1: three devices at one edge, Q = 1; computing takes 1 W and sending 10 W, so that joules say seconds."""
    compute, upload = [(1, 2, 1)] * 2, [(1, 2, 5), (10, 20, 50)]
    return play(compute, upload, samples=[10, 20, 30], devices=[4, 5, 6], rule=rule, ends=ends)


def two_edges(**options: Any) -> Timeline:
    """Two devices at an edge each, Q = 2; an edge takes 0.5 s and 0.1 J for its hop."""
    hops = options.pop("hops", Hops(arr(0.5, 0.5), arr(0.1, 0.1), np.array([True, True])))
    return play([(1, 2), (2, 4)], [(1, 1)] * 2, 2, [0, 1], [10, 30], hops, [7, 8], **options)


def test_an_edge_waits_for_all_by_default() -> None:
    found = one_edge()
    assert found.delay_s == 6
    assert found.energy_j.tolist() == [[11, 22, 51]]
    assert found.end_s.tolist() == [[2, 4, 6]]
    assert found.participates.all()
    assert found.message_bits == 3 * Z
    assert found.wasted_j == 0


@pytest.mark.parametrize(
    "rule",
    [
        EdgeClockConfig(deadline_s=4),
        EdgeClockConfig(first=2),
        EdgeClockConfig(first=0.6),
        EdgeClockConfig(deadline=2 / 3),
    ],
)
def test_a_device_that_is_late_is_billed_until_the_end_and_does_not_count(rule: EdgeClockConfig) -> None:
    found = one_edge(rule)
    assert found.delay_s == 4
    assert found.participates.tolist() == [[True, True, False]]
    assert found.energy_j.tolist() == [[11, 22, 31]]  # 1 s of computing and 3 s of sending
    assert found.bits.tolist() == [[Z, Z, pytest.approx(3 / 5 * Z)]]
    assert found.computed_s.tolist() == [[1, 2, 1]]
    assert found.edge_weight().tolist() == [30]
    assert (found.wasted_j, found.discarded) == (31, 1 / 3)


def test_the_first_arrival_ends_the_iteration() -> None:
    found = one_edge(EdgeClockConfig(first=1))
    assert found.delay_s == 2
    assert found.participates.tolist() == [[True, False, False]]
    assert found.energy_j.tolist() == [[11, 2, 11]]  # 2 s of computing and no sending; 1 s of each
    assert found.end_s.tolist() == [[2, 2, 2]]


def test_limits_combine() -> None:
    assert one_edge(EdgeClockConfig(deadline_s=3, first=2)).delay_s == 3
    assert one_edge(EdgeClockConfig(deadline_s=5, first=2)).delay_s == 4
    assert one_edge(EdgeClockConfig(deadline_s=100, deadline=50)).delay_s == 6


def test_arrivals_at_the_end_count_and_the_end_does_not_move() -> None:
    found = play([(1, 1, 1)] * 2, [(1, 1 + 1e-6, 1 + 4e-6), (1, 1, 1)], rule=EdgeClockConfig(first=1))
    assert found.delay_s == 2
    assert found.participates.tolist() == [[True, True, False]]  # 1e-6 of 2 s is 2e-6 s
    assert found.energy_j[0, :2].tolist() == [2, 2]
    assert found.end_s[0].tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("error")
def test_what_takes_no_time_is_over_at_once() -> None:
    """Device 0 sends and device 1 computes in no time; device 2 is stopped in its computing, before such an upload."""
    found = play([(1, 0, 4), (1, 3, 4)], [(0, 1, 0), (5, 1, 5)], rule=EdgeClockConfig(deadline_s=2))
    assert found.energy_j.tolist() == [[6, 4, 2]]
    assert found.bits.tolist() == [[Z, Z, 0]]
    assert found.end_s.tolist() == [[1, 1, 2]]


def test_a_deadline_that_nobody_meets_keeps_the_edges_model() -> None:
    found = one_edge(EdgeClockConfig(deadline_s=1.5))
    assert found.delay_s == 1.5
    assert not found.participates.any()
    assert found.edge_weight().tolist() == [0]
    assert found.reached.all()


def test_a_discarded_device_takes_part_in_the_next_iteration() -> None:
    upload = [[(1, 5), (3, 1)], np.ones((2, 2))]
    found = play([(1, 1), np.ones((2, 2))], upload, 2, samples=[10, 40], rule=EdgeClockConfig(first=1))
    assert found.participates.tolist() == [[True, False], [False, True]]
    assert found.start_s.tolist() == [[0, 0], [2, 2]]
    assert found.delay_s == 4
    assert (found.samples * found.participates).sum(axis=1).tolist() == [10, 40]
    assert found.edge_weight().tolist() == [40]


def test_batteries_and_dropout() -> None:
    """Example 4: A, B and C start with 10, 20 and 6 J; B vanishes at 5 s."""
    ends = Ends(arr(np.inf, 5, np.inf), arr(10, 20, 6), arr(np.inf))
    found = play([(1, 2, 1), (2, 6, 2)], [(1, 2, 3), (1, 1, 3)], 2, samples=[100, 200, 300], ends=ends)
    assert found.iteration_end_s.tolist() == [[4], [6]]
    assert found.energy_j.tolist() == [[3, 7, 5], [3, 3, 1]]
    assert found.end_s.tolist() == [[2, 4, 4], [6, 5, 4.5]]
    assert found.participates.tolist() == [[True, True, True], [True, False, False]]
    assert (found.delay_s, found.total_j) == (6, 22)
    assert found.message_bits == 4 * Z
    assert found.edge_weight().tolist() == [100]
    assert found.spent_j.tolist() == [6, 10, 6]
    assert found.vanished.tolist() == [False, True, True]
    harvest_j = 0.1 * found.delay_s
    assert (ends.charge_j - found.spent_j + harvest_j).tolist() == pytest.approx([4.6, 10.6, 0.6])


def test_the_delay_of_a_device_is_what_its_rows_took() -> None:
    """Fading, dropout and a deadline of 4 s, Q = 2, all devices at one edge; computing is constant, uploads are not.

    A arrives after 2 and 3.5 s. B is stopped at the deadline and then arrives after 2 s. C is stopped twice. D arrives
    after 2 s and vanishes in its second row. E vanishes in its first one.
    """
    ends = Ends(arr(np.inf, np.inf, np.inf, 5, 1), np.full(5, np.inf), arr(np.inf))
    upload = [[(1, 5, 9, 1, 3), (2.5, 1, 9, 1, 3)]] * 2
    found = play([(1, 1, 2, 1, 1)] * 2, upload, 2, rule=EdgeClockConfig(deadline_s=4), ends=ends)
    assert found.participates.tolist() == [[True, False, False, True, False], [True, True, False, False, False]]
    np.testing.assert_array_equal(found.device_delay_s, [2.75, 3, 4, 2, np.nan])


def test_the_delay_of_a_device_whose_edge_fails_is_not_known() -> None:
    found = two_edges(ends=Ends(arr(np.inf, np.inf), arr(np.inf, np.inf), arr(np.inf, 4)))
    np.testing.assert_array_equal(found.device_delay_s, [2, np.nan])


def test_rows_that_go_as_planned_keep_the_bits_of_the_planned_delay() -> None:
    rng = np.random.default_rng(3)
    compute_s, upload_s = rng.uniform(0.1, 9, (2, 40))
    found = play([compute_s] * 2, [upload_s] * 2, 7, [n % 3 for n in range(40)])
    np.testing.assert_array_equal(found.device_delay_s, compute_s + upload_s)


def test_edges_idle_until_the_slowest_one_is_done() -> None:
    """Q = 2: edge 0 takes 2 · 2 s and its hop of 0.5 s, edge 1 takes 2 · 3 s and its hop, and edge 2 only its hop."""
    found = two_edges(hops=Hops(arr(0.5, 0.5, 0.5), arr(0.1, 0.1, 0.1), np.array([True, True, True])))
    assert found.edge_delay_s.tolist() == [4.5, 6.5, 0.5]
    assert found.edge_idle_s == 2 + 0 + 6
    assert (found.wasted_j, found.discarded) == (0, 0)


def test_an_edge_that_fails_loses_its_share() -> None:
    """Example 5: edge 1 fails at 4 s, in its second iteration."""
    found = two_edges(ends=Ends(arr(np.inf, np.inf), arr(np.inf, np.inf), arr(np.inf, 4)))
    assert found.edge_delay_s.tolist() == [4.5, 4]
    assert found.edge_energy_j.tolist() == [pytest.approx(6.1), 7]
    assert (found.delay_s, found.total_j) == (4.5, pytest.approx(13.1))
    assert found.edge_idle_s == 0  # edge 1 is down, and does not wait
    assert found.message_bits == 4 * Z
    assert found.participates.tolist() == [[True, False], [True, False]]
    assert found.arrived.tolist() == [[True, True], [True, False]]
    assert found.reached.tolist() == [True, False]
    assert found.edge_weight().tolist() == [10, 0]


def test_a_failure_during_the_hop_loses_the_share_and_one_at_its_end_does_not() -> None:
    hops = Hops(arr(1), arr(4), np.array([True]))
    for fail_s, reached, energy_j, bits in ((2.5, False, 5, 1.5 * Z), (3, True, 7, 2 * Z), (2, False, 3, Z)):
        found = play([(1,), (2,)], [(1,), (1,)], hops=hops, ends=Ends(arr(np.inf), arr(np.inf), arr(fail_s)))
        assert (found.reached.tolist(), found.total_j, found.message_bits) == ([reached], energy_j, bits)
        assert found.delay_s == fail_s
        assert found.participates.tolist() == [[reached]]


def test_an_edge_that_is_down_from_the_start_costs_nothing() -> None:
    hops = Hops(arr(1, 1), arr(4, 4), np.array([True, False]))
    ends = Ends(arr(np.inf), arr(np.inf), arr(np.inf, 0))
    found = play([(1,), (2,)], [(1,), (1,)], hops=hops, ends=ends)
    assert found.edge_delay_s.tolist() == [3, 0]
    assert found.edge_energy_j.tolist() == [7, 0]
    assert found.reached.tolist() == [True, False]


def test_an_edge_without_a_hop_that_fails_in_its_last_iteration_does_not_count() -> None:
    """As one without a neighbour in gossip: its only device has arrived in the first of two iterations of 3 s."""
    for fail_s, counts in ((2, False), (4, False), (7, True)):
        found = play([(1,), (1,)], [(2,), (2,)], 2, hops=Hops.none(1), ends=Ends(arr(np.inf), arr(np.inf), arr(fail_s)))
        assert found.reached.tolist() == [counts]
        assert found.participates.any() == counts


def test_a_device_that_receives_is_not_busy() -> None:
    """One device has its model after 1 s; the other one is stopped as it receives."""
    durations = Durations(arr(2, 2), arr(1, 1), arr(3, 3), arr(1, 1), download_s=arr(1, 9), download_j=arr(1, 1))
    rule, both = EdgeClockConfig(deadline_s=7), Schedule([0, 1], [0, 0])
    found = timeline(both, [1, 1], Workload(Z, edge_iterations=1), durations, Hops.none(1), rule=rule)
    assert found.end_s.tolist() == [[6, 7]]
    assert found.busy_s.tolist() == [5, 0]
    assert found.device_delay_s[0] == 6  # with the download
    assert found.download_j is not None
    assert found.download_j.tolist() == [pytest.approx([1, 7 / 9])]  # the edge stops sending too


def test_a_broadcast_goes_on_until_the_last_device_is_through_or_stopped() -> None:
    durations = Durations(
        arr(2, 2), arr(1, 1), arr(3, 3), arr(1, 1), download_s=arr(10, 10), download_j=arr(1, 1), together=True
    )
    ends, both = Ends(arr(3, np.inf), arr(np.inf, np.inf), arr(np.inf)), Schedule([0, 1], [0, 0])
    for deadline_s, part in ((7, 0.7), (12, 1.0)):  # the first device vanishes after 3 s
        rule = EdgeClockConfig(deadline_s=deadline_s)
        found = timeline(both, [1, 1], Workload(Z, edge_iterations=1), durations, Hops.none(1), ends=ends, rule=rule)
        assert found.download_j is not None
        assert found.download_j.tolist() == [pytest.approx([part, part])]


def test_fading_against_a_deadline() -> None:
    """Example 6: the links' factors are 1/3 and 15/7, and the deadline is 1.5 times the planned 4 s."""
    ratio = np.log2(1 + arr(3, 7))
    planned_u = Z / (1e6 * ratio)
    actual_u = Z / (1e6 * np.log2(1 + arr(3, 7) * arr(1 / 3, 15 / 7)))
    assert planned_u == pytest.approx([3, 2])
    assert actual_u == pytest.approx([6, 1.5])
    compute_s, rule = arr(1, 2), EdgeClockConfig(deadline=1.5)
    planned_s = [max(compute_s + planned_u)]
    found = play([compute_s, 0.5 * compute_s], [actual_u, 0.1 * actual_u], rule=rule, planned_s=planned_s)
    assert found.delay_s == pytest.approx(6)
    assert found.total_j == pytest.approx(2.15)
    assert found.participates.tolist() == [[False, True]]
    assert found.message_bits == pytest.approx((5 / 6 + 1) * Z)


def test_a_device_may_vanish_at_the_moment_it_arrives() -> None:
    ends = Ends(arr(2, 3.9, np.inf), arr(np.inf, np.inf, 51), arr(np.inf))
    found = one_edge(ends=ends)
    assert found.participates.tolist() == [[True, False, True]]  # the third has exactly the charge that it needs
    assert found.delay_s == 6
    assert found.vanished.tolist() == [True, True, True]


LATE = {"vanish_s": arr(np.inf, np.inf, 1), "charge_j": np.full(3, np.inf), "fail_s": arr(np.inf)}


@pytest.mark.parametrize(
    ("after_s", "rule", "iteration_end_s"),
    [
        (0, EdgeClockConfig(), [4, 8]),  # A and B take 2 and 4 s an iteration; C vanishes at 1 s
        (2, EdgeClockConfig(), [4, 8]),  # it is noticed before B arrives
        (5, EdgeClockConfig(), [6, 10]),  # at 6 s
        (5, EdgeClockConfig(deadline_s=4.5), [4.5, 8.5]),  # a limit ends the iteration earlier
        (5, EdgeClockConfig(first=2), [4, 8]),
        (9, EdgeClockConfig(deadline_s=4.5), [4.5, 9]),  # at 10 s, after the second limit
        (9, EdgeClockConfig(deadline_s=5), [5, 10]),
        (9, EdgeClockConfig(first=1), [2, 4]),
    ],
)
def test_an_edge_waits_until_it_notices_that_a_device_is_gone(
    after_s: float, rule: EdgeClockConfig, iteration_end_s: list[float]
) -> None:
    ends = Ends(**LATE, noticed_after_s=after_s)
    found = play([(1, 2, 1)] * 2, [(1, 2, 1), (10, 20, 10)], 2, rule=rule, ends=ends)
    assert found.iteration_end_s[:, 0].tolist() == iteration_end_s
    assert found.end_s[0, 2] == 1  # the device is billed until it vanishes
    assert found.spent_j[2] == 1
    assert np.isnan(found.start_s[1, 2])
    assert found.vanished.tolist() == [False, False, True]


def test_a_device_that_vanishes_while_it_waits_or_runs_out_of_charge_is_noticed_later_too() -> None:
    """A takes 2 s, B 4 s. A vanishes at 3 s, after its arrival: the second iteration waits for it until 9 s.

    C spends its charge of 1.5 J at 1.5 s; with A alive, the first iteration waits for C until 7.5 s.
    """

    def ends_s(vanish_s: list[float], charge_j: list[float], edge_fails_s: float = np.inf) -> list[float]:
        ends = Ends(arr(*vanish_s), arr(*charge_j), arr(edge_fails_s), noticed_after_s=6)
        count = len(vanish_s)
        found = play([(1, 2, 1)[:count]] * 2, [(1, 2, 3)[:count]] * 2, 2, ends=ends)
        return found.iteration_end_s[:, 0].tolist()

    inf = np.inf
    assert ends_s([3, inf], [inf, inf]) == [4, 9]
    assert ends_s([inf, inf, inf], [inf, inf, 1.5]) == [7.5, 11.5]
    assert ends_s([inf, inf, inf], [inf, inf, 4.0]) == [4, 10]  # spent as it arrives at 4 s
    assert ends_s([1, 2], [inf, inf]) == [8, 8]  # nobody is left, and the next iteration takes no time
    assert ends_s([1, 2], [inf, inf], 5) == [5, 5]  # the edge fails before it notices


def test_an_iteration_that_nobody_starts_takes_no_time() -> None:
    ends = Ends(arr(1.5, 2.5), arr(np.inf, np.inf), arr(np.inf))
    found = play([(1, 2)] * 2, [(1, 1)] * 2, 3, ends=ends)
    assert found.iteration_end_s.tolist() == [[2.5], [2.5], [2.5]]  # until the last has vanished
    assert np.isnan(found.start_s[1:]).all()
    assert found.total_j == 1 + 0.5 + 2 + 0.5
    limited = play([(1, 2)] * 2, [(1, 1)] * 2, 3, ends=ends, rule=EdgeClockConfig(deadline_s=2))
    assert limited.iteration_end_s.tolist() == [[2], [2.5], [2.5]]


@pytest.mark.parametrize("hop", [True, False])
def test_a_round_that_goes_as_planned_has_the_bill_of_the_paper(hop: bool) -> None:
    """300 random plans, to 1e-12 relative."""
    rng = np.random.default_rng(7)
    for _ in range(150):
        devices_total, num_edges = int(rng.integers(1, 60)), int(rng.integers(1, 8))
        fleet = sample_fleet(FleetConfig(num_devices=devices_total, num_edges=num_edges), rng)
        work = Workload(float(rng.uniform(1e4, 1e8)), int(rng.integers(1, 9)), int(rng.integers(1, 9)), cloud_hop=hop)
        devices = rng.permutation(devices_total)[: int(rng.integers(1, devices_total + 1))]
        edges = rng.integers(0, num_edges, len(devices))
        allocation = _Allocation(rng.uniform(1e4, 1e6, len(devices)), rng.uniform(1e8, 2e9, len(devices)))
        cost = round_cost(fleet, work, devices, edges, allocation)
        found = timeline(
            Schedule(devices, edges), fleet.samples[devices], work, Durations.of(cost), Hops.of(fleet, work)
        )
        assert found.delay_s == pytest.approx(cost.delay_s, rel=1e-12, abs=0)
        assert found.total_j == pytest.approx(cost.energy_j, rel=1e-12, abs=0)
        assert found.message_bits == pytest.approx(cost.message_bits, rel=1e-12, abs=0)
        np.testing.assert_allclose(found.edge_delay_s, cost.edge_delay_s, rtol=1e-12)
        assert found.edge_idle_s == pytest.approx((cost.delay_s - cost.edge_delay_s).sum(), rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(found.edge_energy_j, cost.edge_energy_j, rtol=1e-12)
        assert found.participates.all()


class _Allocation:
    def __init__(self, bandwidth_hz: np.ndarray, cpu_hz: np.ndarray) -> None:
        self.bandwidth_hz, self.cpu_hz = bandwidth_hz, cpu_hz


def test_the_table_has_a_row_for_each_start() -> None:
    ends = Ends(arr(np.inf, 5, 1.5), arr(np.inf, np.inf, np.inf), arr(np.inf, np.inf))
    made = play([(1, 2, 1), (2, 6, 2)], [(1, 2, 3), (1, 1, 3)], 2, [1, 0, 0], devices=[9, 3, 5], ends=ends)
    table = made.table()
    assert table["edge"] == [0, 0, 0, 1, 1]
    assert table["edge_iteration"] == [0, 0, 1, 0, 1]
    assert table["device"] == [3, 5, 3, 9, 9]
    assert table["start_s"] == [0, 0, 4, 0, 2]
    assert table["computed_s"] == [2, 1, None, 1, 3]
    assert table["end_s"] == [4, 1.5, 5, 2, 4]
    assert table["counts"] == [True, False, False, True, True]
    assert table["turn"] == table["version"] == [0] * 5


def test_a_share_of_the_devices_is_rounded_up() -> None:
    assert arrivals(EdgeClockConfig(first=0.1), np.array([30, 31, 0])).tolist() == [3, 4, 0]
    assert arrivals(EdgeClockConfig(first=4), np.array([30, 2])).tolist() == [4, 2]
    assert arrivals(EdgeClockConfig(first=1.0), np.array([30])).tolist() == [30]


def test_a_relative_deadline_needs_a_planned_iteration() -> None:
    with pytest.raises(ConfigError, match="planned_s"):
        play([np.ones((2, 1))] * 2, [np.ones((2, 1))] * 2, 2, rule=EdgeClockConfig(deadline=2.0))
