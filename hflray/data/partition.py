"""Who holds which samples: majority-class (the paper's kind), Dirichlet and IID partitions, and the draw of D_n.

The paper gives each device D_n samples, uniform in 400..700 (CIFAR-10: 300..600; Table I), and says that "most of the
data belong to a majority class" (section IV-A), but not how many: 80 %, and how majority classes and the rest are
chosen, is decision 5.3 of the design. A partition is a callable
``(labels, num_devices, sizes, rng) -> parts``: `labels` (n,) integers, `sizes` (N,) samples wanted per device, `parts`
a list of N sorted int64 index arrays into `labels`, disjoint, of exactly those sizes. It keeps no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hflray import registry
from hflray.errors import ConfigError, DataError

Ints = NDArray[np.int64]
FIX = "lower fleet.num_devices or data.samples_per_device"


class Partition(Protocol):
    """What `build_partition` returns and an entry point of the group ``hflray.partitions`` must make."""

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices. Raises DataError when the samples do not suffice."""


def build_partition(name: str, **options: Any) -> Partition:
    """Build the partition registered as `name`: majority(majority_fraction=0.8), dirichlet(alpha=0.5), iid().

    Raises:
        ConfigError: an unknown name or option, or an option out of range.
    """
    partition: Partition = registry.build("partition", name, **options)
    return partition


@dataclass(frozen=True)
class MajorityPartition:
    """Each device holds round(`majority_fraction` · D_n) samples of its majority class; the fraction is ours.

    Majority classes are dealt evenly: the numbers of devices per class differ by at most one. The rest is drawn over
    the other classes in proportion to what remains of each once all majority quotas are set aside. Only if no way of
    dealing can fill the rests from other classes are the missing ones taken from the device's own class.
    """

    majority_fraction: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.majority_fraction <= 1:
            raise ConfigError(f"data.majority_fraction: got {self.majority_fraction}; accepted: above 0, at most 1")

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; DataError names the class whose quotas exceed its supply."""
        sizes = _checked_sizes(labels, num_devices, sizes)
        classes, supply = np.unique(labels, return_counts=True)
        own = rng.permutation(np.resize(rng.permutation(len(classes)), num_devices))  # dealt like cards, then shuffled
        quota = majority_quota(sizes, self.majority_fraction)
        asked = np.bincount(own, weights=quota, minlength=len(classes)).astype(np.int64)
        for c in np.flatnonzero(asked > supply):
            raise DataError(
                f"data.partition: majority asks for {asked[c]} samples of class {classes[c]} for its "
                f"{np.count_nonzero(own == c)} devices, but the training set has {supply[c]}; {FIX}, or lower "
                f"data.majority_fraction (now {self.majority_fraction:g})"
            )
        counts = _draw_rests(own, sizes - quota, supply - asked, rng)
        counts[np.arange(num_devices), own] += quota
        return _hand_out(labels, classes, counts, rng)


def majority_quota(sizes: NDArray[np.integer], majority_fraction: float) -> Ints:
    """Return how many of each device's samples are of its majority class, round(fraction · D_n), (N,)."""
    quota: Ints = np.rint(majority_fraction * sizes).astype(np.int64)
    return quota


def _draw_rests(own: Ints, rests: Ints, left: Ints, rng: np.random.Generator) -> Ints:
    """Draw `rests` (N,) samples per device out of `left` (C,) per class, none of the device's own class: (N, C) counts.

    By Hall's theorem the draw can be completed exactly when, for every class c, the devices that own c need no more
    than what is left of the other classes. Each device's draw takes at least as much of each class as keeps that
    true for those after it, and is otherwise a plain draw without replacement.
    """
    counts = np.zeros((len(own), len(left)), np.int64)
    needs = np.bincount(own, weights=rests, minlength=len(left)).astype(np.int64)  # by the class that must be avoided
    rests, left = rests.copy(), left.copy()
    for c in np.flatnonzero(needs > left.sum() - left):  # at most one class: two would exceed the total
        mine = np.flatnonzero(own == c)
        short = rng.multivariate_hypergeometric(rests[mine], needs[c] - (left.sum() - left[c]))
        counts[mine, c] = short
        rests[mine] -= short
        left[c] -= short.sum()
        needs[c] -= short.sum()
    for n, c in enumerate(own):
        needs[c] -= rests[n]
        least = np.maximum(left + rests[n] + needs - left.sum(), 0)
        least[c] = 0
        free = left - least
        free[c] = 0
        drawn = least + rng.multivariate_hypergeometric(free, rests[n] - least.sum())
        counts[n] += drawn
        left -= drawn
    return counts


