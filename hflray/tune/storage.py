"""Storage that every node of a cluster reaches (``s3://…`` or a shared folder): ``--storage``.

Tune keeps its trials and checkpoints there. Beside them go what the driver's machine alone has, the sweep's file and
its journal, before Tune's own state does: so another machine can take the sweep over with ``--resume NAME --storage …``
and finds every round that any checkpoint is made of.

::

    <storage>/<sweep>/…                                 Tune's
    <storage>/<sweep>/hflray/sweep.json
    <storage>/<sweep>/hflray/journal/<trial>/<offset>   what was added to the journal, in pieces
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.results import FILE, SweepFolder
from hflray.tracking import default_uri

log = logging.getLogger(__name__)

MINE = "hflray"  # what is ours in a sweep's folder of the storage


def open_storage(uri: str) -> tuple[Any, str]:
    """Return PyArrow's file system for `uri` and the path on it. Raises ConfigError: it names none."""
    from pyarrow import fs

    reason = "it names no bucket"
    try:
        system, path = fs.FileSystem.from_uri(uri if "://" in uri else str(Path(uri).expanduser().resolve()))
    except (OSError, ValueError) as error:
        system, path, reason = None, "", _short(error)
    if not path.strip("/"):
        raise ConfigError(
            f"--storage: '{uri}' cannot be opened ({reason}); accepted: s3://bucket/folder, or a folder that all "
            "machines share"
        )
    return system, path.rstrip("/")


class Storage:
    """A sweep's place in the storage.

    Args:
        uri: the storage.
        folder: the sweep's folder on this machine; its name is used there too.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        self._system, base = open_storage(uri)
        self._folder, self._path = folder, f"{base}/{folder.name}/{MINE}"
        self._sent: dict[str, int] = {}  # bytes of each journal that are there
        self._warned = False

    def send(self, trial: str | None = None) -> None:
        """Send ``sweep.json``, or what has been added to the journal of `trial`. A failure costs a warning."""
        try:
            if trial is None:
                self._write(FILE, (self._folder / FILE).read_bytes())
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
        """Write what `send` sent into the sweep's folder of this machine."""
        journal = self._folder / "journal"
        journal.mkdir(parents=True, exist_ok=True)
        for info in self._list(f"{self._path}/journal"):
            trial = info.base_name
            whole = b"".join(self._read(piece.path) for piece in self._pieces(trial))
            (journal / f"{trial}.jsonl").write_bytes(whole)
        (self._folder / FILE).write_bytes(self._read(f"{self._path}/{FILE}"))

    def _pieces(self, trial: str) -> list[Any]:
        return sorted(self._list(f"{self._path}/journal/{trial}"), key=lambda info: str(info.base_name))

    def _list(self, path: str) -> list[Any]:
        from pyarrow import fs

        return list(self._system.get_file_info(fs.FileSelector(path, allow_not_found=True)))

    def _write(self, name: str, content: bytes) -> None:
        path = f"{self._path}/{name}"
        self._system.create_dir(path.rpartition("/")[0])  # S3 needs none, a shared folder does
        with self._system.open_output_stream(path) as file:
            file.write(content)

    def _read(self, path: str) -> bytes:
        with self._system.open_input_stream(path) as file:
            return bytes(file.read())


def check_storage(uri: str) -> None:
    """Write, read and delete a small file. Raises ConfigError: it cannot be done."""
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
    """Bring the sweeps called `name` (or the folder of that name) from the storage, as far as they are not here.

    A sweep that was logged to SQLite on another machine is logged to this machine's.

    Raises:
        ConfigError: the storage cannot be read, or holds none.
    """
    from pyarrow import fs

    system, path = open_storage(uri)
    try:
        infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except OSError as error:
        raise ConfigError(f"--storage: '{uri}' cannot be read ({_short(error)})") from error
    there = sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)
    wanted = [folder for folder in there if folder == name or folder.rpartition("-")[0].rpartition("-")[0] == name]
    if not wanted:
        raise ConfigError(f"--resume {name}: no such sweep in {uri}; there: {', '.join(there) or 'none'}")
    for folder in wanted:
        here = results / folder
        if (here / FILE).exists():
            continue
        Storage(uri, here).receive()
        sweep = SweepFolder.load(here)
        if sweep.uri.startswith("sqlite"):
            sweep.uri = default_uri(results)
            sweep.save()


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
