"""One thread per tracker sends it the journal's runs. A tracker that is unreachable, slow or full only causes warnings.

A tracker of the user's own that has a bug (`hflray.tracking.sink.BUGS`) is named at once and gets nothing more. The run
goes on, the journal is whole, and ``hflray sync`` sends everything once the file is mended.

A tracker is sent what the journal holds after the last round that the tracker itself names (`Sink.open`). It is asked
when a run begins and after each failure, so that nothing arrives twice if a call has arrived but its answer is lost, or
if this process dies. Live, after an outage and in ``hflray sync``, this is one loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

from hflray.errors import ConfigError, HflrayError
from hflray.support.files import disk_failure, free_bytes, size_text
from hflray.support.limits import within
from hflray.support.references import named
from hflray.support.references import reason as own_reason
from hflray.support.terminal.app import spoken
from hflray.tracking.addresses import database_path
from hflray.tracking.artifacts import OLD, Artifacts
from hflray.tracking.journal import Journal, artifacts_of, ending_of, rounds_of, run_of
from hflray.tracking.sink import Round, Run, Sink, is_bug, opened, reason

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5.0  # the pause before a failing tracker is tried again
PATIENCE_S = 20.0  # a connection that may wait (`Sink.may_wait`) is made after this time at the latest
CONNECT_WITHIN_S = 60.0  # how long the start of a sweep waits for a tracker
CLOSE_WITHIN_S = 20.0  # how long the end of a sweep waits for a tracker that does not answer
STALLED_AFTER_S = 60.0  # and for the next thing to arrive at one that answers; a large model takes as long
SAY_EVERY_S = 10.0
ARTIFACT_ATTEMPTS = 3


@dataclass
class _Sent:
    """What a tracker has of a run that has not ended there. After a failure, only `owed` and `attempts` are kept.

    Attributes:
        offset: the size in bytes of the beginning of the journal that has been sent.
        run: the run; None before its ``start`` line.
        last: the tracker's last round; None: it must be asked.
        values: the last value of every metric.
        named: the artifacts that the journal names, by kind and path.
        owed: whether the artifacts must be sent: the run had not ended there before, or not with these rounds.
        attempts: the number of attempts to send each artifact, `ARTIFACT_ATTEMPTS` once it is settled.
    """

    offset: int = 0
    run: Run | None = None
    last: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    named: dict[tuple[str, str | None], None] = field(default_factory=dict)
    owed: bool = False
    attempts: Counter[tuple[str, str | None]] = field(default_factory=Counter)


class Sender:
    """Sends a sweep's runs to one tracker.

    Args:
        sink: the tracker.
        journal: the sweep's journal.
        artifacts: makes the runs' artifacts.
    """

    def __init__(self, sink: Sink, journal: Journal, artifacts: Artifacts) -> None:
        self.sink = sink
        self._journal, self._artifacts = journal, artifacts
        self._lock, self._wake, self._needed = threading.Lock(), threading.Event(), threading.Event()
        self._waiting: dict[str, tuple[int]] = {}  # the size of the journal of each run with news, by key
        self._sent: dict[str, _Sent] = {}  # of the runs that have not ended at the tracker
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

    def hear(self, key: str, size: int, begins: bool = False) -> None:
        """Learn that the first `size` bytes of a run's journal are to be sent.

        Args:
            key: the run's key.
            size: see above.
            begins: whether the run begins, perhaps again, so that all of its journal is read. The first connection,
                which may wait (`Sink.may_wait`), does not wait for anything else.
        """
        with self._lock:
            self._waiting[key] = (size,)
            if begins:
                self._sent.pop(key, None)
        if not begins:
            self._needed.set()
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
        """Return the keys of the runs that have not arrived completely."""
        with self._lock:
            return list(self._waiting)

    # ---- the thread

    def _work(self) -> None:
        self._needed.wait(PATIENCE_S)
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                if not self._pass():
                    return
            except Exception as error:
                if is_bug(self.sink, error):
                    self._give_up(error)
                    return
                self._warn_once(error)
                with self._lock:  # what has arrived is asked of the tracker
                    self._sent = {key: _Sent(owed=s.owed, attempts=s.attempts) for key, s in self._sent.items()}
                self._attempts_at_close += self._closing
                if self._attempts_at_close > CLOSE_WITHIN_S:
                    return
                threading.Event().wait(min(RETRY_AFTER_S, 1.0) if self._closing else RETRY_AFTER_S)
                self._wake.set()
                continue
            if self._closing and not self.unsent():
                return

    def _pass(self) -> bool:
        """Send all news, run by run. Return False if another process has taken over, which sends the rest."""
        with self._lock:
            waiting = dict(self._waiting)
        if not self._connected or (self._warned and waiting):
            self._connect()  # after a failure, the connection is tested before anything is read
        for key, news in waiting.items():
            if not self._journal.held():  # the run may even have ended at the tracker
                return False
            self._send(key, *news)
            with self._lock:
                if self._waiting[key] is news:
                    del self._waiting[key]
        if self._warned and waiting:
            log.warning("%s at %s %s", self.sink.title, self.sink.where, self.sink.back)
            self._warned = self.disk_failed = False
        return True

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

    def _warn_once(self, error: Exception) -> None:
        failure, title, where = disk_failure(error), self.sink.title, self.sink.where
        place = database_path(where) or (None if "://" in where else Path(where))  # None: a server's address
        self.disk_failed = failure is not None and place is not None
        if self._warned:
            return
        self._warned = True
        if failure is not None and place is not None:
            log.warning(
                "%s at %s cannot be written (%s; %s free); the journal keeps the rounds, which are sent when there is "
                "room, or by python -m hflray.tracking sync %s",
                title, place, failure.reason, size_text(free_bytes(place)), quote(str(self._journal.folder.parent)),
            )  # fmt: skip
        else:
            log.warning("%s at %s %s; keeping the rounds for later: %s", title, where, self.sink.away, reason(error))

    def _send(self, key: str, size: int) -> None:
        with self._lock:
            sent = self._sent.setdefault(key, _Sent())
        entries, end = self._journal.tail(key, sent.offset, size)
        run = sent.run = run_of(key, entries) or sent.run
        if run is None:
            return
        ending, rounds = ending_of(entries), rounds_of(entries)
        if sent.last is None:
            sent.last = opened(self.sink, run)
            self._arrived_s = time.monotonic()
            sent.owed |= not self.sink.has_all(run)
        new = [round for round in rounds if round.number > sent.last]
        sent.owed |= ending is None or bool(new)
        for part in _parts(new, self.sink.batch):  # only whole rounds, so that the last one tells what has arrived
            self.sink.rounds(run, part)
            self._arrived_s, sent.last = time.monotonic(), part[-1].number
        for round in rounds:
            sent.values |= round.values
        sent.offset, sent.named = end, sent.named | artifacts_of(entries)
        if ending is None:
            return
        if sent.owed and type(self.sink).artifact is not Sink.artifact:  # else it has them, or would not take them
            for kind, path in sent.named or (OLD if ending.error is None else ()):
                self._send_artifact(run, kind, path, sent.attempts)
        self.sink.end(run, replace(ending, values=sent.values))
        self._arrived_s = time.monotonic()
        with self._lock:  # thousands of trials must not fill the memory
            self._sent.pop(key, None)

    def _send_artifact(self, run: Run, kind: str, path: str | None, attempts: Counter[tuple[str, str | None]]) -> None:
        if attempts[kind, path] >= ARTIFACT_ATTEMPTS:
            return
        artifact = None
        try:
            artifact = self._artifacts.make(run, kind, path)
            if artifact is not None:
                self.sink.artifact(run, artifact)
                self._arrived_s = time.monotonic()
        except Exception as error:
            if disk_failure(error) is not None:
                raise  # the artifact waits for room, and nothing else would fit either
            attempts[kind, path] += 1
            bug = artifact is not None and is_bug(self.sink, error)
            lasting = isinstance(error, HflrayError if artifact is not None else (HflrayError, ValueError))
            if attempts[kind, path] < ARTIFACT_ATTEMPTS and not (bug or lasting):
                raise
            cause = f"{named(self.sink)} fails ({own_reason(error)})" if bug else reason(error)
            log.warning("%s: its %s cannot be sent: %s", run.name, path or kind, cause)
        attempts[kind, path] = ARTIFACT_ATTEMPTS


def _parts(rounds: Sequence[Round], most: int) -> Iterator[list[Round]]:
    """Yield rounds in parts with at most so many metrics, or of one round."""
    part: list[Round] = []
    size = 0
    for round in rounds:
        if part and size + len(round.values) > most:
            yield part
            part, size = [], 0
        part.append(round)
        size += len(round.values)
    if part:
        yield part
