"""All benchmarks in one go: `python -m tests.benchmarks [run|check|keep|list|peers]`.

run    measures the tables that are missing at this commit, each benchmark in its own process with a time limit, and
       writes hflray_results/bench/CPU.json; a benchmark that fails is stored as failed, and the others continue
check  names the ratios of that file that are more than 10 % below those of tests/benchmarks/results/CPU.json (exit
       code 1; 2 if nothing could be compared)
keep   copies that file to tests/benchmarks/results as the file of this CPU, to be committed
list   names the benchmarks and their tables
peers  makes the environments of Flower and pfl-research that are missing (exit code 1 if one cannot be made: then its
       rows are not measured); `make bench` begins with it, so that no installation disturbs a measurement

If two processes of a bare loop do less than 1.5 times the work of one, parallel tables are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hflray.training.machine import available_cpus
from tests.benchmarks._bare import scaling
from tests.benchmarks._report import cpu_name
from tests.benchmarks._results import KEPT, Results, compare, slug

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, which runs in one process.

    Attributes:
        name: name for ``--only`` and the log.
        command: file in this folder, and its arguments.
        keys: keys of all its tables.
        limit_s: time after which it is ended, s; tables that are missing then have failed.
        parallel: whether several of its processes or threads work at the same time.
    """

    name: str
    command: tuple[str, ...]
    keys: tuple[str, ...]
    limit_s: float = 1800.0
    parallel: bool = True


def _training(key: str, *more: str) -> tuple[str, ...]:
    return tuple(f"{key}/{name}" for name in ("setting", "equal work", "L = 5", "L = 1", *more))


BENCHMARKS = (
    Benchmark("allocation-first", ("allocation.py", "--only", "first"), ("allocation/first call",), 600, False),
    Benchmark("allocation-one", ("allocation.py", "--only", "one"), ("allocation/one thread",), parallel=False),
    Benchmark("allocation-two", ("allocation.py", "--only", "two"), ("allocation/two threads",)),
    Benchmark("allocation-hard", ("allocation.py", "--only", "hard"), ("allocation/hard instances",)),
    Benchmark("assignment", ("assignment.py",), ("assignment/assigners", "assignment/couplings"), parallel=False),
    Benchmark("generalisation", ("generalisation.py",), ("generalisation/scenarios",), 3600, False),
    Benchmark("assigner", ("assigner.py",), ("assigner/learning",), parallel=False),
    Benchmark("decision", ("decision.py",), ("decision/policy",), parallel=False),
    Benchmark("scale", ("scale.py", "--only", "steps"), ("scale/steps",)),
    Benchmark("scale-exponents", ("scale.py", "--only", "exponents"), ("scale/exponents",)),
    Benchmark("million", ("million.py",), ("million/round",)),
    Benchmark("training-one", ("training.py", "--one-core"), _training("training, one core"), parallel=False),
    Benchmark("training", ("training.py", "--installed-peers"), _training("training", "Ray's share"), 5400),
    Benchmark(
        "inside",
        ("inside.py",),
        ("inside/rules, fused", "inside/rules, channels_last", "inside/aggregators"),
        parallel=False,
    ),
    Benchmark("clock-rows", ("clock.py", "--only", "rows"), ("clock/rows",), parallel=False),
    Benchmark("clock-actors", ("clock.py", "--only", "actors"), ("clock/actors",)),
    Benchmark("step", ("step.py",), ("step/resnet8", "step/gru"), parallel=False),
    Benchmark("losses", ("losses.py",), ("losses/kernels",), parallel=False),
    Benchmark("joint_cost", ("joint_cost.py",), ("joint_cost/round",), parallel=False),
    Benchmark(
        "world", ("world.py", "--devices", "100", "1000000"), ("world/N = 100", "world/N = 1000000"), parallel=False
    ),
    Benchmark("actors-noop", ("actors.py", "--only", "noop"), ("actors/no-op round",)),
    Benchmark("actors-memory", ("actors.py", "--only", "memory"), ("actors/memory",), parallel=False),
    Benchmark("actors-clustering", ("actors.py", "--only", "clustering"), ("actors/clustering",)),
    Benchmark("actors-gpu", ("actors.py", "--only", "gpu"), ("actors/gpu",), parallel=False),
    Benchmark("sweep-overhead", ("sweep.py", "--only", "overhead"), ("sweep/overhead",)),
    Benchmark("sweep-share", ("sweep.py", "--only", "share"), ("sweep/share",), 3600),
    Benchmark("sweep-many", ("sweep.py", "--only", "many"), ("sweep/many trials",)),
    Benchmark("sweep-servers", ("sweep.py", "--only", "servers"), ("sweep/servers",), 3600),
    Benchmark("first-minute", ("first_minute.py", "--repeats", "3", "--warm"), ("first minute/phases",)),
)


