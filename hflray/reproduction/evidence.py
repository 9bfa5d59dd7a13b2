"""The evidence that a claim of the paper needs, the runs that provide it, and the answer that follows.

Every claim states its `Needs`: the least evidence that could settle it, and the whole evidence that the paper's own
claim rests on. With less than the least evidence, the claim is "not tested" and the message says what is missing. With
at least that, the claim is judged, and the answer is "so far" while more runs could still change it. A plain "yes"
needs the whole evidence. A plain "no" needs one part of the claim (one H, one data set, one pair) with whole evidence.
A "no" also needs an interval that is wide enough for all intervals of the claim together, because one of many
contradicts by chance more often than one alone (Bonferroni's method, `Gap.among`). A "yes" needs no such width, because
all parts have to agree.

`compare_fairly` makes contestants comparable: their runs differ only in the compared setting and the seed, every
contestant has the same seeds, and only the steps that all of them have count. Runs that are not used are named with the
reason. A difference counts only if its 95 % interval does not contain 0 (`Gap`). Neither a tie nor an absent contestant
agrees with a claim, and what is not settled neither agrees nor disagrees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from hflray.report.runs import SEED, Run, Sweep
from hflray.report.series import last_step, over_seeds

CONFIDENCE = 0.95
MAX_NAMED = 4  # a verdict names at most this many runs, and counts the others
K = TypeVar("K", bound=Hashable)


class NotTested(Exception):
    """The runs are less than the least evidence. The message says what the claim needs and what exists."""


@dataclass(frozen=True)
class Needs:
    """The evidence that a claim needs.

    Attributes:
        least_seeds: seeds of each contestant without which the claim is not judged.
        seeds: seeds of each contestant in the whole evidence.
        least_steps: steps that every run must have for the claim to be judged.
        steps: steps of every run in the whole evidence.
        unit: what a step is, in the plural: rounds, fleets or environment steps.
        contestants: the contestants, all of which must have runs.
        least_scheduled: number of values of H without which the claim is not judged.
        scheduled: the values of H that the claim is about.
        data: the data sets that the claim is about; the claim is judged from one of them on.
    """

    least_seeds: int = 1
    seeds: int = 5
    least_steps: int = 0
    steps: int = 0
    unit: str = "rounds"
    contestants: tuple[str, ...] = ()
    least_scheduled: int = 1
    scheduled: tuple[int, ...] = ()
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """One comparison that a claim makes.

    Attributes:
        agrees: whether it agrees; None: not settled.
        whole: whether its evidence is whole.
        gap: the gap that decides it; None: no interval does.
        sign: the sign with which the gap agrees.
    """

    agrees: bool | None
    whole: bool
    gap: Gap | None = None
    sign: int = 1

    @classmethod
    def of(cls, gap: Gap, sign: int, whole: bool) -> Part:
        """Return the part that agrees if the first contestant of `gap` is higher (`sign` 1) or lower (−1)."""
        return cls(gap.agrees(sign), whole, gap, sign)

    def contradicts(self, gaps: int) -> bool:
        """Return whether it disagrees, where its gap is one of so many gaps that decide the claim."""
        return self.agrees is False and (self.gap is None or self.gap.among(gaps).agrees(self.sign) is False)


@dataclass(frozen=True)
class Finding:
    """The result of a claim's test.

    Attributes:
        ours: our numbers, as text.
        parts: the comparisons; all have to agree.
        evidence: the runs that were used, described as text.
        runs: the runs that were used.
        missing: the parts of the whole evidence that do not exist, or are too little to be judged.
        dropped: runs that were not used, each with the reason.
        choices: whether the parts are choices that the paper leaves open, of which one that agrees is enough.
    """

    ours: str
    parts: Sequence[Part]
    evidence: str
    runs: Sequence[Run]
    missing: Sequence[str] = ()
    dropped: Sequence[str] = ()
    choices: bool = False

    @classmethod
    def of_choices(cls, findings: Mapping[str, Finding]) -> Finding:
        """Return the finding of a claim from those of the choices that the paper leaves open, by their names."""
        if len(findings) == 1:
            return next(iter(findings.values()))
        parts = [Part(finding.agrees, not finding.answer.startswith("so far")) for finding in findings.values()]
        first, *remaining = findings.values()
        return cls(
            ". ".join(f"{name}: {finding.ours}" for name, finding in findings.items()),
            parts,
            ". ".join(f"{name}: {finding.evidence}" for name, finding in findings.items()),
            list({id(run): run for finding in findings.values() for run in finding.runs}.values()),
            [each for finding in findings.values() for each in finding.missing],
            [each for each in first.dropped if all(each in finding.dropped for finding in remaining)],
            choices=True,
        )

    @property
    def agrees(self) -> bool | None:
        """Whether the answer is yes; None: not settled."""
        return None if self.answer == "not settled" else not self.answer.endswith("no")

    @property
    def answer(self) -> str:
        """The answer: ``yes`` or ``no``, preceded by ``so far`` where more runs could change it, or ``not settled``."""
        against = [part for part in self.parts if part.contradicts(self._gaps)]
        agreeing = sum(part.agrees is True for part in self.parts)
        if self.choices and 0 < agreeing < len(self.parts):
            whole = "" if all(part.whole for part in self.parts) and not self.missing else "so far "
            return f"{whole}yes with {agreeing} of {len(self.parts)} choices that the paper leaves open"
        if self.choices and not agreeing and len(against) < len(self.parts):
            return "not settled"
        if against:
            return "no" if any(part.whole for part in against) else "so far no"
        if not all(part.agrees for part in self.parts):
            return "not settled"
        return "yes" if all(part.whole for part in self.parts) and not self.missing else "so far yes"

    @property
    def _gaps(self) -> int:
        """The number of gaps that decide the claim."""
        return sum(part.gap is not None for part in self.parts)

    @property
    def _weak_text(self) -> str:
        """The intervals that contradict by themselves, where none does among all of the claim, as text."""
        weak = sum(part.agrees is False for part in self.parts)
        if not weak or any(part.contradicts(self._gaps) for part in self.parts):
            return ""
        level = 100 * (1 - (1 - CONFIDENCE) / self._gaps)
        contradict = f"{weak} of {self._gaps} intervals contradict{'s' if weak == 1 else ''} the claim"
        return f"{contradict} at {100 * CONFIDENCE:.0f} %, and none at {level:.2f} %, which a no needs among so many"

    @property
    def evidence_text(self) -> str:
        """The evidence as text, with what a no would need, what is missing, and which runs are unused or modified."""
        modified = [run.full_name for run in self.runs if run.modified]
        which = "all of it" if len(modified) == len(self.runs) else join_names(modified)
        sentences = [
            self.evidence,
            self._weak_text,
            f"Missing: {', '.join(self.missing)}" if self.missing else "",
            f"Not used: {join_names(self.dropped, '; ')}" if self.dropped else "",
            f"From a modified checkout: {which}" if modified else "",
        ]
        return ". ".join(sentence for sentence in sentences if sentence)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        text: the claim in words.
        needs: the evidence that it needs.
        test: returns the finding; raises `NotTested` if the runs are less than the least evidence.
        guess: our guess why our answer is no, should it be.
    """

    text: str
    needs: Needs
    test: Callable[[Sweep, Needs], Finding]
    guess: str = ""


