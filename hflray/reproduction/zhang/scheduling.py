"""Figures 3 and 4: test accuracy by round of IKC, VKC and FedAvg at H = 10, 30, 50 and 70, means of five runs.

At one H, the three schedulers are compared on the same seeds and up to the last round that all of them have. Across
values of H, the runs of all of them have the same seeds and rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Generic

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hflray import metrics
from hflray.report.labels import DATA, ORDER, H, pretty
from hflray.report.runs import Run, Sweep
from hflray.reproduction.evidence import (
    Claim,
    Comparison,
    Finding,
    Gap,
    K,
    Needs,
    NotTested,
    Part,
    compare_fairly,
    gap_over_seeds,
    join_names,
    select_alike,
    split,
)

MARGIN = 0.5  # points of accuracy; two curves whose 95 % interval is within ± this are a tie
TARGETS = {"fashion_mnist": 0.875, "cifar10": 0.56}
FREE = (H, "scheduling.name")
Key = tuple[int | str, str]  # H and the scheduler
Statistic = Callable[[int | str, Sequence[int]], float]  # of H and the positions of the seeds that count


def compare_per_h(sweep: Sweep, needs: Needs) -> tuple[dict[int | str, Comparison[str]], list[str], list[str]]:
    """Return the comparison of the schedulers at each H, the missing evidence, and the unused runs.

    Raises:
        NotTested: no H has the least evidence.
    """
    runs, dropped = select_alike(sweep.runs, FREE)
    by_h = split(runs, H)
    comparisons, reasons = {}, []
    for h, members in by_h.items():
        by_name = split(members, "scheduling.name")
        names = {name: f"{pretty(name)} at H = {h}" for name in needs.contestants}
        groups = {name: by_name.get(name, []) for name in names}
        try:
            comparisons[h] = compare_fairly(groups, needs, metrics.ACCURACY, names)
        except NotTested as reason:
            reasons.append(str(reason))
    if not comparisons:
        contestants = join_names([pretty(name) for name in needs.contestants])
        raise NotTested("; ".join(reasons) or f"needs runs of {contestants}")
    dropped += [run for comparison in comparisons.values() for run in comparison.dropped]
    return comparisons, reasons + describe_absent(needs, list(by_h)), dropped


def describe_absent(needs: Needs, available: Sequence[int | str]) -> list[str]:
    """Return the values of H that a claim is about and no run has, as text."""
    absent = [str(h) for h in needs.scheduled if h not in available]
    return [f"H = {', '.join(absent)}"] if absent else []


def _describe_evidence(comparisons: dict[int | str, Comparison[str]]) -> str:
    """Return the seeds and rounds by H; values of H with the same ones are listed together."""
    groups: dict[str, list[str]] = {}
    for h, comparison in comparisons.items():
        groups.setdefault(comparison.coverage, []).append(str(h))
    return "; ".join(f"H = {', '.join(values)}: {coverage}" for coverage, values in groups.items())


def _runs(comparisons: dict[int | str, Comparison[str]]) -> list[Run]:
    return [run for comparison in comparisons.values() for run in comparison.runs]


def curve_lies_above(sweep: Sweep, needs: Needs) -> Finding:
    """Test whether IKC's curve lies above the others': by the mean over the rounds, and in more than half of them.

    Means over the rounds whose difference is within `MARGIN` are a tie.
    """
    comparisons, missing, dropped = compare_per_h(sweep, needs)
    texts, parts = [], []
    for h, comparison in comparisons.items():
        gaps = []
        for other in ("vkc", "fedavg"):
            own_means, other_means = (
                [100 * values.mean() for values in comparison.each(name, metrics.ACCURACY)] for name in ("ikc", other)
            )
            gap = Gap.of(own_means, other_means, margin=MARGIN)
            curves = [comparison.curve(name, metrics.ACCURACY)["mean"] for name in ("ikc", other)]
            both = (curves[0] - curves[1]).dropna()
            higher = int((both > 0).sum())
            gaps.append(f"{gap.text()} points over {pretty(other)}{gap.note}, higher in {higher} of {len(both)} rounds")
            crosses = gap.above and 2 * higher <= len(both)
            parts.append(Part(False, comparison.whole) if crosses else Part.of(gap, 1, comparison.whole))
        texts.append(f"H = {h}: {' and '.join(gaps)}")
    return Finding("; ".join(texts), parts, _describe_evidence(comparisons), _runs(comparisons), missing, dropped)


def deciding_text(level: float, curves: Sequence[pd.Series[float]]) -> str:
    """Return an accuracy in percent with the digits that decide: at the printed one, each curve needs as many rounds.

    It has at least one decimal and is rounded down, because rounding up could make it one that no curve reaches.
    """

    def first_rounds(value: float) -> list[int]:
        return [int((curve >= value).to_numpy().argmax()) if (curve >= value).any() else -1 for curve in curves]

    for decimals in range(1, 12):
        printed = math.floor(level * 10 ** (decimals + 2) + 1e-6) / 10 ** (decimals + 2)
        if first_rounds(printed) == first_rounds(level):
            break
    return f"{printed:.{decimals}%}"


@dataclass(frozen=True, eq=False)
class RoundsToLevel(Generic[K]):
    """The rounds that each run of several contestants needs to one accuracy.

    This accuracy is the target, or the highest that all runs reached if that is lower, so that no run misses it.

    Attributes:
        curves: each contestant's accuracies by round, one series per seed, with the seeds in the same order for all.
        target: the target accuracy.
    """

    curves: Mapping[K, Sequence[pd.Series[float]]]
    target: float

    @classmethod
    def of(cls, comparison: Comparison[K]) -> RoundsToLevel[K]:
        """Return the rounds of a comparison's runs; the target is that of their data set."""
        curves = {key: comparison.each(key, metrics.ACCURACY) for key in comparison.groups}
        return cls(curves, TARGETS.get(comparison.runs[0].config.data.name, 1.0))

    @property
    def _all(self) -> list[pd.Series[float]]:
        return [curve for curves in self.curves.values() for curve in curves]

    @cached_property
    def level(self) -> float:
        """The accuracy."""
        return min(self.target, *(float(curve.max()) for curve in self._all))

    @property
    def level_text(self) -> str:
        """The accuracy as text."""
        return deciding_text(self.level, self._all)

    def counts(self, key: K) -> list[int]:
        """Return the first round in which each run of a contestant has the accuracy."""
        return [int(curve.index[curve >= self.level][0]) for curve in self.curves[key]]

    def mean(self, key: K) -> float:
        """Return the mean of `counts` over the seeds."""
        return float(np.mean(self.counts(key)))

    def gap(self, one: K, other: K) -> Gap:
        """Return the rounds of `one` less those of `other`, paired by seed."""
        return Gap.of(self.counts(one), self.counts(other))


