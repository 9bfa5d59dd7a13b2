"""Ctrl-C and SIGTERM: the first lets every running trial finish and save its round, the second stops at once.

With ``--resume`` a trial continues from the state that it saved. After a second Ctrl-C the unfinished round is lost.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from hflray.support.store import Store

MESSAGE = "stopping: each running trial finishes and saves its round; Ctrl-C again stops at once"
OVER = "the budget is over: each running trial finishes and saves its round; Ctrl-C stops at once"
FLAG = "stopping"  # the file, beside the checkpoints, that asks the trials to save their next round


class CleanStop:
    """Ask the trials of a sweep to save, and stop Tune when they have saved.

    Args:
        place: the place of the checkpoints, in which the trials look for the flag.
        saves: whether trials save states. If not, Tune is stopped without a wait.
        say: prints a line.
        until_s: the time of `time.monotonic` at which it stops as with a first Ctrl-C; None: it does not.

    Attributes:
        requested: whether the sweep was or is to be stopped.
    """

    def __init__(self, place: str, saves: bool, say: Callable[[str], None], until_s: float | None = None) -> None:
        self._store, self._saves, self._say = Store(place), saves, say
        self._until_s = math.inf if until_s is None else until_s
        self.requested = False
        self._tune_handler: Any = None
        self._handler_before: Any = signal.SIG_DFL
        self._pressed = self._at_once = False
        self._waiting: set[str] | None = None

    def __enter__(self) -> CleanStop:
        self._handler_before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        self._store.remove(FLAG)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._handler_before)
        with suppress(OSError):  # the next start removes it
            self._store.remove(FLAG)

    def step(self, trials: list[Any]) -> None:
        """React to a signal. Tune's loop calls this in every step with its trials."""
        if self._tune_handler is None:  # by now Tune has set its own handler, which ends the loop
            self._tune_handler = signal.signal(signal.SIGINT, self._on_signal)
        if self._at_once:
            self._at_once = False
            self._stop_tune()
        over = time.monotonic() >= self._until_s
        if not self._pressed and not over:
            return
        self.requested = True
        if self._waiting is None:
            running = {trial.trial_id for trial in trials if trial.status == "RUNNING"}
            self._waiting = running if self._saves else set()
            if self._waiting:
                self._say(OVER if over and not self._pressed else MESSAGE)
                with suppress(OSError):  # a full disk could not keep the states either
                    self._store.write(FLAG, b"")
        if not self._waiting:
            self._stop_tune()

    def saved(self, trial: Any) -> None:
        """Record that a trial has a new checkpoint or has ended."""
        if self._waiting is not None:
            self._waiting.discard(trial.trial_id)

    def at_once(self) -> None:
        """Stop Tune after its present step without waiting for the trials, because they could not save their states."""
        self._at_once = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pressed or self.requested:
            self._stop_tune()
        self._pressed = self.requested = True

    def _stop_tune(self) -> None:
        if callable(self._tune_handler):
            handler, self._tune_handler = self._tune_handler, signal.SIG_IGN  # it restores the handler from before Tune
            handler(signal.SIGINT, None)


def stop_requested(place: str) -> bool:
    """Return, in a trial, whether its sweep is being stopped, so that the last round must be saved."""
    with suppress(OSError):
        return Store(place).has(FLAG)
    return False
