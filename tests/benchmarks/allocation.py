"""Allocation against CVXPY with Clarabel, in one run: accuracy, and time as ratios. ``make bench`` runs it.

    python tests/benchmarks/allocation.py [--edges 200] [--stress 20000]

CVXPY's problem is compiled once per size and its parameters changed, so that its canonicalisation is not counted
against it; its first solve of a size is shown beside it. Times are medians.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file, for tests.allocation.instances

from hflray.allocation import allocate_round, edge_problems
from hflray.allocation.batch import TOL, solve_batch
from hflray.allocation.cvxpy import _programme
from hflray.allocation.cvxpy import solve_edge as solve_with_cvxpy
from hflray.allocation.kernel import BISECTED, solve_edge
from hflray.allocation.lanes import scratch_for
from hflray.cost import Workload
from hflray.errors import InfeasibleError
from hflray.fleet import FleetConfig, sample_fleet
from tests.allocation.instances import ALPHA, BITS, random_edge, solve_all

WORK = Workload(model_bits=BITS)


def median_time(call: Callable[[int], object], repeats: int) -> float:
    """Median seconds of call(i)."""
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def first_compile() -> tuple[float, str]:
    """Seconds of the first allocation in a fresh process with an empty cache, and what it said."""
    code = (
        "import numpy as np, time\n"
        "from hflray.fleet import *; from hflray.cost import Workload; from hflray.allocation import allocate_round\n"
        "import hflray.allocation.newton\n"
        "f = sample_fleet(FleetConfig(), np.random.default_rng(0))\n"
        "t = time.perf_counter(); allocate_round(f, Workload(model_bits=1e6), np.arange(50), f.gain[:50].argmax(1))\n"
        "print(time.perf_counter() - t)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"NUMBA_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(run.stdout), run.stderr.strip().replace(folder, "DIR")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=200, help="10-device edges solved with CVXPY")
    parser.add_argument("--stress", type=int, default=20_000, help="hard random instances")
    options = parser.parse_args()

    seconds, message = first_compile()
    print(f"first call with an empty cache: {seconds:.1f} s; it says: {message}")

    rng = np.random.default_rng(0)
    fleets = [sample_fleet(FleetConfig(num_devices=10, num_edges=1), rng) for _ in range(options.edges)]
    devices, zeros = np.arange(10), np.zeros(10, dtype=np.intp)
    problems = [next(edge_problems(fleet, WORK, devices, zeros)) for fleet in fleets]

    start = time.perf_counter()
    _programme(10)
    solve_with_cvxpy(problems[0])
    print(f"CVXPY, compiling the problem of 10 devices and first solve: {1e3 * (time.perf_counter() - start):.1f} ms")
    reference, solver_times = np.full(len(problems), np.nan), []
    for i, problem in enumerate(problems):
        start = time.perf_counter()
        try:
            answer = solve_with_cvxpy(problem)
        except InfeasibleError:
            continue
        solver_times.append(time.perf_counter() - start)
        reference[i] = problem.objective(*answer)
    cvxpy_s = float(np.median(solver_times))
    print(f"CVXPY with Clarabel, compiled, parameters changed: {1e3 * cvxpy_s:.2f} ms an edge of 10 devices")

    x, y, scratch = np.empty(10), np.empty(10), scratch_for(10)

    def bare(i: int) -> None:
        p = problems[i % len(problems)]
        for _ in range(100):
            solve_edge(
                p.snr_hz, p.cycles, p.power_w, p.max_cpu_hz, p.bandwidth_hz, 1.0, BITS, ALPHA,
                x, y, 0.0, 0.0, False, TOL, scratch,
            )  # fmt: skip

    bare(0)
    kernel_s = median_time(bare, 3 * len(problems)) / 100
    allocate_round(fleets[0], WORK, devices, zeros)
    public_s = median_time(lambda i: allocate_round(fleets[i % len(fleets)], WORK, devices, zeros), 2000)
    copies = [problems[i % len(problems)] for i in range(20_000)]
    solution, offsets = solve_all(copies)
    arrays = (
        offsets,
        *(np.concatenate([getattr(p, name) for p in copies]) for name in ("snr_hz", "cycles", "power_w", "max_cpu_hz")),
        np.array([p.bandwidth_hz for p in copies]),
        np.ones(len(copies)),
        BITS,
        ALPHA,
    )
    batch_s = median_time(lambda _: solve_batch(*arrays), 9) / len(copies)
    warm_s = median_time(lambda _: solve_batch(*arrays, warm=solution), 9) / len(copies)
    print(f"{'':34}{'us an edge':>12}{'times CVXPY':>14}{'asked':>8}")
    for name, s, asked in (
        ("bare kernel, called from Python", kernel_s, "500"),
        ("allocate_round, one edge", public_s, "100"),
        ("batch of 20,000, with certificate", batch_s, "1000"),
        ("the same, warm", warm_s, ""),
    ):
        print(f"{name:34}{1e6 * s:12.2f}{cvxpy_s / s:14.0f}{asked:>8}")

    mine = (solution.energy_j + solution.delay_s)[: len(problems)]
    excess = (mine - reference) / reference
    print(
        f"objective against CVXPY's: from {np.nanmin(excess):.1e} to {np.nanmax(excess):.1e} relative; "
        f"CVXPY failed on {np.isnan(excess).sum()} of {len(problems)}; largest duality gap "
        f"{((mine - solution.bound_j[: len(mine)]) / mine).max():.1e}"
    )

    rng = np.random.default_rng(1)
    worst, counts, over, done, spent = 0.0, [], 0.0, 0, 0.0
    while done < options.stress:
        hard = [random_edge(rng) for _ in range(min(2000, options.stress - done))]
        start = time.perf_counter()
        answer, bounds = solve_all(hard)
        spent += time.perf_counter() - start
        worst = max(worst, float(answer.residual.max()))
        for e, p in enumerate(hard):
            over = max(over, float(answer.bandwidth_hz[bounds[e] : bounds[e + 1]].sum() / p.bandwidth_hz - 1.0))
        counts.append(answer.count)
        done += len(hard)
    count = np.concatenate(counts)
    print(
        f"{done:,} hard instances (n 1 to 200, λ 1e-4 to 1e4, gains over 120 dB): largest KKT residual {worst:.1e}, "
        f"bandwidth over by at most {over:.1e}; evaluations {np.median(count % BISECTED):.0f} (median), "
        f"{(count % BISECTED).max()} (most), "
        f"bisection for {(count >= BISECTED).mean():.2%}; {1e3 * spent / done:.2f} ms each"
    )


if __name__ == "__main__":
    main()
