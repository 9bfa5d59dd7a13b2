"""Contests: what contestants need beside a reference, paired by seed, over the runs of one or several sweeps.

Settings in which the runs differ are of two sorts. Those of the *contestants* say what is done: the scheduler, the rule
and so on, or the one setting to which the reference belongs. All others are *conditions*, and their values make a
*case*, such as ``majority 50%``; runs of two cases are never pooled. Where no setting differs, the sweeps are the
contestants. A trial that two sweeps hold counts once.

* The unit is the seed. Of each contestant and case stand the seeds that the reference has as well.
* Seconds, joules, bits, rounds and objectives are compared by ratios: the geometric mean over the seeds, with the 95 %
  interval of Student's t on logarithms. Where a run missed its target, its ratio is known by a bound only
  (`hflray.support.pairs`), and the median stands in place of the mean, or the bounds of it.
* All other metrics are compared by differences: their mean, with its 95 % interval; of shares in points.
* p is that of the exact signed-rank test. Holm's family is all comparisons of the table whose seeds can give p < 0.05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.errors import ConfigError, nearest
from hflray.report.exports import SUFFIX, exports, read_exhibit
from hflray.report.labels import DEPLOYMENT, H, label_each, pretty
from hflray.report.ranking import OF_TARGETS, QUANTITIES, BySeed, compare, median_text, outcome_texts, runs_of
from hflray.report.runs import (
    LENGTHS,
    RunRecord,
    SweepRecord,
    differing,
    differing_lengths,
    has_reached,
    is_one_of,
    read_sweep,
)  # fmt: skip
from hflray.report.series import bar_value
from hflray.support.arrays import FloatArray
from hflray.support.files import write as write_file
from hflray.support.pairs import LEVEL, Pairs, family_p, least_p, mean_interval, signed_rank_p
from hflray.support.references import short, spoken
from hflray.support.terminal.tables import TextTable
from hflray.support.text import one_line
from hflray.sweep.results import locate

# Settings that make cases, and no contestants. Lengths identify no trial, but runs that differ in them are not alike.
CONDITIONS = ("data.", "fleet.", "world.", "cost.", H, *LENGTHS)
RATIOS = ("s", "J", "bit")  # the units of metrics that are compared by ratios
REACHED = "reached"
STEM = "comparison"  # of the files
FORMS = {"ratio": "{:#.3g}", "points": "{:+.2f}", "difference": "{:+.3g}"}

Value = Callable[..., float]  # of a run, beside another one or not
Cases = dict[str, dict[str, BySeed]]  # the runs by case and contestant


@dataclass(frozen=True)
class Measure:
    """What is compared.

    Attributes:
        metric: a metric, or ``reached``.
        label: its name in tables and figures.
        scale: how two values are compared; points are hundredths of a share.
    """

    metric: str
    label: str
    scale: Literal["ratio", "points", "difference"]

    def shown(self, steps: FloatArray) -> FloatArray:
        """Return means of steps in the scale; no difference of shares is beyond 100 points."""
        if self.scale == "points":
            return np.clip(100 * steps, -100, 100)
        return np.exp(steps) if self.scale == "ratio" else steps


@dataclass(frozen=True)
class Comparison:
    """A contestant beside the reference in one case and metric.

    Attributes:
        case: the case; empty if there is one.
        contestant, reference: their labels; all three are one line.
        endpoint: what is compared.
        seeds: the seeds that both have.
        pairs: the steps, one for each of these seeds.
        p_holm: p-value adjusted for the family; NaN where so few seeds cannot give one below 0.05 in it.
        test: the outcome of the test as text.
    """

    case: str
    contestant: str
    reference: str
    endpoint: Measure
    seeds: Sequence[int]
    pairs: Pairs
    p_holm: float = np.nan
    test: str = ""

    @property
    def name(self) -> str:
        """The contestant and the case."""
        return f"{self.contestant}, {self.case}" if self.case else self.contestant

    @property
    def censored(self) -> bool:
        """Whether a ratio is known by a bound only, so that the median stands in place of the mean."""
        return bool((self.pairs.low != self.pairs.high).any())

    @cached_property
    def numbers(self) -> tuple[float, float, float]:
        """The estimate, and the ends of its interval; of a median the least and the largest value it can have."""
        if self.censored:
            low, high = self.pairs.median
            return low if low == high else np.nan, low, high
        mean, half = mean_interval(self.pairs.low)
        low, middle, high = self.endpoint.shown(np.array([mean - half, mean, mean + half]))
        return float(middle), float(low), float(high)

    @property
    def tidy(self) -> dict[str, Any]:
        """The row of the CSV."""
        estimate, low, high = self.numbers
        return {
            "case": self.case, "contestant": self.contestant, "reference": self.reference,
            "metric": self.endpoint.metric, "n": self.pairs.units, "seeds": " ".join(map(str, self.seeds)),
            "estimate": estimate, "low": low, "high": high,
            "scale": "median ratio" if self.censored else self.endpoint.scale, "p": signed_rank_p(self.pairs.steps),
            "p_holm": self.p_holm, "least_p": least_p(self.pairs.units), "uncertain": self.pairs.uncertain,
        }  # fmt: skip

    @property
    def texts(self) -> dict[str, str]:
        """The row for a reader."""
        estimate, low, high = (FORMS[self.endpoint.scale].format(number) for number in self.numbers)
        interval = "–" if self.censored or "nan" in low else f"[{low}, {high}]"
        if self.endpoint.scale == "ratio":
            text = median_text(*self.pairs.median) if self.censored else estimate
            estimate = text if text == "open" else f"× {text}{' (median)' if self.censored else ''}"
        estimate += " points" if self.endpoint.scale == "points" else ""
        return {"": self.contestant, "case": self.case, "metric": self.endpoint.label, "seeds": f"{self.pairs.units}",
                "estimate": estimate, "95 % interval": interval, "test": self.test}  # fmt: skip


@dataclass(frozen=True)
class Contest:
    """The outcome of a contest.

    Attributes:
        rows: the comparisons, by case, metric and contestant.
        notes: what was left out and why, one line each.
    """

    rows: Sequence[Comparison]
    notes: Sequence[str]

    @property
    def table(self) -> TextTable:
        """The table for a reader; without the column of cases if there is one."""
        table = TextTable.of([row.texts for row in self.rows], caption=self.caption)
        table = table if len(set(table["case"])) > 1 else table.without(["case"])
        return replace(table, align="l" * list(table.headings).index("seeds"))

    @property
    def caption(self) -> str:
        """How the numbers came about, in a line."""
        family = sum(least_p(row.pairs.units) < LEVEL for row in self.rows)
        tests = (
            f"by Holm's method over {family} comparison{'s' * (family > 1)}"
            if family
            else "where the seeds can give p < 0.05"
        )
        return f"Beside {self.rows[0].reference}, paired by seed; p of the exact signed-rank test, {tests}."


def read(names: Sequence[str], results: Path) -> dict[str, SweepRecord]:
    """Return the sweeps of these names in the results, or at these places of sweeps or exports, by their short names.

    Raises:
        ConfigError: there is no such sweep, or the sweeps are of different tasks.
    """
    sweeps: dict[str, SweepRecord] = {}
    for name in dict.fromkeys(names):
        sweep = read_exhibit(Path(name)) if _is_export(name, results) else read_sweep(results, name)
        end = Path(name).name.removesuffix(SUFFIX)
        sweeps[name if end in sweeps else end] = sweep
    if len({sweep.task for sweep in sweeps.values()}) > 1:
        tasks = ", ".join(f"{one_line(name)} is of task {sweep.task}" for name, sweep in sweeps.items())
        raise ConfigError(f"compare: got several tasks ({tasks}); accepted: sweeps of one task; leave one out")
    return sweeps


def _is_export(name: str, results: Path) -> bool:
    """Return whether a name is the place of exports, and no sweep in the results."""
    place = Path(name)
    if (place / "sweep.json").exists() or not exports(place):
        return False
    try:
        locate(results, name)
    except ConfigError:
        return True
    return False


def contest(sweeps: Mapping[str, SweepRecord], against: str | None = None, metric: str | None = None) -> Contest:
    """Return the statistics of each contestant beside the reference.

    Args:
        sweeps: the sweeps by their names.
        against: the reference: a contestant's label, a sweep of one contestant, or a value of a setting, which then
            makes the contestants; None: the contestant of the first run.
        metric: a logged metric, ``reached``, or a quantity of the ranking; None: several.

    Raises:
        ConfigError: no contestant or metric has this name, there is one contestant only, or none shares a seed of a
            case with the reference.
    """
    labels = {text: label for sweep in sweeps.values() for run in sweep.runs for text, label in run.labels.items()}
    every = [replace(run, part=name, labels=labels) for name, sweep in sweeps.items() for run in sweep.runs]
    runs = [run for run in every if run.ended]
    notes = [f"{name}: {note}" for name, sweep in sweeps.items() for note in sweep.notes]
    running = len(every) - len(runs)
    notes += [f"left out: {running} of {len(every)} runs, which have not ended"] if running else []
    keys = differing(runs) + differing_lengths(runs, lambda run: None)
    stopped = sum(run.history.stopped is not None for run in runs)
    notes += [f"stopped early: {stopped} of {len(runs)} runs, whose last values count"] if stopped else []
    names, chosen, reference = _contestants(runs, keys, against)
    metric = metric and _metric(runs, metric)
    cases, twice = _cases(runs, names, [key for key in keys if key not in chosen])
    notes += [f"left out: {twice} of {len(runs)} runs, whose trials newer runs repeat"] if twice else []
    rows: list[Comparison] = []
    for case, contestants in cases.items():
        own_rows = list(_rows(case, contestants, reference, next(iter(sweeps.values())), metric))
        notes += [] if own_rows else [f"{case or 'all runs'}: left out: {reference} and no other share a seed"]
        rows += own_rows
    if not rows:
        raise ConfigError(
            f"compare: no contestant has a case and a seed in common with {reference}; the runs differ in "
            f"{', '.join(keys) or 'their seeds'}; compare runs that have the other settings and the seeds in common"
        )
    timed = dict.fromkeys(row.endpoint.label for row in rows if metrics.is_timed(row.endpoint.metric))
    machines = sorted({one_line(run.machine) for run in runs})
    if timed and len(machines) > 1:
        listing = ", ".join(machines)
        notes.append(f"{'; '.join(timed)}: measured on {len(machines)} machines, whose speeds differ: {listing}")
    pairs = {str(number): row.pairs for number, row in enumerate(rows)}
    family = sum(least_p(row.pairs.units) < LEVEL for row in rows)
    tested = []
    for row, p, test in zip(rows, family_p(pairs).values(), outcome_texts(pairs).values(), strict=True):
        if np.isnan(p) and least_p(row.pairs.units) < LEVEL:  # the seeds are enough for one test, but not for all
            test = test.replace(f"< {LEVEL}", f"< {LEVEL} in {family} comparisons")
        tested.append(replace(row, p_holm=p, test=test))
    return Contest(tested, notes)


def _contestants(
    runs: Sequence[RunRecord], keys: Sequence[str], against: str | None
) -> tuple[list[str], list[str], str]:
    """Return each run's contestant, the settings that make the contestants, and the reference among them."""
    chosen = [key for key in keys if not is_one_of(key, CONDITIONS)] or list(keys)
    names = [label or "default" for label in label_each(runs, chosen)] if keys else [run.part for run in runs]
    alone = {name for run, name in zip(runs, names, strict=True) if run.part == against}
    against = alone.pop() if len(alone) == 1 else against
    if against is not None and against not in names:
        spelled = {key: [_spellings(run, key, label) for run, label in zip(runs, label_each(runs, [key]), strict=True)]
                   for key in keys}  # fmt: skip
        owners = [key for key, spellings in spelled.items() if any(against in texts for texts in spellings)]
        if len(owners) != 1:
            near = nearest(
                against, [*names, *(text for spellings in spelled.values() for text in set().union(*spellings))]
            )
            reason = f"is a value of {' and of '.join(owners)}" if owners else f"is no contestant{near}"
            listing = "; ".join(map(one_line, dict.fromkeys(names))) or "none"
            raise ConfigError(f"--against: got {one_line(against)}, which {reason}; accepted: {listing}; name one")
        chosen = _together(owners[0], keys)
        names = [label or "default" for label in label_each(runs, chosen)]
        meant = {name: texts for name, texts in zip(names, spelled[owners[0]], strict=True) if against in texts}
        named = [name for name, texts in meant.items() if name in texts or len(meant) == 1]
        if len(named) != 1:
            raise ConfigError(f"--against: got {one_line(against)}; accepted: {'; '.join(meant)}; name one in full")
        against = named[0]
    if len(set(names)) < 2:
        raise ConfigError(
            f"compare: got one contestant ({names[0] if names else 'no run has ended'}); accepted: runs that differ "
            "in a setting besides the seed; name another sweep too"
        )
    return names, chosen, against or names[0]


