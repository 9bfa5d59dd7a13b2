"""Partitions of the samples over devices (majority-class as in the paper, Dirichlet, IID), and the draw of D_n.

Partitions by whole classes and by edges are those of other papers on federated and hierarchical learning:

* ``shards``: each device holds k classes (McMahan et al. 2017; "#C = k" of NIID-Bench, Li et al. 2022).
* ``edge_dirichlet``: Dirichlet over edges, then over the devices of each edge (MTGC, arXiv 2409.18448).
* ``edge_iid``, ``edge_noniid``: each device holds one class, and each edge all classes, or some (HierFAVG, 1905.06641).

A partition by edges gives each device a home edge (`home_edges`). The assigner ``home`` keeps the devices there; with
any other assigner the edges' data are not what the partition has made. With ``owners`` a device holds the samples of
one owner (`hflray.data.Dataset.owner`); owners and devices are joined by their names, which the fleet's table gives;
a fleet without names takes the owners in their order, those of numbers by size.

The paper gives each device D_n samples, uniform in 400..700 (CIFAR-10: 300..600; Table I). It says that "most of the
data belong to a majority class" (section IV-A), but not how many. The share of 80 %, and the choice of the majority
classes and of the other samples, are docs/design.md, D3.

A partition is a callable ``(labels, num_devices, sizes, rng) -> parts`` without state:

* `labels`: class of each sample, (n,), integers;
* `sizes`: number of samples of each device, (N,);
* `parts`: N sorted int64 index arrays into `labels`, of exactly these sizes. They are disjoint, unless the class says
  ``shared = True``, as ``resampled`` does (`hflray.data.resampled`). What a user's partition returns may have other
  sizes, and is checked (`checked_parts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hflray import registry
from hflray.config.options import one_of, positive, whole
from hflray.errors import ConfigError, DataError
from hflray.support.contract import Contract, described
from hflray.support.text import shorten

Ints = NDArray[np.int64]
OPTIONS = "data.partition_options"
FIX = "lower fleet.num_devices or data.samples_per_device"


class Partition(Protocol):
    """The type that `build_partition` returns and that entry points of the group ``hflray.partitions`` must build.

    Examples:
        >>> import numpy as np
        >>> from hflray.data.partition import Partition
        >>> class InOrder:
        ...     def __call__(self, labels, num_devices, sizes, rng):
        ...         return np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
        >>> partition: Partition = InOrder()
        >>> [part.tolist() for part in partition(np.zeros(9), 2, np.array([2, 3]), np.random.default_rng(0))]
        [[0, 1], [2, 3, 4]]
    """

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> Sequence[Ints]:
        """Deal samples to devices. Raises DataError when the samples do not suffice."""


def build_partition(name: str, **options: Any) -> Partition:
    """Build the partition registered as `name`, such as majority(majority_fraction=0.8), dirichlet(alpha=0.5) or iid().

    Raises:
        ConfigError: an unknown name or option, or an option out of range.

    Examples:
        >>> import numpy as np
        >>> from hflray import build_partition
        >>> labels, sizes = np.arange(100) % 2, np.array([10, 10])
        >>> parts = build_partition("majority", majority_fraction=0.8)(labels, 2, sizes, np.random.default_rng(0))
        >>> [np.bincount(labels[part]).tolist() for part in parts]  # samples of each class at each device
        [[8, 2], [2, 8]]
    """
    partition: Partition = registry.build("partition", name, **options)
    return partition


@dataclass(frozen=True)
class MajorityPartition:
    """Each device holds round(`majority_fraction` · D_n) samples of its majority class (docs/design.md, D3).

    Majority classes are dealt evenly, so that the numbers of devices per class differ by at most one. A device's other
    samples are drawn over the other classes, in proportion to what remains of each after all majority quotas. Only if
    the other classes cannot supply them in any way are the missing samples taken from the device's own class.
    """

    majority_fraction: float = 0.8

    def __post_init__(self) -> None:
        positive("data.majority_fraction", self.majority_fraction, 1.0)

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise a DataError that names the class whose quotas exceed its supply."""
        sizes = checked_sizes(labels, num_devices, sizes)
        classes, supply = np.unique(labels, return_counts=True)
        major = rng.permutation(np.resize(rng.permutation(len(classes)), num_devices))  # even counts, in random order
        quota = majority_quota(sizes, self.majority_fraction)
        majority_demand = np.bincount(major, weights=quota, minlength=len(classes)).astype(np.int64)
        for c in np.flatnonzero(majority_demand > supply):
            raise DataError(
                f"data.partition: majority asks for {majority_demand[c]} samples of class {classes[c]} for its "
                f"{np.count_nonzero(major == c)} devices, but the training set has {supply[c]}; {FIX}, or lower "
                f"data.majority_fraction (now {self.majority_fraction:g})"
            )
        counts = _draw_other_classes(major, sizes - quota, supply - majority_demand, rng)
        counts[np.arange(num_devices), major] += quota
        return indices_of(labels, classes, counts, rng)


