"""``make mutants``: draw a seeded sample of mutants, run the tests on each, and write docs/mutants.md."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from pathlib import Path

from tests.mutants.modules import MODULES, source_of
from tests.mutants.report import page
from tests.mutants.session import Session, run_mutants
from tests.mutants.worker import ROOT, Worker

FOLDER = ROOT / "build" / "mutants"  # git ignores it


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--count", type=int, default=300, help="number of mutants (default: 300)")
    parser.add_argument("--module", action="append", choices=MODULES, help="run the mutants of this module only")
    parser.add_argument("--limit", type=int, default=1_000_000, help="run at most this many mutants now")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the session (default: build/mutants)")
    parser.add_argument("--report", type=Path, help="write the page to this file, such as docs/mutants.md")
    options = parser.parse_args(arguments)
    os.nice(10)
    sources = {module: (ROOT / source_of(module)).read_text(encoding="utf-8") for module in MODULES}
    session = Session(options.folder, sources, options.seed, options.count)
    mutants = [mutant for mutant in session.pending() if mutant.module in (options.module or MODULES)][: options.limit]
    if mutants:
        run_mutants(session, mutants, Worker(options.folder / "work"), lambda text: print(text, flush=True))
    results = session.results()
    killed = sum(result.outcome in ("killed", "timeout") for result in results)
    print(f"seed {options.seed}: {killed} of {len(results)} killed; {len(session.pending())} not run yet")
    if options.report:
        command = f"make mutants MUTANTS='--seed {options.seed} --count {options.count}'"
        machine = f"Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores"
        text = page(session, command, datetime.date.today().isoformat(), machine)
        options.report.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
