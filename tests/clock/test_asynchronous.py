"""hflray.clock.asynchronous: the shares of updates, with the numbers of design-next.md, example 1."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hflray.clock.asynchronous import MIXING, STEP, Asynchrony, fedat_shares
from hflray.clock.mixing import MixedTurn, Pass, mix_turn
from hflray.clock.waiting import Period, planned_s
from hflray.config.clock import AsynchronousConfig, AsynchronousEdgeConfig, EdgeClockConfig
from hflray.cost import Schedule, Workload
from hflray.errors import ConfigError
from hflray.timeline import Durations, Ends, Hops, Timeline, timeline
from tests.conftest import small_config


def of(**settings: object) -> Asynchrony:
    return Asynchrony.of(AsynchronousConfig.model_validate(settings), num_edges=4)


def test_the_defaults_are_those_of_the_design() -> None:
    assert of() == Asynchrony(4, MIXING, 0.5, None, True, 1, False)
    assert (of(updates=7).updates, of(buffer=3).mixing, of(buffer=3, mixing=0.5).mixing) == (7, STEP, 0.5)


def test_a_fresh_update_is_not_damped_as_if_stale() -> None:
    assert of().damping(0) == of(staleness=3).damping(0) == 1.0
    assert of().share(200, 200, 0) == MIXING


@pytest.mark.parametrize(("staleness", "damping"), [(0, 1.0), (1, 1.0), (2, 1 / 3), (3, 1 / 5)])
def test_the_hinge_is_flat_until_b(staleness: int, damping: float) -> None:
    assert of(staleness={"hinge": [2, 1]}).damping(staleness) == pytest.approx(damping)


def test_the_shares_of_the_worked_example() -> None:
    shares = [of().share(weight, 200, staleness) for weight, staleness in ((300, 0), (100, 1), (300, 1), (100, 2))]
    assert shares == pytest.approx([0.9, 0.2121, 0.6364, 0.1732], abs=5e-5)
    assert of(mixing=0.8).share(300, 200, 0) == 1.0  # and not 1.2
    assert of(weight="none").share(300, 200, 0) == MIXING


def test_a_buffer_divides_its_step_among_the_updates() -> None:
    assert of(buffer=3, mixing=0.6).share(300, 200, 3) == pytest.approx(0.2 / 2)


def test_slow_edges_weigh_more_with_fedat() -> None:
    assert fedat_shares({0: 3, 1: 1, 2: 2}) == {1: 0.5, 2: 2 / 6, 0: 1 / 6}
    assert fedat_shares({0: 2, 1: 2, 2: 1}) == {2: 0.4, 0: 0.4, 1: 0.2}  # the lower edge wins the tie
    assert np.isclose(sum(fedat_shares({0: 5, 3: 2, 7: 2}).values()), 1.0)


@pytest.mark.parametrize("cloud", ["synchronous", "asynchronous", "{asynchronous: {staleness: {hinge: [2, 1]}}}"])
def test_a_clock_survives_json(cloud: str) -> None:
    config = small_config(f"clock.cloud={cloud}")
    assert type(config).model_validate(config.model_dump(mode="json")) == config
    assert config.clock.is_on == (cloud != "synchronous")


# hflray.clock.mixing: the arrivals at an edge, with the numbers of design-next.md, example 3.


SECONDS = {0: 2.0, 1: 3.0}


def begin(device: int, moment_s: float) -> Pass:
    return Pass(device, 1, 0, moment_s, moment_s + SECONDS[device])


def turn(updates: int, waiting: tuple[Pass, ...] = (), begin_s: float = 0.0, version: int = 0) -> MixedTurn:
    rule = Asynchrony(updates, mixing=0.5, exponent=1.0)
    return mix_turn(rule, waiting, [0, 1], begin, begin_s=begin_s, version=version, mean_weight=1.0)


def facts(mixing: MixedTurn) -> list[tuple[float, int, int, float]]:
    return [(mix.moment_s, mix.arrival.device, mix.staleness, mix.share) for mix in mixing.mixes]


def test_the_worked_example() -> None:
    first = turn(4)
    assert facts(first) == [(2, 0, 0, 0.5), (3, 1, 1, 0.25), (4, 0, 1, 0.25), (6, 0, 0, 0.5)]
    assert (first.end_s, first.version) == (6.0, 4)
    assert [one.device for one in first.under_way] == [1]
    second = turn(4, first.under_way, 6.0, first.version)
    assert facts(second)[0] == (6, 1, 2, pytest.approx(1 / 6))


def test_a_turn_ends_nothing_but_itself() -> None:
    """Turns of one arrival and turns of many have the same arrivals, staleness and shares."""
    whole, parts = facts(turn(12)), []
    last = turn(1)
    for _ in range(12):
        parts += facts(last)
        last = turn(1, last.under_way, last.end_s, last.version)
    assert parts == whole


def test_what_arrives_between_two_turns_waits_with_its_version() -> None:
    held = Pass(1, 1, 0, 3.0, 6.0, version=2)
    later = turn(2, (held,), begin_s=9.0, version=5)
    assert facts(later) == [(9, 1, 3, 0.125), (11, 0, 1, 0.25)]
    assert [(one.device, one.begin_s, one.version) for one in later.begun] == [(0, 9.0, 5), (1, 9.0, 6)]


def test_a_device_that_the_plan_no_longer_has_stops_after_its_arrival() -> None:
    held = Pass(7, 1, 0, 3.0, 6.0, version=2)
    later = turn(3, (held,), begin_s=4.0, version=5)
    assert [one.device for one in later.begun] == [0, 1, 0]
    assert [mix.arrival.device for mix in later.mixes] == [0, 7, 1]


def test_a_turn_in_which_nobody_arrives_ends_when_the_edge_knows() -> None:
    def lost(device: int, moment_s: float) -> Pass | None:
        return Pass(0, 1, 0, moment_s, 1.0, arrives=False, known_s=1.5) if device == 0 else None

    made = mix_turn(Asynchrony(4), (), [0, 1], lost, begin_s=0.0, version=0, mean_weight=1.0)
    assert (made.mixes, made.under_way, made.end_s, len(made.begun)) == ((), (), 1.5, 1)


def test_the_settings_are_those_of_the_section() -> None:
    config = AsynchronousEdgeConfig.model_validate({"staleness": {"hinge": [2, 1]}})
    rule = Asynchrony.of_edge(config, 5)
    assert (rule.updates, rule.mixing, rule.damping(3)) == (5, 0.6, pytest.approx(1 / 5))
    assert Asynchrony.of_edge(AsynchronousEdgeConfig(updates=2, mixing=0.8), 5).share(300, 100, 0) == 1.0
    assert math.isinf(Pass(0, 1, 0, 0.0, 1.0).fails_s)


# hflray.clock.waiting: which edges go on, with the numbers of design-next.md, example 2.


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


def test_the_worked_example_of_semi_synchronous() -> None:
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
