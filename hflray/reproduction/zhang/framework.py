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
    join_names,
    select_alike,
    split,
)
from hflray.reproduction.zhang.scheduling import TARGETS, describe_absent, spread_falls
from hflray.tracking import Tables

SEEDS = Needs(least_seeds=2)  # a difference over one seed has no interval
ROUNDS = "round"  # the column of a run's rounds, whose value at the target is the number of rounds that it took
FORMS = {  # the factor to the unit, the symbol and the form of a cost
    ROUNDS: (1.0, "", "{:,.1f} rounds"),
    metrics.TOTAL_OBJECTIVE: (1.0, "", "{:,.0f} J"),
    metrics.TOTAL_DELAY_S: (1.0, "T ", "{:,.0f} s"),
    metrics.TOTAL_ENERGY_J: (1.0, "E ", "{:,.0f} J"),
    metrics.TOTAL_MESSAGE_BITS: (1 / 8e6, "", "{:,.0f} MB"),
    metrics.ROUND_MESSAGE_BITS: (1 / 8e6, "", "{:,.0f} MB a round"),
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


def compare_at_target(
    sweep: Sweep, needs: Needs, data: str, first: int, second: int | None = None
) -> tuple[dict[int | str, Comparison[int | str]], list[str], list[str]]:
    """Return the comparisons of H = `first` with each other H, what is missing, and the unused runs.

    Each comparison is on the seeds that its two values of H have. It needs all their runs at the target, because the
    runs that are missing would be the expensive ones.

    Args:
        sweep: the runs.
        needs: what the claim needs; at other values of H than `Needs.scheduled` nothing is missing.
        data: the data set.
        first: the first H.
        second: the other H; None: all others.

    Raises:
        NotTested: no comparison has the least evidence.
    """
    runs, unused = by_h(sweep, data)
    if second is not None:
        runs = {h: members for h, members in runs.items() if h in (first, second)}
    arrived = {h: [run for run in members if run.reached(TARGETS[data]) is not None] for h, members in runs.items()}
    seeds = {h: {run.seed for run in members} for h, members in runs.items()}
    late = {h: seeds[h] - {run.seed for run in arrived[h]} for h in runs}
    scheduled = needs.scheduled if second is None else (first, second)
    names = {h: f"{pretty(data)} at H = {h}" for h in runs}
    missing = [f"{pretty(data)} at {text}" for text in describe_absent(replace(needs, scheduled=scheduled), list(runs))]
    for h, members in runs.items():
        failures = Counter(_describe_failure(run, needs) for run in members if run not in arrived[h])
        unused += [f"{count} run{'s' if count > 1 else ''} at H = {h} ({why})" for why, count in failures.items()]
        if h in scheduled and not arrived[h]:
            missing.append(f"{names[h]} ({_describe_failure(_longest(members), needs)})")
    comparisons = {}
    rivals = [h for h in arrived if h != first and arrived[h]]
    for h in rivals if arrived.get(first) else []:
        try:
            if awaited := sorted((late[h] | late[first]) & seeds[h] & seeds[first]):
                raise NotTested(f"needs {names[first]} and {names[h]} at the target with seed {join_names(awaited)}")
            pair = {each: arrived[each] for each in (first, h)}
            comparisons[h] = compare_fairly(pair, replace(SEEDS, seeds=needs.seeds), metrics.ACCURACY, names)
        except NotTested as reason:
            (missing if h in scheduled else unused).append(str(reason))
    if not arrived.get(first) or not rivals:
        needed = f"H = {first} and at {'another H' if second is None else f'H = {second}'}"
        missing.insert(0, f"needs {pretty(data)} at {needed}, to its target {TARGETS[data]:.1%}")
    if not comparisons:
        raise NotTested("; ".join(missing or unused))
    used = [run for comparison in comparisons.values() for run in comparison.runs]
    left = [run for members in arrived.values() for run in members if run not in used]
    unused += [f"{run.full_name} (no run to compare has its seed)" for run in left]
    return comparisons, missing, unused


def _longest(runs: list[Run]) -> Run:
    """Return the run with the most rounds."""
    return max(runs, key=lambda run: last_step(run, metrics.ACCURACY))


def _describe_failure(run: Run, needs: Needs) -> str:
    """Return why a run has no costs to its target."""
    rounds = last_step(run, metrics.ACCURACY)
    if rounds >= needs.steps:
        return f"its target is not reached in {rounds} rounds"
    return f"{rounds} of {needs.steps} rounds, its target not reached"


def reaches_target(sweep: Sweep, needs: Needs, *, expected: bool = True) -> Finding:
    """Test whether the runs with the values of H in `Needs.scheduled` reach the targets within `Needs.steps` rounds.

    Args:
        sweep: the runs.
        needs: what the claim needs.
        expected: whether the claim is that every run reaches its target, or that none does.
    """
    texts, parts, evidence, used, missing, unused = [], [], [], [], [], []
    for data in needs.data:
        groups, dropped = by_h(sweep, data)
        unused += [text for text in dropped if text not in unused]
        for h in needs.scheduled:
            runs = groups.get(h, [])
            name = f"{pretty(data)} at H = {h}"
            ended = [r for r in runs if r.reached(TARGETS[data]) or last_step(r, metrics.ACCURACY) >= needs.least_steps]
            unused += [f"{run.full_name} ({_describe_failure(run, needs)})" for run in runs if run not in ended]
            if not ended:
                missing.append(f"{name} ({_describe_failure(_longest(runs), needs) if runs else 'no run'})")
                continue
            texts.append(f"{name}: {_describe_arrivals(runs, ended, TARGETS[data])}")
            arrivals = [run.reached(TARGETS[data]) is not None for run in ended]
            agrees = all(arrivals) if expected else not any(arrivals)
            parts.append(Part(agrees, len({run.seed for run in ended}) >= needs.seeds))
            evidence.append(f"{name}: {len(ended)} of {needs.seeds} seeds, {needs.least_steps} rounds or to the target")
            used += ended
    if not texts:
        scheduled = " or ".join(map(str, needs.scheduled))
        raise NotTested(
            f"needs H = {scheduled} for {needs.least_steps} rounds, or to its target; missing: {', '.join(missing)}"
        )
    return Finding("; ".join(texts), parts, "; ".join(evidence), used, missing, unused)


def _describe_arrivals(runs: list[Run], ended: list[Run], target: float) -> str:
    """Return how many of the runs that have ended reached the target, in which rounds, and how many go on."""
    arrived = sorted(first for run in ended if (first := run.reached(target)) is not None)
    best = max(float(run.series(metrics.ACCURACY).max()) for run in ended)
    text = f"{len(arrived)} of {len(ended)} run{'s' if len(ended) > 1 else ''} reached {target:.1%}"
    if arrived:
        text += f" in round{'s' if len(arrived) > 1 else ''} {', '.join(map(str, arrived))}"
    open_runs = len(runs) - len(ended)
    return f"{text}, {best:.1%} at best" + (
        f"; {open_runs} more of fewer rounds may still reach it" if open_runs else ""
    )


def compare_costs(
    sweep: Sweep, needs: Needs, *, first: int, second: int | None = None, costs: tuple[str, ...], sign: int
) -> Finding:
    """Test on each data set whether one H costs less than another by means.

    Args:
        sweep: the runs.
        needs: what the claim needs.
        first: the first H.
        second: the second H; None: every other.
        costs: the metrics that are compared.
        sign: -1 tests whether the first H costs less, 1 whether it costs more.
    """
    texts, parts, used, missing, unused = [], [], [], [], []
    coverage: dict[str, list[str]] = {}
    for data in needs.data:
        try:
            comparisons, lacking, dropped = compare_at_target(sweep, needs, data, first, second)
        except NotTested as reason:
            missing.append(str(reason))
            continue
        for h, comparison in comparisons.items():
            label = f"{pretty(data)}, H = {first} against {h}"
            lines = []
            for metric in costs:
                values = [[cost_at_target(run, metric) for run in comparison.groups[each]] for each in (first, h)]
                gap = Gap.of(*values)
                parts.append(Part.of(gap, sign, comparison.whole))
                _, symbol, form = FORMS[metric]
                lines.append(f"{symbol}{' and '.join(form.format(np.mean(each)) for each in values)}{gap.note}")
            texts.append(f"{label}: {', '.join(lines)}")
            coverage.setdefault(comparison.coverage, []).append(label)
            used += comparison.runs
        missing += lacking
        unused += dropped
    if not texts:
        raise NotTested("; ".join(missing))
    evidence = "; ".join(f"{', '.join(labels)}: {each}" for each, labels in coverage.items())
    return Finding("; ".join(texts), parts, evidence, used, missing, unused)


STOP = (
    "the paper may stop before the rounds that ours need (it does not say where), or its majority shares may differ "
    "between devices: in Figure 7 with unlike shares H = 10 does not reach it either, but nor does H = 30; we stop at "
    "150 rounds"
)
TOO_UNLIKE = "the shares that Dirichlet(0.05) draws may differ more than the paper's, which no run tests yet"
PLATEAU = (
    "on CIFAR-10 the paper's training may have a weight decay, or its devices less unlike labels: with a weight decay "
    "of 0.005 H = 30 to 100 reach 56 % (Figure 7 with weight decay), and at H = 10 IID data gain about five points "
    "(What keeps Figure 7 below its target on CIFAR-10)"
)
TEN_ARRIVES = (
    "H = 10 is cheaper where it reaches the target at all, which it does not in the paper (see the first claim)"
)
NEAR_TOP = (
    "a round costs less at H = 30 than at H = 50, and H = 30 needs too few more of them here to make up for that; it "
    "would need many more if the target were close to its highest accuracy, as 53.5 % is without weight decay (seed 0: "
    "H = 50 has it in round 83, and H = 30 not in 120)"
)
BOTH = ("fashion_mnist", "cifar10")
ALL = (30, 50, 70, 100)  # the values of H that reach the targets in the paper
NEEDS = Needs(seeds=5, least_steps=150, steps=150, scheduled=ALL, data=BOTH)
TOTALS = (metrics.TOTAL_OBJECTIVE, metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J)
CLAIMS = (
    Claim("H = 10 cannot reach the target accuracies", replace(NEEDS, scheduled=(10,)),
          partial(reaches_target, expected=False), STOP),
    Claim("Fashion-MNIST: the objective is lowest at H = 30", replace(NEEDS, data=("fashion_mnist",)),
          partial(compare_costs, first=30, costs=(metrics.TOTAL_OBJECTIVE,), sign=-1), TEN_ARRIVES),
    Claim("CIFAR-10: the objective is lowest at H = 50", replace(NEEDS, data=("cifar10",)),
          partial(compare_costs, first=50, costs=(metrics.TOTAL_OBJECTIVE,), sign=-1), NEAR_TOP),
    Claim("CIFAR-10: H = 30 sends the most bytes in total", replace(NEEDS, data=("cifar10",)),
          partial(compare_costs, first=30, costs=(metrics.TOTAL_MESSAGE_BITS,), sign=1), NEAR_TOP),
    Claim("scheduling all (H = 100) costs most of all: objective, T and E", NEEDS,
          partial(compare_costs, first=100, costs=TOTALS, sign=1)),
    Claim("the spread over seeds falls with H",
          Needs(least_seeds=2, least_steps=20, unit="rounds", contestants=("ikc",), least_scheduled=2,
                scheduled=(10, *ALL), data=BOTH), spread_falls),
    Claim("half of the devices is enough in general: H = 50 costs less than H = 100", NEEDS,
          partial(compare_costs, first=50, second=100, costs=(metrics.TOTAL_OBJECTIVE,), sign=-1)),
    Claim("30 % where the delay or the messages of a round matter most: H = 30 below H = 50", NEEDS,
          partial(compare_costs, first=30, second=50, sign=-1,
                  costs=(metrics.TOTAL_DELAY_S, metrics.ROUND_MESSAGE_BITS))),
    Claim("H = 30, 50, 70 and 100 reach the target accuracies", NEEDS, reaches_target, PLATEAU),
    Claim("fewer devices need more rounds to the target: H = 100 needs the fewest", NEEDS,
          partial(compare_costs, first=100, costs=(ROUNDS,), sign=-1)),
    Claim("CIFAR-10: H = 30 needs many more rounds than H = 50", replace(NEEDS, data=("cifar10",)),
          partial(compare_costs, first=30, second=50, costs=(ROUNDS,), sign=1)),
)  # fmt: skip


def claims_with_unlike_shares() -> tuple[Claim, ...]:
    """Return the claims on who reaches the target of Fashion-MNIST, for runs whose majority shares differ.

    They test the guess `STOP`: if unlike shares are the cause, H = 10 does not reach the target here, and H = 30 does.
    """
    needs = replace(NEEDS, data=("fashion_mnist",))
    return (
        Claim("H = 10 cannot reach the target accuracy", replace(needs, scheduled=(10,)),
              partial(reaches_target, expected=False)),
        Claim("H = 30 reaches it", replace(needs, scheduled=(30,)), reaches_target, TOO_UNLIKE),
        Claim("the objective is lower at H = 30 than at H = 10", needs,
              partial(compare_costs, first=30, second=10, costs=(metrics.TOTAL_OBJECTIVE,), sign=-1)),
    )  # fmt: skip


def claims_with_weight_decay() -> tuple[Claim, ...]:
    """Return the claims of Figure 7 on CIFAR-10, for runs with weight decay.

    They test the guess `PLATEAU`. They also test the paper's claims on costs, which need runs that reach the target.
    """
    return tuple(
        replace(claim, needs=replace(claim.needs, data=("cifar10",)))
        for claim in CLAIMS
        if "cifar10" in claim.needs.data
    )
