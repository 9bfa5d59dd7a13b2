"""The ranking of schedulers by what they need to reach the target accuracy, with a test of each against a reference.

A *contestant* is a scheduler with its options. A *block* is everything else that the runs of a sweep have in common:
seed, partition, assigner and so on. Within a block, contestants are compared on the same fleet and data.

* A contestant that does not reach the target in a block is the last there; several share the last rank.
* Against the reference, which is IKC unless an exhibit names another, each block gives a pair of values. Wilcoxon's
  signed-rank test compares the logarithms of their ratios, with the largest difference where only one of the two
  reached the target (`hflray.pairs`). With fewer than 10 pairs nothing is tested. The p-values of the contestants are
  adjusted by Holm's method, for each quantity by itself.
* A scheduler that assigns (`schedule_and_assign`) gives the same runs with every assigner. Only its runs with local
  search count, so that no run is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from hflray import metrics, registry
from hflray.errors import ConfigError
from hflray.pairs import Pairs
from hflray.report.labels import option, pretty
from hflray.report.runs import Run, Sweep

REFERENCE = "ikc"
QUANTITIES = {
    "rounds": metrics.ROUNDS_TO_TARGET,
    "seconds": metrics.DELAY_TO_TARGET_S,
    "joules": metrics.ENERGY_TO_TARGET_J,
    "E + λT": metrics.OBJECTIVE_TO_TARGET,
}
OWN = ("scheduling.name", "scheduling.options")

Block = tuple[tuple[str, str], ...]


def contestant(run: Run) -> str:
    """Return the label of a run's scheduler, with its options."""
    options = ", ".join(starmap(option, run.config.scheduling.options.items()))
    name = pretty(run.config.scheduling.name)
    return f"{name}, {options}" if options else name


def blocks(runs: Sequence[Run], reference: str = REFERENCE) -> dict[str, dict[Block, Run]]:
    """Return the runs that have ended, by contestant and block; the reference's contestant is the first."""
    result: dict[str, dict[Block, Run]] = {}
    for run in sorted(runs, key=lambda run: (run.config.scheduling.name != reference, contestant(run).lower())):
        if run.ended and not (_assigns(run) and run.config.assignment.name != "local_search"):
            block = tuple(item for item in run.identity if not item[0].startswith(OWN))
            result.setdefault(contestant(run), {})[block] = run
    return result


def _assigns(run: Run) -> bool:
    try:
        return hasattr(registry.resolve("scheduler", run.config.scheduling.name), "schedule_and_assign")
    except ConfigError:  # a scheduler of a package that is not installed here
        return False


def value_to_target(run: Run, metric: str) -> float:
    """Return a quantity up to the target accuracy; infinite if the run did not reach it."""
    return float(run.history.values.get(metric, np.inf))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted by Holm's method; NaN stays NaN and is not counted."""
    tested = sorted((p, name) for name, p in p_values.items() if not np.isnan(p))
    adjusted, largest = dict.fromkeys(p_values, np.nan), 0.0
    for place, (p, name) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - place) * p))
        adjusted[name] = largest
    return adjusted


def mean_ranks(by_contestant: Mapping[str, Mapping[Block, Run]], metric: str) -> dict[str, float]:
    """Return each contestant's mean rank, 1 for the best, over its blocks; NaN if it has none with a rival."""
    ranks: dict[str, list[float]] = {name: [] for name in by_contestant}
    for block in dict.fromkeys(block for runs in by_contestant.values() for block in runs):
        present = [name for name, runs in by_contestant.items() if block in runs]
        if len(present) < 2:
            continue
        values = [value_to_target(by_contestant[name][block], metric) for name in present]
        for name, place in zip(present, rankdata(values), strict=True):
            ranks[name].append(float(place))
    return {name: float(np.mean(places)) if places else np.nan for name, places in ranks.items()}


def ranking(sweep: Sweep, reference: str = REFERENCE) -> pd.DataFrame | None:
    """Return one row for each data set and contestant, the best mean rank by joules first, as text.

    Beside the rank in each quantity stand the median ratio to the reference and the adjusted p-value. The result is
    None without runs of the reference and of another contestant, and if no run reached its target accuracy.
    """
    frames = []
    data_sets = sorted({run.config.data.name for run in sweep.runs})
    for data in data_sets:
        by_contestant = blocks([run for run in sweep.runs if run.config.data.name == data], reference)
        runs = [run for members in by_contestant.values() for run in members.values()]
        reached = any(value_to_target(run, metrics.ROUNDS_TO_TARGET) < np.inf for run in runs)
        if reached and pretty(reference) in by_contestant and len(by_contestant) > 1:
            frame = _ranking(by_contestant, pretty(reference))
            if len(data_sets) > 1:
                frame.insert(1, "data", pretty(data))
            frames.append(frame)
    return pd.concat(frames) if frames else None


def _ranking(by_contestant: Mapping[str, Mapping[Block, Run]], reference: str) -> pd.DataFrame:
    reference_runs = by_contestant.get(reference, {})
    rows: dict[str, dict[str, str]] = {
        name: {
            "": name,
            "reached": f"{sum(value_to_target(run, metrics.ROUNDS_TO_TARGET) < np.inf for run in runs.values())} of "
            f"{len(runs)}",
            "pairs": str(sum(block in reference_runs for block in runs)) if name != reference else "–",
        }
        for name, runs in by_contestant.items()
    }
    order: dict[str, float] = {}
    for quantity, metric in QUANTITIES.items():
        places = mean_ranks(by_contestant, metric)
        order = places if quantity == "joules" else order
        pairs = {
            name: Pairs.of(
                [value_to_target(runs[block], metric) for block in runs if block in reference_runs],
                [value_to_target(reference_runs[block], metric) for block in runs if block in reference_runs],
            )
            for name, runs in by_contestant.items()
            if name != reference
        }
        p_values = holm({name: pair.p for name, pair in pairs.items()})
        for name, row in rows.items():
            row[f"{quantity}: rank"] = "–" if np.isnan(places[name]) else f"{places[name]:.1f}"
            row[f"{quantity} × {reference}'s"] = _ratio(pairs[name], p_values[name]) if name in pairs else "1"
    ranked = sorted(rows.values(), key=lambda row: float(np.nan_to_num(order[row[""]], nan=np.inf)))
    return pd.DataFrame(ranked)


def _ratio(pair: Pairs, p: float) -> str:
    median = "–" if np.isnan(pair.median) else "not reached" if np.isinf(pair.median) else f"{pair.median:.2f}"
    if np.isnan(p):
        return f"{median} (not tested)"
    return f"{median} (p < 0.001)" if p < 0.001 else f"{median} (p = {p:.3f})"