def reaches_sooner(sweep: Sweep, needs: Needs) -> Finding:
    """Test whether the rounds to an accuracy are IKC ≤ VKC ≤ FedAvg, where IKC and FedAvg must differ.

    The accuracy is that of `RoundsToLevel`. If it is not the target, the answer is "so far" at most.
    """
    comparisons, missing, dropped = compare_per_h(sweep, needs)
    texts, parts = [], []
    for h, comparison in comparisons.items():
        rounds = RoundsToLevel.of(comparison)
        names = needs.contestants
        short, gaps = rounds.level < rounds.target, []
        lower = f", the highest that all runs reached (the target is {rounds.target:.1%})" if short else ""
        for sooner, later in (*pairwise(names), (names[0], names[-1])):
            gap = rounds.gap(later, sooner)
            gaps.append(f"{pretty(later)} − {pretty(sooner)} {gap.text('{:+.1f}')}{gap.note}")
            may_tie = (sooner, later) != (names[0], names[-1])
            whole = comparison.whole and not short
            parts.append(Part(True, whole, gap) if may_tie and gap.tie else Part.of(gap, 1, whole))
        means = ", ".join(f"{pretty(name)} {rounds.mean(name):.1f}" for name in names)
        texts.append(f"H = {h}: {means} rounds to {rounds.level_text}{lower}; {', '.join(gaps)}")
    return Finding("; ".join(texts), parts, _describe_evidence(comparisons), _runs(comparisons), missing, dropped)


@dataclass(frozen=True)
class AcrossH:
    """The comparison of runs at several values of H, see `compare_across_h`.

    Attributes:
        values: the compared values of H.
        comparison: the comparable runs by H and scheduler.
        missing: the missing evidence.
        dropped: runs that were not used, each with the reason.
    """

    values: list[int | str]
    comparison: Comparison[Key]
    missing: list[str]
    dropped: list[str]

    def finding(self, ours: str, parts: Sequence[Part]) -> Finding:
        """Return the finding with our numbers and these parts."""
        evidence = f"H = {', '.join(map(str, self.values))}: {self.comparison.coverage}"
        dropped = self.dropped + self.comparison.dropped
        return Finding(ours, parts, evidence, self.comparison.runs, self.missing, dropped)


