"""All benchmarks: `python -m tests.benchmarks [run|check|keep|list|peers|measure]`.

run      measures the tables that are missing at this commit, each benchmark in its own process with a time limit, and
         writes hflray_results/bench/CPU.json; a benchmark that fails is stored as failed, and the others continue
check    names the ratios of that file that are more than 10 % below those of tests/benchmarks/results/CPU.json (exit
         code 1; 2 if nothing could be compared)
keep     copies that file to tests/benchmarks/results as the file of this CPU, to be committed
list     names the benchmarks, their tables and their settings
peers    makes the environments of Flower and pfl-research that are missing (exit code 1 if one cannot be made: then its
         rows are not measured); `make bench` begins with it, so that no installation disturbs a measurement
measure  prints the tables of the benchmarks of --only in this process and stores nothing; --set changes a setting, such
         as `measure --only training --set model=resnet8`

If two processes of a bare loop do less than 1.5 times the work of one, parallel tables are not measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from hflray.support.limits import available_cpus
from hflray.support.provenance import git_commit
from tests.benchmarks._bare import SCALES, scaling
from tests.benchmarks._report import Table, cpu_name, publish
from tests.benchmarks._results import KEPT, Results, compare, machine, slug

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, which runs in one process.

    Attributes:
        name: name for ``--only`` and the log.
        call: module of this package and its function, which returns a `Table` or yields several.
        keys: keys of all its tables.
        settings: arguments of the function.
        quick: other arguments with ``--quick``: small sizes, which show whether it runs, not how fast it is.
        limit_s: time after which it is ended, s; tables that are missing then have failed.
        parallel: whether several of its processes or threads work at the same time.
    """

    name: str
    call: str
    keys: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 1800.0
    parallel: bool = False

    def tables(self, quick: bool, changed: Mapping[str, Any]) -> Iterator[Table]:
        """Measure, and yield each table as soon as it is measured."""
        module, _, function = self.call.partition(":")
        settings = {**self.settings, **(self.quick if quick else {}), **changed}
        found = getattr(importlib.import_module(f"tests.benchmarks.{module}"), function)(**settings)
        yield from [found] if isinstance(found, Table) else found


BENCHMARKS = tuple(
    Benchmark(**{**entry, "keys": tuple(entry["keys"])})
    for entry in yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8"))
)


def chosen(only: Sequence[str], benchmarks: Sequence[Benchmark] = BENCHMARKS) -> list[Benchmark]:
    """Return the benchmarks with these names, modules or keys; an empty `only` selects all.

    Raises:
        ValueError: a word names no benchmark.
    """
    names_of = [{benchmark.name, benchmark.call.partition(":")[0], *benchmark.keys} for benchmark in benchmarks]
    if unknown := set(only).difference(*names_of):
        known = ", ".join(benchmark.name for benchmark in benchmarks)
        raise ValueError(f"--only {', '.join(sorted(unknown))}: names no benchmark; there are {known}")
    return [b for b, names in zip(benchmarks, names_of, strict=True) if not only or names & set(only)]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants, because Ray's processes have their own sessions."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.Error:
            continue
    process.wait()


