"""Figure 7: the whole framework to its target accuracies with H = 10 to 100 of 100 devices, means of five runs.

The cost of a run is its total up to the first round that reached the target. A run that has not reached the target is
no evidence about costs; after 150 rounds it counts as a run that does not reach it. IKC's runs of Figures 3 and 4 have
the same fleets, assigner and seeds, so that Figure 7 borrows them, each up to its target.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np

from hflray import metrics
from hflray.report.labels import DATA, H, pretty
from hflray.report.runs import Run, Sweep
from hflray.report.series import last_step
from hflray.reproduction.evidence import (
    Claim,
    Comparison,
    Finding,
    Gap,
    Needs,
    NotTested,
    Part,
    compare_fairly,
    name_verdicts,
    select_alike,
    split,
)
from hflray.reproduction.zhang.scheduling import TARGETS, describe_absent, spread_falls
from hflray.tracking import Tables

LEAST_SEEDS = 2  # a difference over one seed has no interval
FORMS = {
    metrics.TOTAL_OBJECTIVE: (1.0, "objective {:,.0f} J"),
    metrics.TOTAL_DELAY_S: (1.0, "T {:,.0f} s"),
    metrics.TOTAL_ENERGY_J: (1.0, "E {:,.0f} J"),
    metrics.TOTAL_MESSAGE_BITS: (1 / 8e6, "{:,.0f} MB"),
    metrics.ROUND_MESSAGE_BITS: (1 / 8e6, "{:,.0f} MB a round"),
}


def borrow(lender: Sweep) -> list[Run]:
    """Return IKC's runs of Figure 3 or 4, each ended in the first round that reached the target of its data set."""
    return [
        _until_target(run)
        for run in lender.runs
        if run.config.scheduling.name == "ikc" and run.config.data.name in TARGETS
    ]


def _until_target(run: Run) -> Run:
    target = TARGETS[run.config.data.name]
    config = run.config.model_copy(update={"target_accuracy": target})
    last = run.reached(target)
    if last is None:
        return replace(run, config=config)
    rounds = run.history.tables.rounds
    tables = Tables(rounds[rounds["round"] <= last], run.devices)
    return replace(run, config=config, history=replace(run.history, tables=tables, status="FINISHED"))


def cost_at_target(run: Run, metric: str) -> float:
    """Return a metric in the first round that reached the target, in the unit of `FORMS`."""
    first = run.reached(TARGETS[run.config.data.name])
    assert first is not None
    return float(run.series(metric).loc[first]) * FORMS[metric][0]


def by_h(sweep: Sweep, data: str) -> tuple[dict[int | str, list[Run]], list[str]]:
    """Return IKC's runs on a data set by H, and the names of the unused runs."""
    runs, dropped = select_alike([run for run in sweep.runs if run.config.scheduling.name == "ikc"], (H, DATA))
    return split([run for run in runs if run.config.data.name == data], H), dropped


def compare_at_target(sweep: Sweep, needs: Needs, data: str, required: int) -> tuple[Comparison[int | str], list[str]]:
    """Return the comparison of the runs that reached the target, by H, and the values of H without one.

    The seeds that one value of H lacks are compared at no other. Two kinds of values are therefore left out. A value
    that the claim is not about is left out unless all its runs reached the target. A value with fewer than
    `LEAST_SEEDS` of the seeds at H = `required` is left out unless all values are like this.

    Raises:
        NotTested: no run with H = `required` reached the target, or no run with another H did, or one seed is common.
    """
    runs, dropped = by_h(sweep, data)
    successes, missing = {}, []
    for h, members in runs.items():
        arrived = [run for run in members if run.reached(TARGETS[data]) is not None]
        failures = Counter(_describe_failure(run, needs) for run in members if run not in arrived)
        dropped += [f"{count} run{'s' if count > 1 else ''} at H = {h} ({why})" for why, count in failures.items()]
        if arrived and (h in needs.scheduled or len(arrived) == len(members)):
            successes[h] = arrived
        elif arrived:
            dropped.append(f"{len(arrived)} at H = {h} that reached it, because not all runs at this H did")
        elif h in needs.scheduled:
            missing.append(f"{pretty(data)} at H = {h} ({_describe_failure(members[-1], needs)})")
    if required not in successes or len(successes) < 2:
        details = f"; {'; '.join(missing)}" if missing else ""
        lacking = f"H = {required} and at another H" if required not in successes else f"another H than {required}"
        raise NotTested(f"needs {pretty(data)} at {lacking}, to its target {TARGETS[data]:.1%}{details}")
    seeds = {h: {run.seed for run in members} for h, members in successes.items()}
    alone = [h for h in successes if len(seeds[h] & seeds[required]) < LEAST_SEEDS]
    if len(alone) < len(successes) - 1:
        for h in alone:
            del successes[h]
            note = f"{pretty(data)} at H = {h} (fewer than {LEAST_SEEDS} of the seeds at H = {required})"
            (missing if h in needs.scheduled else dropped).append(note)
    names = {h: f"{pretty(data)} at H = {h}" for h in successes}
    comparison = compare_fairly(successes, Needs(least_seeds=LEAST_SEEDS, seeds=needs.seeds), metrics.ACCURACY, names)
    absent = [f"{pretty(data)} at {text}" for text in describe_absent(needs, list(runs))]
    return replace(comparison, dropped=dropped + comparison.dropped), missing + absent


