"""hflray.clock.mixing: the arrivals at an edge, with the numbers of design-next.md, example 3."""

from __future__ import annotations

import math

import pytest

from hflray.clock.asynchronous import Asynchrony
from hflray.clock.mixing import MixedTurn, Pass, mix_turn
from hflray.config.clock import AsynchronousEdgeConfig

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