def _spellings(run: RunRecord, key: str, label: str) -> set[str]:
    """Return the texts by which a value of a setting can be named; `label` is the one that tables show."""
    value = run.settings.get(key)
    return {label, str(value), short(value), spoken(str(value)), pretty(value, run.labels)}


def _together(key: str, keys: Sequence[str]) -> list[str]:
    """Return the settings of the part to which a setting belongs, such as a scheduler's name and its options."""
    part = key.partition(".options.")[0].removesuffix(".name")
    part = part.partition(".")[0] if part.startswith("assignment.") else part
    return [other for other in keys if other == key or (part != "data" and other.startswith(f"{part}.") and other != H)]


def _cases(runs: Sequence[RunRecord], names: Sequence[str], conditions: Sequence[str]) -> tuple[Cases, int]:
    """Return the runs by case, contestant, seed and deployment, the newest of each, and how many this leaves out."""
    cases: Cases = {}
    twice = 0
    for run, name, case in zip(runs, names, label_each(runs, conditions), strict=True):
        places = cases.setdefault(case, {}).setdefault(name, {}).setdefault(run.seed, {})
        place = tuple(item for item in run.identity if item[0] == DEPLOYMENT)
        twice += place in places
        places[place] = max(places.get(place, run), run, key=lambda candidate: candidate.history.started_ms)
    return cases, twice