@dataclass(frozen=True)
class DirichletPartition:
    """Each device's class proportions are drawn from Dirichlet(`alpha`, …, `alpha`): the smaller, the less alike.

    Samples are drawn without replacement; what a device wants of an exhausted class is drawn again over the others
    in its proportions (or, once those are exhausted, in proportion to what remains), so that its size is exact.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and np.isfinite(self.alpha)):
            raise ConfigError(f"data.dirichlet_alpha: got {self.alpha}; accepted: a finite number above 0")

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; DataError when the total exceeds the supply."""
        sizes = _checked_sizes(labels, num_devices, sizes)
        classes, left = np.unique(labels, return_counts=True)
        counts = np.zeros((num_devices, len(classes)), np.int64)
        for n, share in enumerate(rng.dirichlet(np.full(len(classes), self.alpha), num_devices)):
            # Every pass fills the device or exhausts a class, so this ends.
            while (missing := int(sizes[n] - counts[n].sum())) > 0:
                weights = np.where(left > 0, share, 0.0)
                if weights.sum() == 0:
                    weights = left.astype(np.float64)
                drawn = np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
                counts[n] += drawn
                left -= drawn
        return _hand_out(labels, classes, counts, rng)


@dataclass(frozen=True)
class IIDPartition:
    """Every device draws uniformly from the whole training set, without replacement."""

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> list[Ints]:
        """Deal samples to devices; DataError when the total exceeds the supply."""
        sizes = _checked_sizes(labels, num_devices, sizes)
        order = rng.permutation(len(labels))[: sizes.sum()]
        return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def _checked_sizes(labels: Ints, num_devices: int, sizes: Ints) -> Ints:
    sizes = np.asarray(sizes, np.int64)
    if num_devices < 1 or sizes.shape != (num_devices,):
        raise DataError(
            f"partition: sizes has shape {sizes.shape}, but one size for each of {num_devices} devices is needed"
        )
    if sizes.min() < 1:
        raise DataError(f"partition: device {sizes.argmin()} is to hold {sizes.min()} samples; accepted: at least 1")
    if sizes.sum() > len(labels):
        raise DataError(
            f"data.samples_per_device: {num_devices} devices ask for {sizes.sum()} samples, but the training set has "
            f"{len(labels)}; {FIX}"
        )
    return sizes


def _hand_out(labels: Ints, classes: Ints, counts: Ints, rng: np.random.Generator) -> list[Ints]:
    """Turn counts (N, C) into indices: each class is shuffled once and dealt in device order."""
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
    name: str = "the data set",
) -> tuple[Ints, str | None]:
    """Draw D_n of each device, uniform integers in `explicit` if given, else in `default_range`, scaled if need be.

    A draw from the default range that the data set cannot serve (with `majority_fraction`, whichever class the
    largest devices are dealt) is made again from a range scaled down, both ends alike, until even a fleet that draws
    only its upper end could be served. The paper's own settings fit as they are. An explicit range is never scaled.

    Returns:
        (sizes (N,) int64, a one-line message if the range was scaled, else None).

    Raises:
        DataError: not even one sample per device is possible.
    """
    low, high = explicit or default_range
    sizes = rng.integers(low, high, num_devices, endpoint=True)
    supply = np.unique(labels, return_counts=True)[1]
    devices_per_class = -(-num_devices // len(supply))

    def fits(wanted: Ints) -> bool:
        if majority_fraction is not None:
            largest = np.sort(majority_quota(wanted, majority_fraction))[::-1][:devices_per_class]
            if largest.sum() > supply.min():
                return False
        return bool(wanted.sum() <= len(labels))

    if explicit is not None or fits(sizes):
        return sizes, None
    top = min(high, len(labels) // num_devices)
    while top > 0 and not fits(np.full(num_devices, top)):
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


def label_counts(parts: Sequence[Ints], labels: Ints, num_classes: int) -> Ints:
    """Return how many samples of each class each device holds, (N, C)."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def majority_classes(parts: Sequence[Ints], labels: Ints, num_classes: int) -> Ints:
    """Return the commonest class of each device, (N,); of equals the lowest. The truth behind the ARI (equation 28)."""
    classes: Ints = label_counts(parts, labels, num_classes).argmax(axis=1)
    return classes
