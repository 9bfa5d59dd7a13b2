"""The user's seal on files that may come from strangers, so that a folder from a stranger runs no code.

Ray Tune keeps pickles in a sweep's folder, and loading a pickle runs whatever its author wrote into it. hflray
therefore seals ``sweep.json`` and the digests of Tune's files (`hflray.tune.digests`). A seal is an HMAC-SHA-256 with a
key that only this user has. ``--resume`` lets Tune read its files only if both carry this user's seal.

The key is 32 random bytes as 64 hexadecimal digits, with their CRC-32 behind them. It lies in ``$HFLRAY_KEY_FILE``,
else ``$XDG_CONFIG_HOME/hflray/key``, else ``~/.config/hflray/key``. It is made when it is needed, readable for its
owner only. Machines that continue each other's sweeps need the same key: copy the file, or let the variable name a file
that they share.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.support.checksum import canonical, checked, stamped
from hflray.support.files import refuse_links as refuse_links

log = logging.getLogger(__name__)

VARIABLE = "HFLRAY_KEY_FILE"
SEAL = "seal"  # the key of the seal among JSON values
_DIGITS = re.compile(r"[0-9a-f]{64}")


def key_path() -> Path:
    """Return the path of this user's key."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "hflray" / "key"


def user_key() -> bytes | None:
    """Return this user's key, which is made if there is none; None if it cannot be made.

    Raises:
        ConfigError: the key's file is damaged, cannot be read, or can be read by other users.
    """
    path = key_path()
    try:
        if not path.exists():
            _make(path)
    except OSError as error:
        log.warning("%s cannot be written (%s); sweeps that begin now carry no seal", path, error.strerror)
        return None
    try:
        text, *crc = path.read_text(encoding="ascii").split() or [""]
        readers = path.stat().st_mode & 0o077
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: the key of your sweeps cannot be read ({error}); make it readable, or remove it for a new one"
        ) from error
    if readers:
        raise ConfigError(f"{path}: the key of your sweeps is open to other users; close it with: chmod 600 {path}")
    if not _DIGITS.fullmatch(text) or crc not in ([], [_crc(text)]):
        raise ConfigError(
            f"{path}: the key of your sweeps is damaged (64 hexadecimal digits are needed); put it back, or remove it "
            "for a new one: the sweeps so far then continue from their own checkpoints"
        )
    return bytes.fromhex(text)


def _crc(digits: str) -> str:
    return f"{zlib.crc32(digits.encode()):08x}"


def _make(path: Path) -> None:
    """Write a new key, whole or not at all, unless another process is faster."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, scratch = tempfile.mkstemp(prefix=".key-", dir=path.parent)  # mkstemp lets only the owner read
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            digits = secrets.token_hex(32)
            file.write(f"{digits} {_crc(digits)}\n")
        with suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        os.unlink(scratch)


def sealed(values: Mapping[str, Any], purpose: str) -> dict[str, Any]:
    """Return JSON values with this user's seal, if there is a key, and with a checksum.

    Args:
        values: the values; neither ``seal`` nor ``sha256`` is among them.
        purpose: what the values are and of which sweep, so that a seal holds for nothing else.

    Raises:
        ConfigError: see `user_key`.
    """
    key = user_key()
    return stamped(values if key is None else {**values, SEAL: _seal(key, values, purpose)})


def unsealed(content: Any) -> dict[str, Any]:
    """Return the values of `sealed` without checksum and seal. Raises ValueError: they are damaged."""
    values = checked(content)
    values.pop(SEAL, None)
    return values


def is_mine(content: Any, purpose: str) -> bool:
    """Return whether `content`, values of `sealed`, carries this user's seal for `purpose`.

    Raises:
        ConfigError: see `user_key`.
    """
    key = user_key()
    if key is None or not isinstance(content, dict) or not isinstance(content.get(SEAL), str):
        return False
    try:
        values = unsealed(content)
    except ValueError:
        return False
    return hmac.compare_digest(content[SEAL].encode(), _seal(key, values, purpose).encode())


def _seal(key: bytes, values: Mapping[str, Any], purpose: str) -> str:
    return hmac.new(key, purpose.encode() + b"\0" + canonical(values), "sha256").hexdigest()
