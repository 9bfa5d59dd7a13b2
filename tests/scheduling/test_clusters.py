"""Clusters: Algorithm 2 makes them, and VKC (Algorithm 3) and IKC (Algorithm 4) draw from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.allocation import Allocation, allocate_round
from hflray.cost import compute_delay_s, compute_energy_j, rate_bps
from hflray.data.datasets import CIFAR_RANGE, FASHION_RANGE
from hflray.errors import ConfigError, DivergedError
from hflray.experiment.grouping import adjusted_rand_index
from hflray.fleet import FleetConfig, sample_fleet
from hflray.models.vector import BITS_PER_PARAMETER, num_parameters
from hflray.physics.computing import Dvfs
from hflray.report.exports import content_of, files_of
from hflray.scheduling import ClusterScheduler, Scheduler, build_scheduler, cluster_devices, clustering_cost
from hflray.scheduling.clustering import _coordinates
from hflray.seeding import stream
from tests.conftest import refusal
from tests.models.samples import build_model


def vkc(labels, h):
    return build_scheduler("vkc", num_devices=len(labels), num_scheduled=h, clusters=np.array(labels))


def test_h_random_devices_of_each_cluster_are_scheduled():
    labels = np.repeat([0, 1, 2], 5)
    scheduler, rng = vkc(labels, 6), np.random.default_rng(0)
    rounds = [scheduler.schedule(rng) for _ in range(3000)]
    assert scheduler.auxiliary == "global"
    for devices in rounds:
        assert np.bincount(labels[devices]).tolist() == [2, 2, 2]
    counts = np.bincount(np.concatenate(rounds))
    # Each device is in 2/5 of 3000 rounds, which is 1200; 4 standard deviations are 107. VKC prefers no device.
    assert np.abs(counts - 1200).max() < 107


def test_small_clusters_give_all_and_other_devices_fill_up():
    # Clusters of 1, 2 and 7 with h = 3 give 1 + 2 + 3 devices, and 3 of the other 4 fill up.
    labels = np.array([0, 1, 1, 2, 2, 2, 2, 2, 2, 2])
    scheduler, rng = vkc(labels, 9), np.random.default_rng(1)
    for _ in range(20):
        devices = scheduler.schedule(rng)
        assert np.bincount(labels[devices]).tolist() == [1, 2, 6]
        assert len(np.unique(devices)) == 9


def test_quotas_rotate_if_h_is_not_a_multiple_of_k():
    labels = np.repeat(np.arange(4), 5)
    scheduler, rng = vkc(labels, 6), np.random.default_rng(0)
    shares = [np.bincount(labels[scheduler.schedule(rng)]).tolist() for _ in range(4)]
    assert shares == [[2, 2, 1, 1], [1, 1, 2, 2], [2, 2, 1, 1], [1, 1, 2, 2]]
    scheduler = vkc(labels, 3)  # H < K
    shares = [np.bincount(labels[scheduler.schedule(rng)], minlength=4).tolist() for _ in range(4)]
    assert shares == [[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1]]


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.data())
def test_exactly_h_devices_are_scheduled_for_any_labels(labels, data):
    labels = np.minimum(labels, len(labels) - 1)
    h = data.draw(st.integers(1, len(labels)))
    for name in ("vkc", "ikc"):
        scheduler = build_scheduler(name, num_devices=len(labels), num_scheduled=h, clusters=labels)
        rng, num_clusters = np.random.default_rng(h), labels.max() + 1
        total_quotas = np.zeros(num_clusters, dtype=int)
        for _ in range(num_clusters):
            total_quotas += scheduler.quotas()
            assert scheduler.quotas().sum() == h
            devices = scheduler.schedule(rng)
            assert devices.shape == (h,)
            assert np.all(np.diff(devices) > 0)
        assert np.all(total_quotas == h)  # over K rounds the quotas of each cluster add up to H


def test_clusters_may_be_lists_of_indices_and_empty():
    parts = [[4, 0], [], np.array([1, 2, 3])]
    scheduler = build_scheduler("vkc", num_devices=5, num_scheduled=3, clusters=parts)
    assert [c.tolist() for c in scheduler.clusters] == [[0, 4], [], [1, 2, 3]]
    assert len(scheduler.schedule(np.random.default_rng(0))) == 3
    singles = build_scheduler("vkc", num_devices=2, num_scheduled=1, clusters=[[1], [0]])
    assert [c.tolist() for c in singles.clusters] == [[1], [0]]


def test_a_state_of_other_clusters_or_a_wrong_offset_is_refused():
    labels = [0, 0, 0, 1, 1, 1, 2, 2]
    scheduler = vkc(labels, 4)
    scheduler.schedule(np.random.default_rng(0))
    assert scheduler.offset == 1
    state = json.loads(json.dumps(scheduler.state_dict()))
    with pytest.raises(ConfigError, match="other clusters"):
        vkc([0, 0, 0, 1, 1, 1, 1, 2], 4).load_state_dict(state)
    for offset in (3, 99, -1, True, None):
        with pytest.raises(ConfigError, match=f"offset is {offset}; accepted: 0 to 2;"):
            vkc(labels, 4).load_state_dict(state | {"offset": offset})


def test_devices_that_fill_up_are_drawn_uniformly():
    # Cluster {0} is one device short of its quota of 2. One of the 8 devices of cluster 1 that are left fills up.
    scheduler, rng = vkc([0] + [1] * 9, 3), np.random.default_rng(0)
    scheduler.offset = 0
    counts = np.zeros(10)
    for _ in range(2000):
        scheduler.offset = 0  # quotas of 2 and 1 in every round
        counts[scheduler.schedule(rng)] += 1
    assert counts[0] == 2000
    # Each of the others is in a share of 2/9 of the rounds; 5 standard deviations are 93.
    assert np.abs(counts[1:] - 2000 * 2 / 9).max() < 93


def test_a_base_class_alone_is_no_scheduler():
    for base, options in ((Scheduler, {}), (ClusterScheduler, {"clusters": [0, 1]})):
        with pytest.raises(TypeError, match="abstract"):
            base(num_devices=2, num_scheduled=1, **options)


@pytest.mark.parametrize("name", ["vkc", "ikc", "joint_cost"])
@pytest.mark.parametrize(
    "clusters",
    [
        None, [0, 1], [0.0, 1.0, 0.0, 1.0], [True, False, True, False], [0, -1, 0, 1], [0, 1, 10**9, 1], [0, 4, 0, 0],
        np.zeros((2, 2), dtype=int), [0, 1, 0, 1, 0], [[0, 1], [2]], [[0, 1], [1, 2, 3]], [[0, 1], [2.5, 3]],
        [[0, [1]], [2, 3]],
    ],
)  # fmt: skip
def test_bad_clusters_are_refused(name, clusters):
    with refusal(ConfigError, "clusters: got", "accepted", "of the 4 devices", "cluster_devices"):
        build_scheduler(name, num_devices=4, num_scheduled=2, clusters=clusters)


def test_fedavg_draws_uniformly():
    scheduler, rng = build_scheduler("fedavg", num_devices=10, num_scheduled=3), np.random.default_rng(0)
    counts = np.bincount(np.concatenate([scheduler.schedule(rng) for _ in range(4000)]), minlength=10)
    # Each device is expected 1200 times; 4 standard deviations of a binomial (4000, 0.3) are 116.
    assert np.abs(counts - 1200).max() < 116


class FirstOfPool:
    """A generator that picks the first devices of the pool, so that rounds can be worked out by hand."""

    def choice(self, pool, count, replace):
        assert not replace
        assert count < len(pool)
        return np.asarray(pool)[:count]


def ikc(labels, h):
    return build_scheduler("ikc", num_devices=len(labels), num_scheduled=h, clusters=labels)


def sets(scheduler):
    return [c.tolist() for c in scheduler.fresh], [g.tolist() for g in scheduler.record]


def test_the_record_of_one_cluster_worked_out_by_hand():
    # C = {0..4}, h = 2.
    scheduler = ikc([0] * 5, 2)
    assert scheduler.auxiliary == "mini"
    assert sets(scheduler) == ([[0, 1, 2, 3, 4]], [[]])
    # Lines 8-9, C_k = 5 >= 2: 0 and 1 move to G.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 1]
    assert sets(scheduler) == ([[2, 3, 4]], [[0, 1]])
    # C_k = 3 >= 2 again.
    assert scheduler.schedule(FirstOfPool()).tolist() == [2, 3]
    assert sets(scheduler) == ([[4]], [[0, 1, 2, 3]])
    # Lines 11-14, C_k = 1 < 2: schedule 4 and one of G (0). The other devices of G become C, and G becomes H.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 4]
    assert sets(scheduler) == ([[1, 2, 3]], [[0, 4]])
    # A new pass begins: 1 and 2 come before 0 and 4.
    assert scheduler.schedule(FirstOfPool()).tolist() == [1, 2]
    assert sets(scheduler) == ([[3]], [[0, 1, 2, 4]])
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 3]
    assert sets(scheduler) == ([[1, 2, 4]], [[0, 3]])


def test_the_record_with_a_small_cluster_and_fill_up_worked_out_by_hand():
    # Clusters {0}, {1, 2, 3} and {4, …, 8} with K·h = 6, h = 2: C_0 + G_0 = 1 < h.
    scheduler = ikc([0, 1, 1, 1, 2, 2, 2, 2, 2], 6)
    # 0 (Line 18); 1, 2; 4, 5 (Line 9); fill-up from {3, 6, 7, 8} (Lines 22-23): 3, which is not recorded.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 1, 2, 3, 4, 5]
    assert sets(scheduler) == ([[0], [3], [6, 7, 8]], [[], [1, 2], [4, 5]])
    # 0; 3 with 1 of G = {1, 2}, then C = {2}, G = {1, 3}; 6, 7; fill-up from {2, 4, 5, 8}: 2.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 1, 2, 3, 6, 7]
    assert sets(scheduler) == ([[0], [2], [8]], [[], [1, 3], [4, 5, 6, 7]])
    # 0; 2 with 1, then C = {3}, G = {1, 2}; 8 with 4, then C = {5, 6, 7}, G = {4, 8}; fill-up from {3, 5, 6, 7}: 3.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 1, 2, 3, 4, 8]
    assert sets(scheduler) == ([[0], [3], [5, 6, 7]], [[], [1, 2], [4, 8]])


def test_the_record_with_varying_quotas_worked_out_by_hand():
    # K = 2, H = 3: quotas (2, 1), (1, 2), (2, 1)… Cluster {0} has C_k + G_k < h_k whenever its quota is 2.
    scheduler = ikc([0, 1, 1, 1], 3)
    # 0 (Line 18); 1; fill-up from {2, 3}: 2.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 1, 2]
    assert sets(scheduler) == ([[0], [2, 3]], [[], [1]])
    # Quotas (1, 2): 0 by Line 9, so G_0 = {0}; 2, 3.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 2, 3]
    assert sets(scheduler) == ([[], []], [[0], [1, 2, 3]])
    # Quotas (2, 1): C_0 is empty and G_0 = {0} is not. Both are taken and the record stays. Cluster 1 restarts with 1.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 1, 2]  # 2 fills up
    assert sets(scheduler) == ([[], [2, 3]], [[0], [1]])
    # Quotas (1, 2): C_0 + G_0 >= 1 by Lines 11-14.
    assert scheduler.schedule(FirstOfPool()).tolist() == [0, 2, 3]
    assert sets(scheduler) == ([[], []], [[0], [1, 2, 3]])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.data(), st.integers(0, 5))
def test_no_device_is_repeated_before_its_cluster_is_exhausted(num_clusters, data, seed):
    h = data.draw(st.integers(1, 12))
    largest = -(-h // num_clusters)  # the largest quota; every cluster has at least that many
    sizes = data.draw(st.lists(st.integers(largest, largest + 6), min_size=num_clusters, max_size=num_clusters))
    scheduler, rng = ikc(np.repeat(np.arange(num_clusters), sizes), h), np.random.default_rng(seed)
    scheduled_in_pass: list[set[int]] = [set() for _ in range(num_clusters)]  # scheduled in this pass
    for _ in range(12):
        quotas = scheduler.quotas()
        scheduled = set(scheduler.schedule(rng).tolist())
        for k, members in enumerate(scheduler.clusters):
            picked, waiting = scheduled & set(members.tolist()), set(members.tolist()) - scheduled_in_pass[k]
            assert len(picked) == quotas[k]  # no fill-up
            assert picked <= waiting or waiting <= picked  # no device is repeated while another one waits
            scheduled_in_pass[k] = scheduled_in_pass[k] | picked if len(waiting) >= len(picked) else picked
            assert scheduled_in_pass[k] == set(scheduler.record[k].tolist())
            assert sorted([*scheduler.fresh[k], *scheduler.record[k]]) == members.tolist()


def test_a_damaged_record_is_refused():
    scheduler = ikc([0, 0, 0, 1, 1], 3)
    scheduler.schedule(np.random.default_rng(0))
    state = scheduler.state_dict()
    for record in (None, [[0]], [[3], []], [["x"], []], [[[0]], [7]], [0, 1]):
        with pytest.raises(ConfigError, match="record does not hold"):
            scheduler.load_state_dict(state | {"record": record})


def test_a_device_that_does_not_answer_keeps_its_turn():
    # One cluster of 5, H = 2. Device 1 is absent in rounds 1 to 3.
    scheduler = build_scheduler("ikc", num_devices=5, num_scheduled=2, clusters=[0] * 5)
    absent = [True, False, True, True, True]

    def devices(available):
        return scheduler.schedule(SimpleNamespace(rng=FirstOfPool(), available=np.array(available))).tolist()

    assert devices(absent) == [0, 2]
    assert devices(absent) == [3, 4]
    assert (scheduler.fresh[0].tolist(), scheduler.record[0].tolist()) == ([1], [0, 2, 3, 4])
    assert devices(absent) == [0, 2]  # only device 1 is fresh, so others take its place, and the pass goes on
    assert (scheduler.fresh[0].tolist(), scheduler.record[0].tolist()) == ([1], [0, 2, 3, 4])
    assert devices([True] * 5) == [0, 1]  # the pass ends: 1 takes its turn, and 0 fills the quota
    assert (scheduler.fresh[0].tolist(), scheduler.record[0].tolist()) == ([2, 3, 4], [0, 1])
    assert devices([False, False, False, True, False]) == [3]  # fewer than H are available
    assert scheduler.fresh[0].tolist() == [2, 4]
    assert devices([False] * 5) == []


@pytest.mark.parametrize("name", ["fedavg", "ikc", "vkc"])
def test_full_availability_changes_nothing(name):
    """hflray 0.1 called the paper's schedulers with the generator alone."""
    alone, context = (build_scheduler(name, num_devices=30, num_scheduled=9, clusters=np.arange(30) % 4) for _ in "ab")
    for seed in range(60):
        everybody = SimpleNamespace(rng=np.random.default_rng(seed), available=np.ones(30, dtype=bool))
        assert context.schedule(everybody).tolist() == alone.schedule(np.random.default_rng(seed)).tolist()
    assert context.state_dict() == alone.state_dict()