def _describe_failure(run: Run, needs: Needs) -> str:
    """Return why a run has no costs to its target."""
    rounds = last_step(run, metrics.ACCURACY)
    if rounds >= needs.steps:
        return f"its target is not reached in {rounds} rounds"
    return f"{rounds} of {needs.steps} rounds, its target not reached"


def misses_target(sweep: Sweep, needs: Needs) -> Finding:
    """Test whether H = 10 misses the targets within `Needs.steps` rounds."""
    texts, parts, evidence, used, missing, unused = [], [], [], [], [], []
    for data in needs.data:
        groups, dropped = by_h(sweep, data)
        unused += [text for text in dropped if text not in unused]
        runs = groups.get(10, [])
        decided = [r for r in runs if r.reached(TARGETS[data]) or last_step(r, metrics.ACCURACY) >= needs.least_steps]
        unused += [f"{run.full_name} ({_describe_failure(run, needs)})" for run in runs if run not in decided]
        if not decided:
            most = max((last_step(run, metrics.ACCURACY) for run in runs), default=0)
            missing.append(f"{pretty(data)} at H = 10 ({most} of {needs.least_steps} rounds, its target not reached)")
            continue
        best = max(float(run.series(metrics.ACCURACY).max()) for run in decided)
        arrived = sum(run.reached(TARGETS[data]) is not None for run in decided)
        text = f"{arrived} of {len(decided)} run{'s' if len(decided) > 1 else ''} reached {TARGETS[data]:.1%}"
        open_runs = len(runs) - len(decided)
        undecided = f"; {open_runs} more of fewer rounds may still reach it" if open_runs else ""
        texts.append(f"{pretty(data)}: {text}, {best:.1%} at best{undecided}")
        parts.append(Part(not arrived, len({run.seed for run in decided}) >= needs.seeds))
        seeds = f"{len(decided)} of {needs.seeds} seeds"
        evidence.append(f"{pretty(data)}: {seeds}, {needs.least_steps} rounds or to the target")
        used += decided
    if not texts:
        raise NotTested(f"needs H = 10 for {needs.least_steps} rounds, or to its target; missing: {', '.join(missing)}")
    return Finding("; ".join(texts), parts, "; ".join(evidence), used, missing, unused)


def has_extreme_cost(sweep: Sweep, needs: Needs, data: str, metric: str, at: int, largest: bool = False) -> Finding:
    """Test whether the mean of a metric is lowest (or largest) at one H."""
    comparison, missing = compare_at_target(sweep, needs, data, at)
    values = {h: [cost_at_target(run, metric) for run in runs] for h, runs in comparison.groups.items()}
    gaps = {h: Gap.of(values[at], costs) for h, costs in values.items() if h != at}
    parts = [Part.of(gap, 1 if largest else -1, comparison.whole) for gap in gaps.values()]
    texts = [f"H = {h}: {FORMS[metric][1].format(np.mean(costs))}" for h, costs in values.items()]
    text = ", ".join(texts) + name_verdicts(f"H = {at}", {f"H = {h}": gap for h, gap in gaps.items()})
    return Finding(text, parts, comparison.coverage, comparison.runs, missing, comparison.dropped)


