"""The ranking of schedulers by what they need to reach the target accuracy, with a test of each against a reference.

A *contestant* is a scheduler with its options. A *field* is everything else that the runs of a sweep have in common but
the seed and the assigner: data set, partition and so on. Each field is ranked by itself.

* The unit is the seed. Runs of one seed and several assigners share fleet and data. Two contestants are compared on the
  assigners that both have, and the mean over these is one value.
* Of rounds, a run that misses its target has the worst rank. Seconds, joules and E + λT of such a run are censored at
  what it has spent (`hflray.support.pairs`). "Reached" is an endpoint of its own: the share of a seed's assigners.
* A rank is 1 plus the number of contestants that need less, where a tie or an uncertain order counts a half; the mean
  is over the seeds.
* Against the reference, which is IKC unless an exhibit names another, stand the median ratio over the seeds and the
  exact p-value of the signed-rank test. Holm's family is the opponents in one field and endpoint that have 6 seeds or
  more. Where the seeds and the family cannot give p < 0.05, a dash takes the place of a p-value.
* A scheduler that assigns (`schedule_and_assign`) gives the same runs with every assigner. One of them counts, so that
  none is counted twice: that with local search if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hflray import metrics, registry
from hflray.errors import ConfigError
from hflray.report.labels import DEPLOYMENT, OPTIONS, group_by, label_each, value_of
from hflray.report.runs import (
    LENGTHS,
    RunRecord,
    SweepRecord,
    differing,
    differing_lengths,
    has_reached,
    identifies,
    is_one_of,
)  # fmt: skip
from hflray.support.pairs import LEVEL, Pairs, family_p
from hflray.support.terminal.tables import TextTable

REFERENCE = "ikc"
# Each quantity with the metric that a run has if it reached its target, and the one that it has in any case.
QUANTITIES = {
    "rounds": (metrics.ROUNDS_TO_TARGET, "round"),
    "seconds": (metrics.DELAY_TO_TARGET_S, metrics.TOTAL_DELAY_S),
    "joules": (metrics.ENERGY_TO_TARGET_J, metrics.TOTAL_ENERGY_J),
    "E + λT": (metrics.OBJECTIVE_TO_TARGET, metrics.TOTAL_OBJECTIVE),
}
OF_TARGETS = dict(QUANTITIES.values())  # what a run that missed its target has spent
NAME = "scheduling.name"
PART = (NAME, OPTIONS)
ASSIGNER = "assignment."

Assigner = tuple[tuple[str, str], ...]
BySeed = dict[int, dict[Assigner, RunRecord]]  # a contestant's runs
Steps = Callable[[str, Sequence[RunRecord], Sequence[RunRecord]], Pairs]


def fields(runs: Sequence[RunRecord], reference: str = REFERENCE) -> dict[str, dict[str, BySeed]]:
    """Return the runs that have ended, by field, contestant, seed and assigner; the reference is the first contestant.

    A field's name is what distinguishes it from the others, such as ``majority 50%``; it is empty if there is one. A
    contestant's name is its scheduler's with its options. Deployments of the edges count as assigners do.
    """
    ended = [run for run in runs if run.ended]
    alone = {_but_the_assigner(run): run
             for run in sorted(ended, key=lambda run: run.config.assignment.name == "local_search")}  # fmt: skip
    used = [run for run in ended if not _assigns(run) or run is alone[_but_the_assigner(run)]]
    fixed = [key for key in differing(used) if not key.startswith((*PART, ASSIGNER))]
    shared = fixed + differing_lengths(used, lambda run: tuple(repr(value_of(run, key)) for key in fixed))
    options = dict.fromkeys(key for run in used for key in run.settings if key.startswith(OPTIONS))
    names = label_each(used, [NAME, *options])
    contestant = {id(run): name for run, name in zip(used, names, strict=True)}
    result: dict[str, dict[str, BySeed]] = {}
    ordered = sorted(used, key=lambda run: [_sortable(run.settings.get(key)) for key in shared])
    for name, field in group_by(ordered, shared).items():
        contestants = result.setdefault(name, {})
        field.sort(key=lambda run: (run.config.scheduling.name != reference, contestant[id(run)].lower()))
        for run in field:
            assigner = tuple(item for item in run.identity if item[0].startswith((ASSIGNER, DEPLOYMENT)))
            contestants.setdefault(contestant[id(run)], {}).setdefault(run.seed, {})[assigner] = run
    return result


def label_of(contestants: Mapping[str, BySeed], reference: str) -> str | None:
    """Return the label of the contestant that is this scheduler without options; None if it is not there."""
    for name, by_seed in contestants.items():
        scheduling = next(iter(next(iter(by_seed.values())).values())).config.scheduling
        if scheduling.name == reference and not scheduling.options:
            return name
    return None


def _sortable(value: object) -> tuple[float, str]:
    """Return a setting's value as a key by which numbers are sorted by size and other values by their text."""
    return (float(value), "") if isinstance(value, int | float) else (np.inf, str(value))


