"""A deadline for a call that has none of its own, such as one of a library that waits for a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import NoReturn, TypeVar

Result = TypeVar("Result")


def within(limit_s: float, call: Callable[[], Result]) -> Result:
    """Return what `call` returns. After `limit_s` seconds its thread is left alone.

    A server that sends a byte now and then never reaches the time limit of a request.

    Raises:
        TimeoutError: `call` took longer.
        Exception: any error of `call`.
    """
    ends: SimpleQueue[Callable[[], Result]] = SimpleQueue()

    def run() -> None:
        try:
            value = call()
            ends.put(lambda: value)
        except Exception as error:
            ends.put(partial(_raise, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        end = ends.get(timeout=limit_s)
    except Empty:
        raise TimeoutError(f"no answer in {limit_s:.0f} s") from None
    return end()


def _raise(error: Exception) -> NoReturn:
    raise error
