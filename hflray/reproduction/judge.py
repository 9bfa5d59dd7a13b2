"""The answers to an exhibit's claims: yes, no or not settled at the planned number of seeds, and before it no word.

**Units.** The unit is the seed; in a study of assignments, the fleet. The compared runs have the same seeds, all other
settings equal, and count up to the last round that all have, at most the planned one. A run is whole if it has all
planned rounds, or has passed the target that is asked for.

**Effects.** The effect of a unit is the difference of the two endpoints, or the logarithm of their ratio. An endpoint
at a target that a run misses is known by a bound only (`hflray.support.pairs`); where the bounds leave the order of a
pair open, or an effect is not finite, as the ratio to 0 is, its claim is not settled.

**Answers.** Student's one-sided tests of the mean effect give each comparison a p-value for and one against the claim.
For near, these are two tests each against the ends of the margin (Schuirmann 1987). A yes needs all comparisons, so
that the largest p-value counts. A no needs one, so that the least counts, times the number of comparisons (Bonferroni).
Twice the smaller of both is the claim's p-value. Holm's method adjusts it for all claims of the exhibit, those without
enough runs included. So the probability that any claim without an effect gets a yes or a no is at most the plan's α.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from hflray import metrics
from hflray.report.ranking import OF_TARGETS, p_text
from hflray.report.runs import SEED, RunRecord, SweepRecord, is_one_of
from hflray.report.series import last_step
from hflray.reproduction.protocol import Claim, Contrast, Endpoint, Exhibit, Paper, Settings, StudyPlan, expanded
from hflray.support.arrays import BoolArray, FloatArray
from hflray.support.pairs import Pairs, holm, mean_interval
from hflray.support.references import short
from hflray.support.terminal.tables import TextTable
from hflray.tracking import RunTables

SPLIT = "data.split"
TOO_FEW = "with too few runs"
ANSWERS = ("yes", "yes in sign", "not settled", "no", "not tested", TOO_FEW)
ROUNDING = 1e-12  # effects that are closer are equal
MAX_NAMED = 4
BORROWED = "borrowed, each run up to its target"
LEARNED = {name for name, row in metrics.METRICS.items() if row.table == "learning"}


@dataclass(frozen=True)
class Effect:
    """The effects of one comparison.

    Attributes:
        label: the name of the comparison.
        values: the effect of each unit on the claim's scale, (n,).
        whole: whether all planned units are there, each with all planned rounds.
        open: number of units whose order is not known, or whose effect is not finite.
        bounds: number of units of which a bound is known alone; it counts in place of the effect.
        sides: the mean endpoint of each compared group, a geometric one on the scale ``log``.
        drawn: what the curve of the mean over the seeds gives for each group; empty without a target.
        rounds: the rounds that are compared.
        level: the accuracy at which the endpoints are read; None: they are not read at a target.
        missing: the names of the sides without a run.
        left_open: the settings that the comparison does not name and in which its runs differ.
        runs: the runs.
    """

    label: str
    values: FloatArray
    whole: bool = False
    open: int = 0
    bounds: int = 0
    sides: list[float] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)
    rounds: int = 0
    level: float | None = None
    missing: list[str] = field(default_factory=list)
    left_open: list[str] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)


def verdicts(shown: Exhibit, sweep: SweepRecord, brief: bool = False) -> TextTable:
    """Return one row per claim of the exhibit: our numbers with 95 % intervals, their count, p and the answer.

    Runs of another split of the data than the plan's are judged by themselves, below, and never pooled. Their rows name
    the split. With `brief`, an effect stands without the means of its sides, the mean curves and a name that all
    comparisons share, and no note names unused runs.
    """
    assert shown.plan is not None
    by_split: dict[str, list[RunRecord]] = {}
    for run in sweep.runs:
        by_split.setdefault(str(run.settings[SPLIT]), []).append(run)
    planned: str = shown.plan.split or next(iter(by_split), "")
    order = [planned, *sorted(set(by_split) - {planned})] if planned in by_split or not by_split else sorted(by_split)
    records: list[dict[str, str]] = []
    for name in order:
        rows = _judged(shown, shown.plan, by_split.get(name, []), brief)
        records += rows if order == [planned] else [{"split": name} | row for row in rows]
    table = TextTable.of(records)
    return replace(table, align="l" * len(table.headings))


def tally(paper: Paper, quick: bool, judged: Mapping[str, TextTable]) -> str:
    """Return how many of the claims have which answer, as text, such as ``3 yes, 1 not tested``.

    Args:
        paper: the paper.
        quick: which form of it.
        judged: the `verdicts` on each exhibit that has runs, by the name of its sweep.
    """
    counts: Counter[str] = Counter()
    for shown in paper.of_form(quick).values():
        answers = ["not tested"] * (len(list(expanded(shown))) - testable(shown))
        if shown.config in judged:
            records = judged[shown.config].records
            rows = [(record.get("split", ""), record[shown.claimant], record["answer"]) for record in records]
            answers = once_each(rows)
        counts.update(answer.partition(",")[0] for answer in answers)
        counts[TOO_FEW] += len(list(expanded(shown))) - len(answers)
    return ", ".join(f"{counts[kind]} {kind}" for kind in ANSWERS if counts[kind]) or "no claims"


def testable(shown: Exhibit) -> int:
    """Return how many of an exhibit's claims runs can test."""
    return sum(not claim.not_tested for claim, _ in expanded(shown))


