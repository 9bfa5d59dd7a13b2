"""Give mutated files of every format to their readers and count how they end.

    python -m tests.foreign [--count 2000] [--seed 0] [--kind "export: runs.json"]

It ends with exit code 1 if there is a defect: a traceback, another exit code than 0, 1 and 2, a control character in
what is printed, more than 60 CPU seconds, or too much memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.foreign import samples
from tests.foreign.cases import KINDS, run
from tests.inputs.harness import Ended, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.foreign")
    parser.add_argument("--count", type=int, default=520, help="number of cases, over all formats")
    parser.add_argument("--seed", type=int, default=0, help="the first case of each format")
    parser.add_argument("--kind", choices=KINDS, help="only this format")
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else list(KINDS)
    results = list[tuple[str, Ended]]()
    with tempfile.TemporaryDirectory() as name:
        root, work = Path(name, "samples"), Path(name, "work")
        samples.make(root)
        for number in range(options.count):
            kind, seed = kinds[number % len(kinds)], options.seed + number // len(kinds)
            what, ended = run(root, work, kind, seed)
            results.append((kind, ended))
            if ended.outcome == "defect":
                print(f"defect: {kind} {seed}: {what}: {ended.reason}", flush=True)
    print("\n".join(table(results, "mutated file")))
    return int(any(ended.outcome == "defect" for _, ended in results))


if __name__ == "__main__":
    sys.exit(main())
