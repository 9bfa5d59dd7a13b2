"""What a decision sees of a round: its context, what is remembered of each device, polls, and costs in advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.cost import PollCost, Schedule, Senders, Workload, forward_pass, poll_cost
from hflray.data.resampled import LabelCounts
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.physics.access import Fdma, NoDownload
from hflray.support.arrays import BoolArray, FloatArray, IntArray, packed, unpacked

BEFORE_CLASSES = 6  # columns of a device's row before those of the classes


class Poll:
    """The polls of one round, and their bill.

    Args:
        fleet: the devices.
        available: whether a device answers, (N,).
        measure: returns the mean loss of the current global model on the samples of some devices, (n,).

    Attributes:
        cost: the bill of all polls so far. Polls follow each other, so their delays add up.
        devices: the devices of all polls so far, in their order; one that was polled twice is there twice.
    """

    def __init__(self, fleet: Fleet, available: BoolArray, measure: Callable[[IntArray], FloatArray]) -> None:
        self._fleet, self._available, self._measure = fleet, available, measure
        self.cost = PollCost(0.0, 0.0)
        self.devices: IntArray = np.zeros(0, dtype=np.intp)

    def __call__(self, candidates: ArrayLike) -> FloatArray:
        """Return the mean loss of each of some devices, (n,), and add the bill.

        Raises:
            ConfigError: a device does not exist, is not available, or is named twice.
        """
        devices = np.asarray(candidates)
        if not devices.size:
            return np.zeros(0)
        number = len(self._available)
        if devices.ndim != 1 or devices.dtype.kind not in "iu" or devices.min() < 0 or devices.max() >= number:
            raise ConfigError(
                f"poll_loss: got {devices.dtype} of shape {devices.shape}; accepted: indices of devices, 0 to "
                f"{number - 1}; mend the scheduler"
            )
        absent = devices[~self._available[devices]]
        if absent.size or len(np.unique(devices)) != len(devices):
            reason = f"device {absent[0]} is not available" if absent.size else "a device is named twice"
            raise ConfigError(
                f"poll_loss: {reason}; accepted: different devices of context.available; mend the scheduler"
            )
        devices = devices.astype(np.intp)
        self.cost = self.cost + poll_cost(self._fleet, devices)
        self.devices = np.concatenate([self.devices, devices])
        return self._measure(devices)

    @property
    def spent_j(self) -> FloatArray:
        """What each device has spent on the polls so far, (N,), J."""
        return poll_spent_j(self._fleet, self.devices)


def poll_spent_j(fleet: Fleet, devices: IntArray) -> FloatArray:
    """Return what each device of a fleet has spent on polls of `devices`, of which each entry is a poll, (N,), J."""
    spent_j = np.zeros(fleet.num_devices)
    np.add.at(spent_j, devices, forward_pass(fleet, devices)[1])
    return spent_j


@dataclass(frozen=True, eq=False)
class RoundContext:
    """A round before its devices are chosen. The arrays are read-only.

    Attributes:
        round: i, from 1.
        clock_s: simulated seconds since the start of the first round.
        rng: the only source of randomness of the choice.
        fleet: the devices, links and edges as far as they are known.
        work: the work of the round.
        available: whether a device answers now, (N,).
        edges_up: whether an edge works now, (M,).
        battery_j: charge of each device, (N,), J; infinity without batteries.
        class_counts: samples of each class at each device, (N, C). With ``data.partition: resampled`` it is indexed by
            devices alone and computes their rows; ``np.asarray`` of it computes all.
        participation: number of rounds in which a device counted, (N,).
        last_round: last round in which it counted, (N,); 0 if it never did.
        last_loss: mean loss of its samples under the model that it received then, (N,); NaN if it never counted or if
            the scheduler does not need losses.
        last_utility: Oort's |B|·√(Σ loss² / |B|) of the same losses, (N,); NaN as above.
        last_delay_s: its download, computing and upload in an edge iteration then as it happened (the plan's where
            nothing is random; `hflray.timeline.Timeline.device_delay_s`), (N,), s; NaN if none is known.
        edge_of: its edge then, (N,); -1 if it never counted.
        record: the record of the round before; None in the first, and for classes that do not look back.
        poll: the round's polls, for a scheduler that needs ``poll``.
    """

    round: int
    clock_s: float
    rng: np.random.Generator
    fleet: Fleet
    work: Workload
    available: BoolArray
    edges_up: BoolArray
    battery_j: FloatArray
    class_counts: IntArray | LabelCounts
    participation: IntArray
    last_round: IntArray
    last_loss: FloatArray
    last_utility: FloatArray
    last_delay_s: FloatArray
    edge_of: IntArray
    record: Any | None
    poll: Poll | None = None

    def poll_loss(self, candidates: ArrayLike) -> FloatArray:
        """Return the mean loss of the current global model on the samples of each of some devices, (n,).

        The devices compute a forward pass for it before the round, which the round is billed for (`poll_cost`).

        Raises:
            ConfigError: the scheduler does not need ``poll``, or a device is not available or is named twice.
        """
        if self.poll is None:
            raise ConfigError(
                'poll_loss: this scheduler does not say that it polls; accepted: a class with "poll" in needs; add '
                'needs = frozenset({"poll"}) to it'
            )
        return self.poll(candidates)

    def __post_init__(self) -> None:
        for name in ("available", "edges_up", "battery_j", "class_counts", *_NEVER):
            if isinstance(getattr(self, name), LabelCounts):
                continue
            view = np.asarray(getattr(self, name)).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)


# What is remembered of a device, with its value before the device has counted.
_NEVER: dict[str, np.generic] = {
    **{name: np.intp(0) for name in ("participation", "last_round")},
    **{name: np.float64("nan") for name in ("last_loss", "last_utility", "last_delay_s")},
    "edge_of": np.intp(-1),
}


class DeviceHistory:
    """What is remembered of each device; the attributes are those of `RoundContext`.

    Args:
        num_devices: N.
        remembers: whether anything is remembered; without, nothing is copied or saved, and no device has ever counted.
    """

    participation: IntArray
    last_round: IntArray
    last_loss: FloatArray
    last_utility: FloatArray
    last_delay_s: FloatArray
    edge_of: IntArray

    def __init__(self, num_devices: int, remembers: bool = True) -> None:
        self.num_devices, self.remembers = num_devices, remembers
        for name, never in _NEVER.items():
            values = np.broadcast_to(never, num_devices)
            setattr(self, name, values.copy() if remembers else values)

    def after(
        self,
        round_index: int,
        devices: IntArray,
        edges: IntArray,
        delay_s: FloatArray,
        losses: Mapping[int, tuple[float, float]],
    ) -> DeviceHistory:
        """Return the history after a round; this one does not change.

        Args:
            round_index: i.
            devices: the devices that counted in it, (n,).
            edges: the edge of each, (n,).
            delay_s: download, computing and upload of each in an edge iteration, (n,), s; NaN, which changes nothing,
                if its edge's turn is open.
            losses: mean loss and utility by device; empty if they were not computed.
        """
        if not self.remembers:
            return self
        new = DeviceHistory(self.num_devices, remembers=False)
        new.remembers = True
        for name in _NEVER:
            setattr(new, name, getattr(self, name).copy())
        new.participation[devices] += 1
        new.last_round[devices] = round_index
        before_s = new.last_delay_s[devices]
        new.last_delay_s[devices], new.edge_of[devices] = np.where(np.isnan(delay_s), before_s, delay_s), edges
        for device, (loss, utility) in losses.items():
            new.last_loss[device], new.last_utility[device] = loss, utility
        return new

    def arrays(self) -> dict[str, Any]:
        """Return the attributes as `RoundContext` takes them."""
        return {name: getattr(self, name) for name in _NEVER}

    def state_dict(self) -> dict[str, Any]:
        """Return the rows of the devices that have counted, ready for JSON (`hflray.support.arrays.packed`)."""
        devices = np.flatnonzero(self.participation)
        return {"devices": packed(devices)} | {name: packed(getattr(self, name)[devices]) for name in _NEVER}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises ConfigError if a device of the state does not exist."""
        devices = unpacked(state["devices"])
        if devices.size and (devices.min() < 0 or devices.max() >= self.num_devices):
            raise ConfigError(
                f"history: device {devices.max()} of the state does not exist; accepted: 0 to "
                f"{self.num_devices - 1}; the state is damaged, use an earlier checkpoint"
            )
        for name in _NEVER:
            getattr(self, name)[devices] = unpacked(state[name])


