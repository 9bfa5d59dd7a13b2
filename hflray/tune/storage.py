"""The storage of ``--storage``, which every node of a cluster can reach (``s3://…`` or a shared folder).

Tune keeps its trials and checkpoints there. The driver also sends the sweep's file and its journal, which only the
driver's machine has, and it sends them before Tune saves its own state. Another machine can therefore continue the
sweep with ``--resume NAME --storage …`` and has every round that is part of a checkpoint.

::

    <storage>/<sweep>/…                                 the files of Tune
    <storage>/<sweep>/hflray/sweep.json
    <storage>/<sweep>/hflray/tune_state.json            see `hflray.tune.digests`
    <storage>/<sweep>/hflray/journal/<trial>/<offset>   the journal in pieces, named by their offset in bytes
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.support.files import write
from hflray.sweep.results import FILE, SweepFolder, is_called
from hflray.tracking import default_uri
from hflray.tune.digests import FILE as DIGESTS

log = logging.getLogger(__name__)

SUBFOLDER = "hflray"  # the folder of hflray's files in a sweep's folder of the storage


def open_storage(uri: str) -> tuple[Any, str]:
    """Return PyArrow's file system for `uri` and the path on it. Raises ConfigError: `uri` names no file system."""
    from pyarrow import fs

    reason = "it names no bucket"
    try:
        system, path = fs.FileSystem.from_uri(uri if "://" in uri else str(Path(uri).expanduser().resolve()))
    except (OSError, ValueError, RuntimeError) as error:
        system, path, reason = None, "", _short(error)
    if not path.strip("/"):
        raise ConfigError(
            f"--storage: '{uri}' cannot be opened ({reason}); accepted: s3://bucket/folder, or a folder that all "
            "machines share"
        )
    return system, path.rstrip("/")


class Storage:
    """The files of a sweep in the storage.

    Args:
        uri: the address of the storage.
        folder: the sweep's folder on this machine. The storage uses the same name.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        self._system, base = open_storage(uri)
        self._folder, self._path = folder, f"{base}/{folder.name}/{SUBFOLDER}"
        self._sent: dict[str, int] = {}  # bytes of each journal that the storage has
        self._warned = False

    def send(self, trial: str | None = None) -> None:
        """Send ``sweep.json`` and the digests of Tune's files, or the new entries of the journal of `trial`.

        The first failure logs a warning.
        """
        try:
            if trial is None:
                for name in (FILE, DIGESTS):
                    if (self._folder / name).exists():
                        self._write(name, (self._folder / name).read_bytes())
                return
            path = self._folder / "journal" / f"{trial}.jsonl"
            if trial not in self._sent:
                self._sent[trial] = sum(info.size for info in self._pieces(trial))
            with path.open("rb") as file:
                file.seek(self._sent[trial])
                piece = file.read()
            if piece:
                self._write(f"journal/{trial}/{self._sent[trial]:012d}", piece)
                self._sent[trial] += len(piece)
        except OSError as error:
            if not self._warned:
                log.warning("the storage cannot be written (%s); resume on this machine only", _short(error))
            self._warned = True

    def receive(self) -> None:
        """Write the files that `send` sent into the sweep's folder on this machine."""
        journal = self._folder / "journal"
        for info in self._list(f"{self._path}/journal"):
            trial = info.base_name
            whole = b"".join(self._read(piece.path) for piece in self._pieces(trial))
            write(journal / f"{trial}.jsonl", whole)
        if any(info.base_name == DIGESTS for info in self._list(self._path)):
            write(self._folder / DIGESTS, self._read(f"{self._path}/{DIGESTS}"))
        write(self._folder / FILE, self._read(f"{self._path}/{FILE}"), durable=True)

    def _pieces(self, trial: str) -> list[Any]:
        return sorted(self._list(f"{self._path}/journal/{trial}"), key=lambda info: str(info.base_name))

    def _list(self, path: str) -> list[Any]:
        from pyarrow import fs

        return list(self._system.get_file_info(fs.FileSelector(path, allow_not_found=True)))

    def _write(self, name: str, content: bytes) -> None:
        from pyarrow.fs import LocalFileSystem

        path = f"{self._path}/{name}"
        if isinstance(self._system, LocalFileSystem):
            write(path, content)
            return
        with self._system.open_output_stream(path) as file:  # S3 shows an object only when all of it has arrived
            file.write(content)

    def _read(self, path: str) -> bytes:
        with self._system.open_input_stream(path) as file:
            return bytes(file.read())


def check_storage(uri: str) -> None:
    """Write, read and delete a small file. Raises ConfigError: one of these fails."""
    system, path = open_storage(uri)
    probe = f"{path}/.hflray-{uuid.uuid4().hex}"
    try:
        if "://" not in uri:
            system.create_dir(path)
        with system.open_output_stream(probe) as file:
            file.write(b"hflray")
        with system.open_input_stream(probe) as file:
            file.read()
        system.delete_file(probe)
    except OSError as error:
        raise ConfigError(
            f"--storage: '{uri}' cannot be written ({_short(error)}); make the bucket or folder, check the region "
            "(AWS_REGION) and that this machine's credentials or instance profile allow s3:PutObject, s3:GetObject, "
            "s3:DeleteObject and s3:ListBucket"
        ) from error


def fetch(uri: str, results: Path, name: str) -> None:
    """Copy the sweeps called `name` (or the folder of that name) from the storage unless they are in `results`.

    A sweep that was logged to SQLite on another machine is from now on logged to SQLite on this machine.

    Raises:
        ConfigError: the storage cannot be read or has no such sweep.
    """
    from pyarrow import fs

    system, path = open_storage(uri)
    try:
        infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except OSError as error:
        raise ConfigError(f"--storage: '{uri}' cannot be read ({_short(error)})") from error
    folders = sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)
    matches = [folder for folder in folders if folder == name or is_called(Path(folder), name)]
    if not matches:
        raise ConfigError(f"--resume {name}: no such sweep in {uri}; available: {', '.join(folders) or 'none'}")
    for folder in matches:
        local = results / folder
        if (local / FILE).exists():
            continue
        Storage(uri, local).receive()
        sweep = SweepFolder.load(local)
        if sweep.uri.startswith("sqlite"):
            own = sweep.is_mine()
            sweep.uri = default_uri(results)
            sweep.save(seal=own)  # a stranger's sweep stays a stranger's


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
