"""Algorithm 2's K-means and its bill."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hflray.cost import compute_delay_s, compute_energy_j, rate_bps
from hflray.errors import ConfigError, DivergedError
from hflray.fleet import FleetConfig, sample_fleet
from hflray.metrics import adjusted_rand_index
from hflray.scheduling import cluster_devices, clustering_cost
from hflray.scheduling.clustering import _coordinates


def blobs(truth, seed=0, size=40):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(max(truth) + 1, size))[truth] + 0.01 * rng.normal(size=(len(truth), size))).astype("f4")


def test_finds_the_groups_and_numbers_them_by_first_appearance():
    truth = np.array([2, 0, 2, 1, 0, 1, 3, 2])
    labels = cluster_devices(blobs(truth), 4, seed=0)
    assert labels.tolist() == [0, 1, 0, 2, 1, 2, 3, 0]
    assert labels.dtype.kind == "i"
    assert adjusted_rand_index(labels, truth) == 1.0


def test_the_same_whatever_the_seed_numbers_them():
    truth = np.random.default_rng(1).integers(0, 5, 40)
    vectors = blobs(truth)
    results = [cluster_devices(vectors, 5, seed).tolist() for seed in range(5)]
    assert all(result == results[0] for result in results)
    assert results[0][0] == 0


def test_the_short_cut_keeps_distances():
    vectors = blobs(np.array([0, 1, 1, 2, 0]), size=20_000) + np.float32(3.0)
    points = _coordinates(vectors)
    assert points.shape == (5, 5)

    def gaps(x):
        return np.linalg.norm(x[:, None].astype(float) - x[None].astype(float), axis=-1)

    np.testing.assert_allclose(gaps(points), gaps(vectors), rtol=1e-9, atol=1e-6)
    np.testing.assert_array_equal(_coordinates(vectors[:, :4]), vectors[:, :4])


def test_a_large_seed():
    assert cluster_devices(np.eye(3, dtype="f4"), 3, seed=2**40 + 1).tolist() == [0, 1, 2]


def test_like_devices_make_fewer_clusters():
    with pytest.warns(match="distinct clusters"):
        labels = cluster_devices(np.ones((6, 3), dtype="f4"), 3, seed=0)
    assert labels.tolist() == [0] * 6


def test_one_cluster_each():
    assert cluster_devices(np.eye(4, dtype="f4"), 4, seed=0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("k", [0, -1, 9])
def test_k_out_of_range(k):
    with pytest.raises(ConfigError, match=f"num_clusters: got {k} for 8 devices; accepted: 1 to 8"):
        cluster_devices(np.ones((8, 3), dtype="f4"), k, seed=0)


def test_not_two_dimensional():
    with pytest.raises(ConfigError, match=r"vectors: got shape \(8,\)"):
        cluster_devices(np.ones(8, dtype="f4"), 1, seed=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_diverged_device_is_named(bad):
    vectors = np.ones((8, 3), dtype="f4")
    vectors[5, 1] = bad
    with pytest.raises(DivergedError, match=r"device 5 .*learning_rate"):
        cluster_devices(vectors, 2, seed=0)


def test_the_bill_is_one_edge_iteration_of_everybody_at_the_nearest_edge():
    fleet = sample_fleet(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(0))
    seen = {}

    def allocate(fleet, work, devices, assignment):
        seen.update(work=work, devices=devices, assignment=assignment)
        return SimpleNamespace(bandwidth_hz=np.full(12, 1e5), cpu_hz=np.full(12, 1e9))

    cost = clustering_cost(fleet, 8e4, 5, 2.0, allocate)
    assert seen["devices"].tolist() == list(range(12))
    nearest = fleet.distance_m.argmin(axis=1)
    assert seen["assignment"].tolist() == nearest.tolist()
    assert (seen["work"].edge_iterations, seen["work"].cloud_hop) == (1, False)
    gain = fleet.gain[np.arange(12), nearest]
    upload = 8e4 / rate_bps(np.full(12, 1e5), gain, fleet.power_w, fleet.noise_w_per_hz)
    compute = compute_delay_s(5, fleet.cycles_per_sample, fleet.samples, np.full(12, 1e9))
    energy = compute_energy_j(2e-28, 5, fleet.cycles_per_sample, fleet.samples, np.full(12, 1e9))
    assert cost.delay_s == pytest.approx((upload + compute).max())
    assert cost.energy_j == pytest.approx((fleet.power_w * upload + energy).sum())
    assert cost.objective == pytest.approx(cost.energy_j + 2.0 * cost.delay_s)
    assert cost.message_bits == 12 * 8e4


def test_other_ways_to_bill_it():
    # One device: 1e4 cycles a sample, 500 samples, L = 2: 1e7 cycles. At 1 GHz 0.01 s and 1e-28 · 1e18 · 1e7 = 1 mJ; at
    # its highest frequency, 2 GHz, 0.005 s and 4 mJ. The upload, billed alike, is what else there is.
    fleet = sample_fleet(
        FleetConfig(num_devices=1, num_edges=2, cycles_per_sample=1e4, samples=500), np.random.default_rng(0)
    )

    def bill(**how):
        seen.clear()
        return clustering_cost(fleet, 8e4, 2, 1.0, allocate, **how)

    def allocate(fleet, work, devices, assignment):
        seen.update(edge_iterations=work.edge_iterations, edge=int(assignment[0]))
        return SimpleNamespace(bandwidth_hz=np.array([1e5]), cpu_hz=np.array([1e9]))

    seen = {}
    one, fast, five = bill(), bill(max_cpu=True), bill(edge_iterations=5)
    assert one.delay_s - fast.delay_s == pytest.approx(0.005, rel=1e-9)
    assert fast.energy_j - one.energy_j == pytest.approx(0.003, rel=1e-9)
    assert (five.delay_s, five.energy_j) == pytest.approx((5 * one.delay_s, 5 * one.energy_j))
    assert seen["edge_iterations"] == 5
    farther = int(1 - fleet.distance_m[0].argmin())
    assert bill(assignment=np.array([farther])).delay_s != one.delay_s
    assert seen["edge"] == farther