def _rows(
    case: str, contestants: Mapping[str, BySeed], reference: str, sweep: SweepRecord, metric: str | None
) -> Iterator[Comparison]:
    """Yield the comparisons of a case, without their tests."""
    for endpoint in _endpoints(runs_of(contestants), sweep, metric):
        value = partial(_value, endpoint.metric, sweep)
        for name, by_seed in contestants.items():
            runs_by_seed, other = (_filtered(seeded, value) for seeded in (by_seed, contestants.get(reference, {})))
            seeds = [seed for seed, places in runs_by_seed.items() if places.keys() & other.get(seed, {}).keys()]
            if seeds and name != reference:
                pairs = compare(runs_by_seed, other, endpoint.metric, partial(_steps, endpoint, value))
                yield Comparison(one_line(case), one_line(name), one_line(reference), endpoint, seeds, pairs)


def _filtered(by_seed: BySeed, value: Value) -> BySeed:
    """Return the runs that have a value, by seed in order."""
    return {seed: {place: run for place, run in places.items() if np.isfinite(value(run))}
            for seed, places in sorted(by_seed.items())}  # fmt: skip


def _metric(runs: Sequence[RunRecord], name: str) -> str:
    """Return the metric that a name of a metric or of a quantity means. Raises ConfigError: no run logged it."""
    logged = dict.fromkeys(str(column) for run in runs for column in (*run.rounds, *run.history.values))
    accepted = [REACHED, *QUANTITIES, *OF_TARGETS, *(column for column in logged if column not in metrics.COLUMNS)]
    if name not in accepted:
        listing = ", ".join(map(one_line, dict.fromkeys(accepted)))
        raise ConfigError(
            f"--metric: got {one_line(name)}, which no run logged{nearest(name, accepted)}; logged: {listing}; name one"
        )
    return QUANTITIES[name][0] if name in QUANTITIES else name


