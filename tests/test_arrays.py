"""hflray.arrays: an array in JSON keeps every bit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hflray.arrays import packed, unpacked


@pytest.mark.parametrize(
    "array",
    [
        np.array([[0.1, -0.0, np.nan], [np.inf, 5e-324, 1e308]]),
        np.array([True, False]),
        np.array([], dtype=np.intp),
        np.arange(12).reshape(3, 4)[:, ::2],  # not contiguous
    ],
)
def test_an_array_survives_json(array):
    again = unpacked(json.loads(json.dumps(packed(array), allow_nan=False)))
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
    again[...] = 0  # it may be written to