def blobs(truth, seed=0, size=40):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(max(truth) + 1, size))[truth] + 0.01 * rng.normal(size=(len(truth), size))).astype("f4")


def test_groups_are_recovered_and_numbered_by_first_appearance():
    truth = np.array([2, 0, 2, 1, 0, 1, 3, 2])
    labels = cluster_devices(blobs(truth), 4, seed=0)
    assert labels.tolist() == [0, 1, 0, 2, 1, 2, 3, 0]
    assert labels.dtype.kind == "i"
    assert adjusted_rand_index(labels, truth) == 1.0


def test_coordinates_keep_distances():
    vectors = blobs(np.array([0, 1, 1, 2, 0]), size=20_000) + np.float32(3.0)
    points = _coordinates(vectors)
    assert points.shape == (5, 5)

    def gaps(x):
        return np.linalg.norm(x[:, None].astype(float) - x[None].astype(float), axis=-1)

    np.testing.assert_allclose(gaps(points), gaps(vectors), rtol=1e-9, atol=1e-6)
    np.testing.assert_array_equal(_coordinates(vectors[:, :4]), vectors[:, :4])


def test_equal_vectors_make_fewer_clusters():
    with pytest.warns(match="distinct clusters"):
        labels = cluster_devices(np.ones((6, 3), dtype="f4"), 3, seed=0)
    assert labels.tolist() == [0] * 6


