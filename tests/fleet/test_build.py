"""The one door to fleets, and what a function of one's own may return."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.config import FleetConfig, load_config, validate
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.fleet import build_fleet, given_fleet, sample_fleet
from hflray.rl.fleets import FleetSpec
from tests.conftest import small_config

MINE = """
import numpy as np
from hflray import Fleet

def make(config, rng, slow=1.0):
    return Fleet.of(config, rng, max_cpu_hz=np.full(config.num_devices, 1e9 / slow))

def few(config, rng):
    return Fleet.of(config.model_copy(update={"num_devices": 2}), rng)

def none(config, rng):
    return None

def raw(config, rng):
    from dataclasses import replace
    fleet = Fleet.of(config, rng)
    return replace(fleet, power_w=-fleet.power_w)
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def rng():
    return np.random.default_rng(1)


def test_a_random_fleet_is_that_of_before():
    config = FleetConfig(num_devices=5)
    np.testing.assert_array_equal(build_fleet(config, rng()).gain, sample_fleet(config, rng()).gain)
    assert given_fleet(config, 0) is None


def test_a_function_of_ones_own(mine):
    fleet = build_fleet(FleetConfig(name=f"{mine}:make", options={"slow": 2}, num_devices=4), rng())
    assert fleet.max_cpu_hz.tolist() == [5e8] * 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "few",
            r"few: returned 2 devices and 5 edges; accepted: a hflray.Fleet of 4 devices .*; set",
        ),
        ("none", r"none: returned None; accepted: a hflray.Fleet"),
        ("raw", r"mine.py:raw: power_w\[0\]: got -"),
    ],
)
def test_what_it_returns_is_checked(mine, name, message):
    with pytest.raises(ConfigError, match=message):
        build_fleet(FleetConfig(name=f"{mine}:{name}", num_devices=4), rng())


def test_an_unknown_option_is_named(mine):
    with pytest.raises(ConfigError, match=r"unknown option 'fast'.*accepted: slow"):
        build_fleet(FleetConfig(name=f"{mine}:make", options={"fast": 1}), rng())
    with pytest.raises(ConfigError, match=r"unknown option 'device'; did you mean 'devices'"):
        build_fleet(validate(FleetConfig, {"name": "table", "options": {"device": "x.csv"}}), rng())


def test_an_experiment_runs_on_it(mine):
    config = small_config(f"fleet.name={mine}:make", "max_rounds=1", "scheduling.name=fedavg")
    with Experiment(config) as experiment:
        assert (experiment.scenario.fleet.max_cpu_hz == 1e9).all()
        assert experiment.run_round().cost.objective > 0


def test_the_assigner_trains_on_the_devices_of_the_run(mine):
    config = load_config(
        None,
        [
            f"fleet.name={mine}:make",
            "fleet.num_devices=9",
            "fleet.num_edges=3",
            "scheduling={num_scheduled: 4, num_clusters: 4}",
        ],
    )
    spec = FleetSpec.of(config)
    base = given_fleet(config.fleet, config.seed)
    fleet, _ = spec.draw(3)
    assert fleet.num_devices == 4
    assert {tuple(place) for place in fleet.position_m.tolist()} <= {tuple(place) for place in base.position_m.tolist()}
    assert spec.draw(3)[0].position_m.tolist() == fleet.position_m.tolist() != spec.draw(4)[0].position_m.tolist()
    with pytest.raises(
        ConfigError, match=r"learning.num_edges: got \[2, 2\] with fleet.name = mine.py:make, of 100 devices and 3"
    ):
        FleetSpec.of(load_config(None, [f"fleet.name={mine}:make", "fleet.num_edges=3", "learning.num_edges=2"]))
