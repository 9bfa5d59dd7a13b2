"""hflray.support.arrays: an array or a table in JSON keeps every bit, and a damaged table is an error of one line."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hflray.support import arrays
from hflray.support.arrays import deflated, inflated, packed, squared_norm, unpacked
from hflray.support.checksum import canonical, checked, digest, file_digest, from_line, stamped, to_line
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


# `hflray.support.checksum`: every flipped byte of a stamped file and of a journal's line is found.


VALUES = {"round": 3, "metrics": {"accuracy": 0.1 + 0.2, "ß": -1e-300}, "none": None, "list": [1, 2.5, "x", True]}


def flips(content: bytes) -> list[bytes]:
    """Return copies of `content` with one byte changed: each byte by its lowest bit, by bit 5, and to all ones."""
    return [
        content[:i] + bytes([content[i] ^ mask]) + content[i + 1 :]
        for i in range(len(content))
        for mask in (1, 32, 255)
    ]


def test_a_digest_is_sha256(tmp_path) -> None:
    assert digest(b"abc") == hashlib.sha256(b"abc").hexdigest()
    (tmp_path / "x").write_bytes(b"abc")
    assert file_digest(tmp_path / "x") == digest(b"abc")


def test_values_are_canonical_after_a_round_trip_through_a_file() -> None:
    values = {"b": {2: "two", 10: (1, 2)}, "a": 0.1}
    assert canonical(values) == canonical(json.loads(json.dumps(values, indent=3)))
    assert canonical(values) == canonical(dict(reversed(values.items())))
    assert checked(json.loads(json.dumps(stamped(values)))) == {"b": {"2": "two", "10": [1, 2]}, "a": 0.1}


def test_a_flipped_byte_of_a_stamped_file_never_changes_a_value() -> None:
    text = json.dumps(stamped(VALUES), indent=1).encode()
    refused = 0
    for damaged in flips(text):
        try:
            values = checked(json.loads(damaged))
        except ValueError:
            refused += 1
        else:  # a space between values, or a letter of the checksum's own name
            assert {name: values[name] for name in VALUES} == VALUES
    assert refused > 0.9 * 3 * len(text)


def test_a_file_without_a_checksum_is_accepted_and_no_other_kind_of_value() -> None:
    assert checked(dict(VALUES)) == VALUES
    for content in ([], "text", None, 3):
        with pytest.raises(ValueError, match="instead of a mapping"):
            checked(content)


def test_a_line_ends_with_the_crc_of_all_before() -> None:
    line = to_line(VALUES)
    body, _, tail = line.rpartition(', "crc32": "')
    assert tail == f'{zlib.crc32(body.encode()):08x}"}}'
    assert json.loads(line) == VALUES | {"crc32": tail[:8]}
    assert from_line(line.encode()) == (VALUES, True)


def test_a_flipped_byte_of_a_line_never_changes_a_value() -> None:
    line = to_line(VALUES).encode()
    for damaged in flips(line):
        try:
            entry, confirmed = from_line(damaged)
        except ValueError:
            continue
        assert not confirmed  # a letter of the checksum's own name
        assert {name: entry[name] for name in VALUES} == VALUES


def test_half_a_line_is_damaged() -> None:
    line = to_line(VALUES).encode()
    for size in range(len(line)):
        with pytest.raises(ValueError):  # noqa: PT011 (JSON's own messages differ)
            from_line(line[:size])


def test_a_line_of_an_older_version_is_unconfirmed() -> None:
    assert from_line(b'{"round": 1}') == ({"round": 1}, False)
    for damaged in (b'{"round": 1, "crc32": "xyz"}', b"[1]", b"{"):
        with pytest.raises(ValueError):  # noqa: PT011
            from_line(damaged)


def test_a_number_that_is_not_finite_keeps_its_line() -> None:
    entry, confirmed = from_line(to_line({"round": 1, "loss": math.inf}).encode())
    assert (entry["loss"], confirmed) == (math.inf, True)
