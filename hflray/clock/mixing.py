"""The asynchronous edge: it takes each device's model when it arrives (Async-HFL, arXiv 2301.06646).

A device fetches the edge's model, trains, sends, is mixed in on arrival, and fetches again. A *pass* is what a device
does between fetching and arriving. A turn of an edge ends with its U-th arrival. Passes that are under way then go on
into the edge's next turn, with the version that they fetched; so does what arrives while the edge has no turn.

The mixing is the cloud's: w ← (1 − α) w + α w_n with α = min(1, a · D_n / D̄ · s(τ)), see `hflray.clock.asynchronous`.
The staleness τ counts the versions of the edge, of which each arrival makes one, and each fetch from the cloud.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hflray.clock.asynchronous import Asynchrony, Way, in_order


class Pass(NamedTuple):
    """What a device does between fetching the edge's model and arriving there. Moments are s since the first round.

    Attributes:
        device: the device.
        round: the round in which the turn began that began the pass; with `number` it selects the draws.
        number: how many passes the device had begun before in turns of that round.
        begin_s: when it fetches.
        end_s: when it arrives, or is lost.
        arrives: whether it arrives.
        known_s: when the edge knows of it.
        weight: D_n, or 1.
        bandwidth_hz: what it holds until its end.
        fails_s: when its edge fails next.
        version: the version of the edge that it fetches.
    """

    device: int
    round: int
    number: int
    begin_s: float
    end_s: float
    arrives: bool = True
    known_s: float = 0.0
    weight: float = 1.0
    bandwidth_hz: float = 0.0
    fails_s: float = math.inf
    version: int = 0


class MixedArrival(NamedTuple):
    """An arrival that the edge mixes in.

    Attributes:
        arrival: the pass.
        moment_s: when it is mixed in; an arrival between two turns waits for the later one.
        staleness: τ.
        share: α.
    """

    arrival: Pass
    moment_s: float
    staleness: int
    share: float


class MixedTurn(NamedTuple):
    """What an edge mixes in a turn.

    Attributes:
        mixes: the arrivals, in their order.
        begun: the passes that begin in the turn.
        under_way: the passes that are not mixed in at its end, and were not lost.
        version: the version of the edge after it.
        end_s: when it ends.
    """

    mixes: tuple[MixedArrival, ...]
    begun: tuple[Pass, ...]
    under_way: tuple[Pass, ...]
    version: int
    end_s: float


def mix_turn(
    rule: Asynchrony,
    waiting: Sequence[Pass],
    devices: Sequence[int],
    begin: Callable[[int, float], Pass | None],
    *,
    begin_s: float,
    version: int,
    mean_weight: float,
) -> MixedTurn:
    """Return what an edge mixes in a turn.

    Devices that are free fetch when the turn begins. Then arrivals are mixed in by their time, and the lower device
    wins ties. A device of the plan fetches again after each arrival but the one that ends the turn. The turn also ends
    when nothing more can arrive and the edge knows it.

    Args:
        rule: U, a and the damping.
        waiting: the passes of earlier turns that have not been mixed in.
        devices: the devices of the plan, in ascending order.
        begin: returns the pass that a device begins at a moment, of which this fills in the version; None: it cannot.
        begin_s: when the turn begins, s.
        version: the version of the edge then.
        mean_weight: D̄.
    """
    members, busy = set(devices), {way.device for way in waiting}
    ways: list[Way] = [(way.end_s, way.device, way) for way in waiting if way.arrives]
    mixes: list[MixedArrival] = []
    begun: list[Pass] = []
    now_s = begin_s

    def start(device: int, moment_s: float) -> None:
        made = begin(device, moment_s)
        if made is not None:
            begun.append(made._replace(version=version))
            heapq.heappush(ways, (made.end_s if made.arrives else made.known_s, device, begun[-1]))

    for device in devices:
        if device not in busy:
            start(device, begin_s)
    for arrival in in_order(ways, lambda: len(mixes) < rule.updates):
        now_s = max(now_s, arrival.end_s if arrival.arrives else arrival.known_s)
        if not arrival.arrives:
            continue
        staleness = version - arrival.version
        mixes.append(MixedArrival(arrival, now_s, staleness, rule.share(arrival.weight, mean_weight, staleness)))
        version += 1
        if len(mixes) < rule.updates and arrival.device in members:
            start(arrival.device, now_s)
    under_way = tuple(way for *_, way in sorted(ways, key=lambda way: way[:2]) if way.arrives)
    return MixedTurn(tuple(mixes), tuple(begun), under_way, version, now_s)
