"""Checksums of the files that hflray writes, so that a damaged byte is never trained on and never shown as a metric.

A file that is written once (``sweep.json``, a checkpoint, a cache) carries a SHA-256, because such a file is read
rarely and may be large. A line of a journal carries a CRC-32, because a journal gains a line each round: eight digits
are enough for a line, and they are computed in a microsecond. Both find every flipped byte; of other damages a CRC-32
misses one in 2³². Checksums do not stop a stranger, who can compute them as well.

A file without a checksum was written by an older hflray. It is accepted and called *unchecked*.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hflray.support.reader import parse_json

SHA256, CRC32 = "sha256", "crc32"  # the keys of the checksums
_TAIL = re.compile(rb'([0-9a-f]{8})"\}')


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content. Raises OSError: the file cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical(values: Mapping[str, Any]) -> bytes:
    """Return the bytes of JSON values over which checksums are computed; order and spaces do not matter."""
    plain = json.loads(json.dumps(values))  # keys that are numbers become texts, as in a file
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def stamped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values with their checksum under the key ``sha256``."""
    return {**values, SHA256: digest(canonical(values))}


def checked(content: Any) -> dict[str, Any]:
    """Return the values of `stamped` without their checksum. Values without a checksum are returned as they are.

    Raises:
        ValueError: `content` is not a mapping, or the checksum differs.
    """
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__} instead of a mapping")
    values = {name: value for name, value in content.items() if name != SHA256}
    if SHA256 in content and content[SHA256] != digest(canonical(values)):
        raise ValueError("its checksum differs")
    return values


def to_line(entry: Mapping[str, Any]) -> str:
    """Return an entry, which must not be empty, as a JSON line without newline that ends with its checksum."""
    body = json.dumps(entry, ensure_ascii=False)[:-1]
    return f'{body}, "{CRC32}": "{zlib.crc32(body.encode()):08x}"}}'


def from_line(line: bytes) -> tuple[dict[str, Any], bool]:
    """Return the entry of a line of `to_line`, or of an older JSON line, and whether a checksum confirms it.

    Raises:
        ValueError: the line is damaged.
    """
    body, mark, tail = line.rpartition(f', "{CRC32}": "'.encode())
    match = _TAIL.fullmatch(tail) if mark else None
    if match and zlib.crc32(body) != int(match[1], 16):
        raise ValueError("its checksum differs")
    entry = parse_json(line)
    if not isinstance(entry, dict) or (CRC32 in entry) != bool(match):
        raise ValueError("it is no entry")
    entry.pop(CRC32, None)
    return entry, bool(match)
