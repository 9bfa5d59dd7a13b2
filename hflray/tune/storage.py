"""The storage of ``--storage``, which every machine can reach (``s3://…`` or a shared folder). It is the truth.

A sweep that has a storage takes its file and its journals from there when it goes on, on whatever machine, and nothing
counts as done before the storage has it::

    <storage>/<sweep>/hflray/sweep.json
    <storage>/<sweep>/hflray/journal/<trial>/<epoch>-<offset>   the journal in pieces, named by their offset in bytes
    <storage>/<sweep>/hflray/lease/<epoch>-<uuid>               {"host", "pid", "released"}
    <storage>/<sweep>/hflray/checkpoints/…                      see `hflray.support.checkpoint`

**One writer.** A process that runs the sweep holds a lease with an epoch, a number that grows with each lease. It
writes the lease again every few seconds. Another process takes the next epoch when the lease is released or has not
been written for `LEASE_S`, by the storage's clock. A storage has no "write if nobody else did", so the rules are:

* After it has written its lease a process waits a moment. Of two leases of one epoch the smaller uuid wins.
* A process that has not renewed its lease for half of `LEASE_S`, since it was stopped or cut off, renews it, waits a
  moment, and looks whether there is a later lease, before it relies on anything. If so, it writes nothing more. It
  also compares the storage's times of the lease and of each piece, because a machine that sleeps stops its own clock.
* Pieces are never overwritten. A journal is its pieces in the order of (epoch, offset): each one replaces what is
  there from its offset on. Each epoch begins with a piece for each open journal (`Storage.begin`), which repeats its
  last line and so cuts off what a process of an earlier epoch may still add.

An older hflray named pieces by their offset only; they count as epoch 0.
"""

from __future__ import annotations

import json
import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError, HflrayError
from hflray.support.files import write
from hflray.support.store import Store, short
from hflray.support.text import shown_address
from hflray.sweep.results import FILE, IN_STORAGE, SweepFolder, is_called
from hflray.tracking import Journal, default_uri

LEASE_S = 16.0  # how long a lease is valid after it was written
WAIT_S = 30.0  # how long a process waits for the lease of another one
MOST_TRIES = 5  # to write a lease soon after the one before was judged
ASIDE = "set-aside"  # the folder, beside the journals, of those that the storage lacks
_PIECE = re.compile(r"(?:(\d+)-)?(\d+)")
_LEASE = re.compile(r"(\d+)-([0-9a-f]{32})")


class LeaseLostError(HflrayError):
    """Another process has taken over the sweep, so that this one must write nothing more."""


