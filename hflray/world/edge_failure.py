"""Edge failure: edge servers that fail and work again.

An edge that is down when a round is planned gets no devices and makes no hop. One that fails before its hop has ended
loses its share of the round, and its devices stop (`hflray.timeline`).
"""

from __future__ import annotations

from hflray.config import EdgeFailureConfig
from hflray.errors import ConfigError
from hflray.world.spells import Spells
from hflray.world.trace import Switches, Trace


def edge_failure(config: EdgeFailureConfig, num_edges: int, seed: int) -> Spells | Switches | None:
    """Return which of `num_edges` edges work and when they fail; None if they always work.

    Raises:
        ConfigError: the trace is wrong, or all edges are down at its end, for ever.
    """
    if config.trace is not None:
        setting = "world.edge_failure.trace"
        switches = Switches(Trace.read(setting, config.trace, "edge", num_edges, {"up": True}), "up", num_edges)
        if switches.ends_off().all():
            raise ConfigError(
                f"{setting}: {config.trace} leaves all {num_edges} edges down for ever after its last line; accepted: "
                "a trace after which an edge works; add a line"
            )
        return switches
    if config.mtbf_s is None or config.mttr_s is None:
        return None
    return Spells(seed, "edge_failure", num_edges, config.mtbf_s, config.mttr_s)
