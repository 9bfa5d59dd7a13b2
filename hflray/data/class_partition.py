"""Partitions by whole classes and by edges, as other papers on federated and hierarchical learning use them.

* ``shards``: each device holds k classes (McMahan et al. 2017; "#C = k" of NIID-Bench, Li et al. 2022).
* ``edge_dirichlet``: Dirichlet over edges, then over the devices of each edge (MTGC, arXiv 2409.18448).
* ``edge_iid``, ``edge_noniid``: each device holds one class, and each edge all classes, or some (HierFAVG, 1905.06641).

A partition by edges gives each device a home edge (`home_edges`). The assigner ``home`` keeps the devices there; with
any other assigner the edges' data are not what the partition has made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hflray.data.partition import FIX, DirichletPartition, IIDPartition, Ints, Partition, checked_sizes, indices_of
from hflray.errors import ConfigError, DataError


def home_edges(num_devices: int, num_edges: int) -> NDArray[np.intp]:
    """Return the home edge of each device, (N,): device n is at home at edge ⌊n·M/N⌋, so that homes are even.

    Examples:
        >>> from hflray.data.class_partition import home_edges
        >>> home_edges(7, 3).tolist()
        [0, 0, 0, 1, 1, 2, 2]
    """
    return np.arange(num_devices, dtype=np.intp) * num_edges // num_devices


@dataclass(frozen=True)
class ShardsPartition:
    """Each device holds `labels_per_device` classes, with equally many samples of each, or one more.

    Classes are dealt so that the numbers of devices per class differ by at most one; which classes meet at a device is
    drawn. The paper of NIID-Bench deals a class's samples evenly over its devices; here a device's size is D_n.
    """

    labels_per_device: int = 2

    def __post_init__(self) -> None:
        _check_count("labels_per_device", self.labels_per_device)

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise a DataError if a class is too small, or there are too few classes."""
        sizes = checked_sizes(labels, num_devices, sizes)
        held = _even_draw(num_devices, self.labels_per_device, _num_classes(labels, self.labels_per_device), rng)
        return _deal("shards", labels, sizes, held, rng)


@dataclass(frozen=True)
class EdgeDirichletPartition:
    """Samples are dealt to edges first, and each edge's samples then to its devices, at each level by Dirichlet or IID.

    Each level is the partition ``dirichlet``, whose sizes are exact: an edge gets as many samples as its devices hold
    together. The devices of an edge therefore share out all of its samples, and the last of them gets what is left.

    Attributes:
        num_edges: M, the edges.
        edge_alpha: concentration over edges; None: edges are IID.
        device_alpha: concentration over the devices of an edge; None: they are IID within their edge.
    """

    num_edges: int
    edge_alpha: float | None = 0.1
    device_alpha: float | None = 0.1

    def __post_init__(self) -> None:
        _check_count("num_edges", self.num_edges)
        for name in ("edge_alpha", "device_alpha"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < np.inf):
                raise ConfigError(
                    f"data.partition_options.{name}: got {value!r}; accepted: a finite number above 0, or null for "
                    "IID; correct it"
                )

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise a DataError if the total exceeds the supply, or an edge has no device."""
        sizes = checked_sizes(labels, num_devices, sizes)
        homes = _homes(num_devices, self.num_edges)
        edge_sizes = np.bincount(homes, weights=sizes).astype(np.int64)
        parts: list[Ints] = []
        for edge, part in enumerate(_level(self.edge_alpha)(labels, self.num_edges, edge_sizes, rng)):
            own = sizes[homes == edge]
            parts += [part[inner] for inner in _level(self.device_alpha)(labels[part], len(own), own, rng)]
        return parts


@dataclass(frozen=True)
class EdgeIIDPartition:
    """Each device holds one class, and each edge all classes, by numbers of devices that differ by at most one."""

    num_edges: int

    def __post_init__(self) -> None:
        _check_count("num_edges", self.num_edges)

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise a DataError if a class is too small, or an edge has too few devices."""
        return _one_class_each("edge_iid", self.num_edges, _num_classes(labels, 1), labels, num_devices, sizes, rng)


