"""TSDP: the assignment of the shortest round with equal shares of the bandwidth (Gau, Wang, Liu: "Twin sorting dynamic
programming assisted user association and wireless bandwidth allocation for hierarchical federated learning", 2024,
arXiv 2408.09076). We know its abstract: a global optimum in polynomial time with two edge servers, an algorithm that
uses it for three and more, and better results than a number of alternatives.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hflray import metrics
from hflray.report import figures
from hflray.report.labels import pretty
from hflray.report.runs import Run, Sweep
from hflray.reproduction.contests import Contest
from hflray.reproduction.evidence import (
    Claim,
    Comparison,
    Finding,
    Gap,
    Needs,
    NotTested,
    Part,
    compare_fairly,
    join_names,
)
from hflray.reproduction.exhibits import Exhibit
from hflray.reproduction.papers import Paper
from hflray.support.references import short

OURS, ALL = "TwinSorting", "Exhaustive"
SAME = 1e-9  # relative difference of two delays that are equal but for rounding
EDGES, DEVICES = "fleet.num_edges", "scheduling.num_scheduled"


def _edges(run: Run) -> str:
    return f"{run.config.fleet.num_edges} edges"


def _assigner(run: Run) -> str:
    return pretty(short(run.config.assignment.name))


CONTEST = Contest((EDGES, DEVICES, "assignment."), case_of=_edges, name_of=_assigner)


def _compared(sweep: Sweep, needs: Needs, case: str, names: list[str]) -> tuple[Comparison[str], list[str]]:
    cases, dropped = CONTEST.cases(sweep)
    runs = cases.get(case, {})
    names = names or [OURS, *(name for name in runs if name != OURS)]
    if len(names) < 2:
        raise NotTested(f"needs {OURS} and another assigner at {case}")
    groups = {name: runs.get(name, []) for name in names}
    return compare_fairly(groups, needs, metrics.ROUND_DELAY_S, {name: f"{name}, {case}" for name in names}), dropped


def is_optimal(sweep: Sweep, needs: Needs, case: str) -> Finding:
    """Test whether the round delay of `OURS` is that of the best of all assignments on each fleet."""
    comparison, dropped = _compared(sweep, needs, case, [OURS, ALL])
    delay_s, least_s = (np.concatenate(comparison.each(name, metrics.ROUND_DELAY_S)) for name in (OURS, ALL))
    ratio = delay_s / least_s
    hits = int((ratio <= 1 + SAME).sum())
    rest = f"; {100 * (ratio.max() - 1):.2f} % above it at worst" if hits < len(ratio) else ""
    below = f"; below it on {int((ratio < 1 - SAME).sum())}" if (ratio < 1 - SAME).any() else ""
    text = f"the best of all assignments on {hits:,} of {len(ratio):,} fleets{rest}{below}"
    parts = [Part(hits == len(ratio) and not below, comparison.whole)]
    return Finding(text, parts, f"{case}, {comparison.coverage}", comparison.runs, (), [*dropped, *comparison.dropped])


def is_fastest(sweep: Sweep, needs: Needs, case: str) -> Finding:
    """Test whether `OURS` has the least mean round delay, by the paired differences over the fleets."""
    comparison, dropped = _compared(sweep, needs, case, [])
    values = {name: np.concatenate(comparison.each(name, metrics.ROUND_DELAY_S)) for name in comparison.groups}
    ordered = sorted(values.items(), key=lambda item: item[1].mean())
    text = join_names([f"{name} {each.mean():.1f} s" for name, each in ordered[:4]])
    text += f"; and {len(ordered) - 4} more, from {ordered[4][1].mean():.1f} s" if len(ordered) > 4 else ""
    gaps = [Gap.of(list(values[OURS]), list(each)) for name, each in values.items() if name != OURS]
    parts = [Part.of(gap, -1, comparison.whole) for gap in gaps]
    return Finding(text, parts, f"{case}, {comparison.coverage}", comparison.runs, (), [*dropped, *comparison.dropped])


def needs(fleets: int, least: int) -> Needs:
    """Return the evidence of so many fleets of one seed."""
    return Needs(seeds=1, least_steps=least, steps=fleets, unit="fleets")


BEST = (
    Claim(
        "with two edges and equal shares the round is the shortest of all, in polynomial time",
        needs(1000, 100),
        partial(is_optimal, case="2 edges"),
    ),
    Claim(
        "(ours, the paper claims no optimum) with three edges, pair by pair, the round is the shortest of all",
        needs(1000, 100),
        partial(is_optimal, case="3 edges"),
        "two edges at a time can be stuck where three devices would have to move",
    ),
)
FASTEST = (
    Claim(
        "with more edges the round is shorter than those of other assigners",
        needs(100, 30),
        partial(is_fastest, case="5 edges"),
    ),
)
EXHIBITS = {
    "tsdp": Exhibit(
        "Two and three edges", "tsdp", "the round's delay beside that of every assignment",
        {"tsdp": figures.assignment_bars}, BEST,
    ),
    "tsdp_large": Exhibit(
        "Five edges", "tsdp_large", "the round's delay beside those of other assigners",
        {"tsdp_large": figures.assignment_bars}, FASTEST,
    ),
}  # fmt: skip
PAPER = Paper(
    name="tsdp",
    title="Twin sorting dynamic programming for hierarchical federated learning (TSDP)",
    source="arXiv 2408.09076",
    about="the assignment of the shortest round with two edges, against all assignments",
    takes=("about 4 minutes", "the same"),
    full=EXHIBITS,
    quick=EXHIBITS,
)
