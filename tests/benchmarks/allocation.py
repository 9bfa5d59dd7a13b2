"""Allocation compared with CVXPY and Clarabel in one run: accuracy, and time as ratios. ``make bench`` runs it.

    python tests/benchmarks/allocation.py [--only first one two hard] [--edges 200] [--stress 20000] [--repeats 5]

Both sides have equal resources: one thread on one CPU is compared with one thread of CVXPY on the same CPU, and two
threads on two CPUs with two processes of CVXPY, each on one of the CPUs with half of the edges. They take turns, so
that other work on the machine affects both alike. Figures are medians over the turns, and ratios are medians of the
turns' ratios. CVXPY's problem is compiled once per size and its parameters are changed, so that its canonicalisation
does not count. Its time is the median over the edges that it solved, so that its failures do not count either. Its
first solve of a size is shown separately. A busy machine changes the ratio of CPU times least.

A warm start is measured on a changed batch, in which the gain of every link is 1 dB higher or lower at random. Solving
an unchanged batch again is a row of its own. Every timed solution must have CVXPY's objectives.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file, for tests.allocation.instances

from hflray.allocation import allocate_round, edge_problems
from hflray.allocation.batch import TOL, solve_batch
from hflray.allocation.instance import EdgeProblem
from hflray.allocation.kernels.bundles import Devices, Edges, Guess, Setting, Solution
from hflray.allocation.kernels.edge import BISECTED, solve_edge
from hflray.allocation.kernels.lanes import scratch_for
from hflray.cost import Workload
from hflray.errors import InfeasibleError
from hflray.fleet import Fleet, FleetConfig, sample_fleet
from hflray.training.machine import available_cpus
from tests.allocation.instances import ALPHA, BITS, random_edge, solve_all
from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Table, arguments, check_objectives, conditions, on_cpus, publish

WORK = Workload(model_bits=BITS)
BATCH = 20_000  # edges in a batch
PARTS = ("first", "one", "two", "hard")
PER_DEVICE = ("snr_hz", "cycles", "power_w", "max_cpu_hz")
MOVE = 2  # seed of the changed gains
STEP_DB = 1.0  # change of each gain in a moved batch
# Largest relative distance of an objective above and below CVXPY's. Clarabel stops within 1e-5, so ours may be lower.
ABOVE, BELOW = 1e-7, 1e-4


def first_compile() -> tuple[float, str]:
    """Return the seconds of the first allocation in a new process with an empty cache, and its message."""
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


def moved(problems: Sequence[EdgeProblem], rng: np.random.Generator, step_db: float = STEP_DB) -> list[EdgeProblem]:
    """Return the edges with the gain of every link `step_db` higher or lower at random."""
    return [
        dataclasses.replace(p, snr_hz=p.snr_hz * 10 ** (rng.choice([-step_db, step_db], len(p.snr_hz)) / 10))
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


def serve(pipe: Connection, sets: list[list[EdgeProblem]]) -> None:
    """Run CVXPY in this process: for every number received, solve that set of edges and send a `Round`."""
    from hflray.allocation.cvxpy import _programme
    from hflray.allocation.cvxpy import solve_edge as solve_with_cvxpy

    begin = time.perf_counter()
    _programme(len(sets[0][0].members))
    solve_with_cvxpy(sets[0][0])
    pipe.send(time.perf_counter() - begin)
    while (number := pipe.recv()) is not None:
        problems = sets[number]
        result, seconds, cpu_seconds = np.full(len(problems), np.nan), [], []
        wall, cpu = time.perf_counter(), time.process_time()
        for i, problem in enumerate(problems):
            begin, cpu_begin = time.perf_counter(), time.process_time()
            try:
                answer = solve_with_cvxpy(problem)
            except InfeasibleError:
                continue
            seconds.append(time.perf_counter() - begin)
            cpu_seconds.append(time.process_time() - cpu_begin)
            result[i] = problem.objective(*answer)
        had = (time.process_time() - cpu) / (time.perf_counter() - wall)
        pipe.send(Round(result, statistics.median(seconds), statistics.median(cpu_seconds), had))


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """The result of CVXPY for all edges.

    Attributes:
        objective: objective of each edge, (e,), J; NaN where CVXPY failed.
        seconds, cpu_seconds: wall time and CPU time per edge, s.
        cpus_had: average number of CPUs that it used.
    """

    objective: np.ndarray
    seconds: float
    cpu_seconds: float
    cpus_had: float


class Reference:
    """CVXPY in one process per CPU of `cpus`, whose threads stay on that CPU; the processes share the edges of a set.

    Attributes:
        first_s: seconds in which a process compiles the problem and solves it once.
    """

    def __init__(self, *sets: Sequence[EdgeProblem], cpus: Sequence[int]) -> None:
        self._counts = [len(problems) for problems in sets]
        self._pipes: list[Connection] = []
        self._processes = []
        context = multiprocessing.get_context("spawn")
        for first, cpu in enumerate(cpus):
            mine, theirs = context.Pipe()
            parts = [list(problems[first :: len(cpus)]) for problems in sets]
            process = context.Process(target=serve, args=(theirs, parts), daemon=True)
            with on_cpus([cpu]):
                process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        self.first_s = max(pipe.recv() for pipe in self._pipes)

    def round(self, number: int = 0) -> Round:
        """Solve the edges of set `number` once, in all processes at the same time."""
        for pipe in self._pipes:
            pipe.send(number)
        answers: list[Round] = [pipe.recv() for pipe in self._pipes]
        result = np.empty(self._counts[number])
        for first, answer in enumerate(answers):
            result[first :: len(answers)] = answer.objective
        return Round(
            result,
            1 / sum(1 / answer.seconds for answer in answers),
            statistics.mean(answer.cpu_seconds for answer in answers),
            sum(answer.cpus_had for answer in answers),
        )

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()


@dataclasses.dataclass(frozen=True)
class Row:
    """A timed call, which solves `edges` edges; `asked` is the speed it should reach, in units of CVXPY's."""

    name: str
    edges: int
    call: Callable[[], object]
    asked: int | None = None


