"""The partition by owners: a device holds the samples of one owner (`hflray.data.Dataset.owner`).

Owners and devices are joined by their names, which the fleet's table gives. A fleet without names takes the owners in
their order, those of numbers by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.data.partition import Ints
from hflray.errors import ConfigError, DataError
from hflray.support.text import shorten

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


@dataclass(frozen=True)
class OwnersPartition:
    """A device holds the samples of one owner.

    Attributes:
        unmatched: what is done about a device without samples, or an owner without a device: ``error``, or ``drop``,
            which leaves it out with a note.
    """

    unmatched: str = "error"

    def __post_init__(self) -> None:
        if self.unmatched not in ("error", "drop"):
            raise ConfigError(
                f"data.options.unmatched: got {shorten(self.unmatched)}; accepted: error, drop; correct it"
            )

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
            if all(text.isdecimal() for text in owners):
                order = np.argsort([int(text) for text in owners], kind="stable")
            else:
                order = np.arange(len(owners))
            names = [str(owners[index]) for index in order[:num_devices]]
            names += [f"device {index}" for index in range(len(names), num_devices)]
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