def compare_across_h(runs: Sequence[Run], needs: Needs) -> AcrossH:
    """Return the comparison of the values of H that have the least evidence, on the same seeds and rounds.

    Raises:
        NotTested: fewer than `Needs.least_scheduled` values of H have the least evidence.
    """
    usable: dict[Key, list[Run]] = {}
    values: list[int | str] = []
    missing: list[str] = []
    names: dict[Key, str] = {}
    for h, members in split(runs, H).items():
        by_name = split(members, "scheduling.name")
        groups = {(h, name): by_name.get(name, []) for name in needs.contestants}
        names |= {key: f"{pretty(key[1])} at H = {h}" for key in groups}
        try:
            compare_fairly(groups, needs, metrics.ACCURACY, names)
        except NotTested as reason:
            missing.append(str(reason))
            continue
        usable |= groups
        values.append(h)
    if len(values) < needs.least_scheduled:
        available = f"; there is H = {', '.join(map(str, values))}" if values else ""
        details = f": {'; '.join(missing)}" if missing else ""
        contestants = join_names([pretty(name) for name in needs.contestants])
        raise NotTested(f"needs {contestants} at {needs.least_scheduled} values of H{available}{details}")
    comparison = compare_fairly(usable, needs, metrics.ACCURACY, names)
    # `missing` already gives the reason of each H that has runs but not the least evidence.
    return AcrossH(values, comparison, missing + describe_absent(needs, list(split(runs, H))), [])


def difference_shrinks(sweep: Sweep, needs: Needs) -> Finding:
    """Test whether the highest minus the lowest of the three curves, as a mean over the rounds, shrinks with H."""
    runs, dropped = select_alike(sweep.runs, FREE)
    across = compare_across_h(runs, needs)
    tables = {h: np.array([_table(across, h, name) for name in needs.contestants]) for h in across.values}

    def span(h: int | str, seeds: Sequence[int]) -> float:
        curves = tables[h][:, list(seeds)].mean(axis=1)
        return float((curves.max(axis=0) - curves.min(axis=0)).mean())

    text, parts = _falling_over_seeds(across, span, "{:.2f}")
    finding = across.finding(
        f"the highest minus the lowest of the three in points, mean over the rounds: {text}", parts
    )
    return replace(finding, dropped=[*dropped, *finding.dropped])


def _table(across: AcrossH, h: int | str, name: str) -> NDArray[np.float64]:
    """Return the accuracies of a scheduler's runs in points, (seeds, rounds)."""
    return 100 * np.array([values.to_numpy() for values in across.comparison.each((h, name), metrics.ACCURACY)])


def _falling_over_seeds(across: AcrossH, statistic: Statistic, form: str) -> tuple[str, list[Part]]:
    """Return a statistic of all seeds at each H as text, and a part for each H but the first.

    A part agrees if the value is below that of the next lower H and the 95 % interval of the difference excludes 0.
    """
    count = len(across.comparison.seeds)
    texts = [f"H = {h}: {form.format(statistic(h, range(count)))}" for h in across.values]
    parts = []
    for number, (before, h) in enumerate(pairwise(across.values), 1):
        gap = gap_over_seeds(partial(_change, statistic, before, h), count)
        parts.append(Part.of(gap, -1, across.comparison.whole))
        texts[number] += gap.note
    return ", ".join(texts), parts


def _change(statistic: Statistic, before: int | str, h: int | str, seeds: Sequence[int]) -> float:
    return statistic(h, seeds) - statistic(before, seeds)


def _per_scheduler(
    sweep: Sweep, needs: Needs, quantity: str, measure: Callable[[AcrossH, str], tuple[str, list[Part]]]
) -> Finding:
    """Test a claim on H for each scheduler on each data set with the least evidence; the others are missing."""
    runs, dropped = select_alike(sweep.runs, (*FREE, DATA))
    by_data = split(runs, DATA)
    texts: list[str] = []
    missing: list[str] = []
    findings: list[Finding] = []
    labels: dict[str, list[str]] = {}
    for data in needs.data or by_data:
        for name in needs.contestants:
            members = [run for run in by_data.get(data, []) if run.config.scheduling.name == name]
            label = f"{pretty(data)}, {pretty(name)}" if len(by_data) > 1 else pretty(name)
            try:
                across = compare_across_h(members, replace(needs, contestants=(name,)))
            except NotTested as reason:
                missing.append(f"{reason} ({pretty(data)})" if len(needs.data) > 1 else str(reason))
                continue
            text, parts = measure(across, name)
            texts.append(f"{label}: {text}")
            findings.append(across.finding("", parts))
            labels.setdefault(findings[-1].evidence, []).append(label)
    if not findings:
        other_names = [pretty(name) for name in needs.contestants[1:]]
        first = missing[0] if missing else f"needs runs of {pretty(needs.contestants[0])}"
        raise NotTested(f"{first}{f'; and as much of {join_names(other_names)}' if other_names else ''}")
    missing = [*dict.fromkeys(text for finding in findings for text in finding.missing), *missing]
    evidence = "; ".join(f"{', '.join(names)}, {coverage}" for coverage, names in labels.items())
    parts = [part for finding in findings for part in finding.parts]
    used = [run for finding in findings for run in finding.runs]
    dropped += [text for finding in findings for text in finding.dropped]
    return Finding(f"{quantity}: {'; '.join(texts)}", parts, evidence, used, missing, dropped)


