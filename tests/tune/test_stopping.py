"""hflray.tune.stopping: the first Ctrl-C waits for the trials to save, the second does not."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hflray.tune.stopping import MESSAGE, CleanStop, asked


class Sweep:
    """A `CleanStop` inside a loop that ends as Tune's does: by a SIGINT handler of its own."""

    def __init__(self, saves: bool = True) -> None:
        self.lines: list[str] = []
        self.ended = 0
        signal.signal(signal.SIGINT, self._tunes)
        self.stop = CleanStop("a-sweep", saves, self.lines.append)

    def _tunes(self, *_: object) -> None:
        self.ended += 1
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


TRIALS = [
    SimpleNamespace(trial_id=name, status=status)
    for name, status in (("1", "RUNNING"), ("2", "RUNNING"), ("3", "PENDING"))
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_running_trials_are_waited_for(ray_session, number: signal.Signals) -> None:
    sweep = Sweep()
    with sweep.stop as stop:
        stop.step(TRIALS)
        assert not asked("a-sweep")
        signal.raise_signal(number)
        stop.step(TRIALS)
        assert asked("a-sweep")
        assert sweep.lines == [MESSAGE]
        stop.saved(TRIALS[0])
        stop.step(TRIALS)
        assert sweep.ended == 0
        stop.saved(TRIALS[1])
        stop.step(TRIALS)
        assert sweep.ended == 1
        assert sweep.lines == [MESSAGE]
    assert not asked("a-sweep")


def test_the_second_press_stops_at_once(ray_session) -> None:
    sweep = Sweep()
    with sweep.stop as stop:
        stop.step(TRIALS)
        signal.raise_signal(signal.SIGINT)
        stop.step(TRIALS)
        assert sweep.ended == 0
        signal.raise_signal(signal.SIGINT)
        assert sweep.ended == 1
        stop.step(TRIALS)  # the loop's last step finds nothing more to do
        assert sweep.ended == 1
        with pytest.raises(KeyboardInterrupt):  # a third one interrupts what Tune writes at the end
            signal.raise_signal(signal.SIGINT)


def test_nothing_is_waited_for_where_nothing_is_saved(ray_session) -> None:
    sweep = Sweep(saves=False)
    with sweep.stop as stop:
        stop.step(TRIALS)
        signal.raise_signal(signal.SIGINT)
        stop.step(TRIALS)
        assert sweep.ended == 1
        assert sweep.lines == []