def best_edges(context: RoundContext) -> IntArray:
    """Return the edge of the strongest link (`Fleet.strength`), among those that work, of each device, (N,)."""
    everyone = np.arange(context.fleet.num_devices)
    if context.edges_up.all():
        return np.asarray(context.fleet.strongest_edges(everyone)[:, 0], dtype=np.intp)
    up = np.flatnonzero(context.edges_up)
    return np.asarray(up[np.asarray(context.fleet.strength[:, up]).argmax(axis=1)], dtype=np.intp)


def nominal_iteration(context: RoundContext, num_scheduled: int) -> tuple[FloatArray, FloatArray]:
    """Return what an edge iteration would cost each device, (N,) seconds and (N,) joules, before anything is allocated.

    A device computes at its largest setting, and sends over its best link with the bandwidth of that edge, of which
    every scheduled device gets an equal share: B_m·M / H, or B_m if H < M. A download is to it alone, and only its
    seconds count.
    """
    fleet, work, edges = context.fleet, context.work, best_edges(context)
    everyone = np.arange(fleet.num_devices)
    computers = fleet.computers(everyone)
    most = fleet.compute.most(computers)
    compute_s, compute_j = fleet.compute.run(most, computers, work.computing(fleet.samples))
    num_up = max(1, int(context.edges_up.sum()))
    share = None
    if not isinstance(fleet.access, Fdma):
        share = np.full(len(everyone), min(1.0, num_up / num_scheduled) if fleet.access.shared else 1.0)
    share_hz = fleet.edge_bandwidth_hz[edges] * num_up / max(num_up, num_scheduled)
    upload_s, upload_j = Senders.of(fleet, work, Schedule(everyone, edges), share_hz, share).upload()
    if isinstance(fleet.download, NoDownload):
        return compute_s + upload_s, compute_j + upload_j
    alone_s, _ = fleet.download.receive(fleet.downlinks(everyone, edges), everyone, work.download_bits)
    return alone_s + compute_s + upload_s, compute_j + upload_j