def _endpoints(runs: Sequence[RunRecord], sweep: SweepRecord, metric: str | None) -> list[Measure]:
    """Return what is compared in a case: the metric, or what its runs needed to their target and their last values."""
    reached = [has_reached(run) for run in runs]
    if metric is not None:
        chosen = [metric]
    elif any(reached):
        chosen = [*([] if all(reached) else [REACHED]), *OF_TARGETS, runs[0].main_metric]
    else:
        chosen = [*(row.name for row in metrics.bars(sweep.shown.table)), runs[0].main_metric]
    values = {name: [_value(name, sweep, run) for run in runs] for name in chosen}
    if not np.isfinite(list(values.values())).any():  # the task logs other metrics
        values = {row.name: [_value(row.name, sweep, run) for run in runs] for row in metrics.curves(sweep.logged)}
    return [_endpoint(name, numbers) for name, numbers in values.items()]


def _endpoint(metric: str, values: Sequence[float]) -> Measure:
    """Return how a metric is compared: by ratios if it counts seconds, joules, bits or rounds and is above 0."""
    if metric == REACHED:
        return Measure(metric, "Reached the target", "points")
    if metric in metrics.METRICS or metrics.may_be_own(metric):
        row = metrics.describe(metric)
    else:  # a metric of one edge
        row = metrics.Metric(metric, metric, {"s": "s", "j": "J"}.get(metric.rpartition("_")[2], "1"), "round")
    ratio = row.unit in RATIOS or metric == metrics.ROUNDS_TO_TARGET
    if ratio and min((value for value in values if np.isfinite(value)), default=0) > 0:
        return Measure(metric, row.label, "ratio")
    return Measure(metric, row.label, "points" if row.shown == "%" else "difference")


