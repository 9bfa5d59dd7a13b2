"""The answers of docs/results/inside.md as Markdown tables, from the committed exports of five sweeps.

    python -m tests.training.answers [--folder tests/data/results]

± precedes the standard deviation over seeds. A p-value is of an exact two-sided signed-rank test over seeds against
the reference that `QUESTIONS` names, by Holm's method over the tests of a column of compressors, or of a first cell
of the other tables (`hflray.support.pairs`). A cell has no p-value if so few seeds cannot give one below 0.05 among
these tests. A run that diverged has no accuracy and ranks last. A run that missed the target is censored.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hflray import metrics
from hflray.report.exports import exports, read_exhibit
from hflray.report.runs import RunRecord, SweepRecord
from hflray.support.pairs import Pairs, family_p

RESULTS = Path(__file__).parents[1] / "data" / "results"
FAILED = ("FAILED", "ERROR")  # runs that diverged
Groups = dict[tuple[str, ...], dict[int, RunRecord]]


def grouped(sweep: SweepRecord, key: Callable[[RunRecord], tuple[str, ...]]) -> Groups:
    """Return the runs of each setting by seed; those that still go on or were stopped are left out."""
    groups: Groups = defaultdict(dict)
    for run in sweep.runs:
        if run.ended or run.history.status in FAILED:
            groups[key(run)][run.config.seed] = run
    return dict(sorted(groups.items()))


def accuracy(run: RunRecord) -> float:
    """Return the accuracy after the last round in percent; minus infinity if the run diverged before it."""
    whole = len(run.rounds) == run.config.max_rounds
    return 100 * float(run.rounds[metrics.ACCURACY].iloc[-1]) if whole else -np.inf


def gained(runs: dict[int, RunRecord], others: dict[int, RunRecord]) -> Pairs:
    """Return the difference in accuracy of each seed; two runs that diverged are equal."""
    pairs = [(accuracy(runs[seed]), accuracy(others[seed])) for seed in sorted(runs) if seed in others]
    return Pairs.exact([0.0 if one == other else float(np.clip(one - other, -1e3, 1e3)) for one, other in pairs])


def percent(runs: dict[int, RunRecord]) -> str:
    """Return the accuracies in words."""
    values = [accuracy(run) for run in runs.values()]
    whole = [value for value in values if np.isfinite(value)]
    lost = f"{len(values) - len(whole)} of {len(values)} diverge" if len(whole) < len(values) else ""
    if not whole:
        return lost
    spread = f"{np.mean(whole):.1f}" + (f" ± {np.std(whole, ddof=1):.1f}" if len(whole) > 1 else "")
    return f"{spread}; {lost}" if lost else spread


def crossed(groups: Groups, columns: list[str], reference: str, heads: tuple[str, ...]) -> str:
    """Return a table whose last part of a key is a column, compared with one of the columns in the same row."""
    rows = sorted({key[:-1] for key in groups}, key=lambda row: [_number(cell) for cell in row])
    adjusted: dict[str, float] = {}
    for first in {row[0] for row in rows}:
        adjusted |= family_p(
            {
                "/".join((*row, name)): gained(groups[*row, name], groups[*row, reference])
                for row in rows
                for name in columns
                if row[0] == first and name != reference and (*row, name) in groups
            }
        )
    lines = [f"| {' | '.join((*heads, *columns))} |", f"|{'---|' * len(heads)}{'--:|' * len(columns)}"]
    for row in rows:
        cells = []
        for name in columns:
            cells.append(percent(groups[*row, name]) + _p(adjusted.get("/".join((*row, name)), np.nan)))
        lines.append(f"| {' | '.join((*row, *cells))} |")
    return "\n".join(lines)


def _number(cell: str) -> tuple[float, str]:
    try:
        return float(cell), ""
    except ValueError:
        return np.inf, cell


def _p(value: float) -> str:
    if np.isnan(value):
        return ""
    return f" ({value:.3f})" if value >= 0.001 else " (< 0.001)"


def rules(sweep: SweepRecord) -> str:
    """Return the accuracy of each rule by majority and Q, against plain SGD."""
    groups = grouped(
        sweep,
        lambda run: (
            f"{run.config.data.majority_fraction:g}",
            f"{run.config.training.edge_iterations}",
            run.settings["training.rule.name"],
        ),
    )
    present = {key[-1] for key in groups}
    names = [name for name in ("sgd", "fedprox", "fednova", "feddyn", "scaffold", "mtgc") if name in present]
    return crossed(groups, names, "sgd", ("majority", "Q"))


def faulty(sweep: SweepRecord) -> str:
    """Return the accuracy of each aggregator by what a fifth of the devices sends, against the mean."""
    groups = grouped(
        sweep,
        lambda run: (
            run.config.world.faulty.kind if run.config.world.faulty.share else "nobody",
            run.config.aggregation.edge.name,
        ),
    )
    names = ["mean", "median", "trimmed_mean", "krum", "multi_krum", "geometric_median"]
    return crossed(groups, names, "mean", ("faulty",))


def compression(sweep: SweepRecord) -> str:
    """Return what each compressor needs to the target: whole models in units, and the others as ratios to them."""

    def key(run: RunRecord) -> tuple[str, ...]:
        section = run.config.compression.device
        options = " ".join(f"{value:g}" for value in section.options.values())
        return run.config.allocation.method, f"{section.name} {options}".strip()

    def needs(runs: dict[int, RunRecord], others: dict[int, RunRecord], metric: str) -> Pairs:
        seeds = sorted(set(runs) & set(others))
        ends = [[each[seed].rounds[metric].iloc[-1] for seed in seeds] for each in (runs, others)]
        reached = [[at_target(each[seed]) for seed in seeds] for each in (runs, others)]
        return Pairs.censored(ends[0], reached[0], ends[1], reached[1])

    groups = grouped(sweep, key)
    wanted = (metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J)
    compared = {
        f"{'/'.join(row)}/{metric}": needs(runs, groups[row[0], "none"], metric)
        for row, runs in groups.items()
        for metric in wanted
        if row[1] != "none"
    }
    against = {row[1]: [needs(groups["newton", row[1]], groups["equal", row[1]], m) for m in wanted] for row in groups}
    adjusted: dict[str, float] = {}
    for i, metric in enumerate(wanted):
        adjusted |= family_p({name: pairs for name, pairs in compared.items() if name.endswith(metric)})
        adjusted |= family_p({f"{name}/{i}": both[i] for name, both in against.items()})
    heads = ("allocation", "compressor", "rounds", "seconds", "joules", "seconds × equal shares",
             "joules × equal shares")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'--:|' * (len(heads) - 2)}"]
    for row, runs in groups.items():
        ends = [
            [run.rounds[metric].iloc[-1] for run in runs.values() if at_target(run)] for metric in ("round", *wanted)
        ]
        spreads = [f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" for values in ends]
        names = [f"{'/'.join(row)}/{metric}" for metric in wanted]
        beside = [
            f"× {ratio(compared[name], adjusted[name])}" if name in compared else own
            for name, own in zip(names, spreads[1:], strict=True)
        ]
        optimal = ["–", "–"]
        if row[0] == "newton":
            optimal = [ratio(pairs, adjusted[f"{row[1]}/{i}"]) for i, pairs in enumerate(against[row[1]])]
        lines.append(f"| {' | '.join((*row, spreads[0], *beside, *optimal))} |")
    return "\n".join(lines)


def ratio(pairs: Pairs, p: float) -> str:
    """Return the median ratio, or its bounds, and the p-value in parentheses."""
    low, high = pairs.median
    return (f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}") + _p(p)


def at_target(run: RunRecord) -> bool:
    """Return whether the run ended at its target."""
    return bool(run.rounds[metrics.ACCURACY].iloc[-1] >= run.config.target_accuracy)


def privacy(sweep: SweepRecord) -> str:
    """Return ε and accuracy by H and noise, against the runs without privacy."""
    groups = grouped(
        sweep,
        lambda run: (
            f"{run.config.scheduling.num_scheduled:03}",
            "none" if run.config.privacy.clip is None else f"{run.config.privacy.noise_multiplier:02g}",
        ),
    )
    adjusted = family_p(
        {"/".join(key): gained(runs, groups[key[0], "none"]) for key, runs in groups.items() if key[1] != "none"}
    )
    heads = ("H", "noise, of the clip", "ε", "accuracy, %", "difference")
    lines = [f"| {' | '.join(heads)} |", f"|{'--:|' * len(heads)}"]
    for key, runs in groups.items():
        epsilon = (
            f"{np.mean([run.last(metrics.PRIVACY_EPSILON) for run in runs.values()]):.2f}" if key[1] != "none" else "∞"
        )
        difference = "–"
        if key[1] != "none":
            away = gained(runs, groups[key[0], "none"]).steps
            difference = f"{np.mean(away):.1f} ± {np.std(away, ddof=1):.1f}{_p(adjusted['/'.join(key)])}"
        noise = key[1] if key[1] == "none" else f"{float(key[1]):g}"
        cells = (key[0].lstrip("0"), noise, epsilon, percent(runs), difference)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


QUESTIONS = {"rules": rules, "rules_all": rules, "compression": compression, "privacy": privacy, "faulty": faulty}


def print_tables(questions: dict[str, Callable[[SweepRecord], str]], about: str) -> None:
    """Print the tables of the exports that a question is asked of; `about` describes the command."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=RESULTS, help="the exports")
    for folder in exports(parser.parse_args().folder):
        if folder.name in questions:
            print(f"## {folder.name}\n\n{questions[folder.name](read_exhibit(folder))}\n")


if __name__ == "__main__":
    print_tables(QUESTIONS, __doc__)