def majority_quota(sizes: NDArray[np.integer], majority_fraction: float) -> Ints:
    """Return the number of each device's samples in its majority class, round(fraction · D_n), (N,)."""
    quota: Ints = np.rint(majority_fraction * sizes).astype(np.int64)
    return quota


def _draw_other_classes(major: Ints, demands: Ints, supply: Ints, rng: np.random.Generator) -> Ints:
    """Draw `demands` (N,) samples from `supply` (C,), for each device from other classes than its own if possible.

    By Hall's theorem the draw can be completed exactly if, for every class c, the devices that own c need no more than
    the remaining supply of the other classes. Each device's draw takes at least as many samples of each class as keep
    this true for the following devices. Otherwise it is a plain draw without replacement.

    Returns:
        The number of samples that each device draws of each class, (N, C).
    """
    counts = np.zeros((len(major), len(supply)), np.int64)
    needs = np.bincount(major, weights=demands, minlength=len(supply)).astype(np.int64)  # demand by the class to avoid
    demands, supply = demands.copy(), supply.copy()
    for c in np.flatnonzero(needs > supply.sum() - supply):  # at most one class, because two would exceed the total
        owners = np.flatnonzero(major == c)
        short = rng.multivariate_hypergeometric(demands[owners], needs[c] - (supply.sum() - supply[c]))
        counts[owners, c] = short
        demands[owners] -= short
        supply[c] -= short.sum()
        needs[c] -= short.sum()
    for n, c in enumerate(major):
        needs[c] -= demands[n]
        least = np.maximum(supply + demands[n] + needs - supply.sum(), 0)
        least[c] = 0
        free = supply - least
        free[c] = 0
        drawn = least + rng.multivariate_hypergeometric(free, demands[n] - least.sum())
        counts[n] += drawn
        supply -= drawn
    return counts


@dataclass(frozen=True)
class DirichletPartition:
    """Class proportions are drawn from Dirichlet(`alpha`, …, `alpha`); a smaller `alpha` makes devices less alike.

    Samples are drawn without replacement. If a class is exhausted, the missing samples are drawn from the other classes
    in the device's proportions, or, once those classes are exhausted, in proportion to what remains. The device's size
    is therefore exact.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        positive("data.dirichlet_alpha", self.alpha)

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise DataError if the total exceeds the supply."""
        sizes = checked_sizes(labels, num_devices, sizes)
        classes, supply = np.unique(labels, return_counts=True)
        counts = np.zeros((num_devices, len(classes)), np.int64)
        for n, share in enumerate(rng.dirichlet(np.full(len(classes), self.alpha), num_devices)):
            counts[n] = drawn_by_share(int(sizes[n]), share, supply, rng)
        return indices_of(labels, classes, counts, rng)


def drawn_by_share(size: int, share: NDArray[np.float64], supply: Ints, rng: np.random.Generator) -> Ints:
    """Draw `size` samples of one device by the `share` of each class, (C,), and take them from `supply`, (C,).

    Returns:
        The number of samples of each class, (C,).
    """
    counts = np.zeros_like(supply)
    # Every pass fills the device or exhausts a class, so the loop ends.
    while (missing := size - int(counts.sum())) > 0:
        weights = np.where(supply > 0, share, 0.0)
        if weights.sum() == 0:
            weights = supply.astype(np.float64)
        drawn = np.minimum(rng.multinomial(missing, weights / weights.sum()), supply)
        counts += drawn
        supply -= drawn
    return counts


