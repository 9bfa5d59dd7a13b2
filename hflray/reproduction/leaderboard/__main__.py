"""``python -m hflray.reproduction.leaderboard EXPORTS``: write what the shipped schedulers needed, from exports."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hflray.report.exports import read_exhibit
from hflray.reproduction.leaderboard.scheduling import FILE, collect
from hflray.support.files import write


def main() -> None:
    """Write ``scheduling.json``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("exports", type=Path, help="the exports of benchmark_scheduling.yaml")
    content = collect(read_exhibit(parser.parse_args().exports))
    write(FILE, json.dumps(content, indent=1) + "\n")
    print(f"{FILE}: {', '.join(content['schedulers'])}")


if __name__ == "__main__":
    main()