@dataclass(frozen=True)
class Gap:
    """Paired differences of two contestants, over seeds or over fleets.

    The 95 % interval of the mean is Student's. It decides:

    * within ± `margin`: a tie;
    * else, above or below 0 as a whole: the first contestant is higher, or lower;
    * else, because it contains 0 and is wider than a tie: not settled. One pair has no interval and settles nothing.

    Attributes:
        mean: mean difference.
        error: half the width of its interval; NaN for one pair.
        count: number of pairs.
        margin: the largest difference that means nothing.
    """

    mean: float
    error: float
    count: int
    margin: float = 0.0

    @classmethod
    def of(cls, one: Sequence[float], other: Sequence[float], *, margin: float = 0.0) -> Gap:
        """Return the gap `one` − `other` of values that are paired in order."""
        differences = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
        count, error = len(differences), np.nan
        if count > 1:
            error = float(_quantile(count) * differences.std(ddof=1) / np.sqrt(count))
        return cls(float(differences.mean()), error, count, margin)

    def among(self, gaps: int) -> Gap:
        """Return the gap with Bonferroni's interval: those of so many gaps hold together in 95 % of cases."""
        return replace(self, error=self.error * _quantile(self.count, gaps) / _quantile(self.count))

    @property
    def tie(self) -> bool:
        """Whether the interval lies within the margin; without a margin, whether no pair differs."""
        return abs(self.mean) + self.error <= max(self.margin, 1e-12)

    @property
    def above(self) -> bool:
        """Whether the first contestant is higher, and not by a tie."""
        return self.mean - self.error > 0 and not self.tie

    @property
    def below(self) -> bool:
        """Whether the first contestant is lower, and not by a tie."""
        return self.mean + self.error < 0 and not self.tie

    @property
    def settled(self) -> bool:
        """Whether the interval is a tie or excludes 0."""
        return self.tie or self.above or self.below

    def agrees(self, sign: int) -> bool | None:
        """Return whether the first contestant is higher (`sign` 1) or lower (−1); None if that is not settled."""
        return (self.above if sign > 0 else self.below) if self.settled else None

    @property
    def verdict(self) -> str:
        """``a tie``, ``not settled``, or nothing where the interval excludes 0."""
        return "a tie" if self.tie else "" if self.settled else "not settled"

    @property
    def note(self) -> str:
        """The verdict as a note to put behind a number, such as `` (a tie)``, or nothing."""
        return f" ({self.verdict})" if self.verdict else ""

    def text(self, form: str = "{:+.2f}") -> str:
        """Return the gap as text, such as ``+0.31 ± 0.05``, where ± precedes half its interval."""
        error = f" ± {form.format(self.error).lstrip('+')}" if self.count > 1 else ""
        return f"{form.format(self.mean)}{error}"