def rows(fleets: list[Fleet], problems: list[EdgeProblem], threads: int, batch: int) -> tuple[list[Row], np.ndarray]:
    """Return the rows to time with `threads` threads, and the moved edges' objectives, (e,); all kernels are compiled.

    Raises:
        AssertionError: warm and cold starts give the moved batch other objectives, or it equals the batch before.
    """
    copies = [problems[i % len(problems)] for i in range(batch)]
    there, here = flat(moved(copies, np.random.default_rng(MOVE))), flat(copies)
    start = solve_batch(*here, threads=threads)
    cold, warm = solve_batch(*there, threads=threads), solve_batch(*there, warm=start, threads=threads)
    check_objectives(objectives(warm), objectives(cold), 1e-9, 1e-9)
    if np.median(np.abs(objectives(cold) / objectives(start) - 1)) < 1e-3:
        raise AssertionError("the moved batch has the objectives of the one that it was moved from")
    result = [
        Row(f"batch of {batch:,}, with certificate", batch, lambda: solve_batch(*here, threads=threads), 1000),
        Row("moved by 1 dB a link, cold", batch, lambda: solve_batch(*there, threads=threads)),
        Row("moved by 1 dB a link, warm", batch, lambda: solve_batch(*there, warm=start, threads=threads)),
        Row("not moved at all, warm", batch, lambda: solve_batch(*here, warm=start, threads=threads)),
    ]
    if threads > 1:  # a call for one edge uses one thread
        return result, objectives(warm)[: len(problems)]
    devices, zeros = np.arange(10), np.zeros(10, dtype=np.intp)
    x, y, scratch = np.empty(10), np.empty(10), scratch_for(10)

    def bare() -> None:
        for p in problems:
            given, setting = (
                Devices(p.snr_hz, p.cycles, p.power_w, p.max_cpu_hz),
                Setting(p.bandwidth_hz, 1.0, BITS, ALPHA),
            )
            for _ in range(20):
                solve_edge(given, setting, x, y, Guess(0.0, 0.0, False), TOL, scratch)

    def public() -> None:
        for fleet in fleets:
            allocate_round(fleet, WORK, devices, zeros)

    bare(), public()
    one_by_one = [
        Row("bare kernel, called from Python", 20 * len(problems), bare, 500),
        Row("allocate_round, one edge", len(problems), public, 100),
    ]
    return one_by_one + result, objectives(warm)[: len(problems)]


