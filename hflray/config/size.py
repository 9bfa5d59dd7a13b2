"""How much a round makes and trains: a count that no machine would come to the end of is refused.

The bounds are far above what any experiment here has used, and the times are lower bounds: the arithmetic of a step of
SGD, or of an edge that combines models, is added to them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hflray.config.experiment import ExperimentConfig

MOST_ROUNDS, ROUND_S = 100_000_000, 1e-3
MOST_COMBINATIONS, COMBINATION_S = 500_000, 1e-3  # models that edges make in a round
MOST_ITERATIONS, ITERATION_S = 30_000_000, 1e-4  # local ones in a round


def check_size(config: ExperimentConfig) -> None:
    """Raise ValueError if a round, or a run, would make more than the bounds above."""
    training, cloud, edge = config.training, config.clock.cloud.asynchronous, config.clock.edge.asynchronous
    scheduled = config.scheduling.num_scheduled
    edges = min(config.fleet.num_edges, scheduled)
    turns = {"edges": edges}
    if cloud is not None:
        name = "fleet.num_edges" if cloud.updates is None else "clock.cloud.asynchronous.updates"
        turns = {name: cloud.updates or config.fleet.num_edges}
    passes = {"training.edge_iterations": training.edge_iterations}
    if config.tree.iterations > 1:
        passes["tree.region.iterations"] = config.tree.iterations
    devices = {"scheduling.num_scheduled": scheduled} if cloud is None else {"devices of an edge": scheduled // edges}
    if edge is not None:
        passes = {} if edge.updates is None else {"clock.edge.asynchronous.updates": edge.updates}
        devices = devices if edge.updates is None else {}
    local = {"training.local_iterations": training.local_iterations}
    # A cloud that waits has `scheduled` devices in all its turns together, unless each edge counts its arrivals.
    trained = passes | devices | local if cloud is None and devices else turns | passes | devices | local
    _check({"max_rounds": config.max_rounds}, MOST_ROUNDS, ROUND_S, "a run", "rounds")
    _check(turns | passes, MOST_COMBINATIONS, COMBINATION_S, "a round", "models of edges")
    _check(trained, MOST_ITERATIONS, ITERATION_S, "a round", "local iterations")


def _check(factors: dict[str, int], most: int, each_s: float, whole: str, unit: str) -> None:
    """Raise ValueError if the product is above `most`; the message names the largest factor that is a setting."""
    total = math.prod(factors.values())
    if total <= most:
        return
    name = max((name for name in factors if "." in name or name == "max_rounds"), key=lambda name: factors[name])
    accepted = most // (total // factors[name])
    product = " × ".join(f"{count:,}" for count in factors.values())
    made = f"{total:,} {unit}" if len(factors) == 1 else f"{product} = {total:,} {unit}"
    beside = ", ".join(f"{other} = {count:,}" for other, count in factors.items() if other != name)
    raise ValueError(
        f"{name}: got {factors[name]:,}; {whole} would have {made}, which take at least {_duration(total * each_s)}; "
        f"accepted{f' with {beside}' * bool(beside)}: 1 to {max(accepted, 1):,}; lower it"
    )


def _duration(seconds: float) -> str:
    for unit, size in (("years", 365.25 * 86400), ("days", 86400.0), ("hours", 3600.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 60:.0f} minutes"