def chosen(only: Sequence[str], benchmarks: Sequence[Benchmark] = BENCHMARKS) -> list[Benchmark]:
    """Return the benchmarks with these names, files (without .py) or keys; an empty `only` selects all.

    Raises:
        ValueError: a word names no benchmark.
    """
    found: list[Benchmark] = []
    for word in only:
        some = [b for b in benchmarks if word in (b.name, b.command[0].removesuffix(".py"), *b.keys)]
        if not some:
            raise ValueError(f"--only {word}: names no benchmark; there are {', '.join(b.name for b in benchmarks)}")
        found += some
    return [b for b in benchmarks if not only or b in found]


def done(benchmark: Benchmark, results: Results) -> bool:
    """Return whether all its tables are measured; a failed table is tried again."""
    return all(results.tables.get(key, {}).get("status") == "measured" for key in benchmark.keys)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants, because Ray's processes have their own sessions."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        return
    for one in family:
        try:
            one.kill()
        except psutil.Error:
            continue
    process.wait()


def measure(benchmark: Benchmark, results: Results, log: Path) -> None:
    """Run one benchmark and store its tables in `results`; missing tables are stored as failed.

    Args:
        benchmark: the benchmark.
        results: overwritten for the benchmark's tables.
        log: file for the benchmark's output.
    """
    script = Path(__file__).parent / benchmark.command[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hflray-bench-") as folder, log.open("wb") as out:
        said = Path(folder) / "tables.jsonl"
        command = [sys.executable, str(script), *benchmark.command[1:], "--json", str(said)]
        command += ["--quick"] if results.quick else []
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT)
        try:
            code = process.wait(benchmark.limit_s)
            why = "" if code == 0 else f"it ended with code {code}" if code > 0 else f"signal {-code} ended it"
        except subprocess.TimeoutExpired:
            why = f"it had not ended after {benchmark.limit_s:.0f} s"
        finally:
            end(process)
        lines = said.read_text(encoding="utf-8").splitlines() if said.is_file() else []
    for key in benchmark.keys:
        results.tables.pop(key, None)
    for line in lines:
        table = json.loads(line)
        if table["key"] not in benchmark.keys:
            why = why or f"it gave a table {table['key']!r} that tests/benchmarks/__main__.py does not name"
            continue
        results.measured(table)
    words = [word.strip() for word in log.read_text(encoding="utf-8", errors="replace").splitlines() if word.strip()]
    last = f": {words[-1][:300]}" if words and why else ""
    for key in benchmark.keys:
        if key not in results.tables:
            results.without(key, "failed", f"{why or 'it ended without this table'}{last}")


def summary(benchmark: Benchmark, results: Results) -> str:
    """Return a short line for each table of a benchmark."""
    lines = []
    for key in benchmark.keys:
        table = results.tables[key]
        if table["status"] != "measured":
            lines.append(f"  {key}: {table['status']}: {table['message']}")
            continue
        ratios = [f"{name} {value:.3g} ×" for name, value in table["ratios"].items() if value is not None]
        more = f", and {len(ratios) - 3} more" if len(ratios) > 3 else ""
        lines.append(f"  {key}: {'; '.join(ratios[:3]) or 'no ratios'}{more}{' (TOO BUSY)' if table['busy'] else ''}")
    return "\n".join(lines)


