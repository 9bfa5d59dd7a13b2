"""Give mutated inputs to the command and count how it ends.

    python -m tests.inputs [--count 2000] [--seed 0] [--page docs/inputs.md]
    python -m tests.inputs --only 12 34          # repeat cases, with what the command printed

The first command writes the table of the page. It ends with exit code 1 if there is a defect.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.inputs.grammar import ROOT, Case, case
from tests.inputs.harness import Ended, Place, new_place, table

PAGE = ROOT / "docs" / "inputs.md"
BEGIN, END = "<!-- outcomes: `python -m tests.inputs` writes this part -->", "<!-- end of outcomes -->"


def run(place: Place, cases: Sequence[Case]) -> list[tuple[str, Ended]]:
    """Return the kind of each case and how it ended; print every defect as it is found."""
    results = []
    for case_ in cases:
        ended = place.call(case_)
        results.append((case_.kind, ended))
        if ended.outcome == "defect":
            print(f"defect: case {case_.number}, {case_.kind}: {case_.change!r}: {ended.reason}", flush=True)
    return results


def write(path: Path, lines: Sequence[str], seed: int) -> None:
    """Exchange the generated part of the page."""
    about = f"Seed {seed}, {time.strftime('%Y-%m-%d')}. “Slowest” is the CPU time of one call in a process that has "
    part = "\n".join([about + "imported everything.", "", *lines])
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{part}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.inputs", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--only", type=int, nargs="+")
    options = parser.parse_args(words)
    numbers = options.only or range(options.count)
    cases = [case(options.seed, number) for number in numbers]
    with new_place() as place:
        results = run(place, cases)
    if options.only:
        for case_, (_, ended) in zip(cases, results, strict=True):
            print(case_.change, case_.arguments, ended, sep="\n")
        return 0
    lines = table(results, "mutated input")
    if options.page:
        write(options.page, lines, options.seed)
    print("\n".join(lines))
    return int(any(ended.outcome == "defect" for _, ended in results))


if __name__ == "__main__":
    sys.exit(main())
