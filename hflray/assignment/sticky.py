"""Devices that keep their first edge (`assignment.once`), instead of an assignment in every round.

A device keeps the edge of the first round in which it counted. The assigner is asked for all scheduled devices of a
round as long as one of them keeps no edge; its answer counts for those alone. A device whose edge is down cannot be
scheduled until the edge works again. Nothing else is remembered than the devices' history, so resumed runs
agree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, IntArray


def reachable(edge_of: IntArray, edges_up: BoolArray) -> BoolArray:
    """Return whether each device keeps no edge, or one that is up, (N,).

    Args:
        edge_of: the edge that each device keeps, (N,); -1: none.
        edges_up: whether each edge is up, (M,).
    """
    return (edge_of < 0) | edges_up[edge_of]


def assign_the_rest(kept_edge: IntArray, assign: Callable[[], IntArray]) -> IntArray:
    """Return the edges of a round's devices: the kept one, or else the assigner's, (H,).

    Args:
        kept_edge: the edge that each scheduled device keeps, (H,); -1: none.
        assign: returns the assigner's edge of each, (H,); it is not called if every device keeps one.
    """
    return np.array(kept_edge) if (kept_edge >= 0).all() else np.where(kept_edge >= 0, kept_edge, assign())


def check_once(config: ExperimentConfig, scheduler: type) -> None:
    """Raise ConfigError if devices keep their edges, and the scheduler chooses edges itself in every round."""
    if config.assignment.once and hasattr(scheduler, "schedule_and_assign"):
        raise ConfigError(
            f"assignment.once: got true with scheduling.name = {config.scheduling.name}, which chooses the edges "
            "itself in every round; accepted: false; or choose a scheduler that leaves edges to the assigner"
        )
