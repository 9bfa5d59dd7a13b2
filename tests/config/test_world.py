"""hflray.config.world: the section is off by default, and mistakes are one line."""

from __future__ import annotations

import pytest

from hflray.config import WorldConfig, load_config
from hflray.errors import ConfigError


def test_the_world_is_off_by_default() -> None:
    world = load_config(None, []).world
    assert world == WorldConfig()
    assert not world.is_on
    assert world.wait_s == 60
    assert not load_config(None, ["world.wait_s=5"]).world.is_on


@pytest.mark.parametrize(
    "override",
    [
        "world.availability={name: bernoulli, options: {probability: 0.5}}",
        "world.compute_jitter.sigma=0.1",
        "world.fading.name=rayleigh",
        "world.dropout.rate_per_s=0.1",
        "world.edge_failure={mtbf_s: 9, mttr_s: 1}",
        "world.battery.capacity_j=5",
        "world.mobility.name=gauss_markov",
    ],
)
def test_a_part_turns_it_on(override: str) -> None:
    assert load_config(None, [override]).world.is_on


@pytest.mark.parametrize(
    "override, named",
    [
        ("world.wait_s=0", "world.wait_s: got 0; accepted: a number above 0"),
        ("world.availability.name=sometimes", "world.availability.name: .* unknown availability 'sometimes'"),
        ("world.compute_jitter.sigma=-1", "world.compute_jitter.sigma: got -1; accepted: a number at least 0"),
        ("world.fading={name: rayleigh, known: true, coherence_s: 1}", "world.fading.*: got true with coherence_s = 1"),
        ("world.fading.coherence_s=0", "world.fading.coherence_s: got 0; accepted: a number at least 1e-06"),
        ("world.dropout.rate_per_s=-0.1", "world.dropout.rate_per_s: got -0.1; accepted: a number at least 0"),
        ("world.edge_failure.mtbf_s=9", "world.edge_failure: mttr_s: got null with mtbf_s = 9; accepted: both or none"),
        ("world.edge_failure={mtbf_s: 9, mttr_s: 0}", "world.edge_failure.mttr_s: got 0; accepted: a number above 0"),
        ("world.battery.initial=[0.5, 1.5]", "world.battery.initial: .* accepted: numbers from 0 to 1; correct it"),
        ("world.battery.harvest_w=-1", "world.battery.harvest_w: .* accepted: numbers from 0 to 1e"),
        ("world.battery.reserve_j=-1", "world.battery.reserve_j: got -1; accepted: a number at least 0"),
        ("world.mobility.name=walk", "world.mobility.name: .* unknown mobility 'walk'"),
        ("world.mobility.slot_s=0", "world.mobility.slot_s: got 0; accepted: a number above 0"),
        ("world.weather=wet", "world.weather: unknown key"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_setting(override: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as error:
        load_config(None, [override])
    assert "\n" not in str(error.value)