def device_rows(context: RoundContext, num_scheduled: int, progress: float) -> NDArray[np.float32]:
    """Return what a learned scheduler knows of all devices before a round, (N, 6 + C).

    A row has numbers about 0 to 1, or around 0:

    | column | meaning |
    |---|---|
    | 0 | ln of its seconds in an edge iteration known in advance, less the mean over the devices, / 3 |
    | 1 | ln of its joules in it, less the mean, / 3 |
    | 2 | its samples / the fleet's mean, less 1 |
    | 3 | rounds in which it took part / rounds so far; 0 in the first round |
    | 4 | rounds since it took part last (since the start, if it never did) / 10, at most 1 |
    | 5 | accuracy so far / target |
    | 6… | its samples of each class / all its samples |

    Args:
        context: the round.
        num_scheduled: H.
        progress: accuracy so far / target.
    """
    delay_s, energy_j = nominal_iteration(context, num_scheduled)
    samples, rounds = context.fleet.samples, context.round - 1
    rows = np.empty((len(samples), BEFORE_CLASSES + context.class_counts.shape[1]), dtype=np.float32)
    for column, values in enumerate((np.log(delay_s), np.log(energy_j))):
        rows[:, column] = (values - values.mean()) / 3.0
    rows[:, 2] = samples / samples.mean() - 1.0
    rows[:, 3] = context.participation / max(1, rounds)
    rows[:, 4] = np.minimum(1.0, (rounds - context.last_round) / 10.0)
    rows[:, 5] = progress
    rows[:, BEFORE_CLASSES:] = np.asarray(context.class_counts) / samples[:, None]
    return rows