@dataclass(frozen=True)
class EdgeNonIIDPartition:
    """Each device holds one class, and each edge `classes_per_edge` classes, dealt so that each class has as many edges
    as any other, or one fewer."""

    num_edges: int
    classes_per_edge: int = 5

    def __post_init__(self) -> None:
        _check_count("num_edges", self.num_edges)
        _check_count("classes_per_edge", self.classes_per_edge)

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise a DataError if a class is too small, or an edge has too few devices."""
        _num_classes(labels, self.classes_per_edge)
        return _one_class_each("edge_noniid", self.num_edges, self.classes_per_edge, labels, num_devices, sizes, rng)


def _one_class_each(
    name: str, num_edges: int, per_edge: int, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator
) -> list[Ints]:
    """Draw `per_edge` classes for each edge, and one of these for each of its devices, evenly."""
    sizes = checked_sizes(labels, num_devices, sizes)
    homes = _homes(num_devices, num_edges)
    fewest = int(np.bincount(homes).min())
    if fewest < per_edge:
        raise DataError(
            f"data.partition: {name} gives each edge {per_edge} classes, and one class to a device, but an edge has "
            f"{fewest} devices; raise fleet.num_devices, or lower fleet.num_edges"
        )
    classes = _even_draw(num_edges, per_edge, _num_classes(labels, per_edge), rng)
    held = np.zeros((num_devices, 1), np.int64)
    for edge in range(num_edges):
        members = np.flatnonzero(homes == edge)
        held[members, 0] = np.resize(rng.permutation(classes[edge]), len(members))
    return _deal(name, labels, sizes, held, rng)


def _level(alpha: float | None) -> Partition:
    return IIDPartition() if alpha is None else DirichletPartition(alpha)


def _check_count(option: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"data.partition_options.{option}: got {value!r}; accepted: an integer above 0; correct it")


def _homes(num_devices: int, num_edges: int) -> NDArray[np.intp]:
    if num_devices < num_edges:
        raise DataError(
            f"data.partition: {num_edges} edges need a device each, and there are {num_devices} devices; raise "
            "fleet.num_devices, or lower fleet.num_edges"
        )
    return home_edges(num_devices, num_edges)


def _num_classes(labels: Ints, least: int) -> int:
    """Return the number of classes that occur. Raises DataError: they are fewer than `least`."""
    count = len(np.unique(labels))
    if count < least:
        raise DataError(
            f"data.partition_options: {least} classes are asked for at one place, and the training set has {count}; "
            "lower labels_per_device or classes_per_edge"
        )
    return count


def _even_draw(places: int, each: int, num_classes: int, rng: np.random.Generator) -> Ints:
    """Draw `each` different classes for each place, (places, each), so that class totals differ by at most one."""
    drawn = np.zeros((places, each), np.int64)
    total = np.zeros(num_classes, np.int64)
    for place in range(places):
        order = rng.permutation(num_classes)  # of classes with equal totals any may come first
        drawn[place] = order[np.argsort(total[order], kind="stable")][:each]
        total[drawn[place]] += 1
    return drawn


def _deal(name: str, labels: Ints, sizes: Ints, held: Ints, rng: np.random.Generator) -> list[Ints]:
    """Deal D_n samples to each device, evenly over the classes that it holds, (N, k)."""
    classes, supply = np.unique(labels, return_counts=True)
    counts = np.zeros((len(sizes), len(classes)), np.int64)
    share, rest = np.divmod(sizes, held.shape[1])
    for column in range(held.shape[1]):
        counts[np.arange(len(sizes)), held[:, column]] = share + (column < rest)
    for c in np.flatnonzero(counts.sum(axis=0) > supply):
        raise DataError(
            f"data.partition: {name} asks for {counts[:, c].sum()} samples of class {classes[c]} for its "
            f"{np.count_nonzero(counts[:, c])} devices, but the training set has {supply[c]}; {FIX}"
        )
    return indices_of(labels, classes, counts, rng)
