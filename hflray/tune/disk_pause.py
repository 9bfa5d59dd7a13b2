"""Trials pause at the end of a round while a disk has less room than the reserve, and go on when there is room.

Each trial looks at the disks of its own machine before it reports a round, because the report is what writes: the
checkpoint, the journal, Tune's record. A round that waits is complete and in memory. The driver looks at the disks of
its own machine, says once which one is short, and lets the trials on other machines wait as well. If a write fails
nevertheless, the trial tells the driver, which ends the sweep.

Trial and driver exchange these notes through Ray's internal key-value store, which is in memory and also works while
every disk is full::

    hflray/room/<sweep>/driver      the driver's machine is short of room
    hflray/room/<sweep>/<trial id>  the trial waits, because its machine is short of room
    hflray/failed/<sweep>           a trial could not write, and why
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from hflray.support.files import Failure, free_bytes, fullest, size_text
from hflray.support.ray_private import has_note, note_keys, put_note, read_note, remove_note
from hflray.sweep.disk_space import Reserve
from hflray.sweep.progress import SweepProgress
from hflray.training.start import ray_folder
from hflray.tune.stopping import stop_requested

CHECK_S = 1.0  # how often a waiting trial and the driver look at the disks
FORGET_S = 10.0  # after this time the driver forgets a waiting trial that has not renewed its note, because it is lost
END_WITHIN_S = 60.0  # how long a trial that cannot write waits for the end that the driver brings
DRIVER = "driver"


class Shortage(NamedTuple):
    """A disk with too little room: its machine, a folder on it, its free bytes and the reserve."""

    host: str
    folder: str
    free: int
    reserve: int

    @property
    def text(self) -> str:
        """Where and how much is missing."""
        where = self.folder if self.host == platform.node() else f"{self.folder} of {self.host}"
        return (
            f"{where} has {size_text(self.free)} free, {size_text(self.reserve - self.free)} less than the reserve of "
            f"{size_text(self.reserve)} (tune.reserve_mb)"
        )


@dataclass(frozen=True)
class Room:
    """The disks of a sweep and their reserve. It is pickled with the sweep, so it is kept small.

    Attributes:
        sweep: the name of the sweep's folder.
        host: the driver's machine.
        results: the results folder, which only the driver's machine has.
        storage: the shared folder of the checkpoints, or None.
        reserve: the free bytes below which trials pause.
    """

    sweep: str
    host: str
    results: str
    storage: str | None
    reserve: int

    @classmethod
    def of(cls, sweep: str, reserve: Reserve) -> Self:
        """Return the room of a sweep that this process drives."""
        storage = reserve.places.storage
        shared = None if storage is None else str(storage)
        return cls(sweep, platform.node(), str(reserve.places.results), shared, reserve.size)

    def folders(self) -> list[str]:
        """Return the folders of this machine to which the sweep writes."""
        own = [self.results] if platform.node() == self.host else []
        shared = [self.storage] if self.storage else []
        return [*own, *shared, str(ray_folder()), tempfile.gettempdir()]

    def shortage(self) -> Shortage | None:
        """Return the first disk of this machine with less room than the reserve, or None."""
        for folder in self.folders():
            try:
                free = free_bytes(folder)
            except OSError:
                continue  # a disk that does not answer is no reason to wait; the write will say what is wrong
            if free < self.reserve:
                return Shortage(platform.node(), folder, free, self.reserve)
        return None

    def wait(self, trial: str) -> None:
        """Wait, in a trial at the end of a round, until there is room or the sweep is being stopped."""
        key, count = _key(self.sweep, trial), 0
        while (short := self.shortage()) is not None or self._driver_waits():
            if stop_requested(self.sweep):  # the reserve is there for the rounds that are then saved
                break
            if short is not None:
                count += 1
                put_note(key, json.dumps([count, short]).encode())
            time.sleep(CHECK_S)
        if count:
            remove_note(key)

    def fail(self, failure: Failure) -> None:
        """Tell the driver, from a trial, that a write failed, and wait for the end that the driver brings."""
        note = [failure.number, str(failure.path or fullest(self.folders()))]
        put_note(_failed(self.sweep), json.dumps(note).encode())
        deadline = time.monotonic() + END_WITHIN_S
        while time.monotonic() < deadline:
            time.sleep(CHECK_S)

    def _driver_waits(self) -> bool:
        """Return whether the driver's machine is short of room; a trial on that machine looks itself."""
        if platform.node() == self.host:
            return False
        return has_note(_key(self.sweep, DRIVER))


class RoomWatch:
    """The driver's part: it says once that there is too little room, and once that there is room again.

    Args:
        room: the sweep's disks.
        progress: the display.
    """

    def __init__(self, room: Room, progress: SweepProgress) -> None:
        self.room, self._progress = room, progress
        self._checked_s = float("-inf")
        self._notes: dict[bytes, tuple[bytes, float]] = {}  # each waiting trial's note, and when it was renewed
        self._own = self._short = False

    def __enter__(self) -> Self:
        self._forget()
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    def step(self) -> Failure | None:
        """Look at the disks if it is time; return why a trial could not write, if one could not."""
        now = time.monotonic()
        if now - self._checked_s < CHECK_S:
            return None
        self._checked_s = now
        own = self.room.shortage()
        key = _key(self.room.sweep, DRIVER)
        if own is not None and not self._own:
            put_note(key, b"")
        elif own is None and self._own:
            remove_note(key)
        self._own = own is not None
        short = own or self._elsewhere(now)
        if short is not None and not self._short:
            self._progress.paused(f"{short.text}; trials pause at the end of their round until there is room")
        elif short is None and self._short:
            self._progress.going_on("there is room again; trials go on")
        self._short = short is not None
        note = read_note(_failed(self.room.sweep))
        if note is None:
            return None
        number, path = json.loads(note)
        return Failure(number, Path(path))

    def _elsewhere(self, now: float) -> Shortage | None:
        """Return the shortage of a machine on which a trial waits, or None."""
        for key in note_keys(_key(self.room.sweep, "")):
            note = read_note(key)
            if note and self._notes.get(key, (b"", 0.0))[0] != note:
                self._notes[key] = note, now
            if note and now - self._notes[key][1] < FORGET_S:
                return Shortage(*json.loads(note)[1])
        return None

    def _forget(self) -> None:
        """Remove the notes of an earlier start."""
        for key in [*note_keys(_key(self.room.sweep, "")), _failed(self.room.sweep)]:
            remove_note(key)


def _key(sweep: str, name: str) -> bytes:
    return f"hflray/room/{sweep}/{name}".encode()


def _failed(sweep: str) -> bytes:
    return f"hflray/failed/{sweep}".encode()