def run(
    results_file: Path,
    quick: bool = False,
    only: Sequence[str] = (),
    again: bool = False,
    benchmarks: Sequence[Benchmark] = BENCHMARKS,
) -> bool:
    """Measure the tables that the file lacks, and return whether none failed.

    Args:
        results_file: the file, which is written after every benchmark.
        quick: whether to use the small sizes.
        only: names; see `chosen`.
        again: whether to measure existing tables again.
        benchmarks: all benchmarks.
    """
    selected = chosen(only, benchmarks)
    results = Results.here(quick)
    if results_file.is_file():
        before = Results.read(results_file)
        if results.same_conditions(before):
            results.tables = before.tables
        else:
            print(f"{results_file} is of another commit, machine or size, or this tree has changes: it begins anew")
    cpus = available_cpus()
    found = scaling(cpus, 0.3 if quick else 1.0) if len(cpus) > 1 else None
    results.loops(found)
    refused = "there is one CPU" if found is None else "" if found.enough else found.text()
    print(f"{results.machine['cpu']}, {len(cpus)} CPUs, load {os.getloadavg()[0]:.1f}; commit {results.commit[:12]}")
    print(f"{found.text() if found else refused}{': no parallel table is measured' if refused else ''}", flush=True)
    failed = False
    for number, benchmark in enumerate(selected, 1):
        print(f"[{number}/{len(selected)}] {benchmark.name}", end="", flush=True)
        if not again and done(benchmark, results):
            print(": is there already")
            continue
        begin = time.perf_counter()
        if benchmark.parallel and refused:
            for key in benchmark.keys:
                results.without(key, "not measured", refused)
        else:
            log = results_file.with_suffix("") / f"{benchmark.name}.log"
            measure(benchmark, results, log)
        results.write(results_file)
        failed |= any(results.tables[key]["status"] == "failed" for key in benchmark.keys)
        print(f": {time.perf_counter() - begin:.0f} s\n{summary(benchmark, results)}", flush=True)
    results.write(results_file)
    print(f"tables: {results_file}; their logs: {results_file.with_suffix('')}")
    return not failed


def check(new: Path, old: Path) -> int:
    """Print which ratios fell, and return the exit code."""
    for path, how in ((new, "make bench writes it"), (old, "make bench-keep makes it")):
        if not path.is_file():
            print(f"{path}: there is no such file; {how}")
            return 2
    mine, theirs = Results.read(new), Results.read(old)
    found = compare(mine, theirs)
    print(f"{new} at commit {mine.commit[:12]}, against {old} at {theirs.commit[:12]}")
    for title, lines in (
        ("slower by more than 10 %", found.slower),
        ("faster by more than 10 %", found.faster),
        ("not compared", found.missing),
        ("measured beside other work", found.busy),
    ):
        if lines:
            print("\n".join([f"{title}:", *(f"  {line}" for line in lines)]))
    print(f"{found.compared} ratios compared, {len(found.slower)} slower")
    return 1 if found.slower else 0 if found.compared else 2


def keep(new: Path, old: Path) -> int:
    """Make `new` the file of this CPU, and return the exit code."""
    if not new.is_file():
        print(f"{new}: there is no such file; make bench writes it")
        return 2
    results = Results.read(new)
    missing = [key for b in BENCHMARKS for key in b.keys if key not in results.tables]
    if results.quick or missing:
        why = "has the small sizes of --quick" if results.quick else f"has no {', '.join(missing)}: make bench goes on"
        print(f"{new} {why}; it is not kept")
        return 2
    for key, table in results.tables.items():
        if table["status"] != "measured" or table["busy"]:
            print(f"  {key}: {'measured beside other work' if table['status'] == 'measured' else table['status']}")
    old.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(new, old)
    print(f"kept as {old}: commit it")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("run", "check", "keep", "list", "peers"), default="run")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="benchmarks, files or tables; see list")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether all runs, not how fast it is")
    parser.add_argument("--again", action="store_true", help="also what is measured at this commit already")
    parser.add_argument("--file", type=Path, help="the new file; default: hflray_results/bench/CPU.json")
    parser.add_argument("--against", type=Path, help="the old file; default: tests/benchmarks/results/CPU.json")
    options = parser.parse_args(words)
    name = slug(cpu_name())
    new = options.file or ROOT / "hflray_results" / "bench" / f"{name}{'.quick' if options.quick else ''}.json"
    old = options.against or KEPT / f"{name}.json"
    if options.what == "list":
        for benchmark in BENCHMARKS:
            print(f"{benchmark.name:20}{', '.join(benchmark.keys)}{'  (two CPUs)' if benchmark.parallel else ''}")
        return 0
    if options.what == "peers":
        from tests.benchmarks.training import make_environments  # it imports torch

        peers = make_environments()
        print("\n".join(peers.values()))
        return 0 if all(": ready in " in line for line in peers.values()) else 1
    try:
        if options.what == "check":
            return check(new, old)
        if options.what == "keep":
            return keep(new, old)
        return 0 if run(new, options.quick, options.only, options.again) else 1
    except ValueError as error:
        print(error)
        return 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
