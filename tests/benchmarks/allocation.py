"""Allocation compared with CVXPY and Clarabel in one run: accuracy, and time as ratios.

Both sides have one thread on the same CPU, in turns in one process, so that other work on the machine affects both
alike. Figures are medians over the turns, and ratios are medians of the turns' ratios. CVXPY's problem is compiled once
per size and its parameters are changed, so that its canonicalisation does not count. Its time is the median over the
edges that it solved, so that its failures do not count either. Its first solve of a size is shown separately. A busy
machine changes the ratio of CPU times least.

A warm start is measured on a changed batch, in which the gain of every link is 1 dB higher or lower at random. Solving
an unchanged batch again is a row of its own. Every timed solution must have CVXPY's objectives.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from hflray.allocation import allocate_round, edge_problems
from hflray.allocation.cvxpy import solve_edge as solve_with_cvxpy
from hflray.allocation.instance import EdgeProblem
from hflray.allocation.kernels.bundles import Devices, Edges, EdgeSetting, Guess, Solution
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.lanes import scratch_for
from hflray.allocation.newton import TOL, solve_batch
from hflray.cost import Workload
from hflray.errors import InfeasibleError
from hflray.fleet import Fleet, FleetConfig, sample_fleet
from hflray.support.limits import available_cpus
from tests.allocation.instances import ALPHA, BITS
from tests.benchmarks._report import Table, conditions

WORK = Workload(model_bits=BITS)
PER_DEVICE = ("snr_hz", "cycles", "power_w", "max_cpu_hz")
MOVE = 2  # seed of the changed gains
STEP_DB = 1.0  # change of each gain in a moved batch
# Largest relative distance of an objective above and below CVXPY's. Clarabel stops within 1e-5, so ours may be lower.
ABOVE, BELOW = 1e-7, 1e-4


@contextmanager
def on_cpus(cpus: Iterable[int]) -> Iterator[None]:
    """Keep this thread, and the threads and processes that it starts, on these CPUs, if the system supports that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check_objectives(
    mine: np.ndarray, reference: np.ndarray, above: float = ABOVE, below: float = BELOW
) -> tuple[float, float]:
    """Check that objectives, (n,), agree with a reference's, which are NaN where the reference failed.

    Returns:
        The smallest and the largest of ``(mine - reference) / reference``.

    Raises:
        AssertionError: an objective is above the reference by more than `above`, or below it by more than `below`,
            relative; or the reference solved less than nine tenths.
    """
    solved = ~np.isnan(reference)
    excess = (mine[solved] - reference[solved]) / reference[solved]
    least, most = float(excess.min()), float(excess.max())
    if solved.mean() < 0.9 or not (most <= above and least >= -below):
        raise AssertionError(
            f"the reference solved {solved.sum()} of {len(reference)}, and the objectives differ from its own by "
            f"{least:.1e} to {most:.1e}, accepted: {-below:.0e} to {above:.0e}: no comparison"
        )
    return least, most


def moved(problems: Sequence[EdgeProblem]) -> list[EdgeProblem]:
    """Return the edges with the gain of every link `STEP_DB` higher or lower at random."""
    rng = np.random.default_rng(MOVE)
    return [
        dataclasses.replace(p, snr_hz=p.snr_hz * 10 ** (rng.choice([-STEP_DB, STEP_DB], len(p.snr_hz)) / 10))
        for p in problems
    ]


def flat(problems: Sequence[EdgeProblem]) -> tuple[Edges, np.ndarray]:
    """Return the arguments of `solve_batch` for these edges."""
    edges = Edges(
        np.cumsum([0] + [len(p.members) for p in problems]).astype(np.intp),
        Devices(*(np.concatenate([getattr(p, name) for p in problems]) for name in PER_DEVICE)),
        np.array([p.bandwidth_hz for p in problems]),
        BITS,
        ALPHA,
    )
    return edges, np.array([p.delay_weight for p in problems])


def objectives(solution: Solution) -> np.ndarray:
    """Return Σ energy + λ · delay of each edge, (e,), J; λ is 1."""
    return solution.feasible.energy_j + solution.feasible.delay_s


class Round(NamedTuple):
    """The result of CVXPY: the objective of each edge, NaN where it failed, and seconds and CPU seconds per edge."""

    objective: np.ndarray
    seconds: float
    cpu_seconds: float


def reference(problems: Sequence[EdgeProblem]) -> Round:
    """Solve the edges with CVXPY."""
    result, seconds, cpu_seconds = np.full(len(problems), np.nan), [], []
    for i, problem in enumerate(problems):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        try:
            answer = solve_with_cvxpy(problem)
        except InfeasibleError:
            continue
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
        result[i] = problem.objective(*answer)
    return Round(result, statistics.median(seconds), statistics.median(cpu_seconds))


Row = tuple[int, Callable[[], object]]  # a timed call, and the number of edges that it solves


