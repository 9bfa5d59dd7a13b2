"""Figures 3 and 4: test accuracy by round of IKC, VKC and FedAvg at H = 10, 30, 50 and 70, means of five runs.

At one H the three are compared with the same seeds and up to the last round that all have. Across H the same holds of
all runs of all H together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hflray import metrics
from hflray.report.evidence import Claim, Fair, Finding, Gap, Needs, NotTested, Part, alike, fair, listed, split
from hflray.report.labels import DATA, ORDER, H, pretty
from hflray.report.runs import Run, Sweep

TARGETS = {"fashion_mnist": 0.875, "cifar10": 0.56}
FREE = (H, "scheduling.name")
Key = tuple[int | str, str]  # H and the scheduler


def per_h(sweep: Sweep, needs: Needs) -> tuple[dict[int | str, Fair[str]], list[str], list[str]]:
    """Of each H what can be compared fairly; what is missing; and the runs that were not used.

    Raises:
        NotTested: no H has the least evidence.
    """
    runs, dropped = alike(sweep.runs, FREE)
    there = split(runs, H)
    found, reasons = {}, []
    for h, here in there.items():
        by = split(here, "scheduling.name")
        names = {name: f"{pretty(name)} at H = {h}" for name in needs.contestants}
        try:
            found[h] = fair({name: by.get(name, []) for name in names}, needs, metrics.ACCURACY, names)
        except NotTested as reason:
            reasons.append(str(reason))
    if not found:
        raise NotTested("; ".join(reasons) or f"needs runs of {listed([pretty(name) for name in needs.contestants])}")
    return found, reasons + absent(needs, list(there)), dropped + [run for one in found.values() for run in one.dropped]


def absent(needs: Needs, there: Sequence[int | str]) -> list[str]:
    """The H of a claim that nothing is there for, in words."""
    none = [str(h) for h in needs.scheduled if h not in there]
    return [f"H = {', '.join(none)}"] if none else []


def _said(fairs: dict[int | str, Fair[str]]) -> str:
    """Seeds and rounds by H; the same of several H once."""
    by: dict[str, list[str]] = {}
    for h, one in fairs.items():
        by.setdefault(one.said, []).append(str(h))
    return "; ".join(f"H = {', '.join(values)}: {said}" for said, values in by.items())


def _runs(fairs: dict[int | str, Fair[str]]) -> list[Run]:
    return [run for one in fairs.values() for run in one.runs]


def above(sweep: Sweep, needs: Needs) -> Finding:
    """IKC's curve lies above the others': by the mean over the rounds, and in more than half of them."""
    fairs, missing, dropped = per_h(sweep, needs)
    texts, parts = [], []
    for h, one in fairs.items():
        said = []
        for other in ("vkc", "fedavg"):
            means = [[100 * values.mean() for values in one.each(name, metrics.ACCURACY)] for name in ("ikc", other)]
            gap = Gap.of(*means)
            curves = [one.curve(name, metrics.ACCURACY)["mean"] for name in ("ikc", other)]
            both = (curves[0] - curves[1]).dropna()
            higher = int((both > 0).sum())
            said.append(f"{gap.said()} points over {pretty(other)}, higher in {higher} of {len(both)} rounds")
            parts.append(Part(gap.above and 2 * higher > len(both), one.whole))
        texts.append(f"H = {h}: {' and '.join(said)}")
    return Finding("; ".join(texts), parts, _said(fairs), _runs(fairs), missing, dropped)


def target(runs: Sequence[Run]) -> float:
    """The target accuracy of the runs' data set."""
    return TARGETS.get(runs[0].config.data.name, 1.0)