def _quantile(pairs: int, gaps: int = 1) -> float:
    """Return Student's t of half an interval of one of so many gaps; NaN for one pair."""
    return float(student_t.ppf(1 - (1 - CONFIDENCE) / (2 * gaps), pairs - 1))


def gap_over_seeds(statistic: Callable[[Sequence[int]], float], count: int) -> Gap:
    """Return the gap from 0 of a statistic of all seeds together, such as a difference of two spreads.

    Each seed gives one value, the jackknife's pseudo-value (Tukey 1958): `count` times the statistic of all seeds, less
    `count` − 1 times the statistic without this seed. The mean of the gap is therefore corrected for bias.

    Args:
        statistic: returns its value for the seeds at these positions; NaN for too few of them.
        count: number of seeds.
    """
    seeds = range(count)
    whole = statistic(seeds)
    pseudo = [count * whole - (count - 1) * statistic([seed for seed in seeds if seed != out]) for out in seeds]
    return Gap.of(pseudo, np.zeros(count).tolist())


def name_verdicts(first: str, gaps: Mapping[str, Gap]) -> str:
    """Return text that names the contestants whose gap to the first is no difference; empty if all differ."""
    texts = []
    for verdict in ("a tie", "not settled"):
        if names := [name for name, gap in gaps.items() if gap.verdict == verdict]:
            texts.append(f"{first} and {join_names(names)}: {verdict}")
    return f" ({'; '.join(texts)})" if texts else ""


@dataclass(frozen=True)
class Comparison(Generic[K]):
    """Comparable runs of several contestants, see `compare_fairly`.

    Attributes:
        groups: the runs of each contestant, in the order of `seeds`.
        seeds: the seeds that all contestants have.
        steps: the last step that all runs have.
        needs: what the claim needs.
        dropped: runs that were not used, each with the reason.
    """

    groups: dict[K, list[Run]]
    seeds: list[int]
    steps: int
    needs: Needs
    dropped: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether the runs have all the seeds and steps that a plain answer needs."""
        return len(self.seeds) >= self.needs.seeds and self.steps >= self.needs.steps

    @property
    def runs(self) -> list[Run]:
        """The runs of all contestants."""
        return [run for runs in self.groups.values() for run in runs]

    @property
    def coverage(self) -> str:
        """The seeds and steps that are compared, as text."""
        seeds = describe_seeds(self.seeds, self.needs)
        if not self.needs.steps:
            return seeds
        short = f" of {self.needs.steps:,}" if self.steps < self.needs.steps else ""
        return f"{seeds}, the first {self.steps:,}{short} {self.needs.unit}"

    def curve(self, key: K, metric: str) -> pd.DataFrame:
        """Return `over_seeds` of a contestant's metric at the steps that all of its runs have, up to `steps`."""
        runs = self.groups[key]
        table = over_seeds(runs, metric)
        return table[(table["runs"] == len(runs)) & (table.index <= self.steps)]

    def each(self, key: K, metric: str) -> list[pd.Series[float]]:
        """Return a contestant's metric up to `steps`, one series per seed."""
        return [(values := run.series(metric))[values.index <= self.steps] for run in self.groups[key]]