@dataclass(frozen=True)
class IIDPartition:
    """Every device draws uniformly from the whole training set, without replacement."""

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise DataError if the total exceeds the supply."""
        sizes = checked_sizes(labels, num_devices, sizes)
        order = rng.permutation(len(labels))[: sizes.sum()]
        return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def checked_sizes(labels: Ints, num_devices: int, sizes: Ints, *, shared: bool = False) -> Ints:
    """Return `sizes`, (N,), as int64; raise DataError if they do not fit. If `shared`, each device has all samples."""
    sizes = np.asarray(sizes, np.int64)
    if num_devices < 1 or sizes.shape != (num_devices,):
        raise DataError(
            f"partition: sizes has shape {sizes.shape}, but one size for each of {num_devices} devices is needed"
        )
    if sizes.min() < 1:
        raise DataError(f"partition: device {sizes.argmin()} is to hold {sizes.min()} samples; accepted: at least 1")
    if shared and sizes.max() > len(labels):
        raise DataError(
            f"data.samples_per_device: device {sizes.argmax()} asks for {sizes.max()} samples, but the training "
            f"set has {len(labels)}; lower data.samples_per_device"
        )
    if not shared and sizes.sum() > len(labels):
        raise DataError(
            f"data.samples_per_device: {num_devices} devices ask for {sizes.sum()} samples, but the training set has "
            f"{len(labels)}; {FIX}"
        )
    return sizes


def indices_of(labels: Ints, classes: Ints, counts: Ints, rng: np.random.Generator) -> list[Ints]:
    """Turn counts (N, C) into sample indices: each class is shuffled once and dealt in device order."""
    ends = np.cumsum(counts, axis=0)
    shuffled = [rng.permutation(np.flatnonzero(labels == value)) for value in classes]
    return [
        np.sort(np.concatenate([s[e - k : e] for s, e, k in zip(shuffled, ends[n], counts[n], strict=True)]))
        for n in range(len(counts))
    ]


def device_sizes(
    labels: Ints,
    num_devices: int,
    rng: np.random.Generator,
    *,
    default_range: tuple[int, int],
    explicit: tuple[int, int] | None = None,
    majority_fraction: float | None = None,
    shared: bool = False,
    name: str = "the data set",
) -> tuple[Ints, str | None]:
    """Draw D_n of each device as uniform integers in `explicit`, or else in `default_range`, which may be scaled down.

    If the data set cannot serve a draw from the default range, the draw is repeated from a range whose ends are both
    scaled down, so far that even a fleet with D_n at the upper end everywhere can be served. With `majority_fraction`,
    the supply must suffice even if one class is dealt to the largest devices. The paper's own settings fit without
    scaling. An explicit range is never scaled. If devices may hold the same samples (`shared`), the supply must suffice
    for each device alone.

    Returns:
        The sizes, (N,) int64, and a one-line message if the range was scaled, else None.

    Raises:
        DataError: not even one sample per device is possible.
    """
    low, high = explicit or default_range
    if num_devices > len(labels) and not shared:  # the draw of many sizes would fill the memory
        raise DataError(
            f"fleet.num_devices: {name} has {len(labels)} training samples for {num_devices} devices of at least "
            "1 sample; lower fleet.num_devices"
        )
    sizes = rng.integers(low, high, num_devices, endpoint=True)
    supply = np.unique(labels, return_counts=True)[1]
    sharing = 1 if shared else num_devices  # the devices that the supply is dealt to
    devices_per_class = -(-sharing // len(supply))

    def fits(drawn_sizes: Ints) -> bool:
        if majority_fraction is not None:
            largest = np.sort(majority_quota(drawn_sizes, majority_fraction))[::-1][:devices_per_class]
            if largest.sum() > supply.min():
                return False
        return bool((drawn_sizes.max() if shared else drawn_sizes.sum()) <= len(labels))

    if explicit is not None or fits(sizes):
        return sizes, None
    top = min(high, len(labels) // sharing)
    while top > 0 and not fits(np.full(sharing, top)):
        top -= 1
    if top < 1:
        raise DataError(
            f"fleet.num_devices: {name} has {len(labels)} training samples ({supply.min()} of its rarest class), "
            f"too few for {num_devices} devices of at least 1 sample; lower fleet.num_devices"
        )
    bottom = max(1, low * top // high)
    message = (
        f"{name} has {len(labels)} training samples ({supply.min()} of its rarest class): "
        f"D_n scaled from {low}..{high} to {bottom}..{top} for {num_devices} devices"
    )
    return rng.integers(bottom, top, num_devices, endpoint=True), message


def checked_parts(partition: Partition, name: str, parts: Any, samples: int, num_devices: int) -> Sequence[Ints]:
    """Return the samples of each device, N index arrays, after a look at what a partition has returned.

    Args:
        partition: what has returned them. Devices may hold the same samples if it has an attribute `shared` that is
            true.
        name: its name or reference.
        parts: what it returned.
        samples: the number of training samples, n.
        num_devices: N.

    Raises:
        ConfigError: they are no N arrays of indices from 0 to n - 1, one is empty, or a sample is given twice.
    """
    shared = bool(getattr(partition, "shared", False))
    accepted = f"for each of {num_devices} devices a 1-D array of at least one index from 0 to {samples - 1}"
    alone = "" if shared else ", and each sample once (or a class with shared = True)"
    contract = Contract.of("data.partition", name, accepted + alone)
    if not isinstance(parts, list | tuple | np.ndarray) or (isinstance(parts, np.ndarray) and not parts.ndim):
        raise contract.error(described(parts))
    if len(parts) != num_devices:
        raise contract.error(f"{len(parts)} parts for {num_devices} devices")
    arrays: list[Ints] = []
    for device, part in enumerate(parts):
        array = contract.array(part, (None,), "i", 0, samples - 1, f" for device {device}")
        if not len(array):
            raise contract.error(f"no sample for device {device}")
        arrays.append(array.astype(np.int64))
    if not shared:
        held = np.concatenate(arrays)
        order = np.argsort(held, kind="stable")
        again = np.flatnonzero(held[order][1:] == held[order][:-1])
        if len(again):
            owner = np.repeat(np.arange(num_devices), [len(array) for array in arrays])
            first, second = (int(owner[order[again[0] + step]]) for step in (0, 1))
            raise contract.error(f"sample {held[order[again[0]]]} for device {first} and again for device {second}")
    return arrays


def label_counts(parts: Sequence[Ints], labels: Ints, num_classes: int) -> Ints:
    """Return the number of samples of each class that each device holds, (N, C)."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def majority_classes(parts: Sequence[Ints], labels: Ints, num_classes: int) -> Ints:
    """Return the commonest class of each device, (N,), the lowest of equals: the true clusters for the ARI (28)."""
    classes: Ints = label_counts(parts, labels, num_classes).argmax(axis=1)
    return classes