def compare_costs(
    sweep: Sweep, needs: Needs, first: int, second: int | None, costs: tuple[str, ...], sign: int
) -> Finding:
    """Test on both data sets whether one H costs less than another by means.

    Args:
        sweep: the runs.
        needs: what the claim needs.
        first: the first H.
        second: the second H; None compares the first H with every other.
        costs: the metrics that are compared.
        sign: -1 tests whether the first H costs less, 1 whether it costs more.
    """
    texts, parts, evidence, used, missing, unused, reasons = [], [], [], [], [], [], []
    for data in needs.data:
        try:
            comparison, lacking = compare_at_target(sweep, needs, data, first)
            compared = [h for h in comparison.groups if h != first and second in (None, h)]
            if not compared:
                raise NotTested(f"needs {pretty(data)} at H = {second}, to its target {TARGETS[data]:.1%}")
        except NotTested as reason:
            reasons.append(str(reason))
            continue
        lines = []
        for h in (first, *compared):
            shown = [
                FORMS[m][1].format(np.mean([cost_at_target(run, m) for run in comparison.groups[h]])) for m in costs
            ]
            lines.append(f"H = {h}: {', '.join(shown)}")
        for other in compared:
            for metric in costs:
                gap = Gap.of(*([cost_at_target(run, metric) for run in comparison.groups[h]] for h in (first, other)))
                parts.append(Part.of(gap, sign, comparison.whole))
        texts.append(f"{pretty(data)}: {'; '.join(lines)}")
        evidence.append(f"{pretty(data)}: {comparison.coverage}")
        used += [run for h in (first, *compared) for run in comparison.groups[h]]
        missing += [text for text in lacking if second is None or f"H = {second} " in f"{text} "]
        unused += comparison.dropped
    if not texts:
        raise NotTested("; ".join(reasons))
    return Finding(". ".join(texts), parts, "; ".join(evidence), used, missing + reasons, unused)


PATIENCE = "we stop at 150 rounds; the paper does not say where it stops"
BOTH = ("fashion_mnist", "cifar10")
ALL = (30, 50, 70, 100)  # the values of H that reach the targets in the paper
NEEDS = Needs(seeds=5, least_steps=150, steps=150, scheduled=ALL, data=BOTH)
TOTALS = (metrics.TOTAL_OBJECTIVE, metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J)
CLAIMS = (
    Claim("H = 10 cannot reach the target accuracies", NEEDS, misses_target, PATIENCE),
    Claim("Fashion-MNIST: the objective is lowest at H = 30", NEEDS,
          partial(has_extreme_cost, data="fashion_mnist", metric=metrics.TOTAL_OBJECTIVE, at=30)),
    Claim("CIFAR-10: the objective is lowest at H = 50", NEEDS,
          partial(has_extreme_cost, data="cifar10", metric=metrics.TOTAL_OBJECTIVE, at=50)),
    Claim("CIFAR-10: H = 30 sends the most bytes in total", NEEDS,
          partial(has_extreme_cost, data="cifar10", metric=metrics.TOTAL_MESSAGE_BITS, at=30, largest=True)),
    Claim("scheduling all (H = 100) costs most of all: objective, T and E", NEEDS,
          partial(compare_costs, first=100, second=None, costs=TOTALS, sign=1)),
    Claim("the spread over seeds falls with H",
          Needs(least_seeds=2, least_steps=20, unit="rounds", contestants=("ikc",), least_scheduled=2,
                scheduled=(10, *ALL), data=BOTH), spread_falls),
    Claim("half of the devices is enough in general: H = 50 costs less than H = 100", NEEDS,
          partial(compare_costs, first=50, second=100, costs=(metrics.TOTAL_OBJECTIVE,), sign=-1)),
    Claim("30 % where the delay or the messages of a round matter most: H = 30 below H = 50", NEEDS,
          partial(compare_costs, first=30, second=50, sign=-1,
                  costs=(metrics.TOTAL_DELAY_S, metrics.ROUND_MESSAGE_BITS))),
)  # fmt: skip