def compare_fairly(
    groups: Mapping[K, Sequence[Run]], needs: Needs, metric: str, names: Mapping[K, str] | None = None
) -> Comparison[K]:
    """Select the runs of several contestants that can be compared fairly.

    Where enough seeds have all the steps that a plain answer needs, seeds with fewer steps are not used.

    Args:
        groups: the runs of each contestant, which differ only in the seed.
        needs: what the claim needs.
        metric: the metric whose last step is how far a run has come.
        names: the contestants' names for messages.

    Raises:
        NotTested: a contestant has no runs, or all contestants together have too few common seeds or steps.
    """
    labels = {key: (names or {}).get(key, str(key)) for key in groups}
    if absent := [labels[key] for key, runs in groups.items() if not runs]:
        raise NotTested(f"needs runs of {join_names(absent)}")
    contestants = join_names(list(labels.values()))
    longest: dict[K, dict[int, Run]] = {}  # of each contestant and seed
    dropped = []
    for key, runs in groups.items():
        for run in sorted(runs, key=lambda run: last_step(run, metric)):
            if (shorter := longest.setdefault(key, {}).get(run.seed)) is not None:
                dropped.append(f"{shorter.full_name} (a longer run has its seed)")
            longest[key][run.seed] = run
    common = sorted(set.intersection(*(set(runs) for runs in longest.values())))
    reach = {seed: min(last_step(runs[seed], metric) for runs in longest.values()) for seed in common}
    complete = [seed for seed in common if reach[seed] >= needs.steps]
    sufficient = [seed for seed in common if reach[seed] >= needs.least_steps]
    seeds = complete if len(complete) >= needs.least_seeds else sufficient
    if not common:
        raise NotTested(f"needs a seed that all have: {contestants}")
    if not sufficient:
        raise NotTested(f"needs {needs.least_steps:,} {needs.unit} of {contestants}; there are {max(reach.values()):,}")
    if len(seeds) < needs.least_seeds:
        if len(seeds) == 1:
            raise NotTested(f"needs a second seed of {contestants}")
        raise NotTested(f"needs {needs.least_seeds} seeds of {contestants}; there are {len(seeds)}")
    for by_seed in longest.values():
        for seed, run in by_seed.items():
            if seed not in seeds:
                lacking = [labels[other] for other, runs in longest.items() if seed not in runs]
                if lacking:
                    reason = f"no run of {join_names(lacking)} has its seed"
                else:
                    reason = f"its seed has only {reach[seed]:,} {needs.unit}"
                dropped.append(f"{run.full_name} ({reason})")
    chosen = {key: [by_seed[seed] for seed in seeds] for key, by_seed in longest.items()}
    return Comparison(chosen, seeds, min(reach[seed] for seed in seeds), needs, dropped)


def describe_seeds(seeds: Sequence[int], needs: Needs) -> str:
    """Return the seeds as text, with the number that a plain answer needs if they are fewer."""
    names = ", ".join(map(str, seeds))
    if len(seeds) < needs.seeds:
        return f"{len(seeds)} of {needs.seeds} seeds ({names})"
    return f"seed{'s' if len(seeds) > 1 else ''} {names}"


def select_alike(runs: Sequence[Run], free: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Select the largest set of runs that differ only in the seed and the compared settings.

    Args:
        runs: the runs of a sweep.
        free: dotted keys that may differ; a key that ends in a point stands for its whole section.

    Returns:
        The selected runs, and the other runs by name, each with the settings in which it differs.
    """
    variants: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        fixed = tuple(
            (key, value)
            for key, value in run.identity
            if key != SEED and not any(key == one or key.startswith(_section(one)) for one in free)
        )
        variants.setdefault(fixed, []).append(run)
    if not variants:
        return [], []
    largest = max(variants, key=lambda fixed: (len(variants[fixed]), sum(len(run.rounds) for run in variants[fixed])))
    dropped = []
    for fixed, members in variants.items():
        if fixed != largest:
            differences = [f"{key}={value}" for key, value in fixed if (key, value) not in set(largest)]
            dropped += [f"{run.full_name} ({', '.join(differences[:3])})" for run in members]
    return variants[largest], dropped


def _section(key: str) -> str:
    return key if key.endswith(".") else "\0"


def split(runs: Sequence[Run], key: str) -> dict[int | str, list[Run]]:
    """Group runs by the value of a dotted key, smallest first."""
    groups: dict[int | str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.settings[key], []).append(run)
    return dict(sorted(groups.items(), key=lambda item: str(item[0]).zfill(6)))


def join_names(names: Sequence[object], between: str = ", ") -> str:
    """Join names to one text; of more than `MAX_NAMED`, name the first ones and count the others."""
    text = between.join(str(name) for name in names[:MAX_NAMED])
    return text if len(names) <= MAX_NAMED else f"{text} and {len(names) - MAX_NAMED} more"
