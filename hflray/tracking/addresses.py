"""Which addresses hflray contacts: those that the user has named, and none that only a results folder names.

A folder may be a stranger's, and whoever is contacted gets the user's credentials (``MLFLOW_TRACKING_TOKEN`` and the
like). The user names an address on the command line, in a sweep file that they run, or in the environment
(``MLFLOW_TRACKING_URI``). hflray keeps what was named in ``~/.config/hflray/known_addresses``, as ssh does with hosts,
so that a later ``--resume`` or ``report`` needs no option. The SQLite file of a results folder, ``mlflow.db``, is part
of that folder and needs no name.

An address never holds a password where it is stored or shown. MLflow reads passwords and tokens from the environment or
from its own file, and the password of a database is in ``MLFLOW_TRACKING_URI`` alone.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hflray.config import NO_SECRET
from hflray.errors import ConfigError
from hflray.support.files import append_line
from hflray.support.text import holds_secret, one_line

IN_ENVIRONMENT = "MLFLOW_TRACKING_URI"
DATABASE, ARTIFACTS = "mlflow.db", "artifacts"  # in a folder of results


def database_path(uri: str) -> Path | None:
    """Return the path of the SQLite file of a tracking URI; None: it has options, or is of another tracker."""
    match = re.fullmatch(r"sqlite(?:\+pysqlite)?:///([^?]+)", uri)
    return Path(unquote(match[1])) if match else None


def refuse_secret(uri: str, option: str = "--tracking-uri", reason: str = NO_SECRET) -> str:
    """Return an address. Raises ConfigError: it holds a password or a token."""
    if holds_secret(uri):
        raise ConfigError(f"{option}: got {one_line(uri)}; {reason}")
    return uri


def named(uri: str) -> str:
    """Return an address that the user gives now, and keep it among those that they have named.

    Raises:
        ConfigError: it holds a password or a token.
    """
    if not is_known(refuse_secret(uri)):
        with suppress(OSError):  # a home that cannot be written; the user then names it again
            path = _list()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            append_line(path, _shown(uri))
            path.chmod(0o600)
    return uri


def is_known(uri: str) -> bool:
    """Return whether the user has named an address, now or before, or the environment names it."""
    return bool(uri) and _shown(uri) in {*_named_before(), _shown(os.environ.get(IN_ENVIRONMENT, ""))}


def with_credentials(uri: str) -> str:
    """Return an address with the password that the environment has for it (``MLFLOW_TRACKING_URI``), if it has one."""
    whole = os.environ.get(IN_ENVIRONMENT, "")
    return whole if whole and _shown(whole) == _shown(uri) else uri


def of_folder(uri: str, results: Path, chosen: str | None = None) -> str:
    """Return the address of MLflow to contact for a sweep's folder.

    Args:
        uri: the address that the folder names.
        results: the folder in which the sweep's folder is.
        chosen: the address that the user gives now, which counts; None: none.

    Raises:
        ConfigError: only the folder names the address, or the given one holds a password or a token.
    """
    if chosen is not None:
        return named(chosen)
    path = database_path(uri)
    if (path is not None and path.resolve() == results.resolve() / DATABASE) or is_known(uri):
        return uri
    raise ConfigError(unnamed(uri))


def unnamed(uri: str, setting: str = "tracking.uri", option: str = "--tracking-uri") -> str:
    """Return a line about an address that is not contacted."""
    shown = one_line(uri)
    return (
        f"{setting}: only the folder names {shown}, which is not contacted, since the folder may be a stranger's; if "
        f"it is yours, add {option} {shown}"
    )


def refuse_elsewhere(uri: str, artifacts: str, results: Path | None = None) -> None:
    """Refuse files of runs that lie elsewhere than beside an SQLite file, unless the user has named that file.

    A stranger's SQLite file would else have hflray read, write or contact any place.

    Args:
        uri: the tracking URI.
        artifacts: where MLflow says that the files of a run or an experiment are.
        results: a folder of results whose files may be there as well; None: none.

    Raises:
        ConfigError: they lie elsewhere.
    """
    path = database_path(uri)
    if path is None or is_known(uri):
        return
    parts, folder = urlsplit(artifacts), path.resolve().parent / ARTIFACTS
    place = Path(unquote(parts.path if artifacts.startswith("file:") else artifacts)).resolve()  # as MLflow decodes it
    local = parts.scheme in ("", "file") and not parts.netloc
    folders = [folder] if results is None else [folder, results.resolve() / ARTIFACTS]
    if not (local and any(map(place.is_relative_to, folders))):
        raise ConfigError(
            f"tracking.uri: the database {path} keeps its files in {one_line(artifacts)} and not in {folder}, as "
            f"a stranger's may; if it is yours, add --tracking-uri {uri}"
        )


def _named_before() -> list[str]:
    """Return the addresses that the user has named before; none if others can write the list."""
    with suppress(OSError, UnicodeDecodeError):
        path = _list()
        state = path.lstat()
        if stat.S_ISREG(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022:
            return path.read_text(encoding="utf-8").splitlines()
    return []


def _shown(address: str) -> str:
    return one_line(address).rstrip("/")


def _list() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "hflray" / "known_addresses"
