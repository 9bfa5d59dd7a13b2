"""The partition ``resampled``: each device draws its samples alone, when they are looked up, and devices share samples.

A fleet of any size can so train on one data set: nothing is held for a device but D_n. The samples of a device are a
function of the root seed, the device and D_n alone, so they are the same in every round, in every process and in a
fleet of any other size.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args, overload

import numpy as np

from hflray.config.options import one_of
from hflray.data.partition import (
    OPTIONS,
    DirichletPartition,
    Ints,
    MajorityPartition,
    checked_sizes,
    drawn_by_share,
    majority_quota,
)
from hflray.errors import DataError

Mix = Literal["majority", "dirichlet", "iid"]


@dataclass(frozen=True)
class ResampledPartition:
    """Each device draws its samples from the whole training set by a mix of classes of its own.

    A device holds a sample at most once, and any number of devices may hold the same sample. The mix is

    * ``majority``: round(`majority_fraction` · D_n) samples are of one class, which each device draws uniformly, and
      the others are drawn from the other classes;
    * ``dirichlet``: the shares of the classes are drawn from Dirichlet(`alpha`, …, `alpha`);
    * ``iid``: the samples are drawn from all.

    Examples:
        >>> import numpy as np
        >>> from hflray import build_partition
        >>> labels, sizes = np.arange(100) % 2, np.full(1_000_000, 10)
        >>> parts = build_partition("resampled")(labels, len(sizes), sizes, np.random.default_rng(0))
        >>> len(parts), np.bincount(labels[parts[999_999]]).tolist()
        (1000000, [2, 8])
    """

    shared: ClassVar[bool] = True
    mix: Mix = "majority"
    majority_fraction: float = 0.8
    alpha: float = 0.5

    def __post_init__(self) -> None:
        one_of(f"{OPTIONS}.mix", self.mix, get_args(Mix))
        MajorityPartition(self.majority_fraction)  # checks the number
        DirichletPartition(self.alpha)

    def __call__(self, labels: Ints, num_devices: int, sizes: Ints, rng: np.random.Generator) -> ResampledParts:
        """Return the devices' samples; raise DataError if the training set is too small for one device."""
        sizes = checked_sizes(labels, num_devices, sizes, shared=True)
        parts = ResampledParts(self, labels, sizes, int(rng.integers(2**63)))
        quota = majority_quota(sizes, self.majority_fraction).max()
        if self.mix == "majority" and quota > parts.supply.min():
            rarest = parts.supply.argmin()
            raise DataError(
                f"data.partition: resampled asks for {quota} samples of one class for a device, but the training set "
                f"has {parts.supply[rarest]} of class {parts.classes[rarest]}; lower data.samples_per_device or "
                f"data.majority_fraction (now {self.majority_fraction:g})"
            )
        return parts


class ResampledParts(Sequence[Ints]):
    """The samples of N devices; ``parts[n]`` are the sorted indices of a device, (D_n,), drawn at that moment.

    Args:
        partition: says how they are drawn.
        labels: the class of each sample, (n,).
        sizes: D_n, (N,).
        key: the devices' streams are functions of it and of the device.

    Attributes:
        classes: the classes that occur, (C,).
        supply: the samples of each, (C,).
        sizes: D_n, (N,).
    """

    def __init__(self, partition: ResampledPartition, labels: Ints, sizes: Ints, key: int) -> None:
        self.classes, self.supply = np.unique(labels, return_counts=True)
        self.sizes, self._partition, self._key = sizes, partition, key
        self._pools = np.argsort(labels, kind="stable").astype(np.int64)  # the samples by class

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, device: int) -> Ints: ...
    @overload
    def __getitem__(self, device: slice) -> list[Ints]: ...
    def __getitem__(self, device: int | slice) -> Ints | list[Ints]:
        if isinstance(device, slice):
            return [self[number] for number in range(len(self))[device]]
        rng, counts = self._drawn(range(len(self))[device])
        begins = np.cumsum(self.supply) - self.supply
        chosen = [
            begin + rng.choice(supply, count, replace=False, shuffle=False)
            for begin, supply, count in zip(begins.tolist(), self.supply.tolist(), counts.tolist(), strict=True)
            if count
        ]
        return np.sort(self._pools[np.concatenate(chosen)])

    def of_rows(self, rows: Ints) -> ResampledParts:
        """Return the same samples as indices of a larger set, of which `rows` (n,) were dealt."""
        parts = copy.copy(self)
        parts._pools = rows[self._pools]
        return parts

    def counts(self, device: int) -> Ints:
        """Return the number of a device's samples in each of `classes`, (C,)."""
        return self._drawn(device)[1]

    def _drawn(self, device: int) -> tuple[np.random.Generator, Ints]:
        """Return the device's generator after the draw of its counts, and the counts, (C,)."""
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(self._key, spawn_key=(device,))))
        size, partition, supply = int(self.sizes[device]), self._partition, self.supply.copy()
        if partition.mix == "dirichlet":
            share = rng.dirichlet(np.full(len(supply), partition.alpha))
            return rng, drawn_by_share(size, share, supply, rng)
        if partition.mix == "iid":
            return rng, rng.multivariate_hypergeometric(supply, size)
        quota = int(majority_quota(self.sizes[device], partition.majority_fraction))
        major = rng.integers(len(supply))
        supply[major] = 0
        foreign = min(size - quota, int(supply.sum()))  # if the other classes lack some, they are of its own class
        counts = rng.multivariate_hypergeometric(supply, foreign)
        counts[major] = size - foreign
        return rng, counts


class LabelCounts:
    """The number of samples of each class at each device, (N, C), computed for the devices that are looked up.

    It is indexed by devices alone. ``np.asarray`` of it, and a look at half of the devices or more, computes all rows
    and keeps them.

    Args:
        parts: the devices' samples.
        num_classes: C.
        labels: the class of each sample, (n,), if the parts are drawn by something else, such as groups; None: they are
            drawn by class, and the samples need not be looked at.
    """

    def __init__(self, parts: ResampledParts, num_classes: int, labels: Ints | None = None) -> None:
        self._parts, self.shape, self._labels = parts, (len(parts), num_classes), labels

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, devices: Any) -> Ints:
        chosen = np.arange(len(self))[devices]
        rows = self._all[chosen] if 2 * chosen.size >= len(self) else self._rows(chosen.ravel())
        return rows.reshape(*chosen.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Ints:
        return self._all if dtype is None else self._all.astype(dtype)

    @cached_property
    def _all(self) -> Ints:
        return self._rows(np.arange(len(self)))

    def _rows(self, devices: Ints) -> Ints:
        rows = np.zeros((len(devices), self.shape[1]), np.int64)
        for row, device in zip(rows, devices.tolist(), strict=True):
            if self._labels is None:
                row[self._parts.classes] = self._parts.counts(device)
            else:
                row[:] = np.bincount(self._labels[self._parts[device]], minlength=len(row))
        return rows
