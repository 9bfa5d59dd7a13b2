"""The base of all schedulers: uniform draws, quotas, and the first of several wrong values is named.

`test_fedavg.py` tests the arguments, state and entry points of all schedulers, and `test_vkc.py` the clusters, quotas
and fill-up.
"""

from __future__ import annotations

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.scheduling import ClusterScheduler, Scheduler, build_scheduler
from hflray.scheduling.base import draw
from hflray.scheduling.fedavg import FedAvg
from hflray.scheduling.vkc import VKC
from tests.conftest import small_config


def vkc(labels, h):
    return build_scheduler("vkc", num_devices=len(labels), num_scheduled=h, clusters=labels)


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


def test_quotas_by_hand():
    # H = 7 over K = 3: two each, and one cluster in turn has one more.
    scheduler, rng = vkc([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2], 7), np.random.default_rng(0)
    quotas = []
    for _ in range(4):
        quotas.append(scheduler.quotas().tolist())
        scheduler.schedule(rng)
    assert quotas == [[3, 2, 2], [2, 3, 2], [2, 2, 3], [3, 2, 2]]


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


def test_the_counts_from_one_to_all_devices_are_accepted():
    for n, h in ((1, 1), (3, 1), (3, 3)):
        scheduler = build_scheduler("fedavg", num_devices=np.int64(n), num_scheduled=h)
        assert (scheduler.num_devices, scheduler.num_scheduled) == (n, h)
        assert type(scheduler.num_devices) is int


@pytest.mark.parametrize(
    "labels, words",
    [
        ([0, 4, 0, 0], "clusters: device 1 has label 4; accepted: 0 to 3;"),  # the labels end below N
        ([0, 0, -1, 9], "clusters: device 2 has label -1; accepted: 0 to 3;"),
        ([9, 0, -1, 0], "clusters: device 0 has label 9; accepted: 0 to 3;"),
        ([0, 1, 0, 1, 0], "clusters: got 5 labels for num_devices = 4;"),
        ([[0, 1], [2]], "clusters: the 2 index arrays hold 3 devices; accepted: each of the devices 0 to 3 in"),
    ],
)
def test_the_first_wrong_label_is_named(labels, words):
    with pytest.raises(ConfigError) as error:
        build_scheduler("vkc", num_devices=4, num_scheduled=2, clusters=labels)
    assert str(error.value).startswith(words)


def test_labels_up_to_the_last_device_are_accepted():
    assert [c.tolist() for c in vkc([3, 0, 0, 0], 2).clusters] == [[1, 2, 3], [], [], [0]]


def test_an_offset_outside_the_clusters_is_refused_with_the_accepted_range():
    scheduler = vkc([0, 1, 2], 2)
    scheduler.load_state_dict(scheduler.state_dict() | {"offset": 2})
    assert scheduler.offset == 2
    for offset in (3, 4, 99):
        with pytest.raises(ConfigError, match=f"offset is {offset}; accepted: 0 to 2;"):
            scheduler.load_state_dict(scheduler.state_dict() | {"offset": offset})


@pytest.mark.parametrize("scheduler", [FedAvg, VKC])
def test_the_counts_are_given_by_name_and_cannot_be_mixed_up(scheduler):
    with pytest.raises(TypeError, match="positional"):
        scheduler(2, 3, [0, 0, 0])
    assert scheduler(num_devices=3, num_scheduled=2, clusters=[0, 0, 0]).num_scheduled == 2


@pytest.mark.parametrize("value", [True, "much", None, 1.5, -0.1, float("nan"), float("inf")])
def test_an_option_outside_its_range_is_named(value):
    with pytest.raises(ConfigError, match=r"scheduling.options.dropped: got .*; accepted: a number, 0 to 1;"):
        build_scheduler("importance", num_devices=5, num_scheduled=2, dropped=value)
    with pytest.raises(ConfigError, match=r"options.window: got 2.5; accepted: an integer, 1 or more;"):
        build_scheduler("oort", num_devices=5, num_scheduled=2, window=2.5)


@pytest.mark.parametrize(
    "settings",
    [
        ("scheduling.name=oort", "scheduling.options={windows: 3}"),
        ("scheduling.name=ucb", "scheduling.options={exploration: -1}"),
        ("scheduling.name=ikc", "scheduling.options={exploration: 1}"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(settings):
    with pytest.raises(ConfigError, match=r"option") as error:
        Experiment(small_config(*settings))
    assert "\n" not in str(error.value)
