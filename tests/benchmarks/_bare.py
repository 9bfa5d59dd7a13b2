"""A bare loop: the yardstick beside which seconds become ratios, and the proof that two CPUs do the work of two.

`python tests/benchmarks/_bare.py CPU` serves `scaling`: for every line with a number of seconds, it turns that long.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

SCALES = 1.5  # times the work of one loop that two together must do; below, nothing parallel is compared


def work() -> float:
    """The piece of work that a loop repeats: plain Python and NumPy in equal parts, about 1 ms, on one core."""
    values = np.arange(20_000, dtype=np.float64)
    total = 0.0
    for i in range(10):
        total += float(np.sqrt(values + i).cumsum()[-1])
        total += sum(range(2_000))
    return total


def yardstick_s(seconds: float = 0.3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of `work`: the median over at least five times and so many seconds.

    What is measured with no other program beside it is divided by this, so that a slower machine, or a slower hour of
    the same one, does not look like slower code.
    """
    work()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begin = clock()
        work()
        times.append(clock() - begin)
    return statistics.median(times)


@dataclass(frozen=True)
class Scaling:
    """What bare loops do, in pieces of work a second.

    Attributes:
        one: of one process, alone on the machine.
        two: of two processes together, each on a CPU of its own.
        ratio: the median of the turns' ratios; 2 on two CPUs that do not slow each other.
    """

    one: float
    two: float
    ratio: float

    @property
    def enough(self) -> bool:
        """Whether what runs on two CPUs can be compared here."""
        return self.ratio >= SCALES

    def text(self) -> str:
        """A sentence for the screen, and for the tables that are not measured."""
        said = f"two processes of a bare loop together do {self.ratio:.2f} × the work of one"
        if self.enough:
            return said
        return f"{said}, at least {SCALES} × is needed to compare what runs on two CPUs"


def scaling(cpus: Sequence[int], seconds: float = 1.0, turns: int = 5) -> Scaling:
    """Let one loop and two loops run in turns, on the first two of these CPUs."""
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

    def rate(some: list[subprocess.Popen[str]]) -> float:
        for loop in some:
            assert loop.stdin is not None
            loop.stdin.write(f"{seconds}\n")
            loop.stdin.flush()
        return sum(float(loop.stdout.readline()) for loop in some if loop.stdout is not None)

    try:
        rate(loops)  # the first time pays for imports
        pairs = [(rate(loops[:1]), rate(loops)) for _ in range(turns)]
    finally:
        for loop in loops:
            assert loop.stdin is not None
            loop.stdin.close()
            loop.wait()
    one, two = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Scaling(one, two, statistics.median(both / alone for alone, both in pairs))


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
