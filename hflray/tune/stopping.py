"""Ctrl-C and SIGTERM: the first lets every running trial finish its round and save it, the second stops at once.

What a trial has saved is what it goes on from with ``--resume``; after the second Ctrl-C the round it was in is lost.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from ray.experimental import internal_kv

MESSAGE = "stopping: each running trial ends its round and saves it; Ctrl-C again stops at once"


class CleanStop:
    """Tells the trials of a sweep to save, and Tune to stop when they have.

    Args:
        sweep: the sweep's folder name; the trials ask for it with `asked`.
        saves: False if trials save nothing: then there is nothing to wait for.
        say: prints a line.
    """

    def __init__(self, sweep: str, saves: bool, say: Callable[[str], None]) -> None:
        self._key, self._saves, self._say = _key(sweep), saves, say
        self._tunes: Any = None
        self._before: Any = signal.SIG_DFL
        self._pressed = False
        self._waiting: set[str] | None = None

    def __enter__(self) -> CleanStop:
        self._before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        internal_kv._internal_kv_del(self._key)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        internal_kv._internal_kv_del(self._key)

    def step(self, trials: list[Any]) -> None:
        """Called once in every step of Tune's loop, with its trials."""
        if self._tunes is None:  # Tune has put its own handler in place by now; it ends the loop
            self._tunes = signal.signal(signal.SIGINT, self._on_signal)
        if not self._pressed:
            return
        if self._waiting is None:
            running = {trial.trial_id for trial in trials if trial.status == "RUNNING"}
            self._waiting = running if self._saves else set()
            if self._waiting:
                self._say(MESSAGE)
                internal_kv._internal_kv_put(self._key, b"1")
        if not self._waiting:
            self._now()

    def saved(self, trial: Any) -> None:
        """A trial has a new checkpoint, or has ended."""
        if self._waiting is not None:
            self._waiting.discard(trial.trial_id)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            self._now()
        self._pressed = True

    def _now(self) -> None:
        if callable(self._tunes):
            tunes, self._tunes = self._tunes, signal.SIG_IGN  # it puts back what was there before Tune
            tunes(signal.SIGINT, None)


def _key(sweep: str) -> bytes:
    return f"hflray/stop/{sweep}".encode()


def asked(sweep: str) -> bool:
    """In a trial: whether its sweep is being stopped, so that the round just done has to be saved."""
    return bool(internal_kv._internal_kv_exists(_key(sweep)))