def speed(threads: int, edges: int, repeats: int, batch: int = BATCH) -> Table:
    """Measure `threads` threads on as many CPUs and as many processes of CVXPY, in turns.

    Raises:
        AssertionError: both sides give other objectives, for the edges as drawn or as moved.
    """
    cpus = available_cpus()[:threads]
    rng = np.random.default_rng(0)
    fleets = [sample_fleet(FleetConfig(num_devices=10, num_edges=1), rng) for _ in range(edges)]
    devices, zeros = np.arange(10), np.zeros(10, dtype=np.intp)
    problems = [next(edge_problems(fleet, WORK, devices, zeros)) for fleet in fleets]
    with ExitStack() as stack:
        result = stack.enter_context(conditions())
        # These are the first edges of the batch that `rows` moves, and they move in the same way.
        there = moved(problems, np.random.default_rng(MOVE))
        reference = stack.enter_context(closing(Reference(problems, there, cpus=cpus)))
        stack.enter_context(on_cpus(cpus))
        timed, mine_moved = rows(fleets, problems, threads, batch)
        mine = objectives(solve_batch(*flat(problems), threads=threads))
        theirs = reference.round().objective
        least, most = check_objectives(mine, theirs, ABOVE, BELOW)
        check_objectives(mine_moved, reference.round(1).objective, ABOVE, BELOW)
        other: list[Round] = []
        own: dict[str, list[tuple[float, float]]] = {row.name: [] for row in timed}
        for _ in range(repeats):
            other.append(reference.round())
            for row in timed:
                wall, cpu = time.perf_counter(), time.process_time()
                row.call()
                own[row.name].append((time.perf_counter() - wall, time.process_time() - cpu))
    table = Table(
        f"allocation, {threads} {'thread' if threads == 1 else 'threads'} of ours against {len(cpus)} "
        f"{'process' if len(cpus) == 1 else 'processes'} of CVXPY, edges of 10 devices, medians of {repeats} turns",
        [
            ("row", "", ""),
            ("threads", "threads", "d"),
            ("cpus_had", "CPUs had", ".2f"),
            ("us", "us an edge", ".2f"),
            ("cvxpy_threads", "CVXPY's threads", "d"),
            ("cvxpy_cpus_had", "CPUs had", ".2f"),
            ("cvxpy_us", "us an edge", ",.0f"),
            ("ratio", "times CVXPY", ",.0f"),
            ("ratio_min", "least", ",.0f"),
            ("ratio_max", "most", ",.0f"),
            ("ratio_by_cpu", "by CPU time", ",.0f"),
            ("asked", "asked", "d"),
        ],
        [],
    )
    for row in timed:
        seconds, cpu_seconds = (np.array(column) for column in zip(*own[row.name], strict=True))
        ratios = np.array([turn.seconds for turn in other]) / (seconds / row.edges)
        by_cpu = np.array([turn.cpu_seconds for turn in other]) / (cpu_seconds / row.edges)
        table.rows.append(
            {
                "row": row.name,
                "threads": threads,
                "cpus_had": float(np.median(cpu_seconds / seconds)),
                "us": 1e6 * float(np.median(seconds)) / row.edges,
                "cvxpy_threads": len(cpus),
                "cvxpy_cpus_had": statistics.median(turn.cpus_had for turn in other),
                "cvxpy_us": 1e6 * statistics.median(turn.seconds for turn in other),
                "ratio": float(np.median(ratios)),
                "ratio_min": float(ratios.min()),
                "ratio_max": float(ratios.max()),
                "ratio_by_cpu": float(np.median(by_cpu)),
                "asked": row.asked,
            }
        )
    failed = int(np.isnan(theirs).sum())
    table.facts |= {"cvxpy_first_ms": 1e3 * reference.first_s, "cvxpy_failed": failed, "least": least, "most": most}
    table.facts |= result.facts()
    table.notes = [
        f"objective against CVXPY's: from {least:.1e} to {most:.1e} relative, and alike for the moved edges; "
        f"CVXPY failed on {failed} of {edges}",
        f"CVXPY, compiling the problem of 10 devices and first solve: {1e3 * reference.first_s:.1f} ms",
        *result.text().splitlines(),
    ]
    table.key = f"allocation/{'one thread' if threads == 1 else 'two threads'}"
    table.ratios = {str(row["row"]): float(str(row["ratio"])) for row in table.rows}
    return table