def store(benchmark: Benchmark, results: Results, command: Sequence[str], log: Path) -> None:
    """Run the command of one benchmark and store its tables in `results`; missing tables are stored as failed.

    Args:
        benchmark: the benchmark.
        results: overwritten for the benchmark's tables.
        command: what measures it; ``--json FILE`` is added.
        log: file for its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hflray-bench-") as folder, log.open("wb") as out:
        said = Path(folder) / "tables.jsonl"
        process = subprocess.Popen(
            [*command, "--json", str(said)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT
        )
        try:
            code = process.wait(benchmark.limit_s)
            why = "" if code == 0 else f"it ended with code {code}" if code > 0 else f"signal {-code} ended it"
        except subprocess.TimeoutExpired:
            why = f"it had not ended after {benchmark.limit_s:.0f} s"
        finally:
            end(process)
        tables = [json.loads(line) for line in said.read_text().splitlines()] if said.is_file() else []
    for key in benchmark.keys:
        results.tables.pop(key, None)
    for table in tables:
        results.measured(table)
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1][:300]}" if lines and why else ""
    for key in benchmark.keys:
        if key not in results.tables:
            results.without(key, "failed", f"{why or 'it ended without this table'}{last}")


def run(
    results_file: Path, quick: bool = False, only: Sequence[str] = (), benchmarks: Sequence[Benchmark] = BENCHMARKS
) -> bool:
    """Measure the tables that the file lacks, and return whether none failed; the file is written after each benchmark.

    A file of another commit, machine or size, or of a tree with changes, begins anew.
    """
    selected, results = chosen(only, benchmarks), Results(git_commit(), machine(), quick)
    if results_file.is_file() and results.same_conditions(before := Results.read(results_file)):
        results.tables = before.tables
    cpus = available_cpus()
    loops = results.bare_loops = scaling(cpus, 0.3 if quick else 1.0) if len(cpus) > 1 else None
    told = f"two processes of a bare loop together do {loops['ratio']:.2f} × the work of one" if loops else "one CPU"
    refused = "" if loops and loops["ratio"] >= SCALES else f"{told}, which is too little to compare parallel work"
    print(f"{results.machine['cpu']}, {len(cpus)} CPUs, load {os.getloadavg()[0]:.1f}; commit {results.commit[:12]}")
    print(refused or told, flush=True)
    failed = False
    for number, benchmark in enumerate(selected, 1):
        print(f"[{number}/{len(selected)}] {benchmark.name}", end="", flush=True)
        if all(results.tables.get(key, {}).get("status") == "measured" for key in benchmark.keys):
            print(": is there already")
            continue
        begin = time.perf_counter()
        if benchmark.parallel and refused:
            for key in benchmark.keys:
                results.without(key, "not measured", refused)
        else:
            command = [sys.executable, "-m", "tests.benchmarks", "measure", "--only", benchmark.name]
            log = results_file.with_suffix("") / f"{benchmark.name}.log"
            store(benchmark, results, [*command, *(["--quick"] if quick else [])], log)
        results.write(results_file)
        made = {key: results.tables[key] for key in benchmark.keys}
        failed |= any(table["status"] == "failed" for table in made.values())
        told = [f"  {key}: {table['status']} {table['message']}" for key, table in made.items()]
        print("\n".join([f": {time.perf_counter() - begin:.0f} s", *told]), flush=True)
    print(f"tables: {results_file}; their logs: {results_file.with_suffix('')}")
    return not failed


def check(new: Path, old: Path) -> int:
    """Print which ratios fell, and return the exit code."""
    mine, theirs = Results.read(new), Results.read(old)
    known = {key for benchmark in BENCHMARKS for key in benchmark.keys}
    theirs.tables = {key: table for key, table in theirs.tables.items() if key in known}
    found = compare(mine, theirs)
    print(f"{new} at commit {mine.commit[:12]}, against {old} at {theirs.commit[:12]}")
    for heading in ("slower", "faster", "not compared", "busy"):
        if found[heading]:
            print("\n".join([f"{heading}:", *(f"  {line}" for line in found[heading])]))
    print(f"{len(found['compared'])} ratios compared, {len(found['slower'])} slower")
    return 1 if found["slower"] else 0 if found["compared"] else 2


def keep(new: Path, old: Path) -> int:
    """Make `new` the file of this CPU, and return the exit code."""
    results = Results.read(new)
    missing = [key for benchmark in BENCHMARKS for key in benchmark.keys if key not in results.tables]
    if results.quick or missing:
        why = "has the small sizes of --quick" if results.quick else f"has no {', '.join(missing)}: make bench goes on"
        raise ValueError(f"{new} {why}; it is not kept")
    old.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(new, old)
    print(f"kept as {old}: commit it")
    return 0


def peers() -> int:
    """Make the environments of the peers, and return the exit code."""
    from tests.benchmarks.training import make_environments  # it imports torch

    made = make_environments()
    print("\n".join(made.values()))
    return 0 if all(": ready in " in line for line in made.values()) else 1


def main(words: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="run", choices=("run", "check", "keep", "list", "peers", "measure"))
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="benchmarks, modules or tables; see list")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether all runs, not how fast it is")
    parser.add_argument("--set", nargs="+", default=(), metavar="SETTING=VALUE", help="with measure: change settings")
    parser.add_argument("--json", type=Path, help="with measure: append the tables to this file, a line of JSON each")
    options = parser.parse_args(words)
    name = slug(cpu_name())
    new = ROOT / "hflray_results" / "bench" / f"{name}{'.quick' if options.quick else ''}.json"
    old = KEPT / f"{name}.json"
    try:
        if options.what == "list":
            for benchmark in chosen(options.only):
                print(f"{benchmark.name:20}{', '.join(benchmark.keys)}{'  (two CPUs)' if benchmark.parallel else ''}")
        elif options.what == "measure":
            changed = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in options.set)}
            for benchmark in chosen(options.only):
                publish(benchmark.tables(options.quick, changed), options.json)
        elif options.what == "run":
            return 0 if run(new, options.quick, options.only) else 1
        else:
            return peers() if options.what == "peers" else {"check": check, "keep": keep}[options.what](new, old)
    except ValueError as error:
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