@pytest.mark.parametrize(
    "shape, k, facts",
    [*(((8, 3), k, f"num_clusters: got {k} for 8 devices") for k in (0, -1, 9)), ((8,), 1, "vectors: got shape")],
)
def test_k_out_of_range_and_other_shapes_are_refused(shape, k, facts):
    with pytest.raises(ConfigError, match=facts):
        cluster_devices(np.ones(shape, dtype="f4"), k, seed=0)


def test_the_bill_is_one_edge_iteration_of_all_devices_at_their_nearest_edges():
    fleet = sample_fleet(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(0))
    request = {}

    def allocate(fleet, work, devices, assignment):
        request.update(work=work, devices=devices, assignment=assignment)
        return Allocation(bandwidth_hz=np.full(12, 1e5), cpu_hz=np.full(12, 1e9))

    cost = clustering_cost(fleet, 8e4, 5, 2.0, allocate)
    assert request["devices"].tolist() == list(range(12))
    nearest = fleet.distance_m.argmin(axis=1)
    assert request["assignment"].tolist() == nearest.tolist()
    assert (request["work"].edge_iterations, request["work"].cloud_hop) == (1, False)
    gain = fleet.gain[np.arange(12), nearest]
    upload = 8e4 / rate_bps(np.full(12, 1e5), gain, fleet.power_w, fleet.noise_w_per_hz)
    compute = compute_delay_s(5, fleet.cycles_per_sample, fleet.samples, np.full(12, 1e9))
    energy = compute_energy_j(2e-28, 5, fleet.cycles_per_sample, fleet.samples, np.full(12, 1e9))
    assert cost.delay_s == pytest.approx((upload + compute).max())
    assert cost.energy_j == pytest.approx((fleet.power_w * upload + energy).sum())
    assert cost.objective == pytest.approx(cost.energy_j + 2.0 * cost.delay_s)
    assert cost.message_bits == 12 * 8e4