def rounds_fall(sweep: Sweep, needs: Needs) -> Finding:
    """Test whether the rounds to the accuracy of `RoundsToLevel` fall with H."""

    def rounds(across: AcrossH, name: str) -> tuple[str, list[Part]]:
        counted = RoundsToLevel.of(across.comparison)
        keys: list[Key] = [(h, name) for h in across.values]
        texts, parts = [f"H = {h}: {counted.mean((h, name)):.1f}" for h in across.values], []
        for number, (before, key) in enumerate(pairwise(keys), 1):
            gap = counted.gap(key, before)
            parts.append(Part.of(gap, -1, across.comparison.whole))
            texts[number] += f" ({gap.text('{:+.1f}')}{f', {gap.verdict}' if gap.verdict else ''})"
        return f"{', '.join(texts)} (to {counted.level_text})", parts

    return _per_scheduler(sweep, needs, "rounds to one accuracy", rounds)


def spread_falls(sweep: Sweep, needs: Needs) -> Finding:
    """Test whether the standard deviation of the accuracy over the seeds falls with H."""

    def spreads(across: AcrossH, name: str) -> tuple[str, list[Part]]:
        tables = {h: _table(across, h, name) for h in across.values}

        def spread(h: int | str, seeds: Sequence[int]) -> float:
            return float(tables[h][list(seeds)].std(axis=0, ddof=1).mean()) if len(seeds) > 1 else math.nan

        return _falling_over_seeds(across, spread, "{:.3f}")

    return _per_scheduler(sweep, needs, "standard deviation of the accuracy in points", spreads)


UNEVEN = (
    "our partition gives every device the same majority share, and the paper does not say how it drew the rest; "
    "Figure 3 with unlike shares has a wider lead over FedAvg, and shows none over VKC"
)
LATE_LEVEL = (
    "the accuracy is the highest that all runs reached, where curves are flat, so that a small gap between two of them "
    "moves the round by many; runs of more seeds test this"
)


def claims_with_unlike_shares(rounds: int) -> tuple[Claim, ...]:
    """Return the claims on the order of the three curves, for runs at H = 10 whose majority shares differ.

    They test the guess `UNEVEN`: if it is right, the claims that our partition contradicts hold here.

    Args:
        rounds: number of rounds of the paper's runs, see `claims`.
    """
    return _claims_on_order(Needs(2, 5, rounds // 3, rounds, "rounds", ORDER, 1, (10,)))


def _claims_on_order(needs: Needs, curve_guess: str = "", rounds_guess: str = "") -> tuple[Claim, ...]:
    return (
        Claim("IKC's learning curve lies above VKC's and FedAvg's", needs, curve_lies_above, curve_guess),
        Claim("rounds to the target accuracy: IKC ≤ VKC ≤ FedAvg", needs, reaches_sooner, rounds_guess),
    )


def claims(rounds: int) -> tuple[Claim, ...]:
    """Return the claims about Figure 3 or 4.

    Args:
        rounds: number of rounds of the paper's runs, which is the whole evidence. A third of them is the least
            evidence, because before that the curves still climb and cross each other. One seed has no spread, so that
            nothing is tested with it.
    """
    single_h = Needs(2, 5, rounds // 3, rounds, "rounds", ORDER, 1, (10, 30, 50, 70))
    several_h = replace(single_h, least_scheduled=2)
    return (
        *_claims_on_order(single_h, UNEVEN, LATE_LEVEL),
        Claim("the difference between the three shrinks as H grows", several_h, difference_shrinks),
        Claim("more scheduled devices reach the same accuracy in fewer rounds", several_h, rounds_fall),
        Claim(
            "more scheduled devices: a smaller spread over the five runs",
            several_h,
            spread_falls,
        ),
    )
