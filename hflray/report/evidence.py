"""What evidence a claim needs, which runs are evidence, and the answer that follows from them.

Every claim states its `Needs`: the least evidence that could settle it, and the whole evidence that the paper's own
claim rests on. With less than the least it is "not tested", and what is missing is said. With the least it is judged;
while more runs could still change the answer, that is "so far". A plain "yes" needs the whole; a plain "no" needs one
part of the claim (one H, one data set, one pair) whose own evidence is whole.

What is compared is compared fairly (`fair`): runs that differ in nothing but what is compared and the seed, the same
seeds of every contestant, and the steps that all of them have. A run that is not used is named with the reason. A
difference counts only beyond its standard error (`Gap`): a tie never agrees with a claim, and never does an absent
contestant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import pandas as pd

from hflray.report.runs import SEED, Run, Sweep
from hflray.report.series import over_seeds

NAMED = 4  # runs that are named in a verdict, at most; the rest as their number
K = TypeVar("K", bound=Hashable)


class NotTested(Exception):
    """The runs are less than the least evidence; the message says what is needed and what there is."""


@dataclass(frozen=True)
class Needs:
    """The evidence that a claim needs.

    Attributes:
        least_seeds, seeds: runs of each contestant that differ in the seed only: to be judged at all, and the whole.
        least_steps, steps: rounds, fleets or environment steps that every run must have: at least, and the whole.
        unit: what the steps are.
        contestants: those that must all be there.
        least_scheduled, scheduled: how many values of H are needed at least; all that the claim is about.
        data: the data sets that the claim is about; one of them is the least.
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
    """One comparison that a claim makes: whether it agrees, and whether its evidence is whole."""

    agrees: bool
    whole: bool


@dataclass(frozen=True)
class Finding:
    """What the runs say of a claim.

    Attributes:
        ours: our numbers.
        parts: the comparisons; all have to agree.
        evidence: which runs they rest on, in words.
        runs: those runs.
        missing: what of the whole evidence is not there at all, or too little to be judged.
        dropped: runs that were not used, each with the reason.
        choices: the parts are choices that the paper leaves open, of which one is enough.
    """

    ours: str
    parts: Sequence[Part]
    evidence: str
    runs: Sequence[Run]
    missing: Sequence[str] = ()
    dropped: Sequence[str] = ()
    choices: bool = False

    @property
    def answer(self) -> str:
        """``yes``, ``no``, or either "so far"."""
        against = [part for part in self.parts if not part.agrees]
        if self.choices and 0 < len(against) < len(self.parts):
            whole = "" if all(part.whole for part in self.parts) and not self.missing else "so far "
            some = f"{len(self.parts) - len(against)} of {len(self.parts)}"
            return f"{whole}yes with {some} choices that the paper leaves open"
        if against:
            return "no" if any(part.whole for part in against) else "so far no"
        return "yes" if all(part.whole for part in self.parts) and not self.missing else "so far yes"

    @property
    def rests_on(self) -> str:
        """The evidence, what is missing, what was not used, and which of it is from a modified checkout."""
        modified = [run.said for run in self.runs if run.modified]
        some = f"From a modified checkout: {'all of it' if len(modified) == len(self.runs) else listed(modified)}"
        said = [
            self.evidence,
            f"Missing: {', '.join(self.missing)}" if self.missing else "",
            f"Not used: {listed(self.dropped, '; ')}" if self.dropped else "",
            some if modified else "",
        ]
        return ". ".join(part for part in said if part)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in words, what settles it, its test, and our guess why, should we differ."""

    text: str
    needs: Needs
    test: Callable[[Sweep, Needs], Finding]
    guess: str = ""


@dataclass(frozen=True)
class Gap:
    """Paired differences of two contestants, over seeds or over fleets: mean, standard error (NaN for one), number."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, one: Sequence[float], other: Sequence[float]) -> Gap:
        """Of values in the same order."""
        found = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
        error = float(found.std(ddof=1) / np.sqrt(len(found))) if len(found) > 1 else np.nan
        return cls(float(found.mean()), error, len(found))

    @property
    def tie(self) -> bool:
        """Whether the difference is none, or within its standard error."""
        return abs(self.mean) < 1e-12 or (self.count > 1 and abs(self.mean) <= self.error)

    @property
    def above(self) -> bool:
        """Whether the first is higher."""
        return self.mean > 0 and not self.tie

    @property
    def below(self) -> bool:
        """Whether the first is lower."""
        return self.mean < 0 and not self.tie

    def said(self, form: str = "{:+.2f}") -> str:
        """In words, such as ``+0.31 ± 0.05``, or ``+0.01 ± 0.05, a tie``."""
        error = f" ± {form.format(self.error).lstrip('+')}" if self.count > 1 else ""
        return f"{form.format(self.mean)}{error}{', a tie' if self.tie else ''}"


