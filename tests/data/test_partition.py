"""Partitions have exact sizes and shares, are worked out by hand, and fail only if no partition is possible."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.config import load_config
from hflray.data import Dataset
from hflray.data.partition import (
    DirichletPartition,
    EdgeDirichletPartition,
    EdgeIIDPartition,
    EdgeNonIIDPartition,
    IIDPartition,
    MajorityPartition,
    OwnersPartition,
    ShardsPartition,
    build_partition,
    device_sizes,
    home_edges,
    label_counts,
    majority_classes,
    majority_quota,
)
from hflray.errors import ConfigError, DataError
from hflray.experiment.scenario import Scenario
from tests.conftest import refusal, refusals, says


def balanced(classes: int, each: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


def assert_is_partition(parts, labels, sizes):
    assert [len(part) for part in parts] == list(sizes)
    indices = np.concatenate(parts)
    assert indices.dtype == np.int64
    assert len(np.unique(indices)) == len(indices)
    assert indices.min() >= 0
    assert indices.max() < len(labels)


@st.composite
def problems(draw):
    """Draw labels of 1 to 6 classes, not necessarily balanced, and sizes of at most the supply in total."""
    supply = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    labels = np.random.default_rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(len(supply)), supply))
    devices = draw(st.integers(1, min(12, len(labels))))
    top = len(labels) // devices
    sizes = np.array(draw(st.lists(st.integers(1, top), min_size=devices, max_size=devices)))
    return labels, sizes, draw(st.integers(0, 2**32 - 1))


@given(problems(), st.sampled_from([IIDPartition(), DirichletPartition(0.01), DirichletPartition(0.5)]))
@settings(max_examples=80, deadline=None)
def test_iid_and_dirichlet_partition_any_sizes_that_fit(problem, partition):
    labels, sizes, seed = problem
    parts = partition(labels, len(sizes), sizes, np.random.default_rng(seed))
    assert_is_partition(parts, labels, sizes)
    repeated = partition(labels, len(sizes), sizes, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, repeated, strict=True))


@given(problems(), st.sampled_from([0.5, 0.8, 1.0]))
@settings(max_examples=150, deadline=None)
def test_majority_partitions_unless_a_class_may_be_exceeded(problem, fraction):
    labels, sizes, seed = problem
    supply = np.bincount(labels)
    try:
        parts = MajorityPartition(fraction)(labels, len(sizes), sizes, np.random.default_rng(seed))
    except DataError:
        # It may fail only if the rarest class cannot supply the largest quotas that even dealing could give it.
        most = np.sort(majority_quota(sizes, fraction))[::-1][: -(-len(sizes) // len(supply))].sum()
        assert most > supply.min()
        return
    assert_is_partition(parts, labels, sizes)
    quota = majority_quota(sizes, fraction)
    assert (label_counts(parts, labels, len(supply)).max(axis=1) >= quota).all()


@given(st.integers(2, 8), st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from([0.6, 0.8, 0.9]))
@settings(max_examples=60, deadline=None)
def test_the_majority_share_is_exact_if_the_supply_suffices(classes, devices, seed, fraction):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(10, 31, devices)
    labels = balanced(classes, 30 * devices)
    parts = MajorityPartition(fraction)(labels, devices, sizes, rng)
    assert_is_partition(parts, labels, sizes)
    counts = label_counts(parts, labels, classes)
    assert counts.max(axis=1).tolist() == [round(fraction * int(size)) for size in sizes]
    dealt = np.bincount(majority_classes(parts, labels, classes), minlength=classes)
    assert dealt.max() - dealt.min() <= 1


def test_other_classes_are_drawn_where_a_greedy_draw_would_fail():
    # Two devices, one of each class, need all 20 samples, 5 + 5 of them of their majority classes. The only completion
    # gives the device of class 0 exactly the other 5 samples of class 1, and the other way round.
    labels = balanced(2, 10)
    for seed in range(20):
        parts = MajorityPartition(0.5)(labels, 2, np.array([10, 10]), np.random.default_rng(seed))
        assert label_counts(parts, labels, 2).tolist() == [[5, 5], [5, 5]]
    # With three classes of 10 and all samples dealt, each device's other 5 must come from the two other classes.
    labels = balanced(3, 10)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        counts = label_counts(MajorityPartition(0.5)(labels, 3, np.array([10, 10, 10]), rng), labels, 3)
        assert (np.sort(counts, axis=1)[:, -1] == 5).all()


def test_a_devices_own_class_fills_up_only_if_other_classes_cannot():
    # With one class, no samples can come from another class.
    parts = MajorityPartition(0.8)(np.zeros(10, int), 2, np.array([5, 5]), np.random.default_rng(0))
    assert_is_partition(parts, np.zeros(10, int), [5, 5])
    # A device of class 0 needs 20 % of 20 = 4 samples of class 1, which has 2: it gets 16 + 2 of its own and these 2.
    labels = np.repeat([0, 1], [30, 2])
    outcomes = set()
    for seed in range(10):
        try:
            parts = MajorityPartition(0.8)(labels, 1, np.array([20]), np.random.default_rng(seed))
        except DataError as error:  # the device was dealt class 1, and needs 16 samples of it
            outcomes.add(str(error).split(";")[0])
        else:
            outcomes.add(str(label_counts(parts, labels, 2).tolist()))
    refusal = "data.partition: majority asks for 16 samples of class 1 for its 1 devices, but the training set has 2"
    assert outcomes == {"[[18, 2]]", refusal}


def test_a_small_alpha_concentrates_and_a_large_one_spreads():
    labels, sizes = balanced(10, 1000), np.full(20, 100)

    def largest_share(alpha: float) -> float:
        parts = DirichletPartition(alpha)(labels, 20, sizes, np.random.default_rng(0))
        return float(label_counts(parts, labels, 10).max(axis=1).mean()) / 100

    assert largest_share(0.01) > 0.9
    assert largest_share(1000.0) < 0.25


def test_label_counts_and_majority_classes_by_hand():
    labels = np.array([0, 1, 1, 2, 2, 2])
    parts = [np.array([0, 1, 2]), np.array([3]), np.array([4, 0])]
    assert label_counts(parts, labels, 4).tolist() == [[1, 2, 0, 0], [0, 0, 1, 0], [1, 0, 1, 0]]
    assert majority_classes(parts, labels, 4).tolist() == [1, 2, 0]


def test_a_scaled_range_worked_out_by_hand():
    # For 20 devices on 10 classes of 100, the total allows 50 each, and 2 devices per class allow quotas of 50, that is
    # D_n <= 63. The upper end is therefore 50, and the lower end 400·50/700 = 28.
    args = {"default_range": (400, 700), "majority_fraction": 0.8, "name": "small"}
    sizes, message = device_sizes(balanced(10, 100), 20, np.random.default_rng(0), **args)
    assert says(message, "small", "1000", "100", "400..700", "28..50", "20 devices")
    assert 28 <= sizes.min() <= sizes.max() <= 50
    # For 5 devices on 2 classes of 100, the total allows 40, and 3 devices of a class allow quotas of 33, D_n <= 41.
    _, message = device_sizes(balanced(2, 100), 5, np.random.default_rng(0), **args)
    assert "to 22..40 for" in message
    # With all samples in the majority class, the quota of three devices binds: D_n <= 33.
    _, message = device_sizes(balanced(2, 100), 5, np.random.default_rng(0), **(args | {"majority_fraction": 1.0}))
    assert "to 18..33 for" in message


@given(st.integers(1, 60), st.lists(st.integers(1, 80), min_size=1, max_size=10), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_a_scaled_range_can_always_be_dealt(devices, supply, seed):
    labels, rng = np.repeat(np.arange(len(supply)), supply), np.random.default_rng(seed)
    try:
        sizes, _ = device_sizes(labels, devices, rng, default_range=(400, 700), majority_fraction=0.8)
    except DataError:
        # One sample each is too much for the total, or for the rarest class and the devices that are dealt to it.
        assert devices > len(labels) or -(-devices // len(supply)) > min(supply)
        return
    assert_is_partition(MajorityPartition(0.8)(labels, devices, sizes, rng), labels, sizes)


def test_an_explicit_range_is_never_scaled():
    sizes, message = device_sizes(
        balanced(2, 10), 3, np.random.default_rng(0), default_range=(400, 700), explicit=(9, 9), majority_fraction=0.8
    )
    assert sizes.tolist() == [9, 9, 9]
    assert message is None


def test_the_other_classes_are_drawn_in_proportion_to_what_remains_of_them():
    # One device of 1000 samples; 500 of its class, and the other 500 from classes that remain as 1 to 4.
    labels = np.repeat([0, 1, 2], [5000, 1000, 4000])
    counts = []
    for seed in range(40):
        try:
            parts = MajorityPartition(0.5)(labels, 1, np.array([1000]), np.random.default_rng(seed))
        except DataError:
            continue
        counts += [c for c in label_counts(parts, labels, 3).tolist() if c[0] == 500]
    assert len(counts) > 5
    # 100 of class 1 and 400 of class 2 are expected; a mean over 5 or more devices deviates by about 4.
    assert np.mean(counts, axis=0) == pytest.approx([500, 100, 400], abs=20)


def test_dirichlet_shares_are_those_of_the_draw():
    # With 1e5 samples of each class, a device's counts are its share of 2000, up to the multinomial's deviation of 22.
    labels, rng = np.repeat([0, 1, 2], 100_000), np.random.default_rng(4)
    shares = np.random.default_rng(4).dirichlet(np.full(3, 0.7), 6)
    parts = DirichletPartition(0.7)(labels, 6, np.full(6, 2000), rng)
    np.testing.assert_allclose(label_counts(parts, labels, 3), 2000 * shares, atol=110)


def test_an_iid_device_draws_from_the_whole_set():
    labels = np.repeat([0, 1], 500)
    counts = label_counts(IIDPartition()(labels, 4, np.full(4, 200), np.random.default_rng(0)), labels, 2)
    assert np.abs(counts - 100).max() < 36  # 5 standard deviations


def test_both_ends_of_a_range_are_drawn():
    for options in ({"explicit": (3, 5)}, {"default_range": (3, 5)}):
        args = {"default_range": (400, 700)} | options
        sizes, message = device_sizes(balanced(10, 100), 60, np.random.default_rng(0), **args)
        assert set(sizes.tolist()) == {3, 4, 5}
        assert message is None
    sizes, _ = device_sizes(balanced(2, 60), 24, np.random.default_rng(0), default_range=(3, 700))
    assert set(sizes.tolist()) == {1, 2, 3, 4, 5}  # 3..700 scaled to 1..5: all ends are possible


def test_a_range_that_just_fits_is_not_scaled():
    # 10 devices of 10 samples take all 100. With quotas of 10 of 10 samples, each class serves one of its 10 devices.
    args = {"default_range": (10, 10)}
    sizes, message = device_sizes(balanced(10, 10), 10, np.random.default_rng(0), **args, majority_fraction=1.0)
    assert (sizes.tolist(), message) == ([10] * 10, None)
    assert device_sizes(balanced(10, 10), 10, np.random.default_rng(0), **args)[1] is None
    assert device_sizes(balanced(10, 10), 11, np.random.default_rng(0), **args)[1] is not None
    one_each, _ = device_sizes(balanced(2, 2), 4, np.random.default_rng(0), default_range=(400, 700))
    assert one_each.tolist() == [1, 1, 1, 1]


def test_the_message_counts_the_devices_of_the_class_that_is_too_small():
    # Six devices of 10 samples on three classes: two devices each, whose quotas of 8 add up to 16.
    labels = np.repeat([0, 1, 2], [100, 1, 100])
    with pytest.raises(DataError, match="16 samples of class 1 for its 2 devices, but the training set has 1;"):
        MajorityPartition(0.8)(labels, 6, np.full(6, 10), np.random.default_rng(0))


def test_more_devices_than_samples_are_an_error_before_any_draw():
    with pytest.raises(DataError, match=r"tiny has 4 training samples for 1000000000000 devices.* lower fleet"):
        device_sizes(balanced(2, 2), 10**12, np.random.default_rng(0), default_range=(400, 700), name="tiny")


def dealt(partition, labels: np.ndarray, sizes: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the class counts (N, C), after a check that no sample is held twice and that the sizes are exact."""
    parts = partition(labels, len(sizes), sizes, np.random.default_rng(seed))
    indices = np.concatenate(parts)
    assert indices.dtype == np.int64
    assert len(np.unique(indices)) == len(indices)
    assert all((np.diff(part) > 0).all() for part in parts)
    counts = label_counts(parts, labels, labels.max() + 1)
    assert counts.sum(axis=1).tolist() == sizes.tolist()
    return counts


