"""The answers of docs/results/clock.md as Markdown tables, from the committed exports of the sweeps of clocks.

    python -m tests.clock.answers [--folder tests/data/results]

± precedes the standard deviation over the seeds that reached the target. × has the median ratio over seeds, in which a
run that missed the target is censored. A p-value is of an exact two-sided signed-rank test over seeds against the
synchronous cloud, by Holm's method over the other clouds of the same data and world (`hflray.support.pairs`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.report.exports import read_exhibit
from hflray.report.runs import RunRecord, SweepRecord
from hflray.support.pairs import Pairs, family_p
from tests.training.answers import RESULTS, Groups, at_target, grouped, print_tables, ratio

SPENT = (metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J)
SYNCHRONOUS = "0 synchronous"


def cloud_of(config: ExperimentConfig) -> str:
    """Return a name of the clock, whose first character orders the table."""
    cloud = config.clock.cloud
    if cloud.semi_synchronous is not None:
        period_s = cloud.semi_synchronous.period_s
        return f"{1 + (period_s > 1) + (period_s > 3)} semi-synchronous, P = {period_s:g} s"
    if cloud.asynchronous is None:
        return SYNCHRONOUS
    if cloud.asynchronous.rule == "fedat":
        return "6 FedAT"
    return "4 FedAsync" if cloud.asynchronous.buffer == 1 else f"5 FedBuff, K = {cloud.asynchronous.buffer}"


def data_of(config: ExperimentConfig) -> str:
    """Return the partition and the target, in an order that goes from even to uneven."""
    name = "IID" if config.data.partition == "iid" else f"majority {config.data.majority_fraction:g}"
    return f"{name}, to {100 * float(config.target_accuracy or 0):g} %"


def compared(runs: dict[int, RunRecord], others: dict[int, RunRecord], metric: str) -> Pairs:
    """Return what `runs` spend against `others`, for each seed that both have."""
    seeds = sorted(set(runs) & set(others))
    ends = [[each[seed].rounds[metric].iloc[-1] for seed in seeds] for each in (runs, others)]
    arrived = [[at_target(each[seed]) for seed in seeds] for each in (runs, others)]
    return Pairs.censored(ends[0], arrived[0], ends[1], arrived[1])


def table(groups: Groups) -> str:
    """Return a table of clocks in one world with one partition; the keys have the clock's name alone."""
    pairs = {
        (clock, metric): compared(runs, groups[(SYNCHRONOUS,)], metric)
        for (clock,), runs in groups.items()
        for metric in SPENT
        if clock != SYNCHRONOUS
    }
    adjusted: dict[str, float] = {}
    for metric in SPENT:
        adjusted |= family_p({f"{clock}/{m}": each for (clock, m), each in pairs.items() if m == metric})
    heads = ("cloud", "reached", "rounds", "seconds", "× synchronous", "joules", "× synchronous")
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for (clock,), runs in groups.items():
        arrived = [run for run in runs.values() if at_target(run)]
        cells = [clock[2:], f"{len(arrived)} of {len(runs)}", spread(arrived, "round")]
        for metric in SPENT:
            cells.append(spread(arrived, metric))
            known = (clock, metric) in pairs
            cells.append(ratio(pairs[clock, metric], adjusted[f"{clock}/{metric}"]) if known else "1")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(runs: list[RunRecord], metric: str) -> str:
    """Return mean and standard deviation of a metric after the last round."""
    values = [float(run.rounds[metric].iloc[-1]) for run in runs]
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "–"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def clouds(sweep: SweepRecord) -> str:
    """Return a table for each world and partition."""
    parts = []
    for slow in (False, True):
        own = replace(sweep, runs=[run for run in sweep.runs if bool(run.config.fleet.slow_share) == slow])
        groups = grouped(own, lambda run: (data_of(run.config), cloud_of(run.config)))
        for data in dict.fromkeys(first for first, _ in groups):
            parts.append(f"**{'Living' if slow else 'Still'} world, {data}**")
            parts.append(table({(clock,): runs for (first, clock), runs in groups.items() if first == data}))
    return "\n\n".join(parts)


def minimised(sweep: SweepRecord) -> str:
    """Return what FedAsync needs with assignments that weigh the mean edge, against those that weigh the round."""
    groups = grouped(
        sweep,
        lambda run: (
            "living" if run.config.fleet.slow_share else "still",
            data_of(run.config),
            run.config.minimised,
        ),
    )
    pairs = {
        (*case, metric): compared(groups[*case, "mean_edge"], groups[*case, "round"], metric)
        for case in dict.fromkeys(key[:2] for key in groups)
        for metric in SPENT
    }
    adjusted: dict[str, float] = {}
    for metric in SPENT:
        adjusted |= family_p({"/".join(key): each for key, each in pairs.items() if key[-1] == metric})
    heads = ("world", "data", "minimised", "reached", "rounds", "seconds", "× round", "joules", "× round")
    lines = [f"| {' | '.join(heads)} |", f"|---|---|---|{'--:|' * (len(heads) - 3)}"]
    for (*case, name), runs in groups.items():
        arrived = [run for run in runs.values() if at_target(run)]
        cells = [*case, name, f"{len(arrived)} of {len(runs)}", spread(arrived, "round")]
        for metric in SPENT:
            key = (*case, metric)
            cells += [spread(arrived, metric), "1" if name == "round" else ratio(pairs[key], adjusted["/".join(key)])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def edges(sweep: SweepRecord) -> str:
    """Return what asynchronous edges need under two clouds, against a synchronous cloud whose edges wait for all."""
    reference = [run for run in read_exhibit(RESULTS / "clouds").runs if cloud_of(run.config) == SYNCHRONOUS]
    parts = []
    own = grouped(sweep, lambda run: (_case(run), _with_edges(run)))
    others = grouped(replace(sweep, runs=reference), lambda run: (_case(run),))
    for case in dict.fromkeys(first for first, _ in own):
        both = {(SYNCHRONOUS,): others[(case,)]} | {
            (name,): runs for (first, name), runs in own.items() if first == case
        }
        parts += [f"**{case}**", table(both)]
    return "\n\n".join(parts)


def _case(run: RunRecord) -> str:
    return f"{'Living' if run.config.fleet.slow_share else 'Still'} world, {data_of(run.config)}"


def _with_edges(run: RunRecord) -> str:
    return "1 asynchronous edges" if cloud_of(run.config) == SYNCHRONOUS else "2 asynchronous edges, FedAsync"


QUESTIONS = {"clouds": clouds, "clouds_fashion": clouds, "clouds_edge": edges, "clouds_minimise": minimised}


if __name__ == "__main__":
    print_tables(QUESTIONS, __doc__)
