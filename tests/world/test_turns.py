"""hflray.world.turns: the order of updates, who is under way, and the bill, with design-next.md, example 1.

The mistakes of others that section 5 lists have tests here and in tests/clock, tests/training and tests/experiment.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hflray.clock.asynchronous import Asynchrony
from hflray.cost import Schedule, Workload
from hflray.timeline import Durations, Ends, Hops, timeline
from hflray.world.turns import AsynchronousRound, Turn, UnderWay, play, timeline_of

WORK = Workload(model_bits=8.0, edge_iterations=1)
ROUND = 1
UP = np.ones(2, dtype=bool)


def turn(edge: int, begin_s: float, turn_s: float, weight: float = 100.0, ends: Ends | None = None) -> Turn:
    """Return a turn of an edge with one device of its number. Its hop takes a fifth of it, its computing two fifths."""
    fifth = np.array([turn_s / 5])
    hops = Hops(fifth, np.array([2.0]), np.ones(1, dtype=bool))
    durations = Durations(2 * fifth, np.array([6.0]), 2 * fifth, np.array([4.0]))
    happens = timeline(Schedule(np.array([edge]), np.array([0])), [weight], WORK, durations, hops, ends=ends)
    counts = weight if happens.participates.any() else 0.0
    power_w = np.array([4.0]) / (2 * fifth)
    return Turn(edge, 0, ROUND, 0, begin_s, 0, 0, 200.0, counts, power_w, happens)


def rounds(
    rule: Asynchrony, count: int, seconds: tuple[float, ...] = (2.0, 3.0), weights: tuple[float, ...] = (300.0, 100.0)
) -> list[AsynchronousRound]:
    """Return some rounds of edges whose turns always take so many seconds."""
    state, played = UnderWay.first(len(seconds)), []
    for _ in range(count):
        one = play(
            rule, state, range(len(seconds)), lambda edge, at, first: turn(edge, at, seconds[edge], weights[edge])
        )
        played.append(one)
        state = one.after
    return played


def moments(played: AsynchronousRound) -> list[tuple[float, int, int]]:
    return [(round(each.turn.end_s, 9), each.turn.edge, each.staleness) for each in played.updates]


def test_the_worked_example() -> None:
    first, second = rounds(Asynchrony(4), 2)
    assert moments(first) == [(2, 0, 0), (3, 1, 1), (4, 0, 1), (6, 0, 0)]
    assert first.end_s == 6.0
    assert moments(second)[0] == (6, 1, 2)
    shares = [update.share for update in (*first.updates, second.updates[0])]
    assert shares == pytest.approx([0.9, 0.2121, 0.6364, 0.9, 0.1732], abs=5e-5)
    assert rounds(Asynchrony(4, mixing=0.8), 1)[0].updates[0].share == 1.0


def test_staleness_is_stamped_at_the_merge_and_not_when_training_ends() -> None:
    (played,) = rounds(Asynchrony(8), 1, (1.0, 6.5))
    assert moments(played)[6:] == [(6.5, 1, 6), (7, 0, 1)]


def test_a_buffer_makes_a_version_at_each_step() -> None:
    first, second = rounds(Asynchrony(5, buffer=3, mixing=1.0), 2)
    assert [update.steps for update in (*first.updates, *second.updates)][:6] == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert (first.after.version, first.after.buffered) == (1, 2)
    assert moments(first) == [(2, 0, 0), (3, 1, 0), (4, 0, 0), (6, 0, 0), (6, 1, 1)]


def test_fedat_counts_the_updates_of_each_edge() -> None:
    (played,) = rounds(Asynchrony(4, fedat=True), 1)
    assert [update.shares for update in played.updates] == [
        {0: 1.0}, {0: 0.5, 1: 0.5}, {1: 2 / 3, 0: 1 / 3}, {1: 3 / 4, 0: 1 / 4},
    ]  # fmt: skip


def test_no_event_knows_the_future() -> None:
    """How many updates make a round changes no arrival, and a round is the beginning of a longer one."""
    whole = [moment for one in rounds(Asynchrony(12), 1) for moment in moments(one)]
    parts = [moment for one in rounds(Asynchrony(2), 6) for moment in moments(one)]
    assert parts == whole
    assert moments(rounds(Asynchrony(5), 1)[0]) == whole[:5]


@pytest.mark.parametrize("updates", [1, 2, 3, 7])
def test_work_under_way_is_billed_when_it_is_spent(updates: int) -> None:
    played = rounds(Asynchrony(updates), 6, (2.0, 3.0, 7.0), (1.0, 1.0, 1.0))
    timelines = [timeline_of(one, np.ones(3, dtype=bool), 8.0) for one in played]
    for one, happens in zip(played, timelines, strict=True):
        assert happens.delay_s == pytest.approx(one.end_s - one.begin_s)
        assert happens.total_j == pytest.approx(happens.edge_energy_j.sum())
        assert (happens.edge_delay_s <= happens.delay_s + 1e-9).all()
    ended = [turn for one in played for turn in one.turns if one.begin_s < turn.end_s <= one.end_s]
    # A tied update is over at the end of a round, and opens the next one.
    left = [t for t in played[-1].after.turns if t.end_s > played[-1].end_s]
    whole_j = 12.0 * len(ended)
    under_way_j = sum(t.spent(played[-1].end_s).devices_j.sum() + t.spent(played[-1].end_s).hop_j for t in left)
    assert sum(happens.total_j for happens in timelines) == pytest.approx(whole_j + under_way_j)
    bits = 16.0 * len(ended) + sum(t.spent(played[-1].end_s).bits for t in left)
    assert sum(happens.message_bits for happens in timelines) == pytest.approx(bits)
    rows = sum(np.isfinite(happens.start_s).sum() for happens in timelines)
    over = [t for t in left if t.busy_until_s.max() <= played[-1].end_s]
    assert rows == len(ended) + len(over)  # each row is in one timeline


def test_what_a_turn_has_spent_grows_with_time() -> None:
    one = turn(0, 10.0, 5.0)  # computing until 12 s (6 J), sending until 14 s (4 J), hop until 15 s (2 J)
    spent = [one.spent(moment) for moment in (9.0, 11.0, 12.0, 13.0, 14.5, 15.0, 99.0)]
    assert [each.devices_j.tolist() for each in spent] == [[0], [3], [6], [8], [10], [10], [10]]
    assert [each.busy_s.tolist() for each in spent] == [[0], [1], [2], [3], [4], [4], [4]]
    assert [each.hop_j for each in spent] == [0, 0, 0, 0, 1, 2, 2]
    assert [each.bits for each in spent] == [0, 0, 0, 4, 12, 16, 16]


def test_devices_are_busy_until_their_last_row_ends() -> None:
    state = replace(UnderWay.first(2), turns=(turn(0, 0.0, 5.0), turn(1, 2.0, 5.0)), clock_s=4.0)
    assert state.busy.tolist() == [1]  # edge 0 still sends to the cloud, and its device is free


def test_an_edge_that_fails_loses_its_turn_and_waits_for_the_next_plan() -> None:
    fails = replace(Ends.never(1, 1), fail_s=np.array([1.0]))

    def begin(edge: int, at: float, first: int) -> Turn:
        return turn(edge, at, 2.0 + edge, ends=fails if edge == 0 else None)

    played = play(Asynchrony(2), UnderWay.first(2), [0, 1], begin)
    assert moments(played) == [(3, 1, 0), (6, 1, 0)]
    assert [each.edge for each in played.turns] == [0, 1, 1]
    assert played.after.turns == ()
    happens = timeline_of(played, UP, 8.0)
    assert happens.reached.tolist() == [False, True]
    assert 0 < happens.edge_energy_j[0] < 12
    assert play(Asynchrony(2), played.after, [0, 1], begin).turns[0].edge == 0  # it returns with the next plan


def test_a_turn_without_a_participating_row_sends_nothing() -> None:
    gone = replace(Ends.never(1, 1), vanish_s=np.array([0.5]))
    played = play(
        Asynchrony(1), UnderWay.first(1), [0], lambda edge, at, first: turn(edge, at, 2.0, ends=gone), wait_s=9.0
    )
    assert played.updates == ()
    assert played.end_s == 9.0  # a round ends when nothing is under way, and lasts at least as long as one with nobody


def test_the_first_round_starts_although_nobody_can() -> None:
    played = play(Asynchrony(3), UnderWay.first(2), [], lambda *_: None, wait_s=60.0)
    assert (played.begin_s, played.end_s, played.updates) == (0.0, 60.0, ())
    assert timeline_of(played, UP, 8.0).delay_s == 60.0


def test_only_edges_that_wait_for_the_plan_wait_for_it() -> None:
    before = play(Asynchrony(1), UnderWay.first(2), [0, 1], lambda edge, at, first: turn(edge, at, 2.0 + 8 * edge))
    after = play(
        Asynchrony(3), before.after, [0, 1], lambda edge, at, first: turn(edge, at, 2.0 + 8 * edge), ready_s=0.5
    )
    assert moments(after) == [(4.5, 0, 0), (6.5, 0, 0), (8.5, 0, 0)]
    assert [t.begin_s for t in after.after.turns] == [0.0]  # edge 1 has been under way all the time
    # An edge that waits for the plan fetches the model of the moment at which it begins.
    before = replace(UnderWay.first(2), turns=(turn(0, 0.0, 1.0),))
    after = play(Asynchrony(2), before, [1], lambda edge, at, first: turn(edge, at, 2.0), ready_s=2.0)
    assert moments(after) == [(1.0, 0, 0), (4.0, 1, 0)]


def test_an_edge_counts_its_iterations_in_a_round_so_that_no_draw_comes_twice() -> None:
    seen: list[tuple[int, int]] = []

    def begin(edge: int, at: float, first: int) -> Turn:
        seen.append((edge, first))
        return turn(edge, at, 2.0 + edge)

    play(Asynchrony(5), UnderWay.first(2), [0, 1], begin)
    assert sorted(seen) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert len(set(seen)) == len(seen)
