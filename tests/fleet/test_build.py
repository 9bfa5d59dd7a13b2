"""Fleets by name, of functions and of arrays of the user's own."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.config import FleetConfig, load_config, validate
from hflray.cost import Workload, rate_bps, round_cost
from hflray.errors import ConfigError
from hflray.fleet import Fleet, build_fleet, given_fleet, sample_fleet
from hflray.rl.fleets import FleetSpec
from tests.conftest import own_module, refusal

MINE = own_module("fleets")


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def rng():
    return np.random.default_rng(1)


def test_a_function_of_ones_own(mine):
    fleet = build_fleet(FleetConfig(name=f"{mine}:make", options={"slow": 2}, num_devices=4), rng())
    assert fleet.max_cpu_hz.tolist() == [5e8] * 4


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("few", ("few: returned 2 devices and 5 edges; accepted: a hflray.Fleet of 4 devices", "; set")),
        ("none", ("none: returned None; accepted: a hflray.Fleet",)), ("raw", ("mine.py:raw: power_w[0]: got -",)),
    ],
)  # fmt: skip
def test_what_it_returns_is_checked(mine, name, facts):
    with refusal(ConfigError, *facts):
        build_fleet(FleetConfig(name=f"{mine}:{name}", num_devices=4), rng())


def test_an_unknown_option_is_named(mine):
    with pytest.raises(ConfigError, match=r"unknown option 'fast'.*accepted: slow"):
        build_fleet(FleetConfig(name=f"{mine}:make", options={"fast": 1}), rng())
    with pytest.raises(ConfigError, match=r"fleet.options.device: unknown key .*did you mean 'devices'"):
        build_fleet(validate(FleetConfig, {"name": "table", "options": {"device": "x.csv"}}), rng())


def test_the_assigner_trains_on_the_devices_of_the_run(mine):
    small = ["fleet.num_devices=9", "fleet.num_edges=3", "scheduling={num_scheduled: 4, num_clusters: 4}"]
    config = load_config(None, [f"fleet.name={mine}:make", *small])
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


CONFIG = FleetConfig(num_devices=4, num_edges=2)
FULL = {
    "gain": np.full((3, 2), 1e-9), "cycles_per_sample": [1e4] * 3, "power_w": [0.1] * 3, "max_cpu_hz": [1e9] * 3,
    "edge_bandwidth_hz": [1e6] * 2, "cloud_gain": [1e-9] * 2,
}  # fmt: skip


def fresh_rng():
    return np.random.default_rng(5)


def test_what_is_not_given_is_drawn_from_the_same_streams():
    drawn, own = sample_fleet(CONFIG, fresh_rng()), Fleet.of(CONFIG, fresh_rng(), max_cpu_hz=[1e9, np.nan, 3e9, np.nan])
    assert own.max_cpu_hz.tolist() == [1e9, drawn.max_cpu_hz[1], 3e9, drawn.max_cpu_hz[3]]
    for name in ("position_m", "edge_position_m", "gain", "cloud_gain", "cycles_per_sample", "power_w", "samples"):
        np.testing.assert_array_equal(getattr(own, name), getattr(drawn, name))


def test_given_places_change_path_loss_and_not_shadowing():
    drawn = sample_fleet(CONFIG, fresh_rng())
    own = Fleet.of(
        CONFIG, fresh_rng(), position_m=[[0, 0], [500, 500], [1000, 0], [3, 4]], edge_position_m=[[0, 0], [900, 900]]
    )
    assert own.distance_m[3, 0] == 5
    loss_db = 37.6 * np.log10(own.distance_m / drawn.distance_m)
    np.testing.assert_allclose(own.gain, drawn.gain * 10 ** (-loss_db / 10), rtol=1e-9)


def test_arrays_alone_make_a_whole_fleet():
    fleet = Fleet.of(**FULL, position_m=[[1, 2], [3, 4], [5, 6]], device_names=["a", "b", "c"])
    assert (fleet.num_devices, fleet.num_edges, fleet.fixed_gain) == (3, 2, True)
    assert fleet.take([2, 0]).device_names == ("c", "a")
    assert fleet.take_edges([1]).num_edges == 1


def test_a_given_rate_is_that_of_the_whole_bandwidth():
    fleet = Fleet.of(CONFIG, fresh_rng(), rate_bps=np.full((4, 2), 5e6), cloud_rate_bps=[1e8, 2e8])
    rate = rate_bps(fleet.edge_bandwidth_hz, fleet.gain, fleet.power_w[:, None], fleet.noise_w_per_hz)
    np.testing.assert_allclose(rate, 5e6, rtol=1e-12)
    cloud = rate_bps(np.full(2, fleet.cloud_bandwidth_hz), fleet.cloud_gain, fleet.edge_power_w, fleet.noise_w_per_hz)
    np.testing.assert_allclose(cloud, [1e8, 2e8], rtol=1e-12)


def test_seconds_per_sample_are_those_of_the_highest_frequency():
    fleet = Fleet.of(CONFIG, fresh_rng(), seconds_per_sample=[0.01] * 4, max_cpu_hz=[1e9, 2e9, 1e9, 1e9])
    np.testing.assert_allclose(fleet.cycles_per_sample / fleet.max_cpu_hz, 0.01)


@pytest.mark.parametrize("method", ["newton", "fixed_cpu", "equal", "cvxpy"])
def test_a_capacitance_for_each_device(method):
    """With one value the bill is that of the number; with several it is that of the devices' own."""
    work, devices, edges = Workload(model_bits=1e6), [0, 1, 2, 3], [0, 0, 0, 0]
    one, same = (Fleet.of(CONFIG, fresh_rng(), capacitance=given) for given in (None, np.full(4, CONFIG.capacitance)))
    bills = [
        round_cost(fleet, work, devices, edges, allocate_round(fleet, work, devices, edges, method=method)).objective
        for fleet in (one, same)
    ]
    assert bills[1] == pytest.approx(bills[0], rel=1e-6 if method == "cvxpy" else 1e-9)
    own = Fleet.of(CONFIG, fresh_rng(), capacitance=[1e-28, 2e-28, 4e-27, 8e-28])
    allocation = allocate_round(own, work, devices, edges, method=method)
    assert (allocation.cpu_hz <= own.max_cpu_hz * (1 + 1e-12)).all()
    cost = round_cost(own, work, devices, edges, allocation)
    energy = np.asarray(own.capacitance) / 2 * 5 * allocation.cpu_hz**2 * own.cycles_per_sample * own.samples
    np.testing.assert_allclose(cost.compute_energy_j, energy, rtol=1e-12)
    if method == "newton":  # no frequency near the chosen one is better for all
        for factor in (0.9, 1.1):
            worse = allocation.cpu_hz * factor
            if (worse <= own.max_cpu_hz).all():
                other = round_cost(own, work, devices, edges, type(allocation)(**{**vars(allocation), "cpu_hz": worse}))
                assert other.objective > cost.objective


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_cpu_hz": [1e9, -1, 1e9, 1e9]}, r"max_cpu_hz\[1\]: got -1; accepted: a finite number above 0"),
        ({"max_cpu_hz": [1e9] * 3}, r"max_cpu_hz: got shape \(3,\); accepted: \(4,\) for 4 devices and 2 edges"),
        ({"position_m": [[0, 0], [0, 2000], [0, 0], [0, 0]]}, r"position_m\[1, 1\]: got 2000; accepted: 0 to 1000 m"),
        ({"gain": np.full((4, 2), np.inf)}, r"gain\[0, 0\]: got inf"),
        ({"speed": [1]}, r"unknown array 'speed'"),
        ({"device_names": ["a", "b", "a", "c"]}, r"device_names: 'a' is there twice"),
        ({"device_names": ["a", "b\n", "d", "c"]}, r"accepted: a text of one line"),
        ({"power_w": ["x"] * 4}, r"power_w: no array"),
        ({"rate_bps": np.full((4, 2), 1e12)}, r"rate_bps\[0, 0\]: got 1e\+12 bit/s, which no gain reaches"),
    ],
)
def test_a_wrong_array_is_one_line(given, message):
    with pytest.raises(ConfigError, match=message):
        Fleet.of(CONFIG, fresh_rng(), **given)


def test_without_a_generator_nothing_is_drawn_in_silence():
    with pytest.raises(ConfigError, match=r"got no rng to draw gain, power_w, edge_bandwidth_hz, cloud_gain from"):
        Fleet.of(cycles_per_sample=[1.0], max_cpu_hz=[1.0], edge_position_m=[[0, 0]])
