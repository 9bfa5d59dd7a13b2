"""hflray.world.part: a state is taken whole or refused, and each part has its options."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hflray import registry
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.fleet import sample_fleet
from hflray.world import World
from hflray.world.spells import Spells


def test_a_state_of_the_same_size_is_taken_over() -> None:
    first, second = Spells(1, "test", 5, 30.0, 10.0), Spells(2, "test", 5, 30.0, 10.0)
    first.advance(100.0)
    second.load_state_dict(first.state_dict())
    for name in first.state_arrays:
        np.testing.assert_array_equal(getattr(second, name), getattr(first, name))


def test_a_state_of_another_size_is_refused() -> None:
    state = Spells(1, "test", 5, 30.0, 10.0).state_dict()
    with pytest.raises(ConfigError, match=r"state: up of Spells has shape \(5,\), this one has \(6,\); .* checkpoint"):
        Spells(1, "test", 6, 30.0, 10.0).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"state: up of Spells has shape \(5,\), this one has \(4,\)"):
        Spells(1, "test", 4, 30.0, 10.0).load_state_dict(state)
    del state["up"]
    with pytest.raises(ConfigError, match="up of Spells has shape"):
        Spells(1, "test", 5, 30.0, 10.0).load_state_dict(state)


ACCEPTED = {
    ("availability", "always"): "none; remove it",
    ("availability", "bernoulli"): "probability",
    ("availability", "markov"): "mean_on_s, mean_off_s",
    ("availability", "diurnal"): "mean, amplitude, period_s, spread",
    ("availability", "trace"): "path, repeat_s",
    ("fading", "none"): "none; remove it",
    ("fading", "rayleigh"): "none; remove it",
    ("fading", "rician"): "k_db",
    ("mobility", "random_waypoint"): "v_min_m_per_s, v_max_m_per_s, pause_s",
    ("mobility", "gauss_markov"): "speed_m_per_s, memory_s",
    ("mobility", "trace"): "path",
}


def world(*overrides: str) -> World:
    config = load_config(None, ["fleet.num_devices=20", "scheduling.num_scheduled=5", *overrides])
    return World(config, sample_fleet(config.fleet, np.random.default_rng(0)))


@pytest.mark.parametrize("part, name", list(ACCEPTED))
@pytest.mark.parametrize("option", ["foo", "seed"])  # the second one is the world's own argument
def test_an_unknown_option_lists_what_a_user_may_set(part: str, name: str, option: str) -> None:
    with pytest.raises(ConfigError) as error:
        world(f"world.{part}={{name: {name}, options: {{{option}: 3}}}}")
    message = re.sub(r"; did you mean '\w+'\?", "", str(error.value))
    assert message == f"{part} '{name}': unknown option '{option}' (got 3); accepted: {ACCEPTED[part, name]}"


def test_every_part_with_options_is_in_the_table() -> None:
    parts = {(part, name) for part in ("availability", "fading", "mobility") for name in registry.BUILTIN[part]}
    assert parts == {*ACCEPTED, ("mobility", "static"), ("fading", "trace")}  # a trace of links needs its file


def test_options_of_devices_that_stay_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"mobility 'static': unknown option 'foo' \(got 3\); accepted: none; remove"):
        world("world.mobility.options={foo: 3}")
