"""Data sets that lie in Ray's object store once, for all trials of a sweep and all their actors.

A trial deals a data set's samples to devices, which takes an index; the images themselves it does not copy.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from hflray.data import Dataset
from hflray.training.local import DeviceData


class SharedData(DeviceData):
    """Samples that travel as a reference to their data set in the object store, where it lies once for all trials."""

    source: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _fetch, (self.source, self.index, self.offsets)


def share(source: Any, data: DeviceData) -> DeviceData:
    """`data`, whose images and labels are those of the `Dataset` that the Ray reference `source` stands for."""
    shared = SharedData(**{field.name: getattr(data, field.name) for field in fields(data)})
    object.__setattr__(shared, "source", source)
    return shared


def _fetch(source: Any, index: NDArray[np.int64], offsets: NDArray[np.int64]) -> DeviceData:
    d: Dataset = ray.get(source)
    return DeviceData(d.x_train, d.y_train, index, offsets, d.x_test, d.y_test, d.channel_mean, d.channel_std)