def _value(metric: str, sweep: SweepRecord, run: RunRecord, beside: RunRecord | None = None) -> float:
    """Return a run's value; of what it needed to the target that it missed, what it has spent up to its last round.

    With `beside`, only the fleets of an assignment study that this run has as well count.
    """
    if metric == REACHED:
        return float(has_reached(run))
    if metric in OF_TARGETS and not has_reached(run):
        return run.last(OF_TARGETS[metric])
    return bar_value(sweep, run, metric, beside)


def _steps(endpoint: Measure, value: Value, _: str, first: Sequence[RunRecord], other: Sequence[RunRecord]) -> Pairs:
    """Return the steps between runs beside each other: logarithms of ratios, or differences."""
    values = [np.array(list(map(value, *both))) for both in ((first, other), (other, first))]
    if endpoint.scale != "ratio":
        return Pairs.exact(values[0] - values[1])
    reached = [[endpoint.metric not in OF_TARGETS or has_reached(run) for run in runs] for runs in (first, other)]
    return Pairs.censored(values[0], reached[0], values[1], reached[1])


def write(result: Contest, folder: Path) -> list[Path]:
    """Write the numbers as ``comparison.csv``, the table as LaTeX, and the figure as PNG and SVG; return the paths."""
    from hflray.report import figures  # Matplotlib is loaded for a figure only

    numbers = pd.DataFrame([row.tidy for row in result.rows])
    texts = {"csv": numbers.to_csv(index=False), "tex": result.table.latex()}
    paths = [write_file(folder / f"{STEM}.{suffix}", text) for suffix, text in texts.items()]
    return paths + figures.save(figures.forest, result, folder, STEM)
