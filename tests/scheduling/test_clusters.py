"""Uniform draws, and what VKC (Algorithm 3) shares with IKC: clusters, quotas and the fill-up."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.errors import ConfigError
from hflray.scheduling import ClusterScheduler, Scheduler, build_scheduler
from hflray.scheduling.base import draw
from tests.conftest import says


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


def test_one_or_more_devices_are_drawn_uniformly():
    pool, rng = np.array([3, 5, 8, 9]), np.random.default_rng(0)
    for count in (1, 2, 3):
        drawn = np.concatenate([draw(pool, count, rng) for _ in range(2000)])
        shares = np.array([(drawn == device).sum() for device in pool]) / 2000
        # Each device is in a share of count / 4; 5 standard deviations of a binomial (2000, 1/2) are 0.056.
        assert np.abs(shares - count / 4).max() < 0.056
        assert len(set(draw(pool, count, rng))) == count


def test_a_draw_without_a_choice_uses_no_random_number():
    pool = np.array([3, 5, 8])
    assert draw(pool, 0, None).tolist() == []
    everything = draw(pool, 3, None)
    assert everything.tolist() == [3, 5, 8]
    everything[0] = 7  # the result is the caller's own
    assert pool.tolist() == [3, 5, 8]


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


def test_labels_up_to_the_last_device_are_accepted():
    assert [c.tolist() for c in vkc([3, 0, 0, 0], 2).clusters] == [[1, 2, 3], [], [], [0]]


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
    with pytest.raises(ConfigError) as error:
        build_scheduler(name, num_devices=4, num_scheduled=2, clusters=clusters)
    assert says(str(error.value), "clusters: got", "accepted", "of the 4 devices", "cluster_devices")


def test_fedavg_draws_uniformly():
    scheduler, rng = build_scheduler("fedavg", num_devices=10, num_scheduled=3), np.random.default_rng(0)
    counts = np.bincount(np.concatenate([scheduler.schedule(rng) for _ in range(4000)]), minlength=10)
    # Each device is expected 1200 times; 4 standard deviations of a binomial (4000, 0.3) are 116.
    assert np.abs(counts - 1200).max() < 116
