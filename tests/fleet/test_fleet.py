"""A drawn fleet has the path loss, ranges and units of the paper, and its arrays are read-only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, path_gain, sample_fleet
from hflray.fleet import fleet as fleet_module
from hflray.fleet import links as link_module
from hflray.fleet.links import first


def draw(seed=0, **settings):
    return sample_fleet(FleetConfig(**settings), np.random.default_rng(seed))


ARRAYS = [name for name, value in vars(draw()).items() if isinstance(value, np.ndarray)]


@pytest.mark.parametrize(
    "distance_m, loss_db",
    [
        (1000.0, 128.1),  # log10(1) = 0
        (100.0, 90.5),  # 128.1 + 37.6 · (-1)
        (10.0, 52.9),  # 128.1 - 75.2
        (1.0, 15.3),  # 128.1 - 112.8
        (0.01, 15.3),  # clamped at 1 m
        (500.0, 116.7813),  # 37.6 · log10(0.5) = 37.6 · -0.301030 = -11.3187
    ],
)
def test_path_loss_worked_out_by_hand(distance_m, loss_db):
    gain = path_gain(np.array([distance_m]), FleetConfig())
    assert gain == pytest.approx(10 ** (-loss_db / 10), rel=1e-5)
    # 8 dB of shadowing multiply the gain by 10^-0.8 = 0.158489.
    assert path_gain(np.array([distance_m]), FleetConfig(), 8.0) == pytest.approx(0.158489 * gain, rel=1e-5)


def test_a_fleet_has_table_is_ranges_and_its_shapes():
    fleet = draw(num_devices=2000, num_edges=300)
    assert (fleet.num_devices, fleet.num_edges) == (2000, 300)
    assert fleet.gain.shape == fleet.distance_m.shape == (2000, 300)
    assert fleet.position_m.shape == (2000, 2)
    assert fleet.cloud_gain.shape == fleet.edge_power_w.shape == (300,)
    for values, low, high in (
        (fleet.cycles_per_sample, 1e4, 1e5),
        (fleet.edge_bandwidth_hz, 0.5e6, 3e6),
        (fleet.samples, 400, 700),
        (10 * np.log10(fleet.power_w / 1e-3), 0.0, 23.0),
        (fleet.position_m, 0.0, 1000.0),
        (fleet.edge_position_m, 0.0, 1000.0),
    ):
        assert values.min() >= low - 1e-9
        assert values.max() <= high + 1e-9
        # For a uniform draw the mean is within 5 standard errors of the middle, and the ends are nearly reached.
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / np.sqrt(12 * values.size)
        assert values.max() - values.min() > 0.97 * (high - low)
    assert set(np.unique(fleet.samples)) >= {400.0, 700.0}
    assert np.all(fleet.samples == np.rint(fleet.samples))
    assert np.all(fleet.max_cpu_hz == 2e9)
    assert fleet.cloud_bandwidth_hz == 1e7
    assert fleet.capacitance == 2e-28


def test_powers_may_be_uniform_in_watts():
    dbm, watt = draw(num_devices=2000, num_edges=2), draw(num_devices=2000, num_edges=2, power_law="watt")
    # 0 dBm is 1 mW and 23 dBm is 10^2.3 = 199.5262 mW. Both laws draw one number in [0, 1) for each device.
    share = 10 * np.log10(dbm.power_w / 1e-3) / 23
    np.testing.assert_allclose(watt.power_w, 1e-3 + share * (0.1995262315 - 1e-3), rtol=1e-9)
    # The means: 100.3 mW in watts; (199.5 - 1) / ln(199.5) = 37.5 mW in dBm.
    assert watt.power_w.mean() == pytest.approx(0.1002631, rel=0.05)
    assert dbm.power_w.mean() == pytest.approx(0.0374872, rel=0.07)
    for name in ARRAYS:
        if name != "power_w":
            np.testing.assert_array_equal(getattr(watt, name), getattr(dbm, name))


def test_shadowing_has_its_mean_and_deviation_over_many_links():
    fleet = draw(num_devices=1000, num_edges=50)
    shadow_db = 10 * np.log10(path_gain(fleet.distance_m, FleetConfig()) / fleet.gain)
    assert abs(shadow_db.mean()) < 5 * 8 / np.sqrt(50_000)
    assert abs(shadow_db.std() - 8.0) < 5 * 8 / np.sqrt(2 * 50_000)
    calm = draw(num_devices=10, num_edges=3, shadowing_db=0.0)
    np.testing.assert_allclose(calm.gain, path_gain(calm.distance_m, FleetConfig()))


def test_distances_are_clamped_and_the_cloud_is_in_the_middle():
    fleet = draw(num_devices=20, num_edges=4, shadowing_db=0.0, min_distance_m=300.0)
    true = np.linalg.norm(fleet.position_m[:, None] - fleet.edge_position_m, axis=-1)
    np.testing.assert_allclose(fleet.distance_m, np.maximum(true, 300.0))
    to_cloud = np.linalg.norm(fleet.edge_position_m - [500.0, 500.0], axis=1)
    np.testing.assert_allclose(fleet.cloud_gain, path_gain(np.maximum(to_cloud, 300.0), FleetConfig()))


def test_take_keeps_order_and_edges():
    fleet = draw(num_devices=6, num_edges=2)
    taken = fleet.take([4, 1])
    assert (taken.num_devices, taken.num_edges) == (2, 2)
    for name in ("position_m", "distance_m", "gain", "cycles_per_sample", "samples", "power_w", "max_cpu_hz"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(fleet, name)[[4, 1]])
    np.testing.assert_array_equal(taken.cloud_gain, fleet.cloud_gain)
    assert fleet.take([]).num_devices == 0


def test_arrays_are_read_only_copies_of_the_callers_arrays():
    fleet = draw(num_devices=4, num_edges=2)
    for derived in (fleet, fleet.take([1, 2]), fleet.with_samples([1, 2, 3, 4])):
        for name in ARRAYS:
            with pytest.raises(ValueError, match="read-only"):
                getattr(derived, name)[0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        fleet.capacitance = 1.0
    power_w = np.ones(4)
    changed = dataclasses.replace(fleet, power_w=power_w)
    power_w[0] = 9.0
    assert changed.power_w[0] == 1.0


def test_with_samples_replaces_the_samples():
    fleet = draw(num_devices=3, num_edges=2)
    assert fleet.with_samples([5, 6, 7]).samples.tolist() == [5.0, 6.0, 7.0]
    with pytest.raises(ConfigError, match=r"samples: got shape \(2,\), expected \(3,\)"):
        fleet.with_samples([5, 6])


def test_a_large_fleet_computes_its_links_on_demand():
    fleet = draw(num_devices=400, num_edges=30, dense=False)
    assert fleet.gain.shape == fleet.distance_m.shape == (400, 30)
    assert len(fleet.gain) == 400
    gains, distances = np.asarray(fleet.gain), np.asarray(fleet.distance_m)
    true = np.linalg.norm(fleet.position_m[:, None] - fleet.edge_position_m, axis=-1)
    np.testing.assert_allclose(distances, np.maximum(true, 1.0))
    devices, edges = np.array([7, 3, 399]), np.array([29, 0, 4])
    # A link is the same in every request.
    np.testing.assert_array_equal(fleet.gain[devices, edges], gains[devices, edges])
    np.testing.assert_array_equal(fleet.gain_of(devices[:, None], edges), gains[devices[:, None], edges])
    np.testing.assert_array_equal(fleet.gain[devices], gains[devices])
    np.testing.assert_array_equal(fleet.gain[:, 2], gains[:, 2])
    np.testing.assert_array_equal(fleet.gain[5:9, edges], gains[5:9, edges])
    assert fleet.gain[7, 29] == gains[7, 29]
    shadow_db = 10 * np.log10(path_gain(true, FleetConfig()) / gains)
    assert abs(shadow_db.mean()) < 5 * 8 / np.sqrt(12_000)
    assert abs(shadow_db.std() - 8.0) < 5 * 8 / np.sqrt(2 * 12_000)
    for step in (1, 2, 7):  # links are uncorrelated along devices and along edges
        for one, two in ((shadow_db[:, step:], shadow_db[:, :-step]), (shadow_db[step:], shadow_db[:-step])):
            assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 5 / np.sqrt(one.size)
    np.testing.assert_array_equal(np.asarray(draw(num_devices=400, num_edges=30, dense=False).gain), gains)
    assert not np.array_equal(np.asarray(draw(1, num_devices=400, num_edges=30, dense=False).gain), gains)


def test_of_equal_links_the_lower_edges_come_first() -> None:
    """Of links that are equal at the cut, any were taken."""
    values = np.random.default_rng(0).integers(0, 3, (300, 60)).astype(np.float64)
    for count in (1, 2, 12, 14, 40):
        expected = np.argsort(values, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(first(values, count), expected)


@pytest.mark.parametrize("dense", [True, False])
def test_nearest_and_strongest_edges_are_sorted_with_ties_by_index(dense):
    fleet = draw(num_devices=60, num_edges=40, dense=dense)
    devices = np.arange(0, 60, 2)
    for select, values in (
        (fleet.nearest_edges, np.asarray(fleet.distance_m)),
        (fleet.strongest_edges, -np.asarray(fleet.gain)),
    ):
        order = np.argsort(values[devices], axis=1, kind="stable")
        for count in (1, 4, 30, 40):
            np.testing.assert_array_equal(select(devices, count), order[:, :count])


def test_devices_taken_from_a_large_fleet_keep_their_links(monkeypatch):
    fleet = draw(num_devices=400, num_edges=30, dense=False)
    few = fleet.take([4, 1, 300])
    assert isinstance(few.gain, np.ndarray)
    np.testing.assert_array_equal(few.gain, fleet.gain[[4, 1, 300]])
    np.testing.assert_array_equal(few.take([2]).distance_m, fleet.distance_m[[300]])
    monkeypatch.setattr(link_module, "DENSE_LINKS", 60)
    many = fleet.take([4, 1, 300])
    assert not isinstance(many.gain, np.ndarray)
    np.testing.assert_array_equal(many.gain[1:], few.gain[1:])
    np.testing.assert_array_equal(many.with_samples([1, 2, 3]).gain[1:], few.gain[1:])
    with pytest.raises(ConfigError, match="links: 90 requested at once"):
        np.asarray(many.gain)
    assert draw(num_devices=61, num_edges=1).links is not None  # without `dense`, above the limit
    assert draw(num_devices=60, num_edges=1).links is None


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_unequal_length_are_refused(name):
    fleet = draw(num_devices=4, num_edges=2)
    short = getattr(fleet, name)[:1]
    # samples and edge_bandwidth_hz determine N and M; for them the first array that disagrees is named.
    words = {"samples": r"position_m\[1\]", "edge_bandwidth_hz": r"cloud_gain\[1\]"}.get(name, rf"{name}\[1\]")
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(fleet, **{name: short})


def test_fixed_bandwidths_change_nothing_else():
    drawn = sample_fleet(FleetConfig(num_devices=6, num_edges=3), np.random.default_rng(4))
    config = FleetConfig(num_devices=6, num_edges=3, edge_bandwidths_mhz=(3.0, 0.5, 1.5))  # not sorted
    fixed = sample_fleet(config, np.random.default_rng(4))
    assert fixed.edge_bandwidth_hz.tolist() == [3e6, 0.5e6, 1.5e6]
    for name in ("position_m", "gain", "cloud_gain", "cycles_per_sample", "samples", "power_w", "max_cpu_hz"):
        np.testing.assert_array_equal(getattr(fixed, name), getattr(drawn, name))
    with pytest.raises(ConfigError, match=r"fleet\.edge_bandwidths_mhz: 3 values for num_edges = 4"):
        sample_fleet(config.model_copy(update={"num_edges": 4}), np.random.default_rng(4))


OF_EDGES = ("edge_position_m", "cloud_gain", "edge_bandwidth_hz")
OF_DEVICES = ("position_m", "cycles_per_sample", "samples", "power_w", "max_cpu_hz")


@pytest.mark.parametrize("dense", [True, False])
def test_a_deployment_seed_keeps_the_edges_and_redraws_the_devices(dense):
    ranges = {"num_edges": 3, "max_cpu_ghz": (1.0, 3.0), "deployment_seed": 7, "dense": dense}
    one, other = draw(1, num_devices=20, **ranges), draw(2, num_devices=20, **ranges)
    smaller = draw(1, num_devices=9, samples=(5, 9), **ranges)  # neither N nor the devices' ranges change the edges
    for name in OF_EDGES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        np.testing.assert_array_equal(getattr(one, name), getattr(smaller, name))
        assert not np.array_equal(getattr(one, name), getattr(draw(1, **ranges | {"deployment_seed": 8}), name))
    for name in (*OF_DEVICES, "gain", "distance_m"):
        assert not np.array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)))
    # The shadowing of a device's links is redrawn too, not only its position.
    shadow = [np.asarray(f.gain) / path_gain(np.asarray(f.distance_m), FleetConfig()) for f in (one, other)]
    assert not np.allclose(*shadow)
    np.testing.assert_array_equal(np.asarray(one.gain), np.asarray(draw(1, num_devices=20, **ranges).gain))


def test_a_deployments_edges_have_the_distribution_of_a_fleets_edges():
    edges = [draw(0, num_devices=1, num_edges=50, deployment_seed=seed) for seed in range(200)]
    positions = np.concatenate([fleet.edge_position_m for fleet in edges])
    assert positions.mean(axis=0) == pytest.approx([500.0, 500.0], abs=10)
    bandwidth = np.concatenate([fleet.edge_bandwidth_hz for fleet in edges])
    assert (bandwidth.min(), bandwidth.max(), bandwidth.mean()) == pytest.approx((0.5e6, 3e6, 1.75e6), rel=0.01)
    away = np.linalg.norm(positions - 500.0, axis=-1)
    shadow_db = -10 * np.log10(np.concatenate([f.cloud_gain for f in edges]) / path_gain(away, FleetConfig()))
    assert (shadow_db.mean(), shadow_db.std()) == pytest.approx((0.0, 8.0), abs=0.25)


def test_fixed_bandwidths_override_the_deployments_bandwidths():
    fixed = draw(3, num_edges=2, deployment_seed=1, edge_bandwidths_mhz=(2.5, 1.0))
    drawn = draw(3, num_edges=2, deployment_seed=1)
    assert fixed.edge_bandwidth_hz.tolist() == [2.5e6, 1e6]
    for name in ("edge_position_m", "cloud_gain", "gain", "samples"):
        np.testing.assert_array_equal(getattr(fixed, name), getattr(drawn, name))


def test_without_a_deployment_seed_everything_is_drawn_as_before():
    # These sums were computed at commit 6c93c38, before the setting existed.
    fleet = draw(5, num_devices=3, num_edges=2)
    sums = [float(getattr(fleet, name).sum()) for name in ("gain", "cloud_gain", "edge_bandwidth_hz", "power_w")]
    golden = [1.6575425805094826e-10, 9.100768711803114e-12, 2815031.9625184704, 0.13816783459612095]
    assert sums == pytest.approx(golden, rel=1e-12)
    on_demand = draw(5, num_devices=3, num_edges=2, dense=False)
    sums = [float(np.asarray(on_demand.gain).sum()), float(on_demand.edge_bandwidth_hz.sum())]
    assert sums == pytest.approx([2.931541310568896e-11, 4873175.088372171], rel=1e-12)


@pytest.mark.parametrize("dense", [True, False])
def test_slow_devices_change_nothing_else_and_a_larger_share_has_all_of_a_smaller_ones(dense):
    config = FleetConfig(num_devices=10, num_edges=2, dense=dense)
    plain = sample_fleet(config, np.random.default_rng(3))
    fifth, half = (
        sample_fleet(config.model_copy(update={"slow_share": share, "slow_factor": 4.0}), np.random.default_rng(3))
        for share in (0.2, 0.5)
    )
    slow = fifth.max_cpu_hz < 1e9
    assert slow.sum() == 2
    assert fifth.max_cpu_hz.tolist() == np.where(slow, 5e8, 2e9).tolist()
    assert (half.max_cpu_hz < 1e9).sum() == 5
    assert (half.max_cpu_hz < 1e9)[slow].all()
    for name in ("position_m", "power_w", "cycles_per_sample", "samples", "edge_bandwidth_hz", "cloud_gain"):
        assert np.array_equal(getattr(fifth, name), getattr(plain, name))
    assert np.array_equal(fifth.gain, plain.gain)


def test_the_first_of_several_bad_devices_is_named_with_the_accepted_range():
    with pytest.raises(ConfigError, match=r"devices\[1\]: device 9 does not exist; accepted: 0 to 5"):
        draw(num_devices=6, num_edges=2).take([0, 9, 8])


def test_an_array_of_the_wrong_shape_is_named_at_its_first_missing_or_surplus_element():
    fleet = draw(num_devices=4, num_edges=2)
    for wrong, place in ((np.ones(6), 4), (np.ones(3), 3), (np.array(1.0), 0)):
        with pytest.raises(ConfigError, match=rf"power_w\[{place}\]: got shape .*expected \(4,\)"):
            dataclasses.replace(fleet, power_w=wrong)


def test_edges_within_the_smallest_distance_are_equally_near():
    """All edges are nearer than 2 km on a square of 1 km, so that the lower index wins for every device."""
    for dense in (True, False):
        fleet = draw(num_devices=8, num_edges=6, min_distance_m=2000.0, dense=dense)
        assert fleet.nearest_edges(np.arange(8))[:, 0].tolist() == [0] * 8


def test_the_strongest_edges_are_found_in_steps_of_a_few_devices(monkeypatch):
    fleet = draw(num_devices=31, num_edges=10, dense=False)
    expected = np.argsort(-np.asarray(fleet.gain), axis=1, kind="stable")[:, :3]
    for links in (1, 20, 70, 310):  # 1, 2, 7 and 31 devices a step; at least one, even if a device has more links
        monkeypatch.setattr(fleet_module, "AT_ONCE", links)
        np.testing.assert_array_equal(fleet.strongest_edges(np.arange(31), 3), expected)


@pytest.mark.parametrize("settings", [{}, {"shadowing_db": 0.0}, {"shadowing_db": 30.0}, {"min_distance_m": 300.0}])
def test_bounds_find_the_strongest_of_many_edges(settings, monkeypatch):
    """The groups of edges, and the gains that are computed, are fewer than the edges."""
    fleet = draw(num_devices=400, num_edges=300, dense=False, **settings)
    gain = np.asarray(fleet.gain)
    computed = []
    monkeypatch.setattr(
        type(fleet.links), "gain", lambda self, devices, edges: computed.append(len(edges)) or gain[devices, edges]
    )
    for count in (1, 12, 70):
        expected = np.argsort(-gain, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(fleet.strongest_edges(np.arange(400), count), expected)
    if not settings:
        assert sum(computed) < 1.5 * 400 * (1 + 12 + 70)


@pytest.mark.parametrize("own", ["shadowing", "factor", "rising"])
def test_other_links_have_all_their_gains_compared(own):
    fleet = draw(num_devices=40, num_edges=300, dense=False)
    rng = np.random.default_rng(5)
    table = rng.normal(size=(40, 300))
    more = {
        "shadowing": {"shadowing": lambda devices, edges, position_m: table[devices, edges]},
        "factor": {"factor": lambda devices, edges: np.exp(table[devices, edges])},
        "rising": {"config": fleet.links.config.model_copy(update={"path_loss_slope_db": -1.0})},
    }[own]
    links = dataclasses.replace(fleet.links, **more)
    gain = links.gain(np.arange(40)[:, None], np.arange(300))
    expected = np.argsort(-gain, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(links.strongest(np.arange(40), 3), expected)


def test_as_many_links_as_the_limit_are_computed_at_once(monkeypatch):
    fleet = draw(num_devices=40, num_edges=30, dense=False)
    monkeypatch.setattr(link_module, "DENSE_LINKS", 60)
    assert fleet.gain[[3, 5]].shape == (2, 30)
    assert isinstance(fleet.take([3, 5]).gain, np.ndarray)
    with pytest.raises(ConfigError, match="links: 61 requested at once of a fleet of 40 devices and 30 edges"):
        fleet.gain[np.zeros(61, dtype=int), np.zeros(61, dtype=int)]


def test_links_and_fleets_cannot_be_changed_and_are_compared_by_identity():
    one, two = draw(num_devices=4, num_edges=2, dense=False), draw(num_devices=4, num_edges=2, dense=False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.links.key = 0
    # Arrays of equal numbers have no single truth value, so that a comparison by value would raise.
    assert len({one, two, one}) == 2
    assert len({one.links, two.links, one.links}) == 2


@pytest.mark.parametrize("dense", [True, False])
def test_a_fleet_without_some_edges_keeps_the_links_of_the_others(dense):
    whole = draw(num_devices=20, num_edges=6, dense=dense)
    fewer = whole.take_edges([1, 4, 5])
    assert fewer.num_edges == 3
    np.testing.assert_array_equal(np.asarray(fewer.gain), np.asarray(whole.gain)[:, [1, 4, 5]])
    np.testing.assert_array_equal(np.asarray(fewer.distance_m), np.asarray(whole.distance_m)[:, [1, 4, 5]])
    np.testing.assert_array_equal(fewer.cloud_gain, whole.cloud_gain[[1, 4, 5]])
    np.testing.assert_array_equal(fewer.edge_bandwidth_hz, whole.edge_bandwidth_hz[[1, 4, 5]])
    last = fewer.take_edges([2])  # the edge of number 5 of the first fleet
    np.testing.assert_array_equal(np.asarray(last.gain)[:, 0], np.asarray(whole.gain)[:, 5])
    doubled = whole.with_factor(lambda devices, edges: 2.0 + 0.0 * devices + edges).take_edges([1, 4, 5])
    np.testing.assert_allclose(np.asarray(doubled.gain), np.asarray(fewer.gain) * [3, 6, 7], rtol=1e-15)
    some = np.array([7, 3])
    np.testing.assert_array_equal(fewer.nearest_edges(some)[:, 0], np.asarray(fewer.distance_m)[some].argmin(axis=1))
    np.testing.assert_array_equal(fewer.take(some).gain[:], np.asarray(whole.gain)[some][:, [1, 4, 5]])
