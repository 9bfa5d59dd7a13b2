"""One thread per tracker sends it the journal's runs. A tracker that is unreachable, slow or full only causes warnings.

A tracker of the user's own that has a bug (`hflray.tracking.sink.BUGS`) is named at once and gets nothing more. The run
goes on, the journal is whole, and ``hflray sync`` sends everything once the file is mended.

Rounds that a tracker has missed wait in the journal, not in the driver's memory, and are read again from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

from hflray.errors import ConfigError
from hflray.support.deadline import within
from hflray.support.files import disk_failure, free_bytes, size_text
from hflray.support.references import named
from hflray.support.references import reason as own_reason
from hflray.support.terminal.app import spoken
from hflray.tracking.journal import Journal, rounds_of
from hflray.tracking.mlflow import database_path
from hflray.tracking.sink import Artifact, Ending, Round, Run, Sink, is_bug, opened, reason

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5.0  # the pause before a failing tracker is tried again
PATIENCE_S = 20.0  # a connection that may wait (`Sink.may_wait`) is made after this time at the latest
CONNECT_WITHIN_S = 60.0  # how long the start of a sweep waits for a tracker
CLOSE_WITHIN_S = 20.0  # how long the end of a sweep waits for a tracker that does not answer
STALLED_AFTER_S = 60.0  # and for the next thing to arrive at one that answers; a large model takes as long
SAY_EVERY_S = 10.0
ARTIFACT_ATTEMPTS = 3


@dataclass
class _Outbox:
    """A run and its data that the tracker does not have yet.

    Attributes:
        run: the run.
        has_backlog: whether rounds after `sent` must be read from the journal, because `pending` may lack some.
        ending: how the run ended; None before its end and after the end has been sent.
        opened: whether the tracker has opened the run.
        pending: rounds to send.
        sent: the tracker's last round; -1 if it has none.
        num_rounds: the number of rounds that this process has made.
        values: the last value of every metric that was sent.
        artifacts: artifacts to send.
        again: makes the artifacts of a run that ended in an earlier process; they are sent if the tracker lacks them.
        failures: the number of failed attempts to send the first of `artifacts`.
    """

    run: Run
    has_backlog: bool
    ending: Ending | None = None
    opened: bool = False
    pending: list[Round] = field(default_factory=list)
    sent: int = -1
    num_rounds: int = 0
    values: dict[str, float] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    failures: int = 0
    again: Callable[[], list[Artifact]] = list

    @property
    def waiting(self) -> bool:
        unsent = bool(self.pending or self.has_backlog or self.artifacts)
        return not self.opened or unsent or self.ending is not None

    def settle(self) -> None:
        """Drop the data of a run that has arrived completely, so that thousands of trials do not fill the memory."""
        self.run, self.values = Run(self.run.key, self.run.name), {}


class Sender:
    """Sends a sweep's runs to one tracker.

    Args:
        sink: the tracker.
        journal: the sweep's journal.
        lock: held while a round is written to the journal and passed to the senders, so that both agree.
    """

    def __init__(self, sink: Sink, journal: Journal, lock: threading.Lock) -> None:
        self.sink = sink
        self._journal, self._lock, self._wake = journal, lock, threading.Event()
        self._outboxes: dict[str, _Outbox] = {}
        self._needed = threading.Event()
        self._connected = self._closing = self._warned = False
        self.disk_failed = False  # whether the tracker's disk on this machine was full or failed at the last attempt
        self.broken = False  # whether the tracker has a bug and gets nothing more
        self._attempts_at_close = 0
        self._arrived_s = 0.0  # when the tracker last took something
        self._thread = threading.Thread(target=self._work, name=f"hflray-{sink.title}", daemon=True)

    def begin(self, required: bool) -> None:
        """Connect to the tracker and start the thread.

        Raises:
            ConfigError: the tracker is `required` and cannot be reached, or its setting is wrong.
        """
        sink = self.sink
        try:
            if sink.may_wait() and not required:
                self._thread.start()
                return
            self._needed.set()
            within(CONNECT_WITHIN_S, self._connect)
        except ConfigError:
            raise
        except Exception as error:  # a server, a proxy, a driver or a full disk may raise any type
            if is_bug(sink, error):
                raise ConfigError(f"{sink.setting}: {named(sink)} fails ({own_reason(error)}); correct it") from error
            if required:
                raise ConfigError(
                    f"{sink.setting}: cannot open '{sink.where}' ({reason(error)}); {sink.repair}, "
                    "or leave --require-tracking out"
                ) from error
            self._warn_once(error)
        self._thread.start()

    def open(
        self,
        run: Run,
        has_backlog: bool,
        ending: Ending | None = None,
        again: Callable[[], list[Artifact]] = list,
    ) -> None:
        """Add a run.

        Args:
            run: the run.
            has_backlog: whether the journal may hold rounds that the tracker lacks.
            ending: how the run ended in an earlier process, or None.
            again: makes the artifacts of a run that has ended, see `Sink.has_all`.
        """
        with self._lock:
            self._outboxes[run.key] = _Outbox(run, has_backlog, ending, again=again)
        self._wake.set()

    def round(self, key: str, round: Round) -> None:
        """Send a round that the journal holds. The caller holds the lock."""
        self._needed.set()
        box = self._outboxes[key]
        box.num_rounds += 1
        if self._warned or box.has_backlog:
            box.has_backlog = True  # a long outage must not fill the driver's memory, so the journal keeps the round
        else:
            box.pending.append(round)
        self._wake.set()

    def artifact(self, key: str, artifact: Artifact) -> None:
        """Send an artifact once the tracker has opened the run. There are three attempts."""
        with self._lock:
            self._outboxes[key].artifacts.append(artifact)
        self._wake.set()

    def end(self, key: str, ending: Ending) -> None:
        """Close a run once its rounds and artifacts have arrived."""
        with self._lock:
            box = self._outboxes.get(key)
            if box is not None:
                box.ending = ending
        self._wake.set()

    def close_soon(self) -> None:
        """Let the thread end once it has sent everything or has retried for `CLOSE_WITHIN_S`."""
        self._closing = True
        self._needed.set()
        self._wake.set()

    def wait(self, began_s: float, within_s: float) -> None:
        """Wait for the thread's end, with a line each `SAY_EVERY_S` seconds.

        The wait is given up when nothing has arrived for `STALLED_AFTER_S` seconds, or for `within_s` at a tracker that
        does not answer.

        Args:
            began_s: the moment of `close_soon`.
            within_s: see above, in s.
        """
        said_s = began_s
        while self._thread.is_alive():
            now_s, limit_s = time.monotonic(), within_s if self._warned else STALLED_AFTER_S
            still_s = now_s - max(began_s, self._arrived_s)
            if still_s >= limit_s:
                return
            if now_s - said_s >= SAY_EVERY_S:
                said_s = now_s
                log.warning(
                    "%s: %d runs are still to be sent, and nothing has arrived for %.0f s (given up after %.0f s)",
                    self.sink.title, len(self.unsent()), still_s, limit_s,
                )  # fmt: skip
            self._thread.join(timeout=0.2)

    def unsent(self) -> list[str]:
        """Return the names of the runs that have not arrived completely."""
        with self._lock:
            return [box.run.name for box in self._outboxes.values() if box.waiting]

    # ---- the thread

    def _work(self) -> None:
        self._needed.wait(PATIENCE_S)
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                waiting = [(key, box) for key, box in self._outboxes.items() if box.waiting]
            try:
                if not self._connected or (self._warned and waiting):
                    self._connect()  # after a failure, test the connection before collecting the backlog
                for key, box in waiting:
                    self._send(key, box)
                if self._warned and waiting:
                    log.warning("%s at %s %s", self.sink.title, self.sink.where, self.sink.back)
                    self._warned = self.disk_failed = False
            except Exception as error:
                if is_bug(self.sink, error):
                    self._give_up(error)
                    return
                self._warn_once(error)
                if self._closing and not self._retry_at_close():
                    return
                threading.Event().wait(min(RETRY_AFTER_S, 1.0) if self._closing else RETRY_AFTER_S)
                self._wake.set()
                continue
            with self._lock:
                done = not any(box.waiting for box in self._outboxes.values())
            if self._closing and done:
                return
            if not done:
                self._wake.set()

    def _give_up(self, error: Exception) -> None:
        """Say at once that the tracker has a bug. The journal keeps its rounds, also those to come."""
        self.broken = self._warned = True
        log.error(
            "%s: %s fails (%s) and gets nothing more; the journal keeps all rounds; correct it, and then: %s %s",
            self.sink.setting, named(self.sink), own_reason(error), spoken("sync", "hflray.tracking sync"),
            quote(str(self._journal.folder.parent)),
        )  # fmt: skip

    def _connect(self) -> None:
        self.sink.connect()
        self._connected, self._arrived_s = True, time.monotonic()

    def _retry_at_close(self) -> bool:
        self._attempts_at_close += 1
        return self._attempts_at_close <= CLOSE_WITHIN_S

    def _warn_once(self, error: Exception) -> None:
        failure, place = disk_failure(error), _local_path(self.sink.where)
        self.disk_failed = failure is not None and place is not None
        if self._warned:
            return
        self._warned = True
        title, where = self.sink.title, self.sink.where
        if failure is not None and place is not None:
            log.warning(
                "%s at %s cannot be written (%s; %s free); the journal keeps the rounds, which are sent when there is "
                "room, or by python -m hflray.tracking sync %s",
                title, place, failure.reason, size_text(free_bytes(place)), quote(str(self._journal.folder.parent)),
            )  # fmt: skip
        else:
            log.warning("%s at %s %s; keeping the rounds for later: %s", title, where, self.sink.away, reason(error))

    def _send(self, key: str, box: _Outbox) -> None:
        if not box.opened:
            last = opened(self.sink, box.run)
            self._arrived_s = time.monotonic()
            again = [] if self.sink.has_all(box.run) else box.again()
            with self._lock:
                box.opened, box.sent = True, last
                box.artifacts[:0] = again
                box.pending = [round for round in box.pending if round.number > last]
        with self._lock:
            ending = box.ending
        self._send_rounds(key, box)
        while box.artifacts:
            self._send_artifact(box)
        if ending is not None:
            self.sink.end(box.run, replace(ending, values=dict(box.values)))
            self._arrived_s = time.monotonic()
            with self._lock:
                box.ending = None if box.ending is ending else box.ending
                if not box.waiting:
                    box.settle()

    def _send_rounds(self, key: str, box: _Outbox) -> None:
        path = self._journal.path(key)
        with self._lock:
            for round in box.pending:  # a trial whose journal was damaged makes rounds again that the tracker has
                if round.number <= box.sent:
                    box.values |= round.values
            box.pending = [round for round in box.pending if round.number > box.sent]
            batch, has_backlog, num_rounds = list(box.pending), box.has_backlog, box.num_rounds
            size = path.stat().st_size if has_backlog else 0
        if has_backlog:
            missed = {round.number: round for round in [*rounds_of(self._journal.entries(key, size)), *batch]}
            batch = [missed[number] for number in sorted(missed)]
            for round in batch:
                box.values |= round.values
            batch = [round for round in batch if round.number > box.sent]
        while batch:  # only whole rounds are sent, so that the last round tells what has arrived
            count = size = 0
            while count < len(batch) and (not count or size + len(batch[count].values) <= self.sink.batch):
                size += len(batch[count].values)
                count += 1
            part, batch = batch[:count], batch[count:]
            self.sink.rounds(box.run, part)
            self._arrived_s = time.monotonic()
            numbers = {round.number for round in part}
            with self._lock:
                box.pending = [round for round in box.pending if round.number not in numbers]
                box.sent = max(box.sent, *numbers)
            for round in part:
                box.values |= round.values
        if has_backlog:
            with self._lock:
                box.has_backlog = box.num_rounds > num_rounds

    def _send_artifact(self, box: _Outbox) -> None:
        try:
            self.sink.artifact(box.run, box.artifacts[0])
            self._arrived_s = time.monotonic()
        except Exception as error:
            if disk_failure(error) is not None:
                raise  # the artifact waits for room, and nothing else would fit either
            box.failures += 1
            bug = is_bug(self.sink, error)
            if box.failures < ARTIFACT_ATTEMPTS and not bug:
                raise
            cause = f"{named(self.sink)} fails ({own_reason(error)})" if bug else reason(error)
            log.warning("%s: an artifact could not be logged: %s", box.run.name, cause)
        with self._lock:
            del box.artifacts[0]
            box.failures = 0


def _local_path(where: str) -> Path | None:
    """Return the path of a tracker on this machine, or None for the address of a server."""
    return database_path(where) or (None if "://" in where else Path(where))
