"""Partitions by classes and by edges: who holds what, worked out by hand, and what cannot be dealt."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.config import load_config
from hflray.data.partition import (
    EdgeDirichletPartition,
    EdgeIIDPartition,
    EdgeNonIIDPartition,
    ShardsPartition,
    build_partition,
    home_edges,
    label_counts,
)
from hflray.errors import ConfigError, DataError
from hflray.experiment.scenario import Scenario


def balanced(classes: int, each: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


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


def test_shards_of_all_classes_are_equal_counts():
    assert dealt(ShardsPartition(3), balanced(3, 8), np.array([6, 9, 9])).tolist() == [[2] * 3, [3] * 3, [3] * 3]


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


def test_hierfavgs_fifty_devices_at_five_edges():
    labels, sizes = balanced(10, 6000), np.full(50, 1000)
    iid = dealt(EdgeIIDPartition(5), labels, sizes)
    assert (iid.reshape(5, 10, 10).sum(axis=1) == 1000).all()
    edges = dealt(EdgeNonIIDPartition(5), labels, sizes).reshape(5, 10, 10).sum(axis=1)
    assert np.sort(edges, axis=1).tolist() == [[0] * 5 + [2000] * 5] * 5
    assert set((edges > 0).sum(axis=0).tolist()) == {2, 3}  # 25 places over ten classes


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


def test_wrong_options_are_named():
    for name, options, message in [
        ("shards", {"labels_per_device": 0}, "labels_per_device: got 0; accepted: an integer above 0"),
        ("shards", {"label_per_device": 2}, "did you mean 'labels_per_device'"),
        ("edge_dirichlet", {"num_edges": 2, "edge_alpha": 0}, "edge_alpha: got 0; accepted: a finite number above 0"),
        ("edge_dirichlet", {"num_edges": 2, "device_alpha": "x"}, "device_alpha: got 'x'"),
        ("edge_noniid", {"num_edges": 2, "classes_per_edge": True}, "classes_per_edge: got True"),
        ("edge_iid", {"num_edges": 1.5}, "num_edges: got 1.5"),
    ]:
        with pytest.raises(ConfigError, match=message):
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