def test_the_bill_follows_its_options():
    # One device with 1e4 cycles per sample, 500 samples and L = 2 needs 1e7 cycles. At 1 GHz they take 0.01 s and
    # 1e-28 · 1e18 · 1e7 = 1 mJ, and at its highest frequency, 2 GHz, 0.005 s and 4 mJ. The upload is the same in both.
    fleet = sample_fleet(
        FleetConfig(num_devices=1, num_edges=2, cycles_per_sample=1e4, samples=500), np.random.default_rng(0)
    )

    def bill(**options):
        request.clear()
        return clustering_cost(fleet, 8e4, 2, 1.0, allocate, **options)

    def allocate(fleet, work, devices, assignment):
        request.update(edge_iterations=work.edge_iterations, edge=int(assignment[0]))
        return Allocation(bandwidth_hz=np.array([1e5]), cpu_hz=np.array([1e9]))

    request = {}
    one, fast, five = bill(), bill(max_cpu=True), bill(edge_iterations=5)
    assert one.delay_s - fast.delay_s == pytest.approx(0.005, rel=1e-9)
    assert fast.energy_j - one.energy_j == pytest.approx(0.003, rel=1e-9)
    assert (five.delay_s, five.energy_j) == pytest.approx((5 * one.delay_s, 5 * one.energy_j))
    assert request["edge_iterations"] == 5
    assert request["edge"] == fleet.distance_m[0].argmin()
    # A computing whose largest setting is half of f_max, 1 GHz, is billed with that.
    fleet = replace(fleet, compute=type("Half", (Dvfs,), {"most": lambda self, device: device.max_cpu_hz / 2})())
    assert bill(max_cpu=True).delay_s == one.delay_s


