"""Files that a configuration names, pinned to their bytes: ``devices.csv@sha256:3f…``.

As with a reference to code (`hflray.support.references`), a file is read once when a configuration or a sweep file is
read, and the SHA-256 of its bytes becomes part of its name, so that two files never pass for one. What happens to the
bytes depends on the setting (`SETTINGS`). All of them are data, and never run.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hflray.errors import ConfigError
from hflray.support.checksum import digest, file_digest
from hflray.support.files import write
from hflray.support.reader import inflate, read_bytes
from hflray.support.text import one_line

# The settings that name files. The bytes of a fleet's tables are kept with the sweep and travel to every process and
# machine. A data set is read by the driver alone, so that only its place is kept. A policy is copied to a cache on this
# machine, so that a sweep goes on after the file has moved; its pinned name has its folders.
SETTINGS: dict[str, Literal["kept", "placed", "copied"]] = {
    "fleet.options.devices": "kept", "fleet.options.edges": "kept", "fleet.options.links": "kept",
    "data.options.file": "placed", "data.options.train": "placed", "data.options.test": "placed",
    "assignment.policy": "copied", "scheduling.options.policy": "copied",
    "tree.gossip.graph": "kept", "tree.gossip.weights": "kept",
}  # fmt: skip
OF_WORDS = ("tree.gossip.graph", "tree.gossip.weights")  # settings whose text may be a word in place of a file
TABLES = (".csv", ".parquet")
POLICY = ".safetensors"  # with which the name of a policy's file ends; shipped policies have no such ending
MOST_MB = 256  # of a file that is kept
SHOWN = 12  # digits of a SHA-256 in a message
_WITHIN = re.compile(r"(\.(?:csv|parquet|json|safetensors))@sha256:[0-9a-f]{64}", re.IGNORECASE)
_PINNED = re.compile(r"(?P<name>.+)@sha256:(?P<sha256>[0-9a-f]{64})", re.DOTALL)


@dataclass(frozen=True)
class Input:
    """A file, or a folder of files. The process that unpickles it holds it.

    Attributes:
        name: its name without folders.
        sha256: the SHA-256 of its bytes; of a folder, see `digest_of`.
        path: where it was read; that place may be on another machine.
        content: its bytes; None: they are not kept.
    """

    name: str
    sha256: str
    path: str
    content: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return held, (self.name, self.sha256, self.path, self.content)


_held: dict[str, Input] = {}  # by SHA-256


def held(name: str, sha256: str, path: str, content: bytes | None = None) -> Input:
    """Return a file that this process holds from now on. Raises ValueError: the bytes have another hash."""
    if content is not None and digest(content) != sha256:
        raise ValueError(f"{name}: its bytes have another hash")
    before = _held.get(sha256)
    if before is None or before.content is None:
        _held[sha256] = Input(name, sha256, path, content)
    return _held[sha256]


def kept_as(key: str, text: str) -> Literal["kept", "placed", "copied"] | None:
    """Return what becomes of the file that the text of a setting names; None: it names none."""
    if key in OF_WORDS and not plain(text).lower().endswith(TABLES):
        return None
    return SETTINGS.get(key)


def is_pinned(name: object) -> bool:
    """Return whether a name has the hash of its file."""
    return isinstance(name, str) and _PINNED.fullmatch(name) is not None


def plain(text: str) -> str:
    """Return a name, or a longer text with pinned names, without the hashes."""
    match = _PINNED.fullmatch(text)
    return _WITHIN.sub(r"\1", text) if match is None else match["name"]


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and hashes of the JSON files in a folder. Raises OSError."""
    if not path.is_dir():
        return file_digest(path)
    lines = [f"{file_digest(file)}  {file.name}\n" for file in sorted(path.glob("*.json"))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def pin(name: str, folder: Path | None = None, keep: bool = True) -> str:
    """Return the pinned name of a file or folder, which this process then holds.

    Args:
        name: its path, or a pinned name, whose file is only looked for if this process does not hold it.
        folder: the folder that the path is relative to; None: the present one.
        keep: whether its bytes are kept.

    Raises:
        ConfigError: it cannot be read, is too large, or is not the one that the pinned name tells. The message does not
            begin with a setting.
    """
    match = _PINNED.fullmatch(name)
    if match is not None and match["sha256"] in _held:
        return name
    place = plain(name)
    try:
        path = ((folder or Path()) / Path(place).expanduser()).resolve()
        content = read_bytes(path, MOST_MB * 2**20) if keep else None
        sha256 = digest_of(path) if content is None else digest(content)
    except (OSError, RuntimeError, ValueError) as error:
        if match is not None:  # it may still come from elsewhere; `content_of` says so if it does not
            return name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{one_line(place)}: cannot be read ({reason}); a path is relative to the sweep file, and in --set to the "
            "present folder; correct it"
        ) from error
    if match is not None and sha256 != match["sha256"]:
        raise changed(str(path), sha256, match["sha256"])
    if content is None and sha256 in _held:
        content = _held[sha256].content
    _held[sha256] = Input(path.name, sha256, str(path), content)  # of equal files, the last one that was read
    return f"{path.name}@sha256:{sha256}"


