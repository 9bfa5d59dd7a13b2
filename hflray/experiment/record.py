"""The record of a round, and its metrics under the glossary's names."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray import metrics
from hflray.allocation import Allocation
from hflray.cost import QUIET, PollCost, RoundCost, Schedule
from hflray.errors import ConfigError
from hflray.support.arrays import FloatArray, IntArray, packed, unpacked
from hflray.timeline import Timeline
from hflray.world.turns import AsynchronousRound

# The parts of a record that are objects.
PARTS: dict[str, Callable[..., Any]] = {
    "allocation": Allocation, "cost": RoundCost, "poll": PollCost, "timeline": lambda **saved: Timeline.of_state(saved),
}  # fmt: skip
# The parts of a plan that a record's state holds by their names.
PLANNED = ("round", "allocation", "cost", "poll", "polled", "timeline")


@dataclass(frozen=True, eq=False)
class PlannedRound:
    """The plan of a round before its training.

    Attributes:
        round: i, from 1.
        schedule: the scheduled devices, sorted, and the edge of each, (H,).
        allocation: bandwidth and CPU frequency of each scheduled device.
        cost: the simulated delay and energy of this round.
        timeline: what will happen to each device.
        poll: the part of `cost` that polling the devices takes, for a scheduler that polls.
        polled: the devices that are polled, if they have batteries, which a poll drains; see `hflray.scheduling.Poll`.
        conditions: metrics of the world, by their names in the glossary.
        wall: measured seconds by phase: schedule_s, assign_s and allocate_s.
        played: the turns and updates of the round; None unless cloud or edges are asynchronous.
    """

    round: int
    schedule: Schedule
    allocation: Allocation
    cost: RoundCost
    timeline: Timeline
    poll: PollCost | None = None
    polled: NDArray[np.intp] | None = None
    conditions: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)
    played: AsynchronousRound | None = None


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """The record of one round. It has the parts of its plan under their own names, too.

    Attributes:
        plan: the round's plan.
        score, test_loss: the main metric and the mean loss of the global model on the test set, after the round.
        totals: ``delay_s``, ``energy_j``, ``objective``, ``message_bits`` summed from round 1.
        samples_trained: samples through local training, over all edge and local iterations.
        model_hash: SHA-256 of the global model's float32 bytes.
        wall: measured seconds by phase: those of the plan, train_s and evaluate_s.
        edge_iterations: Q.
        metric: the name of the main metric: accuracy, R² or the share of predicted tokens.
        deviates: whether a setting of ``clock`` or ``world`` is on, so that a round may go otherwise than planned; only
            then the timeline and its metrics are logged.
        conditions: further metrics: what observers log, by their names in the glossary, and the user's own.
        sent_bits: what a device, an edge and a region, if there are any, send, bits, if one of them does not send a
            whole model.
        download_bits: what a device receives before each edge iteration, bits, if downloads are billed.
        changed: settings that differ from the previous round, ``{dotted key: [before, now]}``; see
            `hflray.experiment.Experiment.load_state_dict`.

    Examples:
        >>> from hflray import Experiment, load_config
        >>> tiny = ["fleet.num_devices=4", "fleet.num_edges=2", "scheduling.name=fedavg", "scheduling.num_scheduled=2"]
        >>> tiny += ["assignment.name=geographic", "training.backend=serial", "model.name=logistic", "max_rounds=2"]
        >>> with Experiment(load_config(None, tiny)) as experiment:
        ...     first, second = experiment
        >>> second.totals["energy_j"] == first.cost.energy_j + second.cost.energy_j
        True
        >>> "round/delay_s" in second.metrics()
        True
    """

    plan: PlannedRound
    score: float
    test_loss: float
    totals: dict[str, float]
    samples_trained: int
    model_hash: str
    wall: dict[str, float]
    deviates: bool = False
    edge_iterations: int = 1
    metric: str = metrics.ACCURACY
    conditions: dict[str, float] = field(default_factory=dict)
    sent_bits: tuple[float, ...] | None = None
    changed: dict[str, list[Any]] = field(default_factory=dict)
    download_bits: float | None = field(default=None, metadata=QUIET)

    @property
    def round(self) -> int:
        """The number of the round, i, from 1."""
        return self.plan.round

    @property
    def devices(self) -> IntArray:
        """The scheduled devices, sorted, (H,)."""
        return self.plan.schedule.devices

    @property
    def assignment(self) -> IntArray:
        """The edge of each scheduled device, (H,)."""
        return self.plan.schedule.edges

    @property
    def allocation(self) -> Allocation:
        """The bandwidth and CPU frequency of each scheduled device."""
        return self.plan.allocation

    @property
    def cost(self) -> RoundCost:
        """The simulated delay and energy of the round."""
        return self.plan.cost

    @property
    def timeline(self) -> Timeline:
        """What happened to each device."""
        return self.plan.timeline

    @property
    def poll(self) -> PollCost | None:
        """The part of the cost that polling the devices took, for a scheduler that polls."""
        return self.plan.poll

    @property
    def polled(self) -> IntArray | None:
        """The polled devices, if they have batteries."""
        return self.plan.polled

    @property
    def accuracy(self) -> float:
        """The accuracy of the global model on the test set, after the round; NaN if the data have no classes."""
        return self.score if self.metric == metrics.ACCURACY else math.nan

    @property
    def class_balance(self) -> float:
        """See `hflray.metrics.class_balance`."""
        return self.conditions[metrics.CLASS_BALANCE]

    def observed(self) -> RoundRecord:
        """Return the record as schedulers observe it.

        Under an asynchronous cloud its devices are those of all turns of which something happened in the round, each
        with its last edge. Allocation and planned cost are still those of the plan.
        """
        happened = self.timeline
        if happened.updates is None:
            return self
        edge_of = dict(zip(happened.devices.tolist(), happened.edges.tolist(), strict=True))
        devices = np.array(sorted(edge_of), dtype=np.intp)
        schedule = Schedule(devices, np.array([edge_of[device] for device in devices.tolist()], dtype=np.intp))
        return replace(self, plan=replace(self.plan, schedule=schedule))

    def metrics(self) -> dict[str, float]:
        """Return the round's metrics by their names in the glossary."""
        cost = self.cost
        values = {
            self.metric: self.score,
            metrics.TEST_LOSS: self.test_loss,
            metrics.ROUND_DELAY_S: float(cost.delay_s),
            metrics.ROUND_ENERGY_J: float(cost.energy_j),
            metrics.ROUND_OBJECTIVE: float(cost.objective),
            metrics.ROUND_MESSAGE_BITS: float(cost.message_bits),
            metrics.TOTAL_DELAY_S: self.totals["delay_s"],
            metrics.TOTAL_ENERGY_J: self.totals["energy_j"],
            metrics.TOTAL_OBJECTIVE: self.totals["objective"],
            metrics.TOTAL_MESSAGE_BITS: self.totals["message_bits"],
            metrics.WALL_SCHEDULE_S: self.wall["schedule_s"],
            metrics.WALL_ASSIGN_S: self.wall["assign_s"],
            metrics.WALL_ALLOCATE_S: self.wall["allocate_s"],
            metrics.WALL_TRAIN_S: self.wall["train_s"],
            metrics.WALL_EVALUATE_S: self.wall["evaluate_s"],
        }
        if self.deviates:
            values[metrics.ROUND_DISCARDED] = self.timeline.discarded
            values[metrics.ROUND_WASTED_J] = self.timeline.wasted_j
            values[metrics.ROUND_EDGE_IDLE_S] = self.timeline.edge_idle_s
        if self.poll is not None:
            values[metrics.ROUND_POLL_DELAY_S] = self.poll.delay_s
            values[metrics.ROUND_POLL_ENERGY_J] = self.poll.energy_j
        values |= self.conditions
        for edge in range(len(cost.edge_devices)):
            values[metrics.edge_metric(edge, "delay_s")] = float(cost.edge_delay_s[edge])
            values[metrics.edge_metric(edge, "energy_j")] = float(cost.edge_energy_j[edge])
            values[metrics.edge_metric(edge, "devices")] = float(cost.edge_devices[edge])
        for region, delay_s in enumerate(self.timeline.region_delay_s):
            values[metrics.region_metric(region, "delay_s")] = float(delay_s)
            values[metrics.region_metric(region, "energy_j")] = float(self.timeline.region_energy_j[region])
        return values

    def spent_j(self) -> FloatArray:
        """Return what each scheduled device has spent on computing and sending in the round, (H,), J."""
        happened = self.timeline
        if happened.updates is None:
            return happened.spent_j
        return np.array([happened.spent_j[happened.devices == device].sum() for device in self.devices])

    def device_delay_s(self) -> FloatArray:
        """Return download, computing and upload of each scheduled device in an edge iteration as it happened, (H,), s.

        See `Timeline.device_delay_s`; it is NaN for a device of which nothing is known, and the mean of several turns.
        Devices that asynchronous edges scheduled in an earlier round, and that are done in this one, are in `timeline`.
        """
        happened = self.timeline
        if happened.updates is None:
            return happened.device_delay_s
        is_known = np.isfinite(happened.device_delay_s)
        delays_s = [happened.device_delay_s[is_known & (happened.devices == device)] for device in self.devices]
        return np.array([delay_s.mean() if len(delay_s) else np.nan for delay_s in delays_s])

    def schedule(self) -> dict[str, Any]:
        """Return the scheduled devices, their edges and their allocation, as (H,) lists ready for JSON.

        The round's bill follows from these values. Where devices were discarded, z does not follow from the bits sent,
        so it is one of them. Where not all send whole models, the size of each hop is. Where polls
        drain batteries, the polled devices are another. The share is there where bills follow from it, and the
        frequency unless the computing has no setting.
        """
        cpu_hz = self.allocation.cpu_hz
        more: dict[str, Any] = {"model_bits": self.timeline.device_bits} if self.deviates else {}
        if self.sent_bits is not None:
            more |= dict(zip(metrics.SENT, self.sent_bits, strict=False))  # regions are not in every tree
        if self.download_bits is not None:
            more["download_bits"] = self.download_bits
        if self.allocation.share is not None:
            more["share"] = self.allocation.share.tolist()
        if self.polled is not None:
            more["polled"] = self.polled.tolist()
        return {
            "devices": self.devices.tolist(),
            "edges": self.assignment.tolist(),
            "bandwidth_hz": self.allocation.bandwidth_hz.tolist(),
            **({"cpu_hz": cpu_hz.tolist()} if np.isfinite(cpu_hz).all() else {}),
            **more,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the record with every bit, ready for JSON."""
        values = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "plan"}
        if self.download_bits is None:
            del values["download_bits"]
        values |= {name: getattr(self.plan, name) for name in PLANNED}
        values |= {"devices": self.devices, "assignment": self.assignment}
        return {name: state_of(value) for name, value in values.items()}

    @classmethod
    def of_state(
        cls,
        state: Mapping[str, Any],
        as_planned: Callable[[IntArray, IntArray, RoundCost], Timeline] | None = None,
    ) -> RoundRecord:
        """Return the record of `state_dict`.

        Args:
            state: the state.
            as_planned: returns the timeline of a round that went as planned, of its devices, their edges and its cost;
                hflray 0.1 saved none. None: a state without a timeline is refused.

        Raises:
            ConfigError: another hflray has written it.
        """
        values = restored(state)
        saved = values.get("timeline")
        if saved is not None:
            saved.pop("total_j", None)
            # hflray 0.1 had other names, and at first no delays
            saved.setdefault("device_delay_s", np.full(len(saved["devices"]), np.nan))
            for name, before in (("participates", "counts"), ("device_bits", "model_bits")):
                if before in saved:
                    saved[name] = saved.pop(before)
        values.setdefault("deviates", saved is not None)
        if "class_balance" in values:  # until hflray 0.2
            values.setdefault("conditions", {})[metrics.CLASS_BALANCE] = values.pop("class_balance")
        try:
            parts = {name: make(**values[name]) for name, make in PARTS.items() if values.get(name) is not None}
            if saved is None and as_planned is not None:
                parts["timeline"] = as_planned(values["devices"], values["assignment"], parts["cost"])
            values |= {name: math.nan for name in ("score", metrics.TEST_LOSS) if values.get(name) is None}
            schedule = Schedule(values.pop("devices"), values.pop("assignment"))
            values |= parts
            planned = {name: values.pop(name) for name in PLANNED if name in values}
            return cls(PlannedRound(schedule=schedule, **planned), **values)
        except (TypeError, KeyError) as error:
            raise ConfigError(
                f"state: the record of its last round is of another hflray ({error}); resume with that version"
            ) from error


class PhaseClock:
    """Measured seconds of phases that follow each other, for `RoundRecord.wall`."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """End a phase, and begin the next."""
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def state_of(value: Any) -> Any:
    """Return a value with every bit, ready for JSON: arrays, dataclasses and tuples of them, and plain values."""
    if isinstance(value, np.ndarray):
        return packed(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, tuple):
        return [state_of(part) for part in value]
    if not is_dataclass(value):
        return value
    parts = {part.name: (getattr(value, part.name), part.metadata.get("quiet")) for part in fields(value)}
    return {name: state_of(part) for name, (part, quiet) in parts.items() if part is not None or not quiet}


def restored(state: Any) -> Any:
    """Return a value of `state_of` with its arrays; a dataclass is a mapping, and a tuple a list."""
    if isinstance(state, list):
        return [restored(part) for part in state]
    if isinstance(state, dict):
        return unpacked(state) if "base64" in state else {name: restored(part) for name, part in state.items()}
    return state
