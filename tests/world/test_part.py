"""The contract of the parts of the world: options, one line for a mistake, and a state that follows from the clock."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray import registry
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.fleet import Fleet, FleetConfig, sample_fleet
from hflray.world import World
from hflray.world.part import Spells
from tests.conftest import refusal, refusals

EXAMPLES = Path(__file__).parents[2] / "examples" / "traces"
FLEET = Fleet.of(FleetConfig(num_devices=10, num_edges=2), np.random.default_rng(0))
LINKS = "time_s,device,edge,gain_db\n" + "".join(f"{t},{t % 10},{t % 2},{-90 - t % 7}\n" for t in range(0, 400, 3))
WAYPOINTS = {"v_min_m_per_s": 0.5, "v_max_m_per_s": 20.0, "pause_s": 3.0}
# By kind and name: options with which a part is built, and those that a user may set.
PARTS: dict[tuple[str, str], tuple[dict[str, Any], str]] = {
    ("availability", "always"): ({}, "none; remove it"),
    ("availability", "bernoulli"): ({"probability": 0.3}, "probability"),
    ("availability", "markov"): ({"mean_on_s": 30.0, "mean_off_s": 10.0}, "mean_on_s, mean_off_s"),
    ("availability", "diurnal"): ({"period_s": 200.0}, "mean, amplitude, period_s, spread"),
    ("availability", "trace"): ({"path": str(EXAMPLES / "availability.csv"), "repeat_s": 1200.0}, "path, repeat_s"),
    ("fading", "none"): ({}, "none; remove it"),
    ("fading", "rayleigh"): ({}, "none; remove it"),
    ("fading", "rician"): ({"k_db": 6.0}, "k_db"),
    ("fading", "trace"): ({}, "path"),  # of a file that the test writes
    ("mobility", "static"): ({}, "none; remove it"),
    ("mobility", "random_waypoint"): (WAYPOINTS, "v_min_m_per_s, v_max_m_per_s, pause_s"),
    ("mobility", "gauss_markov"): ({"speed_m_per_s": 15.0}, "speed_m_per_s, memory_s"),
    ("mobility", "trace"): ({"path": str(EXAMPLES / "mobility.csv")}, "path"),
}


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("links") / "links.csv"
    path.write_text(LINKS)
    return str(path)


def build(kind: str, name: str, links: str, **options: Any) -> Any:
    options = options or PARTS[kind, name][0]
    arguments: dict[str, Any] = {"seed": 2}
    if kind == "availability":
        arguments["num_devices"] = 10
    elif kind == "mobility":
        position_m = np.random.default_rng(0).uniform(0, 1000, (10, 2))
        arguments |= {"position_m": position_m, "area_m": 1000.0, "slot_s": 1.0}
    elif name == "trace":
        arguments["fleet"], options = FLEET, {"path": links, **options}
    return registry.build(kind, name, arguments, **options)  # type: ignore[arg-type]


def look(part: Any, clock_s: float) -> Any:
    """Return what a decision sees of a part."""
    if hasattr(part, "available"):
        return part.available(3, clock_s)
    if hasattr(part, "places"):
        return np.asarray(part.places())
    return part.factor(3, np.arange(10)[:, None], np.arange(2), 1)


def test_every_built_in_part_keeps_the_contract() -> None:
    assert {*PARTS} == {(kind, name) for kind, _ in PARTS for name in registry.BUILTIN[kind]}  # type: ignore[index]


@pytest.mark.parametrize("kind, name", list(PARTS))
@settings(max_examples=15, deadline=None)
@given(clocks_s=st.lists(st.floats(0, 3000), min_size=2, max_size=6).map(sorted))
def test_a_part_follows_from_the_clock_and_goes_on_from_its_state(kind, name, links, clocks_s) -> None:
    once, often, resumed = (build(kind, name, links) for _ in range(3))
    if not hasattr(once, "advance"):  # a law of fading has no state
        np.testing.assert_array_equal(look(once, 0.0), look(often, 5.0))
        return
    for clock_s in clocks_s[:-1]:
        often.advance(clock_s)
        copied = copy.deepcopy(often)
        np.testing.assert_array_equal(look(often, clock_s), look(often, clock_s))
        copied.advance(clock_s + 50.0)  # a copy moves alone
    np.testing.assert_array_equal(look(often, clock_s), look(copy.deepcopy(often), clock_s))
    resumed.load_state_dict(often.state_dict())
    for part in (once, often, resumed):
        part.advance(clocks_s[-1])
        np.testing.assert_array_equal(look(part, clocks_s[-1]), look(once, clocks_s[-1]))


def world(*overrides: str) -> World:
    config = load_config(None, ["fleet.num_devices=20", "scheduling.num_scheduled=5", *overrides])
    return World(config, sample_fleet(config.fleet, np.random.default_rng(0)))


@pytest.mark.parametrize("kind, name", list(PARTS))
@pytest.mark.parametrize("option", ["foo", "seed"])  # the second one is the world's own argument
def test_an_unknown_option_lists_what_a_user_may_set(kind: str, name: str, option: str) -> None:
    with pytest.raises(ConfigError) as error:
        world(f"world.{kind}={{name: {name}, options: {{{option}: 3}}}}")
    message = re.sub(r"; did you mean '\w+'\?", "", str(error.value))
    assert message == f"{kind} '{name}': unknown option '{option}' (got 3); accepted: {PARTS[kind, name][1]}"


@pytest.mark.parametrize("kind, name, options, facts", refusals("world/parts"))
def test_a_mistake_names_the_option(
    kind: str, name: str, options: dict[str, Any], facts: tuple[str, ...], links
) -> None:
    with refusal(ConfigError, *facts):
        build(kind, name, links, **options)


def test_a_state_of_another_size_is_refused() -> None:
    state = Spells(1, "test", 5, 30.0, 10.0).state_dict()
    for count in (4, 6):
        with refusal(ConfigError, "up of Spells", "(5,)", f"({count},)", "checkpoint"):
            Spells(1, "test", count, 30.0, 10.0).load_state_dict(state)
    del state["up"]
    with pytest.raises(ConfigError, match="up of Spells has shape"):
        Spells(1, "test", 5, 30.0, 10.0).load_state_dict(state)


@pytest.mark.parametrize("clock_s", [0.0, 13.0, 900.0])
def test_the_share_of_members_that_are_up_is_stationary(clock_s: float) -> None:
    spells = Spells(1, "test", 100_000, up_s=30.0, down_s=10.0)
    spells.advance(clock_s)
    assert spells.up.mean() == pytest.approx(0.75, abs=0.006)
    left_s = spells.end_s - clock_s
    assert left_s.min() > 0
    assert left_s[spells.up].mean() == pytest.approx(30, rel=0.02)
    assert left_s[~spells.up].mean() == pytest.approx(10, rel=0.03)
