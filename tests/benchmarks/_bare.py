"""A bare loop: the unit of time in ratios, and a test of whether two CPUs do twice the work of one.

`python tests/benchmarks/_bare.py CPU` serves `scaling`: for each line with a number of seconds it runs that long.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

SCALES = 1.5  # least work of two loops, in units of one loop's, at which parallel tables are measured


def work() -> float:
    """Do the work that a loop repeats: plain Python and NumPy in equal parts, about 1 ms on one core."""
    values = np.arange(20_000, dtype=np.float64)
    total = 0.0
    for i in range(10):
        total += float(np.sqrt(values + i).cumsum()[-1])
        total += sum(range(2_000))
    return total


def yardstick_s(seconds: float = 0.3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of `work`: the median over at least five runs and `seconds` seconds.

    A time that is not compared with another program is divided by this, so that a slow machine, or a slow hour of the
    same machine, does not look like slow code.
    """
    work()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begin = clock()
        work()
        times.append(clock() - begin)
    return statistics.median(times)


def scaling(cpus: Sequence[int], seconds: float = 1.0, turns: int = 5) -> dict[str, float]:
    """Run one loop and two loops in turns on the first two of these CPUs.

    Returns:
        The speed of `one` alone and of `two` together, in pieces of work per second, and the median `ratio` of the
        turns, which is 2 if the two CPUs do not slow each other.
    """
    loops = [
        subprocess.Popen(
            [sys.executable, __file__, str(cpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for cpu in cpus[:2]
    ]

    def rate(group: list[subprocess.Popen[str]]) -> float:
        for loop in group:
            assert loop.stdin is not None
            loop.stdin.write(f"{seconds}\n")
            loop.stdin.flush()
        return sum(float(loop.stdout.readline()) for loop in group if loop.stdout is not None)

    try:
        rate(loops)  # the first run includes the imports
        pairs = [(rate(loops[:1]), rate(loops)) for _ in range(turns)]
    finally:
        for loop in loops:
            assert loop.stdin is not None
            loop.stdin.close()
            loop.wait()
    one, two = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"one": one, "two": two, "ratio": statistics.median(both / alone for alone, both in pairs)}


def main() -> None:
    """Serve `scaling`."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[1])})
    for line in sys.stdin:
        count, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < float(line):
            work()
            count += 1
        print(count / spent, flush=True)


if __name__ == "__main__":
    main()