def once_each(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the answer to each claim that has one, on the first split that gives it, which is the plan's if possible.

    Args:
        rows: split, claim and answer, in the order of `verdicts`.
    """
    splits: dict[str, str] = {}
    return [answer for split, claim, answer in rows if answer and splits.setdefault(claim, split) == split]


def _judged(shown: Exhibit, plan: StudyPlan, runs: Sequence[RunRecord], brief: bool) -> list[dict[str, str]]:
    claims = list(expanded(shown))
    pool, unused = _comparable(runs, shown, [compared for _, contrasts in claims for compared in contrasts])
    free = shown.free
    effects = [[_effect(pool, claim, compared, plan, free) for compared in contrasts] for claim, contrasts in claims]
    tests = [_p_values(claim, compared) for (claim, _), compared in zip(claims, effects, strict=True)]
    # A claim without enough runs counts among the exhibit's with a p-value of 1.
    family = {
        str(place): 1.0 if p is None else min(1.0, 2 * min(p))
        for place, (p, (claim, _)) in enumerate(zip(tests, claims, strict=True))
        if not (claim.every or claim.not_tested)
    }
    adjusted = holm(family)
    rows = []
    for place, ((claim, contrasts), compared) in enumerate(zip(claims, effects, strict=True)):
        p = adjusted.get(str(place), np.nan)
        answer = _answer(claim, compared, tests[place], p, plan)
        modified = len({id(run) for effect in compared for run in effect.runs if run.modified})
        notes = [
            claim.not_tested or claim.note,
            claim.guess if answer == "no" else "",
            claim.reason if "smaller than" in answer else "",
            f"{modified} runs of a modified checkout" if modified else "",
            f"not used: {'; '.join(unused)}" if unused and not (place or brief) else "",
        ]
        without = dict.fromkeys(name for effect in compared for name in effect.missing)
        notes.append(f"no run: {'; '.join(without)}" if without else "")
        left_open = dict.fromkeys(key for effect in compared for key in effect.left_open)
        notes.append(f"the claim names no value of {', '.join(left_open)}, in which its runs differ" * bool(left_open))
        if brief:
            labels = _short_labels(contrasts)
            compared = [replace(effect, label=label) for effect, label in zip(compared, labels, strict=True)]
        texts = [_text(claim, effect, brief) for effect in compared if len(effect.values)]
        shown_p = p_text(p) if tests[place] and not np.isnan(p) else ""
        rows.append({shown.claimant: claim.text, "ours [95 %]": "; ".join(texts), "n": _count(claim, compared, plan),
                     "p": shown_p, "answer": answer, "notes": ". ".join(filter(None, notes))})  # fmt: skip
    return rows


def _answer(
    claim: Claim, effects: Sequence[Effect], p: tuple[float, float] | None, adjusted: float, plan: StudyPlan
) -> str:
    if claim.not_tested:
        return "not tested"
    if p is None:
        return ""
    if (min(p) if claim.every else adjusted) > plan.alpha:
        return "not settled"
    if p[1] < p[0]:
        return "no"
    small = claim.margin is not None and claim.expect != "near" and any(_is_small(claim, effect) for effect in effects)
    return f"yes in sign, smaller than {_margin(claim)}" if small else "yes"


def _is_small(claim: Claim, effect: Effect) -> bool:
    """Return whether the interval of an effect lies within the margin."""
    mean, half = mean_interval(effect.values - _origin(claim))
    return abs(mean) + half < _on_scale(claim, claim.margin or 0.0)


def _p_values(claim: Claim, effects: Sequence[Effect]) -> tuple[float, float] | None:
    """Return the p-value for and the one against a claim; None if a comparison has fewer units than planned."""
    if not effects or not all(effect.whole and len(effect.values) > 1 for effect in effects):
        return None
    if claim.every:
        if any(effect.open for effect in effects):
            return 1.0, 1.0
        agree = all(_agrees(claim, effect.values).all() for effect in effects)
        return (0.0, 1.0) if agree else (1.0, 0.0)
    tails = [_tails(claim, effect) for effect in effects]
    return max(p for p, _ in tails), min(1.0, len(tails) * min(p for _, p in tails))


def _tails(claim: Claim, effect: Effect) -> tuple[float, float]:
    """Return the p-values of a comparison for and against a claim, by Student's one-sided tests of the mean effect."""
    if effect.open:
        return 1.0, 1.0
    values, margin = effect.values - _origin(claim), _on_scale(claim, claim.margin or 1.0)
    if claim.expect == "near":
        inside = max(_above(values + margin), _above(margin - values))
        return inside, min(1.0, 2 * min(_above(values - margin), _above(-margin - values)))
    signed = values if claim.expect == "more" else -values
    return _above(signed), _above(-signed)


def _above(values: FloatArray) -> float:
    """Return the one-sided p-value of the test that the mean of `values`, (n,), is above 0."""
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    mean = float(values.mean())
    if error <= ROUNDING:
        return float(mean <= ROUNDING)
    return float(student_t.sf(mean / error, len(values) - 1))


def _agrees(claim: Claim, values: FloatArray) -> BoolArray:
    shifted = values - _origin(claim)
    if claim.expect == "near":
        return np.abs(shifted) <= _on_scale(claim, claim.margin or 1.0)
    return shifted > 0 if claim.expect == "more" else shifted < 0


def _origin(claim: Claim) -> float:
    """Return the effect to which a claim is related."""
    return 0.0 if claim.to is None else _on_scale(claim, claim.to)


def _on_scale(claim: Claim, value: float) -> float:
    return float(np.log(value)) if claim.scale == "log" else value


# Which runs are compared.


def matches(run: RunRecord, settings: Settings) -> bool:
    """Return whether a run has these settings; a reference matches by the name of its class as well."""
    return holds(run.all_settings, settings)


def holds(values: Settings, settings: Settings) -> bool:
    """Return whether a configuration, by dotted keys, has these settings."""
    return all(values.get(key) == value or short(str(values.get(key))) == value for key, value in settings.items())


def _comparable(
    runs: Sequence[RunRecord], shown: Exhibit, contrasts: Sequence[Contrast]
) -> tuple[list[RunRecord], list[str]]:
    """Return the runs that the comparisons name and that differ in nothing else but the seed, and what is not used."""
    sides = [side for contrast in contrasts for side in contrast.sides]
    named = [run for run in runs if any(matches(run, side) for side in sides)]
    keys = {key for side in sides for key in side} | set(shown.free)
    pool, unused = select_alike(named, sorted(keys))
    rest = len(runs) - len(named)
    named_unused = unused[:MAX_NAMED] + [f"{len(unused) - MAX_NAMED} more"] * (len(unused) > MAX_NAMED)
    return pool, [f"{rest} runs that no claim names"] * (rest > 0) + named_unused


def select_alike(runs: Sequence[RunRecord], free: Sequence[str]) -> tuple[list[RunRecord], list[str]]:
    """Select the largest set of runs that differ only in the seed and the compared settings.

    Args:
        runs: the runs of a sweep.
        free: dotted keys that may differ; a key that ends in a point stands for its whole section.

    Returns:
        The selected runs, and the other runs by name, each with the settings in which it differs.
    """
    sections = tuple(key for key in free if key.endswith("."))
    variants: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for run in runs:
        fixed = tuple(
            (key, value)
            for key, value in run.identity
            if key != SEED and key not in free and not (sections and key.startswith(sections))
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


def _effect(
    pool: Sequence[RunRecord], claim: Claim, contrast: Contrast, plan: StudyPlan, free: Sequence[str]
) -> Effect:
    """Return the effects of a comparison on the planned seeds that all of its sides have."""
    endpoint, steps = claim.endpoint, claim.rounds or plan.rounds or 0
    by_seed = []
    for side in contrast.sides:
        longest: dict[int, RunRecord] = {}
        sided = [run for run in pool if matches(run, side) and _has(run, endpoint)]
        for run in sorted(sided, key=lambda run: last_step(run, endpoint.metric)):
            differs = _differing([longest.get(run.seed, run), run])
            if differs:
                return Effect(contrast.label, np.empty(0), left_open=sorted(differs))
            longest[run.seed] = run
        by_seed.append(longest)
    planned = range(1 if plan.fleets else claim.seeds or plan.seeds or 1)
    seeds = [seed for seed in planned if all(seed in runs for runs in by_seed)]
    complete = [seed for seed in seeds if all(_is_whole(runs[seed], endpoint, steps) for runs in by_seed)]
    chosen = complete if len(complete) > 1 or plan.fleets else seeds
    if not chosen:
        missing = [name for name, runs in zip(contrast.names, by_seed, strict=True) if not runs]
        return Effect(contrast.label, np.empty(0), missing=missing)
    groups = [[runs[seed] for seed in chosen] for runs in by_seed]
    runs = [run for group in groups for run in group]
    named = {key for side in contrast.sides for key in side}
    unnamed = (_differing(runs) - named).union(*map(_differing, groups))
    if left_open := sorted(key for key in unnamed if key != SEED and not is_one_of(key, free)):
        return Effect(contrast.label, np.empty(0), left_open=left_open)
    if metrics.is_timed(claim.endpoint.metric) and len({run.machine for run in runs}) > 1:
        return Effect(contrast.label, np.empty(0))  # seconds of two machines cannot be compared
    if plan.fleets:
        effect = _of_fleets(groups, claim, plan.fleets)
    else:
        last = [last_step(run, endpoint.metric) for run in runs if not _passes(run, endpoint, steps)]
        common = min([*last, *([steps] if steps else [])], default=max(last_step(run, endpoint.metric) for run in runs))
        effect = _of_seeds(groups, claim, common)
        effect = replace(effect, whole=len(complete) == len(planned))
    return replace(effect, label=contrast.label, runs=runs)


def _differing(runs: Sequence[RunRecord]) -> set[str]:
    """Return the settings, and the seed, in which the identities of runs differ."""
    first = set(runs[0].identity)
    return {key for run in runs for key, _ in first ^ set(run.identity)}


def _has(run: RunRecord, endpoint: Endpoint) -> bool:
    """Return whether a run has the metric: by round, or, where no round is asked for, once."""
    return bool(
        len(run.series(endpoint.metric)) or (endpoint.until is None and not np.isnan(run.last(endpoint.metric)))
    )


def _is_whole(run: RunRecord, endpoint: Endpoint, steps: int) -> bool:
    return _passes(run, endpoint, steps) or last_step(run, endpoint.metric) >= steps


def _passes(run: RunRecord, endpoint: Endpoint, steps: int) -> bool:
    return endpoint.until is not None and passage(run, endpoint.until, endpoint.over, steps or None) is not None


def passage(run: RunRecord, level: float, over: int, most: int | None = None) -> int | None:
    """Return the first round in which the mean accuracy of the last `over` rounds is at least `level`, or None.

    The accuracy is that of the validation part where the run has one. Rounds after `most` do not count.
    """
    smooth = _smooth(_first(run, most), over)
    hits = smooth.index[smooth >= level]
    return int(hits[0]) if len(hits) else None


def _smooth(values: pd.Series[float], over: int) -> pd.Series[float]:
    return values.rolling(max(1, min(over, len(values)))).mean().dropna()


def _of_fleets(groups: Sequence[Sequence[RunRecord]], claim: Claim, fleets: int) -> Effect:
    columns = [runs[0].series(claim.endpoint.metric) for runs in groups]
    table = pd.concat(columns, axis=1).dropna().iloc[:fleets].to_numpy()
    values, undefined = _effects(claim, list(table.T))
    sides, unknown = _means(claim, list(table.T)), int(undefined.sum())
    return Effect("", values, whole=len(table) >= fleets, open=unknown, sides=sides, rounds=len(table))


def _of_seeds(groups: Sequence[Sequence[RunRecord]], claim: Claim, rounds: int) -> Effect:
    """Return the effects of runs, grouped by side in the order of the seeds, on their first rounds."""
    endpoint, level = claim.endpoint, claim.endpoint.until
    if level is not None and endpoint.common:
        level = min(
            level, *(float(_smooth(_first(run, rounds), endpoint.over).max()) for runs in groups for run in runs)
        )
    read = [[_read(run, endpoint, level, rounds) for run in runs] for runs in groups]
    sides = [np.array([value for value, _ in side]) for side in read]
    drawn = [_drawn(runs, endpoint, level, rounds) for runs in groups] if level is not None else []
    reached = [np.array([passed for _, passed in side]) for side in read]
    values, undefined = _effects(claim, sides)
    unknown, bounds = int(undefined.sum()), 0
    if len(sides) == 2 and claim.scale == "log" and not np.all(reached):
        pairs, origin = Pairs.censored(sides[0], reached[0], sides[1], reached[1]), _origin(claim)
        pairs = Pairs(np.where(undefined, -np.inf, pairs.low), np.where(undefined, np.inf, pairs.high))
        beside = Pairs(pairs.low - origin, pairs.high - origin)
        values, bounds = beside.steps + origin, int((pairs.low != pairs.high).sum())
        unknown = bounds if claim.expect == "near" else beside.uncertain
    elif not np.all(reached):
        unknown = int((undefined | ~np.all(reached, axis=0)).sum())
    sides_mean = _means(claim, sides)
    return Effect("", values, open=unknown, bounds=bounds, sides=sides_mean, drawn=drawn, rounds=rounds, level=level)


def _first(run: RunRecord, rounds: int | None) -> pd.Series[float]:
    """Return a run's accuracy, or what it logged in its place, on the part that judges, up to the round `rounds`."""
    accuracy = run.judged(metrics.ACCURACY)
    values = accuracy if len(accuracy) else run.judged(run.main_metric)
    return values if rounds is None else values[values.index <= rounds]


def _read(run: RunRecord, endpoint: Endpoint, level: float | None, rounds: int) -> tuple[float, bool]:
    """Return a run's endpoint, and whether it is exact; at a missed target it is what the run has spent so far."""
    values = run.series(endpoint.metric)
    if level is not None:
        place = passage(run, level, endpoint.over, rounds)
        spent = values[values.index <= (rounds if place is None else place)]
        return float(spent.iloc[-1]) if len(spent) else np.nan, place is not None and len(spent) > 0
    values = values[values.index <= rounds]
    values = values if len(values) else pd.Series([run.last(endpoint.metric)])  # that of a run's end
    if endpoint.by == "mean":
        return float(values.mean()), True
    smooth = _smooth(values, endpoint.over)
    if endpoint.by == "last":
        return float(smooth.iloc[-1]), True
    judged = run.judged(endpoint.metric)  # the best round is chosen on the validation part where there is one
    sign = -1 if metrics.describe(endpoint.metric).better == "min" else 1
    best = int((sign * _smooth(judged[judged.index <= rounds], endpoint.over).to_numpy()).argmax())
    return float(smooth.iloc[best]), True


def _drawn(runs: Sequence[RunRecord], endpoint: Endpoint, level: float, rounds: int) -> float:
    """Return the round in which the curve of the mean over the seeds is at the level; NaN if it never is."""
    curve = pd.concat([_first(run, rounds) for run in runs], axis=1).dropna().mean(axis=1)
    hits = curve.index[curve >= level]
    return float(hits[0]) if len(hits) else np.nan


def _scaled(claim: Claim, values: FloatArray) -> FloatArray:
    values = np.asarray(values, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values) if claim.scale == "log" else 100 * values if claim.scale == "points" else values


def _effects(claim: Claim, sides: Sequence[FloatArray]) -> tuple[FloatArray, BoolArray]:
    """Return each unit's effect, and whether it is not finite; 0 stands for one that is not.

    An effect is the first side less the second, and with two cases the first difference less the second one.
    """
    signs = {1: (1,), 2: (1, -1), 4: (1, -1, -1, 1)}[len(sides)]
    with np.errstate(invalid="ignore"):
        values = np.sum([sign * _scaled(claim, side) for sign, side in zip(signs, sides, strict=True)], axis=0)
    undefined = ~np.isfinite(values)
    return np.where(undefined, 0.0, values), undefined


def _means(claim: Claim, sides: Sequence[FloatArray]) -> list[float]:
    means = [float(_scaled(claim, np.asarray(side)).mean()) for side in sides]
    return [float(np.exp(mean)) for mean in means] if claim.scale == "log" else means


# How it is shown.


def _short_labels(contrasts: Sequence[Contrast]) -> list[str]:
    """Return the labels of comparisons, each without a first or second name that all of them share."""
    if len(contrasts) > 1 and all(contrast.label == " and ".join(contrast.names) for contrast in contrasts):
        for shared, other in ((0, 1), (1, 0)):
            if len({contrast.names[shared] for contrast in contrasts}) == 1:
                return [contrast.names[other] for contrast in contrasts]
    return [contrast.label for contrast in contrasts]


def _text(claim: Claim, effect: Effect, brief: bool) -> str:
    """Return the mean effect of a comparison with its 95 % interval and, unless `brief`, the two compared sides."""
    mean, half = mean_interval(effect.values)
    ends = [mean - half, mean + half] if len(effect.values) > 1 and not effect.open else []
    form, unit = ("{:.3g}", " ×") if claim.scale == "log" else ("{:+.2f}", " points" * (claim.scale == "points"))
    form = form if len(effect.sides) > 1 or claim.scale == "log" else "{:.2f}"
    shown = [form.format(np.exp(value) if claim.scale == "log" else value) for value in (mean, *ends)]
    text = f"{shown[0]}{unit}" + (f" [{shown[1]}, {shown[2]}]" if ends else "")
    if claim.every:
        text += f", {int(_agrees(claim, effect.values).sum())} of {len(effect.values)} agree"
    if effect.open:
        text = f"order open in {effect.open} of {len(effect.values)}"
        return f"{effect.label}: {text}" if effect.label else text
    text += f", a bound in {effect.bounds} of {len(effect.values)}" if effect.bounds else ""
    pair = len(effect.sides) == 2 and not brief
    sides = f" ({' and '.join(f'{side:,.4g}' for side in effect.sides)})" if pair else ""
    drawn = [f"{value:.0f}" if value == value else "–" for value in effect.drawn]
    curve = f", mean curve at round {' and '.join(drawn)}" if drawn and not brief else ""
    curve += f", to {effect.level:.2%}" if claim.endpoint.common and effect.level is not None else ""
    return f"{effect.label}: {text}{sides}{curve}" if effect.label else f"{text}{sides}{curve}"


def _margin(claim: Claim) -> str:
    unit = {"log": " ×", "points": " points", "difference": ""}[claim.scale]
    return f"{claim.margin:g}{unit}"


def _count(claim: Claim, effects: Sequence[Effect], plan: StudyPlan) -> str:
    """Return how many of the planned seeds or fleets there are, and how many of the planned rounds."""
    if claim.not_tested:
        return ""
    unit, most = ("fleets", plan.fleets) if plan.fleets else ("seeds", claim.seeds or plan.seeds)
    counts = [len(effect.values) for effect in effects]
    span = f"{min(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    planned = claim.rounds or plan.rounds
    reach = [effect.rounds for effect in effects if effect.rounds]
    steps = "steps" if claim.endpoint.metric in LEARNED else "rounds"
    short = f", {min(reach):,} of {planned:,} {steps}" if planned and reach and min(reach) < planned else ""
    short = "" if all(effect.whole for effect in effects) else short
    return f"{span} of {most} {unit}{short}"


def with_borrowed(sweeps: Mapping[str, SweepRecord], exhibits: Sequence[Exhibit]) -> dict[str, SweepRecord]:
    """Return sweeps by name, each with the runs that its exhibit borrows; of two runs of a trial, with its own.

    An exhibit that has borrowed runs only gets a sweep of these. A borrowed run ends where it passes the target.
    """
    whole = dict(sweeps)
    for shown in exhibits:
        for lender, borrowed in shown.borrows.items():
            if lender not in sweeps:
                continue
            borrower = whole.get(
                shown.config, SweepRecord(shown.config, shown.config, sweeps[lender].task, shown.shows, [])
            )
            trials = {run.identity for run in borrower.runs}
            runs = [
                replace(_until(run, borrowed.until), part="/".join(filter(None, (lender, run.part))))
                for run in sweeps[lender].runs
                if matches(run, shown.select[borrowed.select]) and run.identity not in trials
            ]
            if runs:
                parts = borrower.parts | {run.part: BORROWED for run in runs}
                whole[shown.config] = replace(borrower, runs=[*borrower.runs, *runs], parts=parts)
    return whole


def drawn(shown: Exhibit, sweep: SweepRecord) -> SweepRecord:
    """Return the sweep as the exhibit's drawings and tables show it: each run up to its target, if it has one."""
    if not shown.targets:
        return sweep
    runs = []
    for run in sweep.runs:
        levels = [level for name, level in shown.targets.items() if matches(run, shown.select[name])]
        runs.append(_until(run, levels[0]) if levels else run)
    return replace(sweep, runs=runs)


def _until(run: RunRecord, target: float) -> RunRecord:
    """Return a run up to the round in which the mean of five rounds passes a target, as if it had ended there."""
    config = run.config.model_copy(update={"target_accuracy": target})
    last, history = passage(run, target, Endpoint().over), run.history
    values = {name: value for name, value in history.values.items() if name not in OF_TARGETS}
    if last is None:
        return replace(run, config=config, history=replace(history, values=values))
    rounds = history.tables.rounds
    cut = rounds[rounds["round"] <= last]
    values |= {name: float(cut[total].iloc[-1]) for name, total in OF_TARGETS.items() if total in cut}
    tables = RunTables(cut, run.devices)
    history = replace(history, tables=tables, values=values, status="FINISHED", stopped=None)
    return replace(run, config=config, history=history)
