"""Edge failure: edge servers that fail and work again.

An edge that is down when a round is planned gets no devices and makes no hop. One that fails before its hop has ended
loses its share of the round, and its devices stop (`hflray.timeline`).
"""

from __future__ import annotations

from hflray.config import EdgeFailureConfig
from hflray.world.spells import Spells


def edge_failure(config: EdgeFailureConfig, num_edges: int, seed: int) -> Spells | None:
    """Return which of `num_edges` edges work and when they fail; None if they always work."""
    if config.mtbf_s is None or config.mttr_s is None:
        return None
    return Spells(seed, "edge_failure", num_edges, config.mtbf_s, config.mttr_s)