class Storage:
    """The files of a sweep in the storage, of which this process is the only writer from `claim` to `release`.

    Args:
        uri: the address of the storage.
        folder: the sweep's folder on this machine. The storage uses the same name.
        lease_s: how long a lease is valid after it was written, in s, for all processes of the sweep.

    Raises:
        ConfigError: `uri` names no file system.
    """

    def __init__(self, uri: str, folder: Path, lease_s: float = LEASE_S) -> None:
        self._store, self._folder, self._journal, self._lease_s = Store(uri), folder, Journal(folder), lease_s
        self._settle_s = lease_s / 8  # after this time all processes see what one has written
        self._where, self._base = f"{uri.rstrip('/')}/{folder.name}", f"{folder.name}/{IN_STORAGE}"
        self._sent: dict[str, int] = {}  # bytes of each journal that the storage has
        self._lock, self._released = threading.RLock(), threading.Event()
        self._lease = (0, "")  # epoch and uuid
        self._renewed_s = self._written_s = 0.0  # when it was surely ours, by this machine's and the storage's clock
        self._lost: str | None = f"{self._where}: the sweep was not claimed"  # why nothing may be sent

    def claim(self, say: Callable[[str], None]) -> int:
        """Take the lease and keep it until `release`; return its epoch.

        Args:
            say: prints a line.

        Raises:
            ConfigError: another process is running the sweep, or has just claimed it too.
            OSError: the storage cannot be read or written.
        """
        newest = max((epoch for key in self._keys() for epoch, _, _ in self._pieces(key)), default=0)
        begun_s, seen_s, tries = time.monotonic(), None, 0
        while True:
            judged_s, leases = time.monotonic(), self._leases()
            held = min(leases, key=lambda lease: (-lease[0], lease[1]), default=None)
            written_s = None if held is None else self._valid_since_s(held)
            if held is not None and written_s is not None:
                if seen_s is None:
                    say(f"waiting for the lease of {self._holder(held)}, at most {WAIT_S:.0f} s")
                elif written_s != seen_s or judged_s - begun_s > WAIT_S:
                    raise ConfigError(f"{self._where}: {self._holder(held)} is running this sweep; stop it first")
                seen_s = written_s
                time.sleep(self._settle_s)
                continue
            lease = (1 + max([newest, *(epoch for epoch, _ in leases)]), uuid.uuid4().hex)
            self._write_lease(lease)
            if time.monotonic() - judged_s < self._settle_s / 2:
                break
            self._store.remove(self._lease_name(lease))  # the other one may have renewed its lease meanwhile
            tries += 1
            if tries == MOST_TRIES:
                raise ConfigError(f"{self._where}: the storage is too slow for a lease; try again when it is less busy")
        time.sleep(self._settle_s)
        with self._lock:
            self._lease, self._lost = lease, None
            try:
                self._look()
            except LeaseLostError as error:
                self._store.remove(self._lease_name(lease))
                raise ConfigError(f"{error}; stop it first") from error
            self._renewed_s, self._written_s = judged_s, self._store.modified_s(self._lease_name(lease))
            self._released = threading.Event()
        threading.Thread(target=self._renew, args=(self._released,), name="hflray-lease", daemon=True).start()
        return lease[0]

    def release(self) -> None:
        """Give the lease back, so that nobody needs to wait until it expires. Nothing can be sent from now on."""
        self._released.set()
        with self._lock, suppress(OSError):  # the storage may be what ended the sweep
            if self._lost is None:
                self._lost = f"{self._where}: the lease was given back"
                self._write_lease(self._lease, released=True)

    def check(self) -> None:
        """Raise LeaseLostError if this process has learned that another one has taken over; ask nobody."""
        if self._lost is not None:
            raise LeaseLostError(self._lost)

    def held(self) -> bool:
        """Ask the storage whether no other process has taken over. Raises OSError: the storage cannot be read."""
        with suppress(LeaseLostError):
            self.check()
            self._look()
            return True
        return False

    def receive(self, say: Callable[[str], None]) -> None:
        """Replace ``sweep.json`` and the journals on this machine by those of the storage.

        What this machine's journals have beyond the storage's is kept beside them, in the folder `ASIDE`, and does not
        count: its rounds are made again.

        Args:
            say: prints a line.

        Raises:
            OSError: the storage cannot be read, or this machine's folder cannot be written.
        """
        keys, ahead = self._keys(), list[str]()
        for key in sorted({*keys, *self._journal.run_keys()}):
            path, whole = self._journal.path(key), self._whole(key)
            local = path.read_bytes() if path.exists() else b""
            if not whole.startswith(local):
                ahead.append(key)
                aside = path.with_name(ASIDE) / f"{key}-{self._lease[0]}.jsonl"
                aside.parent.mkdir(parents=True, exist_ok=True)
                path.replace(aside)
            if key in keys:
                write(path, whole, durable=True)
        if ahead:
            names = ", ".join(ahead[:3]) + (f" and {len(ahead) - 3} more" if len(ahead) > 3 else "")
            say(f"{names}: the storage lacks rounds that this machine has; they are made again")
        if self._store.has(f"{self._base}/{FILE}"):  # otherwise the sweep ended before it was sent
            _take(self._folder, self._store.read(f"{self._base}/{FILE}"))

    def begin(self) -> None:
        """Cut off what a process of an earlier epoch may still add to a journal; the journals have been mended before.

        Raises:
            LeaseLostError: another process has taken over.
            OSError: the storage cannot be written.
        """
        with self._lock:
            self._keep()
            for key in self._journal.run_keys():
                content = self._journal.path(key).read_bytes()
                self._sent[key] = len(content)
                ending = self._journal.ending(key)
                if content and (ending is None or ending.error is not None):
                    start = content.rfind(b"\n", 0, len(content) - 1) + 1
                    self._store.write(self._piece(key, start), content[start:])
            self._keep()

    def send(self, key: str) -> None:
        """Send what is new of a journal. This is the mirror of `Journal`, before anybody else hears of a line.

        Raises:
            LeaseLostError: another process has taken over.
            OSError: the storage cannot be written.
        """
        with self._lock:
            self._keep()
            sent = self._sent.get(key, 0)
            with self._journal.path(key).open("rb") as file:
                if file.seek(0, os.SEEK_END) < sent:
                    raise HflrayError(f"{file.name}: was cut off while the sweep was running; go on with --resume")
                file.seek(sent)
                piece = file.read()
            if piece:
                self._store.write(self._piece(key, sent), piece)
                self._sent[key] = sent + len(piece)
                # If this machine was stopped just now, even its clock, the piece may have come too late.
                self._keep(at_s=self._store.modified_s(self._piece(key, sent)))

    def save(self, content: bytes) -> None:
        """Write ``sweep.json``.

        Raises:
            LeaseLostError: another process has taken over.
            OSError: the storage cannot be written.
        """
        with self._lock:
            self._keep()
            self._store.write(f"{self._base}/{FILE}", content)
            self._keep()

    def _keep(self, anyway: bool = False, at_s: float | None = None) -> None:
        """Renew the lease if that is due, or `anyway`. Raises LeaseLostError: another process has taken over.

        Args:
            anyway: see above.
            at_s: what the storage's clock has just shown, if that is known. The clock of a machine that sleeps, or of a
                virtual one that is paused, stands still.
        """
        self.check()
        begun_s = time.monotonic()
        late = max(begun_s - self._renewed_s, (at_s or 0.0) - self._written_s) > self._lease_s / 2
        if not (late or anyway):
            return
        self._look()
        self._write_lease(self._lease)
        if late:  # another process may have judged the lease before it was renewed
            time.sleep(self._settle_s)
            self._look()
        self._renewed_s, self._written_s = begun_s, self._store.modified_s(self._lease_name(self._lease))

    def _look(self) -> None:
        """Raise LeaseLostError if there is a later lease, or one of this epoch with a smaller uuid."""
        epoch = self._lease[0]
        leases = self._leases()
        later = [lease for lease in leases if lease[0] > epoch or (lease[0] == epoch and lease < self._lease)]
        if later:
            self._lost = f"{self._where}: {self._holder(max(later))} has taken over this sweep"
            raise LeaseLostError(self._lost)

    def _renew(self, released: threading.Event) -> None:
        """Renew the lease until it is released or lost. What fails is tried again, and `_keep` sees that it is late."""
        while not released.wait(self._lease_s / 4):
            try:
                with self._lock:
                    if not released.is_set():
                        self._keep(anyway=True)
            except LeaseLostError:
                return
            except OSError:
                continue

    def _leases(self) -> list[tuple[int, str]]:
        """Return the epoch and the uuid of each lease."""
        names = self._store.names(f"{self._base}/lease")
        return [(int(match[1]), match[2]) for match in map(_LEASE.fullmatch, names) if match]

    def _lease_name(self, lease: tuple[int, str]) -> str:
        return f"{self._base}/lease/{lease[0]:06d}-{lease[1]}"

    def _write_lease(self, lease: tuple[int, str], released: bool = False) -> None:
        content = {"host": platform.node(), "pid": os.getpid(), "released": released}
        self._store.write(self._lease_name(lease), json.dumps(content).encode())

    def _read_lease(self, lease: tuple[int, str]) -> dict[str, Any]:
        """Return the content of a lease, empty if it cannot be read."""
        with suppress(OSError, ValueError):
            content = json.loads(self._store.read(self._lease_name(lease)))
            return content if isinstance(content, dict) else {}
        return {}

    def _holder(self, lease: tuple[int, str]) -> str:
        content = self._read_lease(lease)
        return f"process {content.get('pid', '?')} on host {content.get('host', '?')}"

    def _valid_since_s(self, lease: tuple[int, str]) -> float | None:
        """Return when a lease was written, in s by the storage's clock, or None if it is released, expired or gone."""
        if self._read_lease(lease).get("released"):
            return None
        probe = f"{self._base}/lease/.now-{uuid.uuid4().hex}"
        self._store.write(probe, b"")
        now_s = self._store.modified_s(probe)
        self._store.remove(probe)
        with suppress(FileNotFoundError):
            written_s = self._store.modified_s(self._lease_name(lease))
            return written_s if now_s - written_s <= self._lease_s else None
        return None

    def _keys(self) -> list[str]:
        return self._store.names(f"{self._base}/journal")

    def _piece(self, key: str, offset: int) -> str:
        return f"{self._base}/journal/{key}/{self._lease[0]:06d}-{offset:012d}"

    def _pieces(self, key: str) -> list[tuple[int, int, str]]:
        """Return the epoch, the offset and the name of each piece of a journal in the order in which they apply."""
        folder = f"{self._base}/journal/{key}"
        matches = [match for match in map(_PIECE.fullmatch, self._store.names(folder)) if match]
        return sorted((int(match[1] or 0), int(match[2]), f"{folder}/{match[0]}") for match in matches)

    def _whole(self, key: str) -> bytes:
        """Return a journal. What an epoch has written after a gap does not count."""
        whole, broken = bytearray(), -1
        for epoch, offset, name in self._pieces(key):
            if epoch == broken or offset > len(whole):
                broken = epoch
                continue
            whole[offset:] = self._store.read(name)
        return bytes(whole)


