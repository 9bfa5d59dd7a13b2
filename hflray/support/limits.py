"""Limits of address space, of CPUs and of time.

A limit of this process that Ray cannot live with is refused before Ray fails with a dump of its own. `within` gives a
deadline to a call that has none, such as one of a library that waits for a server.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from hflray.errors import ConfigError

# What Ray maps into a process, measured on two CPUs: an object store of 2 GiB, libraries, and stacks and heaps of
# threads, which grow with the CPUs.
MAPPED_BYTES, MAPPED_BYTES_OF_A_CPU = 4 * 2**30, 2**28
Result = TypeVar("Result")


def available_cpus() -> tuple[int, ...]:
    """Return the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def check_address_space(without_ray: bool = False) -> None:
    """Raise ConfigError if ``ulimit -v`` leaves a process less address space than Ray maps, unless Ray is not used."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = MAPPED_BYTES + MAPPED_BYTES_OF_A_CPU * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < needed and not without_ray:
        raise ConfigError(
            f"ulimit -v: got {limit // 1024:,} KiB ({limit / 2**30:.1f} GiB) of address space for a process, and one "
            f"that uses Ray maps {needed / 2**30:.1f} GiB; accepted: {needed // 1024:,} or more, or unlimited; raise it"
        )


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