def sooner(sweep: Sweep, needs: Needs) -> Finding:
    """Rounds to the target: IKC ≤ VKC ≤ FedAvg, of which IKC and FedAvg must differ.

    Where not all reach the target it is the highest accuracy that all reached, which cannot be a plain answer.
    """
    fairs, missing, dropped = per_h(sweep, needs)
    texts, parts = [], []
    for h, one in fairs.items():
        means = {name: one.curve(name, metrics.ACCURACY)["mean"] for name in needs.contestants}
        wanted = target(one.runs)
        level = min(wanted, *(float(mean.max()) for mean in means.values()))
        rounds = {name: int(mean.index[mean >= level][0]) for name, mean in means.items()}
        text = ", ".join(f"{pretty(name)} {count}" for name, count in rounds.items())
        tie = len(set(rounds.values())) == 1
        few = "" if level == wanted else f", the highest that all reached (the target is {wanted:.1%})"
        texts.append(f"H = {h}: {text} rounds to {level:.1%}{few}{', a tie' if tie else ''}")
        counts = list(rounds.values())
        parts.append(Part(counts == sorted(counts) and counts[0] < counts[-1], one.whole and level == wanted))
    return Finding("; ".join(texts), parts, _said(fairs), _runs(fairs), missing, dropped)


@dataclass(frozen=True)
class Across:
    """Runs of several H that can be compared fairly, see `across`."""

    values: list[int | str]
    fair: Fair[Key]
    missing: list[str]
    dropped: list[str]

    def finding(self, ours: str, parts: Sequence[Part]) -> Finding:
        """What they say."""
        evidence = f"H = {', '.join(map(str, self.values))}: {self.fair.said}"
        return Finding(ours, parts, evidence, self.fair.runs, self.missing, self.dropped + self.fair.dropped)


def across(runs: Sequence[Run], needs: Needs) -> Across:
    """The H that have the least evidence, made comparable: the same seeds and rounds at all of them.

    Raises:
        NotTested: there are fewer than `Needs.least_scheduled`.
    """
    usable: dict[Key, list[Run]] = {}
    there: list[int | str] = []
    missing: list[str] = []
    names: dict[Key, str] = {}
    for h, here in split(runs, H).items():
        by = split(here, "scheduling.name")
        groups = {(h, name): by.get(name, []) for name in needs.contestants}
        names |= {key: f"{pretty(key[1])} at H = {h}" for key in groups}
        try:
            fair(groups, needs, metrics.ACCURACY, names)
        except NotTested as reason:
            missing.append(str(reason))
            continue
        usable |= groups
        there.append(h)
    if len(there) < needs.least_scheduled:
        have = f"; there is H = {', '.join(map(str, there))}" if there else ""
        more = f": {'; '.join(missing)}" if missing else ""
        said = listed([pretty(name) for name in needs.contestants])
        raise NotTested(f"needs {said} at {needs.least_scheduled} values of H{have}{more}")
    said_already = [h for h in split(runs, H) if h not in there]
    found = fair(usable, needs, metrics.ACCURACY, names)
    return Across(there, found, missing + absent(needs, [*there, *said_already]), [])


def closer(sweep: Sweep, needs: Needs) -> Finding:
    """The difference among the three shrinks with H: the highest minus the lowest curve, mean over the rounds."""
    runs, dropped = alike(sweep.runs, FREE)
    found = across(runs, needs)
    spans = {}
    for h in found.values:
        curves = [found.fair.curve((h, name), metrics.ACCURACY)["mean"] for name in needs.contestants]
        table = 100 * np.array([curve.loc[curve.index <= found.fair.steps] for curve in curves])
        spans[h] = float((table.max(axis=0) - table.min(axis=0)).mean())
    text = ", ".join(f"H = {h}: {value:.2f}" for h, value in spans.items())
    parts = _falling(list(spans.values()), found.fair.whole)
    finding = found.finding(f"the highest minus the lowest of the three in points, mean over the rounds: {text}", parts)
    return replace(finding, dropped=[*dropped, *finding.dropped])


def _falling(values: Sequence[float], whole: bool) -> list[Part]:
    """Each value is below the one before it; equal ones are a tie and do not agree."""
    return [Part(later < earlier, whole) for earlier, later in pairwise(values)]


