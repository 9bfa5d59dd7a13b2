"""The answers of docs/results/world.md as Markdown tables, from the committed exports of the sweeps world_*.

    python -m tests.world.answers [--folder tests/data/results]

A row is a setting over its seeds. ± precedes the standard deviation over seeds. After a × stand ratios to the run of
the same seed with one setting as in `QUESTIONS`: their median, least and greatest. What is needed to the target is of
the runs that reached it, whose number stands beside it where some did not.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hflray import metrics
from hflray.report.exports import exports, read_exhibit
from hflray.report.runs import RunRecord, SweepRecord

RESULTS = Path(__file__).parents[1] / "data" / "results"
RATE, NOTICED, ONCE = "world.dropout.rate_per_s", "world.dropout.noticed_after_s", "assignment.once"
# The settings of a row, and those that differ in the run it is compared with, with their values there.
QUESTIONS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "world_dropout": (("scheduling.name", RATE, NOTICED), {RATE: "0.0", NOTICED: "0.0"}),
    "world_mobility": (("world.mobility.options.speed_m_per_s", "world.mobility.links", ONCE), {ONCE: "False"}),
    "world_edges": (("world.edge_failure.trace", ONCE), {ONCE: "False"}),
    "world_deadline": (("clock.edge.deadline",), {"clock.edge.deadline": "2.0"}),
    "world_battery": (("world.battery.capacity_j", "scheduling.name"), {"scheduling.name": "ikc"}),
}
TARGET = 0.88
HEAD = ("accuracy, %", "difference", "seconds to it", "joules to it")
BETWEEN = {"0.02341", "0.04959"}  # rates of dropout between none and the highest, which the page leaves out


class Ends(NamedTuple):
    """The accuracy at a run's end, and what it needed to the target, infinite if it did not reach it."""

    accuracy: float
    seconds_to: float
    joules_to: float


def ends_of(run: RunRecord) -> Ends:
    """Return what a run needed."""
    table = run.rounds
    last, reached = table.iloc[-1], table[table[metrics.ACCURACY] >= TARGET]
    needed = (np.inf, np.inf)
    if len(reached):
        first = reached.iloc[0]
        needed = (first[metrics.TOTAL_DELAY_S], first[metrics.TOTAL_ENERGY_J])
    return Ends(100 * last[metrics.ACCURACY], *needed)


def value(run: RunRecord, key: str) -> str:
    """Return a setting of a run by its dotted key."""
    found = run.config.model_dump(mode="json")
    for part in key.split("."):
        found = found[part]
    return str(found)


def spread(values: list[float], digits: int = 1) -> str:
    """Return mean and standard deviation of the finite values, or a dash without any."""
    finite = [one for one in values if np.isfinite(one)]
    if not finite:
        return "–"
    return f"{np.mean(finite):.{digits}f}" + (f" ± {np.std(finite, ddof=1):.{digits}f}" if len(finite) > 1 else "")


def ratio(pairs: list[tuple[float, float]]) -> str:
    """Return median, least and greatest of the finite ratios, or a dash without any."""
    ratios = [one / other for one, other in pairs if np.isfinite(one) and np.isfinite(other)]
    return f"× {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "–"


def table(sweep: SweepRecord) -> str:
    """Return a sweep's table."""
    keys, reference = QUESTIONS[sweep.name]
    groups: dict[tuple[str, ...], dict[int, Ends]] = defaultdict(dict)
    for run in sweep.runs:
        if len(run.rounds) == run.config.max_rounds and str(run.config.world.dropout.rate_per_s) not in BETWEEN:
            groups[tuple(value(run, key) for key in keys)][run.config.seed] = ends_of(run)
    names = [key.removesuffix(".name").rpartition(".")[2] for key in keys]
    lines = [f"| {' | '.join((*names, *HEAD))} |", f"|{'---|' * len(keys)}{'--:|' * len(HEAD)}"]
    for group in sorted(groups, key=lambda names: [(float(n), "") if n[0].isdigit() else (-1, n) for n in names]):
        runs = groups[group]
        beside = groups.get(tuple(reference.get(key, name) for key, name in zip(keys, group, strict=True)))
        pairs = [(runs[seed], beside[seed]) for seed in runs if seed in beside] if beside and beside is not runs else []
        accuracy, seconds_to, joules_to = map(list, zip(*runs.values(), strict=True))
        reached = int(np.isfinite(seconds_to).sum())
        missed = f", {reached} of {len(runs)} reach it" if reached < len(runs) else ""
        seconds, joules = spread(seconds_to, 0), spread(joules_to)
        if pairs:
            seconds = ratio([(one.seconds_to, other.seconds_to) for one, other in pairs])
            joules = ratio([(one.joules_to, other.joules_to) for one, other in pairs])
        cells = (
            spread(accuracy), spread([one.accuracy - other.accuracy for one, other in pairs]), seconds + missed, joules,
        )  # fmt: skip
        lines.append(f"| {' | '.join((*group, *cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=RESULTS, help="the exports")
    arguments = parser.parse_args()
    for folder in exports(arguments.folder):
        if folder.name in QUESTIONS:
            print(f"## {folder.name}\n\n{table(read_exhibit(folder))}\n")


if __name__ == "__main__":
    main()