@dataclass(frozen=True)
class Fair(Generic[K]):
    """Runs that can be compared: for each contestant its runs with the same seeds, up to the last step of all.

    Attributes:
        groups: the runs of each, by seed.
        seeds: those that all have.
        steps: the last step that all have.
        needs: of the claim.
        dropped: runs that were not used, each with the reason.
    """

    groups: dict[K, list[Run]]
    seeds: list[int]
    steps: int
    needs: Needs
    dropped: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether there are all the seeds and steps that a plain answer needs."""
        return len(self.seeds) >= self.needs.seeds and self.steps >= self.needs.steps

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for runs in self.groups.values() for run in runs]

    @property
    def said(self) -> str:
        """Seeds and steps in words."""
        seeds = seeds_of(self.seeds, self.needs)
        if not self.needs.steps:
            return seeds
        short = f" of {self.needs.steps:,}" if self.steps < self.needs.steps else ""
        return f"{seeds}, the first {self.steps:,}{short} {self.needs.unit}"

    def curve(self, key: K, metric: str) -> pd.DataFrame:
        """Mean and deviation of a contestant's metric at the steps that all of its runs have, up to `steps`."""
        runs = self.groups[key]
        table = over_seeds(runs, metric)
        return table[(table["runs"] == len(runs)) & (table.index <= self.steps)]

    def each(self, key: K, metric: str) -> list[pd.Series[float]]:
        """A contestant's metric up to `steps`, by seed."""
        return [(values := run.series(metric))[values.index <= self.steps] for run in self.groups[key]]


def fair(groups: Mapping[K, Sequence[Run]], needs: Needs, metric: str, names: Mapping[K, str] | None = None) -> Fair[K]:
    """Choose what can be compared fairly among contestants.

    Where some seeds have the whole steps, the others, which are still under way, are not used.

    Args:
        groups: the runs of each contestant, which differ in the seed only.
        needs: of the claim.
        metric: whose last step is how far a run is.
        names: of the contestants, for messages.

    Raises:
        NotTested: a contestant has no runs, or there are too few seeds or steps that all have.
    """
    called = {key: (names or {}).get(key, str(key)) for key in groups}
    if absent := [called[key] for key, runs in groups.items() if not runs]:
        raise NotTested(f"needs runs of {listed(absent)}")
    known: dict[K, dict[int, Run]] = {}
    dropped = []
    for key, runs in groups.items():
        for run in sorted(runs, key=lambda run: length(run, metric)):
            if (shorter := known.setdefault(key, {}).get(run.seed)) is not None:
                dropped.append(f"{shorter.said} (a longer run has its seed)")
            known[key][run.seed] = run
    common = sorted(set.intersection(*(set(runs) for runs in known.values())))
    reach = {seed: min(length(runs[seed], metric) for runs in known.values()) for seed in common}
    full = [seed for seed in common if reach[seed] >= needs.steps]
    some = [seed for seed in common if reach[seed] >= needs.least_steps]
    seeds = full if len(full) >= needs.least_seeds else some
    if not common:
        raise NotTested(f"needs a seed that all have: {listed(list(called.values()))}")
    if not some:
        raise NotTested(f"needs {needs.least_steps:,} {needs.unit} of {listed(list(called.values()))}; "
                        f"there are {max(reach.values()):,}")  # fmt: skip
    if len(seeds) < needs.least_seeds:
        raise NotTested(f"needs {needs.least_seeds} seeds of {listed(list(called.values()))}; there is "
                        f"{'one' if len(seeds) == 1 else len(seeds)}")  # fmt: skip
    for by_seed in known.values():
        for seed, run in by_seed.items():
            if seed not in seeds:
                others = [called[other] for other, runs in known.items() if seed not in runs]
                reason = (
                    f"its seed is not there for {listed(others)}"
                    if others
                    else f"of its seed there are {reach[seed]:,} {needs.unit}"
                )
                dropped.append(f"{run.said} ({reason})")
    chosen = {key: [by_seed[seed] for seed in seeds] for key, by_seed in known.items()}
    return Fair(chosen, seeds, min(reach[seed] for seed in seeds), needs, dropped)


def seeds_of(seeds: Sequence[int], needs: Needs) -> str:
    """Seeds in words; if they are too few for a plain answer, with how many it needs."""
    names = ", ".join(map(str, seeds))
    if len(seeds) < needs.seeds:
        return f"{len(seeds)} of {needs.seeds} seeds ({names})"
    return f"seed{'s' if len(seeds) > 1 else ''} {names}"


def length(run: Run, metric: str) -> int:
    """The last step at which a run has a metric; 0 if it has none."""
    values = run.series(metric)
    return int(values.index[-1]) if len(values) else 0


def alike(runs: Sequence[Run], free: Sequence[str]) -> tuple[list[Run], list[str]]:
    """The runs that differ in nothing but the seed and what is compared, as many as possible; and the others, named.

    Args:
        runs: of a sweep.
        free: dotted keys that may differ; one that ends in a point stands for its whole section.
    """
    variants: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        held = tuple(
            (key, value)
            for key, value in run.telling
            if key != SEED and not any(key == one or key.startswith(_section(one)) for one in free)
        )
        variants.setdefault(held, []).append(run)
    if not variants:
        return [], []
    most = max(variants, key=lambda held: (len(variants[held]), sum(len(run.rounds) for run in variants[held])))
    dropped = []
    for held, others in variants.items():
        if held != most:
            differs = [f"{key}={value}" for key, value in held if (key, value) not in set(most)]
            dropped += [f"{run.said} ({', '.join(differs[:3])})" for run in others]
    return variants[most], dropped


def _section(key: str) -> str:
    return key if key.endswith(".") else "\0"


def split(runs: Sequence[Run], key: str) -> dict[int | str, list[Run]]:
    """Runs by the value of a dotted key, smallest first."""
    found: dict[int | str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.settings[key], []).append(run)
    return dict(sorted(found.items(), key=lambda item: str(item[0]).zfill(6)))


def listed(names: Sequence[object], between: str = ", ") -> str:
    """Names in a row; many of them as the first few and the number of the rest."""
    said = between.join(str(name) for name in names[:NAMED])
    return said if len(names) <= NAMED else f"{said} and {len(names) - NAMED} more"
