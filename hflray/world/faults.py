"""What goes wrong in a round: devices that vanish, are late or send something else, and edges that fail.

`fates` says in words what became of each device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hflray.aggregation import FloatVector
from hflray.config import EdgeFailureConfig
from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray, IntArray, squared_norm
from hflray.timeline import Ends, Timeline
from hflray.world.draws import Draws
from hflray.world.part import Spells
from hflray.world.trace import Switches, Trace


class Dropout:
    """A device vanishes during a round at an exponential time, and may answer again at the next planning.

    A share s of the devices vanishes within T seconds if the rate is −ln(1 − s) / T.

    Args:
        seed: the experiment's root seed.
        rate_per_s: mean number of vanishings of a device a second, above 0.
    """

    def __init__(self, seed: int, rate_per_s: float) -> None:
        self.rate_per_s, self._draws = rate_per_s, Draws(seed, "dropout")

    def vanish_s(self, round_index: int, devices: IntArray) -> FloatArray:
        """Return when each device (n,) would vanish, (n,), s since the start of the round, waiting included."""
        return self._draws.exponential(round_index, devices) / self.rate_per_s


class Jitter:
    """Computing takes longer or shorter than planned, in each edge iteration anew.

    Seconds and joules have a log-normal factor of mean 1: exp(σ g − σ²/2) with g standard normal.

    Its standard deviation is √(exp(σ²) − 1). Decisions do not see it.

    Args:
        seed: the experiment's root seed.
        sigma: σ, the standard deviation of the factor's logarithm.
    """

    def __init__(self, seed: int, sigma: float) -> None:
        self.sigma, self._draws = sigma, Draws(seed, "compute_jitter")

    def factor(self, round_index: int, iterations: range, devices: IntArray) -> FloatArray:
        """Return the factors of the scheduled devices (H,) in some edge iterations of a round, (n, H)."""
        normal = self._draws.normal(round_index, np.array(iterations)[:, None], devices)
        return np.asarray(np.exp(self.sigma * normal - self.sigma**2 / 2))


def edge_failure(
    config: EdgeFailureConfig, num_edges: int, seed: int, names: Sequence[str] | None = None
) -> Spells | Switches | None:
    """Return which of `num_edges` edges work and when they fail; None if they always work. A trace has the `names`.

    An edge that is down when a round is planned gets no devices and makes no hop. One that fails before its hop has
    ended loses its share of the round, and its devices stop (`hflray.timeline`).

    Raises:
        ConfigError: the trace is wrong, or all edges are down at its end, for ever.
    """
    if config.trace is not None:
        setting = "world.edge_failure.trace"
        trace = Trace.read(setting, config.trace, "edge", num_edges, {"up": True}, names)
        switches = Switches(trace, "up", num_edges)
        if switches.ends_off().all():
            raise ConfigError(
                f"{setting}: {config.trace} leaves all {num_edges} edges down for ever after its last line; accepted: "
                "a trace after which an edge works; add a line"
            )
        return switches
    if config.mtbf_s is None or config.mttr_s is None:
        return None
    return Spells(seed, "edge_failure", num_edges, config.mtbf_s, config.mttr_s)


@dataclass(frozen=True)
class Faulty:
    """What faulty devices send. The edge does not know them, and they compute and upload like all others.

    Attributes:
        share: their share of all devices, above 0 and up to 1; their number is rounded.
        kind: ``noise``: an update in a random direction; ``sign_flip``: the update backwards; ``zero``: no update.
        strength: the length of such an update in multiples of the true one; ``zero`` has none.
    """

    share: float
    kind: Literal["noise", "sign_flip", "zero"]
    strength: float

    def devices(self, seed: int, num_devices: int) -> BoolArray:
        """Return whether each device is faulty, (N,). They are drawn once, so that a larger share has all of these."""
        order = np.argsort(Draws(seed, "faulty").uniform(np.arange(num_devices)))
        chosen = np.zeros(num_devices, dtype=bool)
        chosen[order[: round(self.share * num_devices)]] = True
        return chosen

    def sent(self, model: FloatVector, received: FloatVector, size: int, rng: np.random.Generator) -> FloatVector:
        """Return what a faulty device has in place of its model, (P,). Its statistics are the true ones.

        Args:
            model: what it has learned, (P,).
            received: what it started from, (P,).
            size: how many of the numbers are trained.
            rng: draws of the noise.
        """
        if self.kind == "zero":
            return np.concatenate([received[:size], model[size:]])
        start = received[:size].astype(np.float64)
        update = model[:size] - start
        if self.kind == "noise":
            direction = rng.standard_normal(len(update))
            update = -direction * math.sqrt(squared_norm(update) / squared_norm(direction))
        return np.concatenate([start - self.strength * update, model[size:]]).astype(np.float32)


def fates(happens: Timeline, ends: Ends) -> list[str]:
    """Return what happened to each scheduled device, (H,), such as ``left at 3.2 s while sending``.

    The text is empty for a device that counts in all edge iterations of its edge.

    Args:
        happens: the timeline of the round.
        ends: when devices vanish and edges fail, as the timeline was computed with.
    """
    return [_fate(happens, ends, row) for row in range(len(happens.devices))]


def _fate(happens: Timeline, ends: Ends, row: int) -> str:
    edge = happens.edges[row]
    if happens.participates[:, row].all():
        return ""
    leaves_s, fails_s, ended_s = ends.vanish_s[row], ends.fail_s[edge], happens.iteration_end_s[-1, edge]
    if happens.vanished[row] and leaves_s <= min(ended_s, fails_s):
        return f"left at {leaves_s:,.1f} s while {_activity(happens, row, leaves_s)}"
    if happens.vanished[row]:
        started = np.flatnonzero(np.isfinite(happens.start_s[:, row]))
        empty_s = happens.end_s[started[-1], row] if started.size else 0.0
        return f"ran out of charge at {empty_s:,.1f} s while {_activity(happens, row, empty_s)}"
    if not happens.reached[edge]:
        return f"lost its edge at {fails_s:,.1f} s while {_activity(happens, row, fails_s)}"
    ran = np.isfinite(happens.start_s[:, happens.edges == edge]).any(axis=1)  # in a period edges differ in how many
    late = int((~happens.arrived[ran, row]).sum())
    return f"came too late in {late} of {ran.sum()} edge iterations" if late else ""


def _activity(happens: Timeline, row: int, moment_s: float) -> str:
    """Return what a device does at a moment: computing, sending or waiting."""
    start_s, computed_s, end_s = (getattr(happens, name)[:, row] for name in ("start_s", "computed_s", "end_s"))
    begun = np.flatnonzero(start_s <= moment_s)
    if not begun.size:
        return "waiting"
    last = begun[-1]
    if happens.arrived[last, row] and end_s[last] <= moment_s:
        return "waiting"
    return "sending" if computed_s[last] < moment_s else "computing"