def stress(instances: int) -> Table:
    """Measure residuals, evaluations and time of hard random instances, on all cores in batches of 2,000."""
    rng = np.random.default_rng(1)
    worst, counts, over, done, spent = 0.0, [], 0.0, 0, 0.0
    loop_s = yardstick_s()
    while done < instances:
        hard = [random_edge(rng) for _ in range(min(2000, instances - done))]
        start = time.perf_counter()
        answer, bounds = solve_all(hard)
        spent += time.perf_counter() - start
        worst = max(worst, float(answer.residual.max()))
        for e, p in enumerate(hard):
            over = max(
                over, float(answer.feasible.bandwidth_hz[bounds[e] : bounds[e + 1]].sum() / p.bandwidth_hz - 1.0)
            )
        counts.append(answer.evaluations)
        done += len(hard)
    count = np.concatenate(counts)
    facts = {
        "instances": done,
        "kkt_residual": worst,
        "bandwidth_over": over,
        "evaluations": float(np.median(count % BISECTED)),
        "evaluations_most": int((count % BISECTED).max()),
        "bisected": float((count >= BISECTED).mean()),
        "ms": 1e3 * spent / done,
    }
    return Table(
        f"allocation, {done:,} hard instances (n 1 to 200, λ 1e-4 to 1e4, gains over 120 dB)", [], [], facts,
        [
            f"largest KKT residual {worst:.1e}, bandwidth over by at most {over:.1e}; evaluations "
            f"{facts['evaluations']:.0f} (median), {facts['evaluations_most']} (most), bisection for "
            f"{facts['bisected']:.2%}; {facts['ms']:.2f} ms each on all cores"
        ],
        key="allocation/hard instances",
        ratios={"instances in the time of a bare loop": loop_s / (spent / done)},
    )  # fmt: skip


def first() -> Table:
    """Measure the first allocation of a process with an empty cache."""
    loop_s = yardstick_s()
    seconds, message = first_compile()
    return Table(
        "allocation, first call with an empty cache",
        [],
        [],
        {"s": seconds},
        [f"{seconds:.1f} s{'; ' + message if message else ''}"],
        key="allocation/first call",
        ratios={"first calls in the time of a bare loop": loop_s / seconds},
    )


def tables(
    edges: int, instances: int, repeats: int, only: Sequence[str] = PARTS, batch: int = BATCH
) -> Iterator[Table]:
    """Measure, and yield each table as soon as it is measured. The arguments are those of the command line."""
    if "first" in only:
        yield first()
    for threads, part in ((1, "one"), (2, "two")):
        if part in only and len(available_cpus()) < threads:
            yield Table("allocation, two threads", [], [], key="allocation/two threads", not_measured="one CPU")
        elif part in only:
            yield speed(threads, edges, repeats, batch)
    if "hard" in only:
        yield stress(instances)


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--edges", type=int, help="10-device edges solved with CVXPY (default 200; quick 20)")
    parser.add_argument("--stress", type=int, help="hard random instances (default 20,000; quick 500)")
    parser.add_argument("--repeats", type=int, help="turns (default 5; quick 2)")
    options = parser.parse_args()
    result = tables(
        options.edges or (20 if options.quick else 200),
        options.stress or (500 if options.quick else 20_000),
        options.repeats or (2 if options.quick else 5),
        options.only,
        1_000 if options.quick else BATCH,
    )
    publish(result, options.json)


if __name__ == "__main__":
    main()
