"""VKC (Algorithm 3), and the clusters, quotas and fill-up that it shares with IKC."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.errors import ConfigError
from hflray.scheduling import build_scheduler


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


@pytest.mark.parametrize("name", ["vkc", "ikc"])
@pytest.mark.parametrize(
    "clusters, words",
    [
        (None, ["clusters", "None", "one label for each", "cluster_devices"]),
        ([0, 1], ["clusters", "2 labels", "num_devices = 4", "one label per device"]),
        ([0.0, 1.0, 0.0, 1.0], ["clusters", "float64", "integers", "astype"]),
        ([True, False, True, False], ["clusters", "bool", "integers"]),
        ([0, -1, 0, 1], ["clusters", "device 1", "-1", "from 0"]),
        ([0, 1, 10**9, 1], ["clusters", "device 2", "1000000000", "0 to 3"]),
        (np.zeros((2, 2), dtype=int), ["clusters", "(2, 2)", "1-D"]),
        ([[0, 1], [2]], ["clusters", "3 devices", "0 to 3", "exactly one"]),
        ([[0, 1], [1, 2, 3]], ["clusters", "5 devices", "exactly one"]),
        ([[0, 1], [2.5, 3]], ["clusters[1]", "float64", "integers"]),
    ],
)
def test_bad_clusters_are_named(name, clusters, words):
    with pytest.raises(ConfigError) as error:
        build_scheduler(name, num_devices=4, num_scheduled=2, clusters=clusters)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_state_is_restored_unless_it_is_another_schedulers():
    labels = [0, 0, 0, 1, 1, 1, 2, 2]
    scheduler = vkc(labels, 4)
    scheduler.schedule(np.random.default_rng(0))
    assert scheduler.offset == 1
    state = json.loads(json.dumps(scheduler.state_dict()))
    other = vkc(labels, 4)
    other.load_state_dict(state)
    np.testing.assert_array_equal(
        scheduler.schedule(np.random.default_rng(1)), other.schedule(np.random.default_rng(1))
    )
    with pytest.raises(ConfigError, match="other clusters"):
        vkc([0, 0, 0, 1, 1, 1, 1, 2], 4).load_state_dict(state)
    with pytest.raises(ConfigError, match="num_scheduled is 4"):
        vkc(labels, 5).load_state_dict(state)
    with pytest.raises(ConfigError, match="scheduler is 'VKC'"):
        build_scheduler("ikc", num_devices=8, num_scheduled=4, clusters=labels).load_state_dict(state)
    for offset in (3, -1, True, None):
        with pytest.raises(ConfigError, match="offset is"):
            other.load_state_dict(state | {"offset": offset})
