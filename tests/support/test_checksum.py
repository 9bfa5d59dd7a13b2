"""`hflray.support.checksum`: every flipped byte of a stamped file and of a journal's line is found."""

from __future__ import annotations

import hashlib
import json
import math
import zlib

import pytest

from hflray.support.checksum import canonical, checked, digest, file_digest, from_line, stamped, to_line

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
