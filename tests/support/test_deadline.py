"""`hflray.support.limits`: a call ends in time, with its value, with its error, or with a TimeoutError."""

from __future__ import annotations

import threading
import time

import pytest

from hflray.support.limits import within


def test_a_call_gives_its_value_or_its_error() -> None:
    assert within(60, lambda: None) is None
    assert within(60, lambda: [1]) == [1]
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0)


def test_a_call_that_takes_longer_is_left_alone() -> None:
    begin, stop = time.monotonic(), threading.Event()
    with pytest.raises(TimeoutError, match="no answer in 0 s"):
        within(0.1, lambda: stop.wait(60))
    assert time.monotonic() - begin < 30
    stop.set()