def check_storage(uri: str) -> None:
    """Write, read and delete a small file. Raises ConfigError: one of these fails."""
    store, probe = Store(uri), f".hflray-{uuid.uuid4().hex}"
    try:
        store.write(probe, b"hflray")
        store.read(probe)
        store.remove(probe)
    except OSError as error:
        raise ConfigError(
            f"--storage: '{uri}' cannot be written ({short(error)}); make the bucket or folder, check the region "
            "(AWS_REGION) and that this machine's credentials or instance profile allow s3:PutObject, s3:GetObject, "
            "s3:DeleteObject and s3:ListBucket"
        ) from error


def fetch(uri: str, results: Path, name: str) -> set[str]:
    """Write ``sweep.json`` of the sweeps called `name` (or of the folder of that name) into `results`.

    It replaces one that another machine has changed since. Of a sweep that is finished in the storage, one that is in
    `results` stays until its journals follow, which they do when the sweep goes on (`Storage.receive`).

    Returns:
        The tracking URIs that the storage has for these sweeps. The user has named the storage, and so these.

    Raises:
        ConfigError: the storage cannot be read or has no such sweep.
    """
    store, uris = Store(uri), set()
    try:
        folders = [folder for folder in store.names() if store.has(f"{folder}/{IN_STORAGE}/{FILE}")]
        matches = [folder for folder in folders if folder == name or is_called(Path(folder), name)]
        if not matches:
            raise ConfigError(f"--resume {name}: no such sweep in {uri}; available: {', '.join(folders) or 'none'}")
        for folder in matches:
            content = store.read(f"{folder}/{IN_STORAGE}/{FILE}")
            is_finished = False
            with suppress(ValueError, TypeError, KeyError):  # a damaged one is refused when it is taken
                stored = json.loads(content)
                uris.add(shown_address(stored["uri"]))
                is_finished = stored["finished"]
            if not (is_finished and (results / folder / FILE).exists()):
                _take(results / folder, content)
    except OSError as error:
        raise ConfigError(f"--storage: '{uri}' cannot be read ({short(error)})") from error
    return uris


def _take(folder: Path, content: bytes) -> None:
    """Write ``sweep.json`` of the storage into a sweep's folder.

    A sweep that another machine logged to SQLite is logged to SQLite on this machine: where it was logged before, or
    else where this machine's sweeps are.
    """
    before = SweepFolder.load(folder).uri if (folder / FILE).exists() else default_uri(folder.parent)
    write(folder / FILE, content, durable=True)
    sweep = SweepFolder.load(folder)
    if sweep.uri.startswith("sqlite") and sweep.uri != before:
        sweep.uri = before
        sweep.save()