def test_homes_are_contiguous_and_even():
    assert home_edges(6, 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert home_edges(5, 2).tolist() == [0, 0, 0, 1, 1]
    assert np.bincount(home_edges(184, 6)).tolist() == [31, 31, 30, 31, 31, 30]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_shards_hold_k_classes_in_equal_parts(k):
    sizes = np.array([6, 7, 12, 6, 9, 6])
    for seed in range(10):
        counts = dealt(ShardsPartition(k), balanced(4, 60), sizes, seed)
        assert ((counts > 0).sum(axis=1) == k).all()
        for size, row in zip(sizes, counts, strict=True):
            held = sorted(row[row > 0].tolist())
            assert held == sorted(size // k + (j < size % k) for j in range(k))
        owners = (counts > 0).sum(axis=0)  # 6k places over four classes
        assert owners.max() - owners.min() <= 1


def test_which_classes_meet_in_a_shard_is_drawn():
    pairs = {tuple(np.flatnonzero(row)) for seed in range(20)
             for row in dealt(ShardsPartition(2), balanced(4, 9), np.array([4, 4]), seed)}  # fmt: skip
    assert len(pairs) == 6  # all pairs of four classes


def test_each_edge_has_all_classes_and_each_device_one():
    sizes = np.full(12, 5)
    for seed in range(5):
        counts = dealt(EdgeIIDPartition(2), balanced(3, 20), sizes, seed)
        assert ((counts > 0).sum(axis=1) == 1).all()
        for edge in range(2):  # six devices of an edge hold three classes, two devices each
            assert counts[home_edges(12, 2) == edge].sum(axis=0).tolist() == [10, 10, 10]


def test_each_edge_has_some_classes_and_each_class_as_many_edges():
    sizes = np.full(12, 5)
    for seed in range(5):
        counts = dealt(EdgeNonIIDPartition(3, classes_per_edge=2), balanced(3, 20), sizes, seed)
        assert ((counts > 0).sum(axis=1) == 1).all()
        edges = np.stack([counts[home_edges(12, 3) == edge].sum(axis=0) for edge in range(3)])
        assert np.sort(edges, axis=1).tolist() == [[0, 10, 10]] * 3  # two classes of two devices each
        assert (edges > 0).sum(axis=0).tolist() == [2, 2, 2]  # six places over three classes


def test_each_level_of_dirichlet_may_be_iid():
    labels, sizes = balanced(10, 1000), np.full(20, 100)

    def largest(edge_alpha, device_alpha):
        """Return the mean share of the largest class of an edge's samples, and of a device's."""
        counts = dealt(EdgeDirichletPartition(4, edge_alpha, device_alpha), labels, sizes)
        edges = counts.reshape(4, 5, 10).sum(axis=1)
        return (edges.max(axis=1) / 500).mean(), (counts.max(axis=1) / 100).mean()

    edge, device = largest(None, None)
    assert max(edge, device) < 0.25
    edge, device = largest(0.1, None)
    assert edge > 0.4
    assert device == pytest.approx(edge, abs=0.1)  # a device is like its edge
    edge, device = largest(None, 0.1)
    assert edge < 0.2
    assert device > 0.4
    edge, device = largest(0.1, 0.1)
    assert device > edge > 0.4


def test_an_edges_devices_share_out_all_that_the_edge_has():
    # Two edges of one and two devices: all 12 samples of three classes are dealt, whatever the shares are.
    for seed in range(10):
        counts = dealt(EdgeDirichletPartition(2, 0.1, 0.1), balanced(3, 4), np.array([5, 3, 4]), seed)
        assert counts.sum(axis=0).tolist() == [4, 4, 4]
    # One edge is an ordinary Dirichlet partition of the samples that it has drawn.
    one = dealt(EdgeDirichletPartition(1, None, 1e9), balanced(2, 1000), np.array([500, 500]))
    assert np.abs(one - 250).max() < 60


@pytest.mark.parametrize(
    "partition, sizes, message",
    [
        (ShardsPartition(1), [9, 3], r"shards asks for 9 samples of class [01] for its 1 devices.* has 8; lower"),
        (ShardsPartition(3), [3], "3 classes are asked for at one place, and the training set has 2; lower"),
        (EdgeIIDPartition(2), [4, 4, 4], "edge_iid gives each edge 2 classes.* an edge has 1 devices"),
        (EdgeNonIIDPartition(2), [2, 2], "5 classes are asked for at one place, and the training set has 2"),
        (EdgeNonIIDPartition(2, 2), [2, 2], "edge_noniid gives each edge 2 classes"),
        (EdgeDirichletPartition(3), [2, 2], "3 edges need a device each, and there are 2 devices"),
        (EdgeIIDPartition(1), [1, 9], r"edge_iid asks for 9 samples of class"),
        (EdgeDirichletPartition(1), [9, 9], "2 devices ask for 18 samples, but the training set has 16"),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_is_named(partition, sizes, message):
    with pytest.raises(DataError, match=message):
        partition(balanced(2, 8), len(sizes), np.array(sizes), np.random.default_rng(0))


@pytest.mark.parametrize("name, options, message", refusals("data/partition"))
def test_wrong_options_are_named(name, options, message):
    with refusal(ConfigError, message):
        build_partition(name, **options)


def test_an_experiment_gives_a_partition_its_number_of_edges():
    settings = ["fleet.num_devices=40", "fleet.num_edges=4", "scheduling.num_scheduled=40", "assignment.name=home",
                "data.samples_per_device=[10,10]"]  # fmt: skip
    scenario = Scenario.build(load_config(None, [*settings, "data.partition=edge_iid"]))
    edges = scenario.class_counts.reshape(4, 10, 10).sum(axis=1)
    assert (edges == 10).all()
    options = "data.partition_options={num_edges: 2}"
    with pytest.raises(ConfigError, match=r"partition_options\.num_edges: got 2.* fleet\.num_edges says it"):
        Scenario.build(load_config(None, [*settings, "data.partition=edge_iid", options]))


@pytest.mark.parametrize(
    ("partition", "option", "setting"),
    [("majority", "majority_fraction", "majority_fraction"), ("dirichlet", "alpha", "dirichlet_alpha"),
     ("resampled", "majority_fraction", "majority_fraction"), ("resampled", "alpha", "dirichlet_alpha")],
)  # fmt: skip
def test_an_option_of_a_partition_that_is_a_setting_is_refused(partition: str, option: str, setting: str):
    settings = [f"data.partition={partition}", f"data.partition_options={{{option}: 0.9}}"]
    with pytest.raises(ConfigError, match=rf"partition_options\.{option}: got 0.9.* data\.{setting} says it; remove"):
        Scenario.build(load_config(None, settings))


OWNER = np.array(["b", "a", "b", "c"])


def parts(joined):
    return [part.tolist() for part in joined.parts()]


def test_by_name():
    joined = OwnersPartition().join(OWNER, ["a", "c", "b"], 3)
    assert (joined.devices.tolist(), parts(joined), joined.notes) == ([0, 1, 2], [[1], [3], [0, 2]], [])


def test_in_order_without_names():
    numbers = np.array(["10", "2", "10"])
    assert parts(OwnersPartition().join(numbers, None, 2)) == [[1], [0, 2]]
    assert parts(OwnersPartition().join(OWNER, None, 3)) == [[1], [0, 2], [3]]
    # Devices without names have numbers, and so have their owners where all of these are numbers of devices.
    joined = OwnersPartition(unmatched="drop").join(np.array(["3", "0", "3", "1"]), None, 4)
    assert joined.devices.tolist() == [0, 1, 3]
    assert parts(joined) == [[1], [3], [0, 2]]


def test_both_kinds_of_strangers_are_counted():
    devices = "2 of 3 devices of the fleet have no samples, such as 'x', 'y'"
    with refusal(DataError, devices, "2 of 3 owners of samples are no devices of the fleet, such as 'b', 'c'"):
        OwnersPartition().join(OWNER, ["a", "x", "y"], 3)
    joined = OwnersPartition("drop").join(OWNER, ["a", "x", "y"], 3)
    assert (joined.devices.tolist(), parts(joined), len(joined.notes)) == ([0], [[1]], 2)
    with pytest.raises(DataError, match="no device would be left"):
        OwnersPartition("drop").join(OWNER, ["x"], 1)


def test_labels_stay_labels():
    x, y = np.eye(4), [0, 1, 0, 1]
    data = Dataset.of(x, y, x, y, owner=[1, 1, 2, 2])
    assert data.labels.tolist() == data.strata.tolist() == y
    assert data.columns["owner"].tolist() == ["1", "1", "2", "2"]


PARTITIONS = (
    MajorityPartition(), DirichletPartition(), DirichletPartition(1e-6), DirichletPartition(1e9), IIDPartition(),
    ShardsPartition(), EdgeDirichletPartition(2), EdgeIIDPartition(2), EdgeNonIIDPartition(2, 2),
)  # fmt: skip


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
def test_the_contract_of_every_partition(partition) -> None:
    """Sizes are exact, no sample is dealt twice, equal generators give equal parts, and wrong sizes are one line."""
    labels, sizes = balanced(4, 50), np.array([8, 9, 10, 8, 9, 10, 8, 8])
    dealt(partition, labels, sizes)
    first, again = (partition(labels, 8, sizes, np.random.default_rng(3)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert partition == type(partition)(**vars(partition))
    with pytest.raises(FrozenInstanceError):
        partition.other = 1
    for wrong, message in (
        (np.full(4, 60), "4 devices ask for 240 samples, but the training set has 200"),
        (np.array([9, 0]), "device 1 is to hold 0"),
        (np.zeros(0, int), "one size for each of 0 devices"),
        (np.array([[7], [7]]), "one size for each of 2 devices"),
    ):
        with refusal(DataError, message):
            partition(labels, len(wrong), wrong, np.random.default_rng(0))
