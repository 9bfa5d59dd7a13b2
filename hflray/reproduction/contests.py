"""Claims that one contestant is above another, in each of several cases, as papers on local rules and on periods make.

A claim compares contestants that `Contest.name_of` names, such as local rules. Each case of `Contest.case_of`, such as
a partition, is a contest of its own on the same seeds, and all of them have to agree. Two measures decide: the
accuracy, as a mean over the rounds, which says who learns faster, or at its best or last; and what a run has spent when
it reached an accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.report.runs import Run, Sweep
from hflray.reproduction.evidence import (
    Comparison,
    Finding,
    Gap,
    Needs,
    NotTested,
    Part,
    compare_fairly,
    join_names,
    select_alike,
)

Measure = Literal["mean", "best", "last"]
MEASURES: dict[Measure, Callable[[pd.Series[float]], float]] = {
    "mean": lambda values: float(values.mean()),
    "best": lambda values: float(values.max()),
    "last": lambda values: float(values.iloc[-1]),
}
MARGIN = 0.5  # points of accuracy; two curves whose 95 % interval is within ± this are a tie
UNITS = {metrics.TOTAL_DELAY_S: "s", metrics.TOTAL_ENERGY_J: "J", metrics.TOTAL_MESSAGE_BITS: "bits"}


@dataclass(frozen=True)
class Contest:
    """What is compared within what.

    Attributes:
        free: the dotted keys that may differ between contestants and cases; one that ends in a point is a section.
        case_of: the case of a run.
        name_of: the contestant that a run is; an empty name if it is none.
    """

    free: tuple[str, ...]
    case_of: Callable[[Run], str]
    name_of: Callable[[Run], str]

    def cases(self, sweep: Sweep) -> tuple[dict[str, dict[str, list[Run]]], list[str]]:
        """Return the runs by case and contestant, and the names of the unused runs with the reason."""
        runs, dropped = select_alike(sweep.runs, self.free)
        cases: dict[str, dict[str, list[Run]]] = {}
        for run in runs:
            if name := self.name_of(run):
                cases.setdefault(self.case_of(run), {}).setdefault(name, []).append(run)
        return cases, dropped


def learns_faster(
    sweep: Sweep, needs: Needs, *, contest: Contest, pairs: Sequence[tuple[str, str]], cases: Sequence[str],
    by: Measure = "mean",
) -> Finding:  # fmt: skip
    """Test whether the first of each pair has the higher accuracy in each of the cases.

    The accuracy is its mean over the rounds, the best or the last one, on the rounds that both have.

    A pair whose interval is within ± `MARGIN` points is a tie, which does not agree.

    Raises:
        NotTested: no case has the least evidence.
    """
    return _each_case(sweep, needs, contest, pairs, cases, partial(_accuracy_gap, by=by))


def is_near(
    sweep: Sweep, needs: Needs, *, contest: Contest, pairs: Sequence[tuple[str, str]], cases: Sequence[str],
    within: float, by: Measure = "mean",
) -> Finding:  # fmt: skip
    """Test whether the two of each pair differ by at most `within` points, as `learns_faster` measures them.

    It is not settled while the interval reaches beyond on one side.
    """

    def near(comparison: Comparison[str], one: str, other: str) -> tuple[str, Part]:
        gap = _accuracy(comparison, one, other, by)
        beyond = Gap(abs(gap.mean) - within, gap.error, gap.count)
        return f"{gap.text()} points", Part.of(beyond, -1, comparison.whole)

    return _each_case(sweep, needs, contest, pairs, cases, near)


def spends_less(
    sweep: Sweep, needs: Needs, *, contest: Contest, pairs: Sequence[tuple[str, str]], cases: Sequence[str],
    metric: str, target: float,
) -> Finding:  # fmt: skip
    """Test whether the first of each pair has spent less when it reaches the accuracy `target`, in each of the cases.

    A run that misses the target is censored: it would have spent more than it has at its end. The order of a pair is
    uncertain where the censored value is the smaller one, and then nothing is settled.
    """

    def less(comparison: Comparison[str], one: str, other: str) -> tuple[str, Part]:
        first, second = (
            [_spent(run, metric, target, comparison.steps) for run in comparison.groups[name]] for name in (one, other)
        )
        uncertain = sum(
            (a < b and not a_reached) or (b < a and not b_reached) or not (a_reached or b_reached)
            for (a, a_reached), (b, b_reached) in zip(first, second, strict=True)
        )
        ratios = [np.log(a / b) for (a, _), (b, _) in zip(first, second, strict=True)]
        gap = Gap.of(ratios, [0.0] * len(ratios))
        missed = sum(not reached for _, reached in first + second)
        bound = f", with {missed} of {2 * len(ratios)} runs that miss it" if missed else ""
        medians = " and ".join(f"{np.median([value for value, _ in values]):,.0f}" for values in (first, second))
        text = f"{np.exp(gap.mean):.2f} times the {UNITS[metric]} (medians {medians}) to {target:.0%}{bound}"
        return text, Part(None, comparison.whole) if uncertain else Part.of(gap, -1, comparison.whole)

    return _each_case(sweep, needs, contest, pairs, cases, less)


def _spent(run: Run, metric: str, target: float, steps: int) -> tuple[float, bool]:
    """Return what a run has spent at the target, or after `steps` rounds, and whether it reached the target."""
    reached, values = run.reached(target), run.series(metric)
    if reached is not None and reached <= steps:
        return float(values.loc[reached]), True
    return float(values[values.index <= steps].iloc[-1]), False


def _accuracy(comparison: Comparison[str], one: str, other: str, by: Measure) -> Gap:
    measure = MEASURES[by]
    values = [[100 * measure(each) for each in comparison.each(name, metrics.ACCURACY)] for name in (one, other)]
    return Gap.of(*values, margin=MARGIN)


def _accuracy_gap(comparison: Comparison[str], one: str, other: str, by: Measure) -> tuple[str, Part]:
    gap = _accuracy(comparison, one, other, by)
    return f"{gap.text()} points{gap.note}", Part.of(gap, 1, comparison.whole)


def _each_case(
    sweep: Sweep, needs: Needs, contest: Contest, pairs: Sequence[tuple[str, str]], cases: Sequence[str],
    judge: Callable[[Comparison[str], str, str], tuple[str, Part]],
) -> Finding:  # fmt: skip
    """Judge each pair in each case on the seeds and rounds that both of the pair have."""
    by_case, dropped = contest.cases(sweep)
    texts: list[str] = []
    parts: list[Part] = []
    coverage: dict[str, list[str]] = {}
    used: dict[str, Run] = {}
    missing: list[str] = []
    for case in cases:
        for one, other in pairs:
            groups = {name: by_case.get(case, {}).get(name, []) for name in (one, other)}
            names = {name: f"{name}, {case}" for name in groups}
            try:
                comparison = compare_fairly(groups, needs, metrics.ACCURACY, names)
            except NotTested as reason:
                missing.append(str(reason))
                continue
            text, part = judge(comparison, one, other)
            label = f"{case}: {one} against {other}"
            texts.append(f"{label} {text}")
            parts.append(part)
            coverage.setdefault(comparison.coverage, []).append(label)
            used |= {run.full_name: run for run in comparison.runs}
            dropped += [text for text in comparison.dropped if text not in dropped]
    if not parts:
        raise NotTested(join_names(missing, "; "))
    evidence = "; ".join(
        f"{f'{len(labels)} comparisons' if len(labels) > 1 else labels[0]}: {each}" for each, labels in coverage.items()
    )
    return Finding("; ".join(texts), parts, evidence, list(used.values()), missing, dropped)