def rows(fleets: list[Fleet], problems: list[EdgeProblem], batch: int) -> dict[str, Row]:
    """Return what is timed; all kernels are compiled.

    Raises:
        AssertionError: warm and cold starts give the moved batch other objectives, or it equals the batch before.
    """
    copies = [problems[i % len(problems)] for i in range(batch)]
    there, here = flat(moved(copies)), flat(copies)
    start = solve_batch(*here, threads=1)
    cold, warm = solve_batch(*there, threads=1), solve_batch(*there, warm=start, threads=1)
    check_objectives(objectives(warm), objectives(cold), 1e-9, 1e-9)
    if np.median(np.abs(objectives(cold) / objectives(start) - 1)) < 1e-3:
        raise AssertionError("the moved batch has the objectives of the one that it was moved from")
    devices, zeros = np.arange(10), np.zeros(10, dtype=np.intp)
    x, y, scratch = np.empty(10), np.empty(10), scratch_for(10)

    def bare() -> None:
        for p in problems:
            given = Devices(p.snr_hz, p.cycles, p.power_w, p.max_cpu_hz)
            setting = EdgeSetting(p.bandwidth_hz, 1.0, BITS, ALPHA)
            for _ in range(20):
                solve_edge(given, setting, x, y, Guess(0.0, 0.0, False), TOL, scratch)

    def public() -> None:
        for fleet in fleets:
            allocate_round(fleet, WORK, devices, zeros)

    bare(), public()
    return {
        "bare kernel, called from Python": (20 * len(problems), bare),
        "allocate_round, one edge": (len(problems), public),
        f"batch of {batch:,}, with certificate": (batch, lambda: solve_batch(*here, threads=1)),
        "moved by 1 dB a link, cold": (batch, lambda: solve_batch(*there, threads=1)),
        "moved by 1 dB a link, warm": (batch, lambda: solve_batch(*there, warm=start, threads=1)),
    }


def speed(edges: int = 200, repeats: int = 5, batch: int = 20_000) -> Table:
    """Measure both sides in turns.

    Args:
        edges: number of edges of ten devices that CVXPY solves.
        repeats: number of turns.
        batch: number of edges in a batch.

    Raises:
        AssertionError: both sides give other objectives, for the edges as drawn or as moved.
    """
    rng = np.random.default_rng(0)
    fleets = [sample_fleet(FleetConfig(num_devices=10, num_edges=1), rng) for _ in range(edges)]
    devices, zeros = np.arange(10), np.zeros(10, dtype=np.intp)
    problems = [next(edge_problems(fleet, WORK, devices, zeros)) for fleet in fleets]
    there = moved(problems)
    with conditions() as surroundings, on_cpus(available_cpus()[:1]):
        begin = time.perf_counter()
        solve_with_cvxpy(problems[0])
        first_s = time.perf_counter() - begin
        timed = rows(fleets, problems, batch)
        least, most = check_objectives(objectives(solve_batch(*flat(problems))), reference(problems).objective)
        answer = reference(there)
        check_objectives(objectives(solve_batch(*flat(there))), answer.objective)
        other, own = list[Round](), {name: list[tuple[float, float]]() for name in timed}
        for _ in range(repeats):
            other.append(reference(problems))
            for name, (_, call) in timed.items():
                wall, cpu = time.perf_counter(), time.process_time()
                call()
                own[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    table = Table(
        "allocation/one thread",
        f"allocation, ours and CVXPY with a thread each, edges of 10 devices, medians of {repeats} turns",
        [
            ("row", "", ""), ("us", "us an edge", ".2f"), ("cvxpy_us", "CVXPY's", ",.0f"),
            ("ratio", "times CVXPY", ",.0f"), ("ratio_min", "least", ",.0f"), ("ratio_max", "most", ",.0f"),
            ("ratio_by_cpu", "by CPU time", ",.0f"),
        ],
    )  # fmt: skip
    for name, (count, _) in timed.items():
        seconds, cpu_seconds = (np.array(column) for column in zip(*own[name], strict=True))
        ratios = np.array([turn.seconds for turn in other]) / (seconds / count)
        by_cpu = np.array([turn.cpu_seconds for turn in other]) / (cpu_seconds / count)
        table.ratios[name] = float(np.median(ratios))
        cvxpy_us = 1e6 * statistics.median(turn.seconds for turn in other)
        table.add(
            name, us=1e6 * np.median(seconds) / count, cvxpy_us=cvxpy_us, ratio=table.ratios[name],
            ratio_min=ratios.min(), ratio_max=ratios.max(), ratio_by_cpu=np.median(by_cpu),
        )  # fmt: skip
    failed = int(np.isnan(answer.objective).sum())
    table.facts |= {"cvxpy_first_ms": 1e3 * first_s, "cvxpy_failed": failed, "least": least, "most": most}
    table.notes = [
        f"objective against CVXPY's: from {least:.1e} to {most:.1e} relative, and alike for the moved edges, of which "
        f"CVXPY failed on {failed} of {edges}",
        f"CVXPY, compiling the problem of 10 devices and first solve: {1e3 * first_s:.1f} ms",
    ]
    surroundings.note(table)
    return table
