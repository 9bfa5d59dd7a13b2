"""IKC (Algorithm 4) keeps its record as worked out by hand, and as its docstring promises."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.errors import ConfigError
from hflray.scheduling import build_scheduler


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


def test_a_cluster_smaller_than_its_quota_is_scheduled_whole_in_every_round():
    # Quotas (2, 1), (1, 2)…: device 0 is a cluster of its own, and either C_0 or G_0 holds it.
    for seed in range(5):
        scheduler, rng = ikc([0, 1, 1, 1, 1, 1, 1], 3), np.random.default_rng(seed)
        assert all(0 in scheduler.schedule(rng) for _ in range(12))


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


def test_every_device_trains_sooner_than_under_vkc():
    labels = np.repeat(np.arange(10), 10)
    rounds = {}
    for name in ("ikc", "vkc"):
        scheduler = build_scheduler(name, num_devices=100, num_scheduled=30, clusters=labels)
        rng, waiting, count = np.random.default_rng(0), set(range(100)), 0
        while waiting:
            waiting -= set(scheduler.schedule(rng).tolist())
            count += 1
        rounds[name] = count
    assert rounds["ikc"] == 4  # 3, 3, 3 and the last device of each cluster
    assert rounds["vkc"] > 6


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
