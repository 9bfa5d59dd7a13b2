"""``make mutants``: draw a seeded sample of mutants, run the tests on each, and write docs/mutants.md."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from pathlib import Path

from tests.mutants.modules import MODULES
from tests.mutants.report import page
from tests.mutants.sample import read_sources
from tests.mutants.session import Session, run_mutants
from tests.mutants.worker import ROOT, Worker

FOLDER = ROOT / "build" / "mutants"  # git ignores it


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--count", type=int, default=700, help="number of mutants (default: 700)")
    parser.add_argument("--module", action="append", choices=MODULES, help="run the mutants of this module only")
    parser.add_argument("--again", action="store_true", help="run the survivors again, after the tests have changed")
    parser.add_argument("--limit", type=int, default=1_000_000, help="run at most this many mutants now")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the session (default: build/mutants)")
    parser.add_argument("--also", type=int, action="append", default=[], help="also report the session of this seed")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the page")
    parser.add_argument("--report", type=Path, help="write the page to this file, such as docs/mutants.md")
    options = parser.parse_args(arguments)
    os.nice(10)
    sources = read_sources(ROOT)
    session = Session(options.folder, sources, options.seed, options.count)
    mutants = session.pending()
    if options.again:
        mutants = [one.mutant for one in session.results() if one.outcome == "survived"] + mutants
    mutants = [one for one in mutants if one.module in (options.module or MODULES)]
    if mutants:
        worker = Worker(options.folder / "work")
        run_mutants(session, mutants, worker, lambda text: print(text, flush=True), options.limit)
    results = session.results()
    killed = sum(one.outcome in ("killed", "timeout") for one in results)
    print(f"seed {options.seed}: {killed} of {len(results)} killed; {len(session.pending())} not run yet")
    if options.report:
        others = [Session(options.folder, sources, seed, options.count) for seed in options.also]
        command = f"make mutants MUTANTS='--seed {options.seed} --count {options.count}'"
        machine = f"Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores"
        text = page([session, *others], command, datetime.date.today().isoformat(), machine, options.note)
        options.report.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