def home_edges(num_devices: int, num_edges: int) -> NDArray[np.intp]:
    """Return the home edge of each device, (N,): device n is at home at edge ⌊n·M/N⌋, so that homes are even.

    Examples:
        >>> from hflray.data.partition import home_edges
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
        whole(f"{OPTIONS}.labels_per_device", self.labels_per_device, 1)

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
        whole(f"{OPTIONS}.num_edges", self.num_edges, 1)
        for name in ("edge_alpha", "device_alpha"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < np.inf):
                raise ConfigError(
                    f"{OPTIONS}.{name}: got {value!r}; accepted: a finite number above 0, or null for IID; correct it"
                )

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise a DataError if the total exceeds the supply, or an edge has no device."""
        sizes = checked_sizes(labels, num_devices, sizes)
        homes = _homes(num_devices, self.num_edges)
        edge_sizes = np.bincount(homes, weights=sizes).astype(np.int64)
        parts: list[Ints] = []
        for edge, part in enumerate(_level(self.edge_alpha)(labels, self.num_edges, edge_sizes, rng)):
            of_edge = sizes[homes == edge]
            parts += [part[inner] for inner in _level(self.device_alpha)(labels[part], len(of_edge), of_edge, rng)]
        return parts


@dataclass(frozen=True)
class EdgeIIDPartition:
    """Each device holds one class, and each edge all classes, by numbers of devices that differ by at most one."""

    num_edges: int

    def __post_init__(self) -> None:
        whole(f"{OPTIONS}.num_edges", self.num_edges, 1)

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
        whole(f"{OPTIONS}.num_edges", self.num_edges, 1)
        whole(f"{OPTIONS}.classes_per_edge", self.classes_per_edge, 1)

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


def _even_draw(places: int, count: int, num_classes: int, rng: np.random.Generator) -> Ints:
    """Draw `each` different classes for each place, (places, each), so that class totals differ by at most one."""
    drawn = np.zeros((places, count), np.int64)
    total = np.zeros(num_classes, np.int64)
    for place in range(places):
        order = rng.permutation(num_classes)  # of classes with equal totals any may come first
        drawn[place] = order[np.argsort(total[order], kind="stable")][:count]
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


