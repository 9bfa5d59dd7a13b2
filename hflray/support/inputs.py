"""Files of data that a configuration names, pinned to their bytes: ``devices.csv@sha256:3f…``.

As a reference does (`hflray.support.references`), a pinned name holds the SHA-256 of the file, so that two files never
pass for one. The bytes are kept with the sweep and travel to every process and machine. They are data, and never run.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.support.checksum import digest, file_digest
from hflray.support.text import one_line

SETTINGS = ("fleet.options.devices", "fleet.options.edges", "fleet.options.links")
MOST_MB = 256  # of a file, which is kept in the sweep's folder and sent to every trial
SHOWN = 12  # digits of a SHA-256 in a message
_PINNED = re.compile(r"(?P<name>.+)@sha256:(?P<sha256>[0-9a-f]{64})", re.DOTALL)


@dataclass(frozen=True)
class Input:
    """A file's bytes. The process that unpickles it holds it.

    Attributes:
        name: the file's name without folders.
        content: its bytes.
        path: where it was read, for messages; that place may be on another machine.
    """

    name: str
    content: bytes
    path: str = ""

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the bytes."""
        return digest(self.content)

    def __reduce__(self) -> tuple[Any, ...]:
        return held, (self.name, self.content, self.path)


_held: dict[str, Input] = {}  # by SHA-256


def held(name: str, content: bytes, path: str) -> Input:
    """Return a file that this process holds from now on."""
    made = Input(name, content, path)
    return _held.setdefault(made.sha256, made)


def is_pinned(name: object) -> bool:
    """Return whether a name has the hash of its file."""
    return isinstance(name, str) and _PINNED.fullmatch(name) is not None


def plain(text: str) -> str:
    """Return a name without its hash."""
    match = _PINNED.fullmatch(text)
    return text if match is None else match["name"]


def pin(name: str, folder: Path | None = None) -> str:
    """Return the pinned name of a file, whose bytes this process then holds.

    Args:
        name: the path of a file, or a pinned name, whose file is only looked for if its bytes are not at hand.
        folder: the folder that the path is relative to; None: the present one.

    Raises:
        ConfigError: the file cannot be read, is too large, or is not the one that the pinned name tells. The message
            does not begin with a setting.
    """
    match = _PINNED.fullmatch(name)
    if match is not None and match["sha256"] in _held:
        return name
    place = name if match is None else match["name"]
    try:
        path = ((folder or Path()) / Path(place).expanduser()).resolve()
        size_mb = path.stat().st_size / 2**20
        if size_mb > MOST_MB:
            raise ConfigError(f"{one_line(place)}: has {size_mb:.0f} MB; accepted: at most {MOST_MB} MB; shorten it")
        made = Input(path.name, path.read_bytes(), str(path))
    except (OSError, RuntimeError, ValueError) as error:
        if match is not None:  # the bytes may still come from elsewhere; `content_of` says so if they do not
            return name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{one_line(place)}: cannot be read ({reason}); a path is relative to the sweep file, and in --set to the "
            "present folder; correct it"
        ) from error
    if match is not None and made.sha256 != match["sha256"]:
        raise ConfigError(_changed(made.path, made.sha256, match["sha256"]))
    _held[made.sha256] = made
    return f"{made.name}@sha256:{made.sha256}"


def content_of(name: str) -> tuple[str, bytes]:
    """Return the file name of a pinned name, and the file's bytes. Raises ConfigError: they are not at hand."""
    match = _PINNED.fullmatch(name)
    if match is None or match["sha256"] not in _held:
        shown = plain(name)
        raise ConfigError(
            f"{one_line(shown)}: its bytes are not at hand; put the file beside the sweep file, or go on with the "
            "sweep that keeps it"
        )
    return match["name"], _held[match["sha256"]].content


def inputs_of(names: Iterable[str]) -> tuple[Input, ...]:
    """Return the files behind the pinned names, each once, as far as this process holds them."""
    matches = [match for name in names if (match := _PINNED.fullmatch(name)) is not None]
    hashes = dict.fromkeys(match["sha256"] for match in matches)
    return tuple(_held[sha256] for sha256 in hashes if sha256 in _held)


def refuse_change(made: Input) -> None:
    """Raise ConfigError, which names both hashes, if a file has other bytes than when it was read; one that is gone
    has not changed.
    """
    path = Path(made.path)
    if made.path and path.is_file() and (now := file_digest(path)) != made.sha256:
        raise ConfigError(_changed(made.path, now, made.sha256))


def to_json(inputs: Iterable[Input]) -> list[dict[str, str]]:
    """Return files as JSON values, for `from_json`."""
    return [
        {"name": each.name, "path": each.path, "zlib": base64.b64encode(zlib.compress(each.content)).decode()}
        for each in inputs
    ]


def from_json(entries: Iterable[Mapping[str, Any]]) -> tuple[Input, ...]:
    """Return the files of `to_json`, which this process then holds. Raises ValueError, KeyError: they are damaged."""
    made = []
    for entry in entries:
        inflater = zlib.decompressobj()
        content = inflater.decompress(base64.b64decode(entry["zlib"], validate=True), MOST_MB * 2**20)
        if not inflater.eof:
            raise ValueError(f"{entry['name']}: is cut off, or too large")
        made.append(held(str(entry["name"]), content, str(entry["path"])))
    return tuple(made)


def _changed(path: str, now: str, then: str) -> str:
    return (
        f"{path} has changed: it has sha256 {now[:SHOWN]}… now, and {then[:SHOWN]}… is asked for; put the former file "
        "back (a sweep keeps it in its folder's references/), or begin anew"
    )
