"""hflray.support.arrays: an array or a table in JSON keeps every bit, and a damaged table is an error of one line."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hflray.support import arrays
from hflray.support.arrays import deflated, inflated, packed, squared_norm, unpacked
from tests.conftest import refusal


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


COLUMNS = {"device": [3, 5], "start_s": [0.1, None], "counts": [True, False]}


def test_a_table_survives_in_a_line():
    text = deflated(COLUMNS)
    assert inflated(json.loads(json.dumps(text))) == COLUMNS
    assert len(deflated({"edge": [0] * 10_000})) < 200


def compressed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


@pytest.mark.parametrize(
    "text",
    ["", "é", "x", 3, None, deflated(COLUMNS)[:-8], "AAAA" + deflated(COLUMNS)]
    + [compressed(content) for content in (b"[1]", b'{"a": 1}', b"{", b"\xff")],
)
def test_a_damaged_table_is_an_error_of_one_line(text):
    with refusal(ValueError, "a compressed table cannot be read"):
        inflated(text)


def test_a_table_that_would_fill_the_memory_is_refused(monkeypatch):
    text = deflated(COLUMNS)
    monkeypatch.setattr(arrays, "MOST_BYTES", 20)
    with pytest.raises(ValueError, match="too large"):
        inflated(text)


def test_the_square_of_a_norm_is_that_of_numpy_in_double_precision() -> None:
    vector = np.random.default_rng(0).normal(size=20_011).astype(np.float32)
    assert squared_norm(vector) == pytest.approx(float(np.linalg.norm(vector.astype(np.float64)) ** 2), rel=1e-13)
    assert squared_norm(np.array([3.0, 4.0])) == 25.0


def test_the_square_of_a_norm_has_the_same_bits_wherever_the_vector_lies_and_with_any_number_of_threads() -> None:
    vector = np.random.default_rng(1).normal(size=20_011)
    room = np.empty(len(vector) + 8)
    found = set()
    for start in range(8):
        room[start : start + len(vector)] = vector
        for threads in (1, 2):
            with threadpool_limits(threads):
                found.add(squared_norm(room[start : start + len(vector)]))
    assert len(found) == 1
