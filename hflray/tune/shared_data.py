"""Data sets that are in Ray's object store once for all trials of a sweep and all their actors.

A trial distributes a data set's samples to devices by an index and does not copy the images.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from hflray.data import Dataset
from hflray.data.resampled import ResampledParts
from hflray.training.job import DeviceData


class SharedData(DeviceData):
    """Samples that are pickled as a reference to their data set in the object store."""

    source: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _fetch, (self.source, self.index, self.offsets, self.drawn, self.validation)


def share(source: Any, data: DeviceData) -> DeviceData:
    """Return `data` in a form that is pickled with `source`, the Ray reference to its `Dataset`, instead of images."""
    shared = SharedData(**{field.name: getattr(data, field.name) for field in fields(data)})
    object.__setattr__(shared, "source", source)
    return shared


def _fetch(
    source: Any,
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    drawn: ResampledParts | None,
    validation: NDArray[np.int64],
) -> DeviceData:
    d: Dataset = ray.get(source)
    test, moments = (d.x_test, d.y_test), (d.channel_mean, d.channel_std)
    return DeviceData(d.x_train, d.y_train, index, offsets, *test, *moments, drawn, validation)
