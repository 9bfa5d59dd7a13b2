"""What the shipped schedulers need, written into the leaderboard from the exports of benchmark_scheduling.yaml.

python -m tests.reproduction.leaderboard_values
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hflray.report.exports import read_exhibit
from hflray.report.ranking import spent
from hflray.report.runs import SweepRecord, has_reached
from hflray.reproduction.leaderboard import FILE, SEEDS, SPENT

EXPORTS = Path(__file__).parents[1] / "data" / "results" / "benchmark_scheduling"


def collect(sweep: SweepRecord) -> dict[str, Any]:
    """Return what the runs of the benchmark's sweep needed on the instances of this leaderboard, ready for JSON."""
    schedulers: dict[str, dict[int, dict[str, float | None]]] = {}
    for run in sweep.runs:
        config = run.config
        is_instance = (config.data.name, config.data.majority_fraction, config.assignment.name) == (
            "digits", 0.8, "local_search",
        )  # fmt: skip
        options = config.scheduling.options
        if is_instance and run.ended and (not options or options == {"max_wait": 2}):
            needed = {quantity: spent(run, quantity) for quantity in SPENT}
            row = {quantity: value if np.isfinite(value) else None for quantity, value in needed.items()}
            schedulers.setdefault(config.scheduling.name, {})[config.seed] = row | {"reached": float(has_reached(run))}
    whole = {name: rows for name, rows in schedulers.items() if set(rows) == set(SEEDS)}
    return {
        "schedulers": {
            name: {quantity: [rows[seed][quantity] for seed in SEEDS] for quantity in (*SPENT, "reached")}
            for name, rows in sorted(whole.items())
        }
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(collect(read_exhibit(EXPORTS)), indent=1) + "\n", encoding="utf-8")
