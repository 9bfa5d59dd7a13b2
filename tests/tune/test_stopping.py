"""`hflray.tune.stopping`: the first Ctrl-C waits until the trials have saved, the second does not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hflray.tune.stopping import MESSAGE, OVER, CleanStop, stop_requested


class Sweep:
    """A `CleanStop` in a loop that, like Tune's, ends by its own SIGINT handler."""

    def __init__(self, saves: bool = True, until_s: float | None = None) -> None:
        self.lines: list[str] = []
        self.ended = 0
        signal.signal(signal.SIGINT, self._end_loop)
        self.stop = CleanStop("a-sweep", saves, self.lines.append, until_s)

    def _end_loop(self, *_: object) -> None:
        self.ended += 1
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _handlers(monkeypatch, tmp_path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # in which the place of the checkpoints is made
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


TRIALS = [
    SimpleNamespace(trial_id=name, status=status)
    for name, status in (("1", "RUNNING"), ("2", "RUNNING"), ("3", "PENDING"))
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_running_trials(ray_session, number: signal.Signals) -> None:
    sweep = Sweep()
    with sweep.stop as stop:
        stop.step(TRIALS)
        assert not stop_requested("a-sweep")
        signal.raise_signal(number)
        stop.step(TRIALS)
        assert stop_requested("a-sweep")
        assert sweep.lines == [MESSAGE]
        stop.saved(TRIALS[0])
        stop.step(TRIALS)
        assert sweep.ended == 0
        stop.saved(TRIALS[1])
        stop.step(TRIALS)
        assert sweep.ended == 1
        assert sweep.lines == [MESSAGE]
    assert not stop_requested("a-sweep")


def test_a_budget_that_is_over_waits_for_running_trials_and_ctrl_c_then_stops_at_once() -> None:
    for until_s, over in ((time.monotonic() + 1000, False), (time.monotonic(), True)):
        sweep = Sweep(until_s=until_s)
        with sweep.stop as stop:
            stop.step(TRIALS)
            assert (stop.requested, stop_requested("a-sweep"), sweep.lines) == (over, over, [OVER] * over)
            assert sweep.ended == 0
            signal.raise_signal(signal.SIGINT)
            assert sweep.ended == over


def test_the_second_signal_stops_at_once(ray_session) -> None:
    sweep = Sweep()
    with sweep.stop as stop:
        stop.step(TRIALS)
        signal.raise_signal(signal.SIGINT)
        stop.step(TRIALS)
        assert sweep.ended == 0
        signal.raise_signal(signal.SIGINT)
        assert sweep.ended == 1
        stop.step(TRIALS)  # the loop's last step has no effect
        assert sweep.ended == 1
        with pytest.raises(KeyboardInterrupt):  # a third one interrupts Tune's final writes
            signal.raise_signal(signal.SIGINT)


def test_a_failed_write_stops_without_a_signal(ray_session) -> None:
    sweep = Sweep()
    with sweep.stop as stop:
        stop.at_once()  # Tune has not set its handler yet
        assert sweep.ended == 0
        stop.step(TRIALS)
        stop.step(TRIALS)
        assert sweep.ended == 1
        assert sweep.lines == []


def test_a_sweep_that_saves_no_state_stops_at_once(ray_session) -> None:
    sweep = Sweep(saves=False)
    with sweep.stop as stop:
        stop.step(TRIALS)
        signal.raise_signal(signal.SIGINT)
        stop.step(TRIALS)
        assert sweep.ended == 1
        assert sweep.lines == []