EXPORT = Path(__file__).parents[1] / "data" / "results" / "table2_clustering"


@pytest.mark.parametrize(
    "name, image, samples", [("fashion", (1, 28, 28), FASHION_RANGE), ("cifar10", (3, 32, 32), CIFAR_RANGE)]
)
def test_the_bills_of_table_2_are_those_of_our_runs(name, image, samples):
    """Compare the means over the five fleets with those of the committed runs.

    Only the D_n are drawn anew. The measured differences are within 0.8 %, and the test allows 5 %. On Fashion-MNIST
    the paper's ratios are 41 and 29, and ours are 42 and 20.
    """
    runs = content_of(files_of(EXPORT))["runs"]
    measured, bills = {}, {}
    for scheduler, model, shape in (("ikc", "mini", (1, 10, 10)), ("vkc", "hfl", image)):
        bits = BITS_PER_PARAMETER * num_parameters(build_model(model, shape, 10))
        config = FleetConfig(samples=samples)
        costs = [
            clustering_cost(sample_fleet(config, stream(seed, "fleet")), bits, 5, 1.0, allocate_round)
            for seed in range(5)
        ]
        values = [r["values"] for r in runs if r["name"].startswith(name) and f"-{scheduler}-" in r["name"]]
        assert len(values) == 5
        for quantity in ("delay_s", "energy_j"):
            bills[scheduler, quantity] = np.mean([getattr(cost, quantity) for cost in costs])
            measured[scheduler, quantity] = np.mean([value[f"clustering/{quantity}"] for value in values])
    assert bills == pytest.approx(measured, rel=0.05)
    for quantity in ("delay_s", "energy_j"):
        ratio = measured["vkc", quantity] / measured["ikc", quantity]
        assert bills["vkc", quantity] / bills["ikc", quantity] == pytest.approx(ratio, rel=0.05)


def test_the_seed_counts_modulo_two_to_the_32():
    # Points without clear clusters: K-means ends at another grouping with another seed.
    vectors = np.random.default_rng(0).normal(size=(80, 3)).astype("f4")

    def group(seed):
        return cluster_devices(vectors, 20, seed).tolist()

    assert group(3) == group(2**32 + 3)
    assert group(3) != group(4)
    assert group(3) != group(2**31 + 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_first_diverged_device_is_named_with_their_number(bad):
    vectors = np.ones((8, 3), dtype="f4")
    vectors[5, 1] = vectors[2, 0] = bad
    with pytest.raises(DivergedError, match=r"device 2 has .*\(2 of 8 devices\)"):
        cluster_devices(vectors, 2, seed=0)


def test_k_means_runs_with_one_thread(monkeypatch):
    """With more, the partial sums of the centres are added in an order that changes from run to run."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_info, threadpool_limits

    threads, fit = [], KMeans.fit

    def note(self, points):
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return fit(self, points)

    monkeypatch.setattr(KMeans, "fit", note)
    with threadpool_limits(limits=2):
        cluster_devices(np.eye(4, dtype="f4"), 2, seed=0)
    assert set(threads) == {1}
