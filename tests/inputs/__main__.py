"""Give mutated inputs to the command and count how it ends.

    python -m tests.inputs [--count 2000] [--processes 50] [--seed 0] [--page docs/inputs.md]
    python -m tests.inputs --only 12 34          # repeat cases, with what the command printed

The first command writes the table of the page. It ends with exit code 1 if there is a defect.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.inputs.grammar import ROOT, Case, case
from tests.inputs.harness import Ended, Place, new_place

PAGE = ROOT / "docs" / "inputs.md"
BEGIN, END = "<!-- outcomes: `python -m tests.inputs` writes this part -->", "<!-- end of outcomes -->"


def run(place: Place, cases: Sequence[Case], as_processes: bool = False) -> list[tuple[Case, Ended]]:
    """Return how each case ended; print every defect as it is found."""
    results = []
    for case_ in cases:
        ended = place.run(case_) if as_processes else place.call(case_)
        results.append((case_, ended))
        if ended.outcome == "defect":
            print(f"defect: case {case_.number}, {case_.kind}: {case_.change!r}: {ended.reason}", flush=True)
    return results


def table(results: Sequence[tuple[Case, Ended]], heading: str) -> list[str]:
    """Return the outcomes by kind of input as a table of markdown."""
    lines = [f"| {heading} | tried | valid | refused | defects | slowest, CPU s |", "|---|--:|--:|--:|--:|--:|"]
    for kind in [*sorted({mutated.kind for mutated, _ in results}), "all"]:
        members = [ended for mutated, ended in results if kind in (mutated.kind, "all")]
        counts = Counter(ended.outcome for ended in members)
        cells = [len(members), *(counts[outcome] for outcome in ("valid", "refused", "defect"))]
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} | {max(ended.seconds for ended in members):.1f} |")
    return lines


def page(inside: Sequence[tuple[Case, Ended]], outside: Sequence[tuple[Case, Ended]], seed: int) -> str:
    """Return the generated part of docs/inputs.md."""
    lines = [
        f"Seed {seed}, {time.strftime('%Y-%m-%d')}. “Slowest” is the CPU time of one call in a process that has "
        "imported everything.",
        "",
        *table(inside, "mutated input, in one process"),
        "",
        *(table(outside, "mutated input, a process each") if outside else ()),
    ]
    return "\n".join(lines) + "\n"


def write(path: Path, part: str) -> None:
    """Exchange the generated part of the page."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{part}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.inputs", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--only", type=int, nargs="+")
    options = parser.parse_args(words)
    with new_place() as place:
        if options.only:
            for case_, ended in run(place, [case(options.seed, number) for number in options.only]):
                print(case_.change, case_.arguments, ended, sep="\n")
            return 0
        inside = run(place, [case(options.seed, number) for number in range(options.count)])
        outside = run(place, [case(options.seed + 1, number) for number in range(options.processes)], as_processes=True)
    if options.page:
        write(options.page, page(inside, outside, options.seed))
    print("\n".join(table([*inside, *outside], "input")))
    return int(any(ended.outcome == "defect" for _, ended in [*inside, *outside]))


if __name__ == "__main__":
    sys.exit(main())