def _each(sweep: Sweep, needs: Needs, what: str, measure: Callable[[Across, str], tuple[str, list[Part]]]) -> Finding:
    """Hold a claim on H against each scheduler on each data set that has the evidence; the rest is missing."""
    runs, dropped = alike(sweep.runs, (*FREE, DATA))
    by_data = split(runs, DATA)
    texts: list[str] = []
    missing: list[str] = []
    findings: list[Finding] = []
    where: dict[str, list[str]] = {}
    for data in needs.data or by_data:
        for name in needs.contestants:
            here = [run for run in by_data.get(data, []) if run.config.scheduling.name == name]
            called = f"{pretty(data)}, {pretty(name)}" if len(by_data) > 1 else pretty(name)
            try:
                found = across(here, replace(needs, contestants=(name,)))
            except NotTested as reason:
                missing.append(f"{reason} ({pretty(data)})" if len(needs.data) > 1 else str(reason))
                continue
            text, parts = measure(found, name)
            texts.append(f"{called}: {text}")
            findings.append(found.finding("", parts))
            where.setdefault(findings[-1].evidence, []).append(called)
    if not findings:
        others = [pretty(name) for name in needs.contestants[1:]]
        first = missing[0] if missing else f"needs runs of {pretty(needs.contestants[0])}"
        raise NotTested(f"{first}{f'; and as much of {listed(others)}' if others else ''}")
    missing = [*dict.fromkeys(lack for one in findings for lack in one.missing), *missing]
    evidence = "; ".join(f"{', '.join(names)}, {said}" for said, names in where.items())
    return Finding(f"{what}: {'; '.join(texts)}", [part for one in findings for part in one.parts], evidence,
                   [run for one in findings for run in one.runs], missing,
                   dropped + [text for one in findings for text in one.dropped])  # fmt: skip


def more_devices(sweep: Sweep, needs: Needs) -> Finding:
    """More devices a round: fewer rounds to the same accuracy, the target or the highest that is reached at every H."""

    def rounds(found: Across, name: str) -> tuple[str, list[Part]]:
        means = {h: found.fair.curve((h, name), metrics.ACCURACY)["mean"] for h in found.values}
        level = min(target(found.fair.runs), *(float(mean.max()) for mean in means.values()))
        counts = {h: int(mean.index[mean >= level][0]) for h, mean in means.items()}
        text = ", ".join(f"H = {h}: {count}" for h, count in counts.items())
        return f"{text} (to {level:.1%})", _falling(list(counts.values()), found.fair.whole)

    return _each(sweep, needs, "rounds to one accuracy", rounds)


def steadier(sweep: Sweep, needs: Needs) -> Finding:
    """The spread over the seeds falls with H."""

    def spreads(found: Across, name: str) -> tuple[str, list[Part]]:
        values = {h: 100 * float(found.fair.curve((h, name), metrics.ACCURACY)["std"].mean()) for h in found.values}
        text = ", ".join(f"H = {h}: {value:.2f}" for h, value in values.items())
        return text, _falling(list(values.values()), found.fair.whole)

    return _each(sweep, needs, "standard deviation of the accuracy in points", spreads)


UNEVEN = "our partition gives every device the same majority share, and the paper does not say how it drew the rest"


def claims(rounds: int) -> tuple[Claim, ...]:
    """The claims on Figure 3 or 4.

    Args:
        rounds: of a whole run; the paper's figures do not end sooner. A third of them is the least: before that the
            curves are still climbing and cross each other.
    """
    one = Needs(1, 5, rounds // 3, rounds, "rounds", ORDER, 1, (10, 30, 50, 70))
    two = replace(one, least_scheduled=2)
    return (
        Claim("IKC's learning curve lies above VKC's and FedAvg's", one, above, UNEVEN),
        Claim("rounds to the target accuracy: IKC ≤ VKC ≤ FedAvg", one, sooner, UNEVEN),
        Claim("the difference between the three shrinks as H grows", two, closer),
        Claim("more scheduled devices reach the same accuracy in fewer rounds", two, more_devices),
        Claim("more scheduled devices: a smaller spread over the five runs", replace(two, least_seeds=2), steadier),
    )
