"""Policies in a configuration, pinned to their bytes: ``mine.safetensors@sha256:3f…``.

`assignment.policy` and `scheduling.options.policy` name the file of a policy. As with a reference
(`hflray.support.references`), the file is read once when a configuration or a sweep file is read, and the SHA-256 of
its bytes becomes part of the name. Two files therefore never pass for one policy. A copy goes to a cache on this
machine, so that a sweep goes on after the file has moved. A file with other bytes in its place is refused. Shipped
policies are named without a path, and their names are not changed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hflray.errors import ConfigError
from hflray.support.checksum import digest, file_digest
from hflray.support.files import write

SETTINGS = ("assignment.policy", "scheduling.options.policy")
SUFFIX = ".safetensors"
SHOWN = 12  # digits of a SHA-256 in a message
_PINNED = re.compile(rf"(?P<path>.+{re.escape(SUFFIX)})@sha256:(?P<sha256>[0-9a-f]{{64}})", re.DOTALL)


def pin(name: str) -> str:
    """Return the pinned name of a policy's file.

    A name is returned as it is if it is pinned already, if it does not end in ``.safetensors`` (such as a shipped
    policy's), or if its file does not exist.
    """
    path = Path(name)
    if not name.endswith(SUFFIX) or not path.is_file():
        return name
    content = path.read_bytes()
    sha256 = digest(content)
    if not (copy := _copy(sha256)).is_file():
        write(copy, content)
    return f"{path}@sha256:{sha256}"


def locate(name: str | Path, setting: str) -> Path:
    """Return the path at which the bytes of a policy lie: its file, or the copy of it if the file is not there.

    Args:
        name: a name of `pin`, or a plain path, which is returned as it is.
        setting: dotted key of the setting that names the policy, for messages.

    Raises:
        ConfigError: the file has other bytes than the name says, or neither it nor its copy is there.
    """
    match = _PINNED.fullmatch(str(name))
    if match is None:
        return Path(name)
    path, sha256 = Path(match["path"]), match["sha256"]
    if path.is_file():
        if (now := file_digest(path)) != sha256:
            raise ConfigError(
                f"{setting}: {path} is another policy now (sha256 {sha256[:SHOWN]}… then, {now[:SHOWN]}… now); put the "
                "file back, or begin anew with --fresh"
            )
        return path
    copy = _copy(sha256)
    if copy.is_file() and file_digest(copy) == sha256:
        return copy
    raise ConfigError(
        f"{setting}: {path} does not exist, and this machine has no copy of it (sha256 {sha256[:SHOWN]}…); put the "
        "file back, or begin anew with --fresh"
    )


def plain(text: str) -> str:
    """Return a text in which each pinned policy is its path."""
    return re.sub(rf"({re.escape(SUFFIX)})@sha256:[0-9a-f]{{64}}", r"\1", text)


def _copy(sha256: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "hflray" / "policies" / f"{sha256}{SUFFIX}"
