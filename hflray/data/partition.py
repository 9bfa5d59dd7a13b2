"""Partitions of the samples over devices (majority-class as in the paper, Dirichlet, IID), and the draw of D_n.

Partitions by whole classes and by edges are in ``class_partition.py``.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hflray import registry
from hflray.errors import ConfigError, DataError
from hflray.support.returned import Contract, described

Ints = NDArray[np.int64]
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
        if not 0 < self.majority_fraction <= 1:
            raise ConfigError(f"data.majority_fraction: got {self.majority_fraction}; accepted: above 0, at most 1")

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; raise a DataError that names the class whose quotas exceed its supply."""
        sizes = checked_sizes(labels, num_devices, sizes)
        classes, supply = np.unique(labels, return_counts=True)
        own = rng.permutation(np.resize(rng.permutation(len(classes)), num_devices))  # even counts, in random order
        quota = majority_quota(sizes, self.majority_fraction)
        majority_demand = np.bincount(own, weights=quota, minlength=len(classes)).astype(np.int64)
        for c in np.flatnonzero(majority_demand > supply):
            raise DataError(
                f"data.partition: majority asks for {majority_demand[c]} samples of class {classes[c]} for its "
                f"{np.count_nonzero(own == c)} devices, but the training set has {supply[c]}; {FIX}, or lower "
                f"data.majority_fraction (now {self.majority_fraction:g})"
            )
        counts = _draw_other_classes(own, sizes - quota, supply - majority_demand, rng)
        counts[np.arange(num_devices), own] += quota
        return indices_of(labels, classes, counts, rng)


def majority_quota(sizes: NDArray[np.integer], majority_fraction: float) -> Ints:
    """Return the number of each device's samples in its majority class, round(fraction · D_n), (N,)."""
    quota: Ints = np.rint(majority_fraction * sizes).astype(np.int64)
    return quota


def _draw_other_classes(own: Ints, demands: Ints, supply: Ints, rng: np.random.Generator) -> Ints:
    """Draw `demands` (N,) samples from `supply` (C,), for each device from other classes than its own if possible.

    By Hall's theorem the draw can be completed exactly if, for every class c, the devices that own c need no more than
    the remaining supply of the other classes. Each device's draw takes at least as many samples of each class as keep
    this true for the following devices. Otherwise it is a plain draw without replacement.

    Returns:
        The number of samples that each device draws of each class, (N, C).
    """
    counts = np.zeros((len(own), len(supply)), np.int64)
    needs = np.bincount(own, weights=demands, minlength=len(supply)).astype(np.int64)  # demand by the class to avoid
    demands, supply = demands.copy(), supply.copy()
    for c in np.flatnonzero(needs > supply.sum() - supply):  # at most one class, because two would exceed the total
        owners = np.flatnonzero(own == c)
        short = rng.multivariate_hypergeometric(demands[owners], needs[c] - (supply.sum() - supply[c]))
        counts[owners, c] = short
        demands[owners] -= short
        supply[c] -= short.sum()
        needs[c] -= short.sum()
    for n, c in enumerate(own):
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
        if not (self.alpha > 0 and np.isfinite(self.alpha)):
            raise ConfigError(f"data.dirichlet_alpha: got {self.alpha}; accepted: a finite number above 0")

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