SHOWN = 3  # names in a message


class Joined(NamedTuple):
    """Owners and devices.

    Attributes:
        devices: the devices that have an owner, indices in ascending order, (N',).
        of_sample: the number among them of the device that holds each sample, (n,); -1: none.
        owners: the owners that have a device, (N',) texts.
        notes: remarks for the user.
    """

    devices: NDArray[np.intp]
    of_sample: Ints
    owners: list[str]
    notes: list[str]

    def parts(self) -> list[Ints]:
        """Return the sorted samples of each of the devices."""
        order = np.argsort(self.of_sample, kind="stable")
        ends = np.searchsorted(self.of_sample[order], np.arange(len(self.devices) + 1))
        return [np.sort(order[first:last]) for first, last in pairwise(ends)]


def _names_of(owners: NDArray[np.str_], num_devices: int) -> list[str]:
    """Return names for devices without any, (N,): the number that an owner is, or the owners in their order."""
    names = [f"device {index}" for index in range(num_devices)]
    numbers = [int(text) if text.isdecimal() else -1 for text in owners]
    if len(set(numbers)) < len(owners) or not all(0 <= number < num_devices for number in numbers):
        order = np.argsort(numbers, kind="stable") if min(numbers, default=-1) >= 0 else np.arange(len(owners))
        numbers, owners = list(range(min(num_devices, len(owners)))), owners[order]
    for number, owner in zip(numbers, owners, strict=False):
        names[number] = str(owner)
    return names


@dataclass(frozen=True)
class OwnersPartition:
    """A device holds the samples of one owner.

    Attributes:
        unmatched: what is done about a device without samples, or an owner without a device: ``error``, or ``drop``,
            which leaves it out with a note.
    """

    unmatched: str = "error"

    def __post_init__(self) -> None:
        one_of("data.options.unmatched", self.unmatched, ("error", "drop"))

    def __call__(
        self,
        labels: Ints,
        num_devices: int,
        sizes: Ints,
        rng: np.random.Generator,
        *,
        columns: Mapping[str, NDArray[Any]] | None = None,
    ) -> Sequence[Ints]:
        """Return the samples of each device; the sizes are not used, because they follow from the owners."""
        owner = (columns or {}).get("owner")
        if owner is None:
            raise DataError(NO_OWNERS)
        joined = self.join(owner, None, num_devices)
        return joined.parts()

    def join(self, owner: NDArray[np.str_], names: Sequence[str] | None, num_devices: int) -> Joined:
        """Join owners and devices.

        Args:
            owner: the owner of each sample, (n,).
            names: what the fleet calls its devices; None: nothing.
            num_devices: N.

        Raises:
            DataError: a device has no samples, or an owner no device, and `unmatched` is ``error``.
        """
        owners, code = np.unique(owner, return_inverse=True)
        if names is None:
            names = _names_of(owners, num_devices)
        place = {str(text): index for index, text in enumerate(owners)}
        owned = np.array([place.get(name, -1) for name in names], dtype=np.intp)
        devices = np.flatnonzero(owned >= 0)
        idle = [name for name, index in zip(names, owned, strict=True) if index < 0]
        strange = [str(owners[index]) for index in np.setdiff1d(np.arange(len(owners)), owned)]
        problems = [
            f"{len(which)} of {total} {words}, such as {', '.join(map(shorten, which[:SHOWN]))}"
            for which, total, words in (
                (idle, num_devices, "devices of the fleet have no samples"),
                (strange, len(owners), "owners of samples are no devices of the fleet"),
            )
            if which
        ]
        if problems and self.unmatched == "error":
            raise DataError(
                f"data.partition: owners: {'; '.join(problems)}; accepted: the same names in both; correct them, or "
                "set data.options.unmatched to drop"
            )
        if not len(devices):
            raise DataError(
                f"data.partition: owners: {'; '.join(problems)}; no device would be left; correct the names"
            )
        number = np.full(len(owners), -1, dtype=np.int64)
        number[owned[devices]] = np.arange(len(devices))
        notes = [f"owners: {problem}; they are left out" for problem in problems]
        return Joined(devices, number[code.ravel()], [str(owners[index]) for index in owned[devices]], notes)


NO_OWNERS = (
    "data.partition: owners: the data set has no owners; give them to Dataset.of(..., owner=...), or take data.name: "
    "table with options.owner, or another partition"
)
