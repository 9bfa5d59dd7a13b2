"""The answers of docs/results/clock.md as Markdown tables, from the committed exports of the sweeps of clocks.

    python -m tests.clock.answers [--folder tests/data/results]

A table has one column for each world, partition and target. Its first row is the reference: mean and standard
deviation over the seeds that reached the target. The other rows are median ratios to it over seeds, in which a run that
missed the target is censored. In parentheses stands the p-value of an exact two-sided signed-rank test over seeds, by
Holm's method over a family of tests (`hflray.support.pairs`), then how many runs reached the target if some did not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.report.exports import read_exhibit
from hflray.report.runs import RunRecord, SweepRecord
from hflray.support.pairs import Pairs, family_p
from tests.training.answers import FAILED, RESULTS, at_target, print_tables, ratio

SPENT = {"seconds": metrics.TOTAL_DELAY_S, "joules": metrics.TOTAL_ENERGY_J}
Cases = dict[str, dict[str, dict[int, RunRecord]]]  # the runs by case, name and seed
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


def tables(cases: Cases, across: bool = False) -> str:
    """Return a table of seconds and one of joules to the target; the first name of each case is the reference.

    The family of Holm's method is the tests of a column, or (`across`) of a whole table.
    """
    return "\n\n".join(_table(cases, quantity, metric, across) for quantity, metric in SPENT.items())


def _table(cases: Cases, quantity: str, metric: str, across: bool) -> str:
    pairs = {case: _compared_with_first(by_name, metric) for case, by_name in cases.items()}
    adjusted = {case: family_p(by_name) for case, by_name in pairs.items()}
    if across:
        one = family_p({f"{case}/{name}": each for case, tests in pairs.items() for name, each in tests.items()})
        adjusted = {case: {name: one[f"{case}/{name}"] for name in tests} for case, tests in pairs.items()}
    names = list(next(iter(cases.values())))
    lines = [f"| {' | '.join((quantity, *cases))} |", f"|---|{'--:|' * len(cases)}"]
    first = [spread(by_name[names[0]], metric) for by_name in cases.values()]
    lines.append(f"| {' | '.join((f'{names[0][2:]}, {quantity}', *first))} |")
    for name in names[1:]:
        cells = []
        for case, by_name in cases.items():
            reached = sum(map(at_target, by_name[name].values()))
            missed = f", {reached} of {len(by_name[name])} reach it" if reached < len(by_name[name]) else ""
            cells.append(ratio(pairs[case][name], adjusted[case][name]) + missed)
        lines.append(f"| {' | '.join((name[2:], *cells))} |")
    return "\n".join(lines)


def _compared_with_first(by_name: dict[str, dict[int, RunRecord]], metric: str) -> dict[str, Pairs]:
    first, *others = by_name
    return {name: compared(by_name[name], by_name[first], metric) for name in others}


def spread(runs: dict[int, RunRecord], metric: str) -> str:
    """Return mean and standard deviation of a metric after the last round, over the runs that reached the target."""
    values = [float(run.rounds[metric].iloc[-1]) for run in runs.values() if at_target(run)]
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def clouds(sweep: SweepRecord) -> str:
    """Return what each cloud needs in each world and partition, against the synchronous one."""
    return tables(_by_case(sweep.runs, lambda run: cloud_of(run.config)))


def minimised(sweep: SweepRecord) -> str:
    """Return what FedAsync needs with assignments that weigh the mean edge, against those that weigh the round."""
    return tables(_by_case(sweep.runs, lambda run: f"{run.config.minimised != 'round':d} {run.config.minimised}"), True)


def edges(sweep: SweepRecord) -> str:
    """Return what asynchronous edges need under two clouds, against a synchronous cloud whose edges wait for all."""
    reference = [run for run in read_exhibit(RESULTS / "clouds").runs if cloud_of(run.config) == SYNCHRONOUS]
    waiting = _by_case(reference, lambda run: SYNCHRONOUS)
    own = _by_case(sweep.runs, _with_edges)
    return tables({case: waiting[case] | by_name for case, by_name in own.items()})


def _by_case(runs: Sequence[RunRecord], name_of: Callable[[RunRecord], str]) -> Cases:
    """Return the runs by case, from the still world to the living one, and by a name whose first character orders."""
    ended = [run for run in runs if run.ended or run.history.status in FAILED]
    ordered = sorted(ended, key=lambda run: (bool(run.config.fleet.slow_share), data_of(run.config), name_of(run)))
    cases: Cases = {}
    for run in ordered:
        by_name = cases.setdefault(_case(run), {})
        by_name.setdefault(name_of(run), {})[run.config.seed] = run
    return cases


def _case(run: RunRecord) -> str:
    return f"{'living' if run.config.fleet.slow_share else 'still'}, {data_of(run.config)}"


def _with_edges(run: RunRecord) -> str:
    return "1 asynchronous edges" if cloud_of(run.config) == SYNCHRONOUS else "2 asynchronous edges, FedAsync"


QUESTIONS = {"clouds": clouds, "clouds_fashion": clouds, "clouds_edge": edges, "clouds_minimise": minimised}


if __name__ == "__main__":
    print_tables(QUESTIONS, __doc__)