def _but_the_assigner(run: RunRecord) -> Assigner:
    settings = (item for item in run.settings.items() if identifies(item[0]) or is_one_of(item[0], LENGTHS))
    return tuple((key, repr(value)) for key, value in settings if not key.startswith(ASSIGNER))


def _assigns(run: RunRecord) -> bool:
    try:
        return hasattr(registry.resolve("scheduler", run.config.scheduling.name), "schedule_and_assign")
    except ConfigError:  # a scheduler of a package that is not installed here
        return False


def spent(run: RunRecord, quantity: str) -> float:
    """Return what a run has spent up to its target, or up to its last round if it missed it.

    The rounds of a run that missed its target are infinite.
    """
    to_target, total = QUANTITIES[quantity]
    if has_reached(run):
        return float(run.history.values.get(to_target, np.nan))
    return np.inf if quantity == "rounds" else run.last(total)


def steps_of(quantity: str, first: Sequence[RunRecord], other: Sequence[RunRecord]) -> Pairs:
    """Return the steps between runs beside each other in a quantity, or in ``reached``.

    A step in ``reached`` is the difference of the shares that reached the target, and else the logarithm of a ratio.
    """
    reached = [np.array([has_reached(run) for run in runs], dtype=float) for runs in (first, other)]
    if quantity == "reached":
        return Pairs.exact(reached[0] - reached[1])
    values = [[spent(run, quantity) for run in runs] for runs in (first, other)]
    if quantity == "rounds":
        return Pairs.ordered(*values)
    return Pairs.censored(values[0], reached[0], values[1], reached[1])


def compare(contestant: BySeed, other: BySeed, quantity: str, steps: Steps = steps_of) -> Pairs:
    """Return the comparison of two contestants in a quantity over the seeds that both have.

    The steps of a seed's assigners are averaged.
    """
    units = []
    for seed, runs in contestant.items():
        pairs = [(run, other[seed][assigner]) for assigner, run in runs.items() if assigner in other.get(seed, {})]
        if pairs:
            runs_of_seed, other_runs = zip(*pairs, strict=True)
            units.append(steps(quantity, runs_of_seed, other_runs))
    return Pairs.average(units)


def mean_ranks(contestants: Mapping[str, BySeed], quantity: str) -> dict[str, float]:
    """Return each contestant's mean rank, 1 for the best, over its seeds; NaN if it has none with a rival."""
    ranks: dict[str, dict[int, float]] = {name: {} for name in contestants}
    for name, by_seed in contestants.items():
        for rival, other in contestants.items():
            for seed in by_seed if rival != name else ():
                pair = compare({seed: by_seed[seed]}, other, quantity)
                for step in pair.steps:
                    ranks[name][seed] = ranks[name].get(seed, 1.0) + (1 + np.sign(step)) / 2
    return {name: float(np.mean(list(places.values()))) if places else np.nan for name, places in ranks.items()}


def runs_of(contestants: Mapping[str, BySeed]) -> list[RunRecord]:
    """Return all runs of a field."""
    return [run for by_seed in contestants.values() for members in by_seed.values() for run in members.values()]


def is_ranked(contestants: Mapping[str, BySeed]) -> bool:
    """Return whether a field has two contestants or more, and a run that reached its target accuracy."""
    return len(contestants) > 1 and any(map(has_reached, runs_of(contestants)))


