"""A deadline for a call that has none of its own, such as one of a library that waits for a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def within(limit_s: float, call: Callable[[], Result]) -> Result:
    """Return what `call` returns. After `limit_s` seconds its thread is left alone.

    A server that sends a byte now and then never reaches the time limit of a request.

    Raises:
        TimeoutError: `call` took longer.
        Exception: any error of `call`.
    """
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError(f"no answer in {limit_s:.0f} s") from None