def content_of(name: str) -> tuple[str, bytes]:
    """Return the file name of a pinned name, and the file's bytes. Raises ConfigError: see `path_of`."""
    made = next(iter(inputs_of([name])), None)
    content = None if made is None else made.content
    return plain(name), path_of(name).read_bytes() if content is None else content


def path_of(name: str) -> Path:
    """Return where the file or folder of a pinned name lies. Raises ConfigError: it is not there, or has changed."""
    made = next(iter(inputs_of([name])), None)
    if made is None or not Path(made.path).exists():
        raise ConfigError(
            f"{one_line(plain(name) if made is None else made.path)}: its bytes are not at hand; put the file beside "
            "the sweep file, or go on with the sweep that keeps it"
        )
    refuse_change(made)
    return Path(made.path)


def inputs_of(names: Iterable[str]) -> tuple[Input, ...]:
    """Return the files behind the pinned names, each once, as far as this process holds them."""
    hashes = dict.fromkeys(match["sha256"] for name in names if (match := _PINNED.fullmatch(name)) is not None)
    return tuple(_held[sha256] for sha256 in hashes if sha256 in _held)


def refuse_change(made: Input) -> None:
    """Raise ConfigError, which names both hashes, if a file has changed since it was read; one that is gone has not."""
    path = Path(made.path)
    if made.path and path.exists() and (now := digest_of(path)) != made.sha256:
        raise changed(made.path, now, made.sha256)


def changed(path: str, now: str, then: str) -> ConfigError:
    """Return the error of a file, or of code, whose hash is another one `now` than the one that is asked for."""
    return ConfigError(
        f"{path} has changed: it has sha256 {now[:SHOWN]}… now, and {then[:SHOWN]}… is asked for; put the former file "
        "back (a sweep keeps it in its folder's references/), or begin anew"
    )


def to_json(inputs: Iterable[Input]) -> list[dict[str, str]]:
    """Return files as JSON values, for `from_json`."""
    entries = []
    for file in inputs:
        entry = {"name": file.name, "sha256": file.sha256, "path": file.path}
        if file.content is not None:
            entry["zlib"] = base64.b64encode(zlib.compress(file.content)).decode()
        entries.append(entry)
    return entries


def from_json(entries: Iterable[Mapping[str, Any]]) -> tuple[Input, ...]:
    """Return the files of `to_json`, which this process then holds. Raises ValueError, KeyError: they are damaged."""
    made = []
    for entry in entries:
        content = inflate(entry["zlib"], MOST_MB * 2**20) if "zlib" in entry else None
        made.append(held(str(entry["name"]), str(entry["sha256"]), str(entry["path"]), content))
    return tuple(made)


def pin_policy(name: str) -> str:
    """Return the pinned name of a policy's file, of which a copy is kept on this machine.

    A name is returned as it is if it is pinned already, if it does not end in ``.safetensors`` (such as a shipped
    policy's), or if its file does not exist.
    """
    path = Path(name)
    if not name.endswith(POLICY) or not path.is_file():
        return name
    content = path.read_bytes()
    if not (copy := _copy(digest(content))).is_file():
        write(copy, content)
    return f"{path}@sha256:{digest(content)}"


def locate(name: str | Path, setting: str) -> Path:
    """Return the path at which the bytes of a policy lie: its file, or the copy of it if the file is not there.

    Args:
        name: a name of `pin_policy`, or a plain path, which is returned as it is.
        setting: dotted key of the setting that names the policy, for messages.

    Raises:
        ConfigError: the file has other bytes than the name says, or neither it nor its copy is there.
    """
    match = _PINNED.fullmatch(str(name))
    if match is None or not match["name"].endswith(POLICY):
        return Path(name)
    path, sha256 = Path(match["name"]), match["sha256"]
    if path.is_file() and (now := file_digest(path)) != sha256:
        raise ConfigError(
            f"{setting}: {path} is another policy now (sha256 {sha256[:SHOWN]}… then, {now[:SHOWN]}… now); put the "
            "file back, or begin anew with --fresh"
        )
    place = next((place for place in (path, _copy(sha256)) if place.is_file() and file_digest(place) == sha256), None)
    if place is None:
        raise ConfigError(
            f"{setting}: {path} does not exist, and this machine has no copy of it (sha256 {sha256[:SHOWN]}…); put the "
            "file back, or begin anew with --fresh"
        )
    return place


def _copy(sha256: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "hflray" / "policies" / f"{sha256}{POLICY}"