def ranking(sweep: SweepRecord, reference: str = REFERENCE) -> TextTable | None:
    """Return one row for each field and contestant, the best mean rank by joules first, as text.

    Beside the rank in each quantity stand the median ratio to the reference and the adjusted p-value. The result is
    None without runs of the reference and of another contestant, and if no run reached its target accuracy.
    """
    records = {}
    for field, contestants in fields(sweep.runs, reference).items():
        name = label_of(contestants, reference)
        if is_ranked(contestants) and name is not None:
            records[field] = _ranking(contestants, name)
    if len(records) > 1:
        records = {field: [{"": row[""], "data": field} | row for row in rows] for field, rows in records.items()}
    return TextTable.of([row for rows in records.values() for row in rows]) if records else None


def unranked(sweep: SweepRecord) -> list[str]:
    """Return a sentence for each field that the ranking leaves out because no run reached its target accuracy."""
    sentences = []
    for field, contestants in fields(sweep.runs).items():
        if len(contestants) > 1 and not is_ranked(contestants):
            runs = runs_of(contestants)
            with_target = [run for run in runs if run.target is not None]
            best = max((run.judged(run.main_metric).max() for run in with_target), default=np.nan)
            most = f" (at most {metrics.describe(with_target[0].main_metric).text(best)})" if np.isfinite(best) else ""
            has_none = not with_target and all(run.config.target.value is None for run in runs)
            reason = "its runs have no target" if has_none else f"none of {len(runs)} runs reached its target{most}"
            sentences.append(f"{field}: not ranked, because {reason}.")
    return sentences


def _ranking(contestants: Mapping[str, BySeed], reference: str) -> list[dict[str, str]]:
    opponents = [name for name in contestants if name != reference]
    rows: dict[str, dict[str, str]] = {}
    for name, by_seed in contestants.items():
        runs = runs_of({name: by_seed})
        reached = f"{sum(map(has_reached, runs))} of {len(runs)}"
        rows[name] = {"": name, "seeds": str(len(by_seed)), "reached": reached}
    order: dict[str, float] = {}
    for quantity in ("reached", *QUANTITIES):
        pairs = {name: compare(contestants[name], contestants[reference], quantity) for name in opponents}
        tests = outcome_texts(pairs, short=True)
        if quantity == "reached":
            for name in opponents:
                rows[name]["reached"] += f" ({tests[name]})" if pairs[name].steps.any() else ""
            continue
        places = mean_ranks(contestants, quantity)
        order = places if quantity == "joules" else order
        for name, row in rows.items():
            row[f"{quantity}: rank"] = "–" if np.isnan(places[name]) else f"{places[name]:.1f}"
            ratio = (
                f"{median_text(*pairs[name].median)} ({tests[name]})" if name in pairs and pairs[name].units else "–"
            )
            row[f"{quantity} × {reference}'s (p)"] = ratio if name in pairs else "1"
    return sorted(rows.values(), key=lambda row: float(np.nan_to_num(order[row[""]], nan=np.inf)))


def p_text(p: float) -> str:
    """Return a p-value as text; a dash where so few seeds cannot give one below 0.05."""
    return "–" if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def outcome_texts(pairs: Mapping[str, Pairs], short: bool = False) -> dict[str, str]:
    """Return the outcome of each opponent's test as text, adjusted for the family of all that could be tested.

    A short text is the p-value alone.
    """
    texts = {}
    for name, p in family_p(pairs).items():
        pair = pairs[name]
        text = p_text(p) if short else f"p {'' if p < 0.001 else '= '}{p_text(p)}"
        if np.isnan(p) and not short:
            text = f"{pair.units} seed{'s' if pair.units > 1 else ''} cannot give p < {LEVEL}"
        texts[name] = f"{text}, {pair.uncertain} uncertain" if pair.uncertain else text
    return texts


def median_text(low: float, high: float) -> str:
    """Return the median ratio as text, or its bounds where the values that decide it are censored (`Pairs.median`)."""
    if np.isinf(low):
        return "not reached"
    if low == high or f"{low:.2f}" == f"{high:.2f}":
        return f"{low:.2f}"
    if low == 0 and np.isinf(high):
        return "open"
    if np.isinf(high):
        return f"≥ {low:.2f}"
    return f"≤ {high:.2f}" if low == 0 else f"{low:.2f} to {high:.2f}"
