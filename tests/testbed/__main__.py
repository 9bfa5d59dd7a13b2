"""``python -m tests.testbed``: play the plans of `tests.testbed.plans` on this machine, and write the log."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch; each device has a part of one core

from hflray.errors import HflrayError
from tests.testbed.plans import BRIEF, BRIEF_ROUNDS, LONG, LONG_ROUNDS


def main() -> int:
    """Play, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed", description=(
        "Play rounds of 8 devices, 2 edges and a cloud as processes in network namespaces of this machine, with real "
        "training and real TCP, and write the log in the format of hflray calibrate. It needs root, iproute2 and the "
        "cpu controller of cgroup v1, and two cores; it takes about 12 minutes, and removes what it made."
    ))  # fmt: skip
    parser.add_argument("-o", "--out", type=Path, default=Path("testbed.csv.gz"), help="the log, .csv or .csv.gz")
    parser.add_argument("--short", action="store_true", help="one round of three configurations, in half a minute")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = dict.fromkeys(LONG, LONG_ROUNDS) | dict.fromkeys(BRIEF, BRIEF_ROUNDS)
    try:
        if words.out.is_dir() or not words.out.parent.is_dir():
            raise HflrayError(
                f"--out: got {words.out}; accepted: the path of a file in a folder that exists; correct it"
            )
        from tests.testbed.play import play

        log = play(dict.fromkeys((LONG[0], LONG[1], LONG[4]), 1) if words.short else rounds)
    except HflrayError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    log.to_csv(words.out, index=False, float_format="%.6g")
    print(f"{words.out}: {len(log):,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
