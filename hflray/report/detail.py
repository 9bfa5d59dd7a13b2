"""A round taken apart: who was scheduled, from which cluster, to which edge, with what, at what cost, and who was late.

The fleet is a function of the configuration and is drawn again; the rest is in the run's tables. What each device cost
follows from the same equations that billed the round, and the bill is checked against the logged one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.allocation import Allocation
from hflray.arrays import FloatArray, IntArray
from hflray.cost import RoundCost, Workload, cloud_hop, round_cost
from hflray.errors import ConfigError
from hflray.fleet import Fleet, sample_fleet
from hflray.report.runs import Run
from hflray.seeding import stream

TOGETHER = 1e-3  # relative difference in time up to which devices finish together
SAME = 1e-6  # relative difference up to which the rebuilt bill is the logged one


@dataclass(frozen=True)
class Round:
    """A round.

    Attributes:
        number: i, from 1.
        devices: a row per scheduled device: ``device``, ``cluster`` (-1: none), ``majority`` (its commonest class),
            ``times`` (scheduled so far, this round included), ``edge``, ``nearest`` and ``strongest`` (rank of that
            edge among the device's by distance and by gain, 1 the best), ``samples``, ``bandwidth_hz``, ``cpu_hz``,
            ``compute_s``, ``upload_s``, ``seconds`` (their sum, of one edge iteration), ``joules`` (of one edge
            iteration), ``straggler`` (see `_straggler`).
        edges: a row per edge: ``edge``, ``devices``, ``delay_s``, ``energy_j``, ``cloud_s``, ``straggler`` (a device,
            -1: nobody came), ``slowest`` (the edge the round waited for).
        cost: the bill.
        edge_iterations: Q.
    """

    number: int
    devices: pd.DataFrame
    edges: pd.DataFrame
    cost: RoundCost
    edge_iterations: int


@dataclass(frozen=True)
class Replay:
    """A run's rounds, to be looked at one by one.

    Raises:
        ConfigError: the run kept no schedule or no devices.
    """

    run: Run

    def __post_init__(self) -> None:
        missing = [name for name in ("devices", "edges", "bandwidth_hz", "cpu_hz") if name not in self.run.rounds]
        if missing or self.run.devices is None:
            raise ConfigError(
                f"{self.run.name}: its rounds were logged without schedules (by an older hflray, of more than 10,000 "
                "devices, or not ended and its journal is elsewhere); run it again to see who did what"
            )

    @cached_property
    def fleet(self) -> Fleet:
        """The fleet, drawn as the run drew it, with the samples that the run's data gave it."""
        assert self.run.devices is not None
        config = self.run.config
        return sample_fleet(config.fleet, stream(config.seed, "fleet")).with_samples(self.run.devices["samples"])

    @cached_property
    def work(self) -> Workload:
        """The workload; where ``cost.model_kb`` is null, z follows from the logged messages, (H·Q + M)·z."""
        config, first = self.run.config, self.run.rounds.iloc[0]
        models = len(first["devices"]) * config.training.edge_iterations + config.fleet.num_edges
        return Workload.of(config, model_bits=float(first[metrics.ROUND_MESSAGE_BITS]) / models)

    @property
    def numbers(self) -> list[int]:
        """The rounds there are."""
        return [int(number) for number in self.run.rounds["round"]]

    @cached_property
    def class_counts(self) -> pd.DataFrame:
        """Samples of each class at each device, (N, C)."""
        assert self.run.devices is not None
        return self.run.devices.filter(regex=r"^class/").set_axis(self.run.devices["device"])

    def round(self, number: int) -> Round:
        """Take a round apart. Raises ConfigError: there is no such round, or the rebuilt bill is not the logged one."""
        assert self.run.devices is not None
        if number not in self.numbers:
            raise ConfigError(
                f"--round: {self.run.name} has no round {number}; accepted: {self.numbers[0]} to {self.numbers[-1]}"
            )
        position = self.numbers.index(number)
        row, fleet = self.run.rounds.iloc[position], self.fleet
        chosen, edges = (np.asarray(row[name], dtype=np.intp) for name in ("devices", "edges"))
        allocation = Allocation(np.asarray(row["bandwidth_hz"]), np.asarray(row["cpu_hz"]))
        cost = round_cost(fleet, self.work, chosen, edges, allocation)
        logged = float(row[metrics.ROUND_OBJECTIVE])
        if not np.isclose(cost.objective, logged, rtol=SAME):
            raise ConfigError(
                f"{self.run.name}: round {number} was billed {logged:.6g} J, its schedule gives {cost.objective:.6g}; "
                "its settings changed as it ran, or this hflray draws another fleet than the one that ran it"
            )
        known = self.run.devices.set_index("device").loc[chosen]
        so_far = np.concatenate([np.asarray(past) for past in self.run.rounds["devices"].iloc[: position + 1]])
        times = np.bincount(so_far, minlength=fleet.num_devices)
        one = np.arange(len(chosen))
        distance, gain = fleet.distance_m[chosen], fleet.gain[chosen]
        seconds = cost.compute_delay_s + cost.upload_delay_s
        late = {int(edge): _straggler(one[edges == edge], seconds, allocation) for edge in np.unique(edges)}
        devices = pd.DataFrame(
            {
                "device": chosen,
                "cluster": known["cluster"].to_numpy() if "cluster" in known else -1,
                "majority": self.class_counts.loc[chosen].to_numpy().argmax(axis=1),
                "times": times[chosen],
                "edge": edges,
                "nearest": 1 + (distance < distance[one, edges][:, None]).sum(axis=1),
                "strongest": 1 + (gain > gain[one, edges][:, None]).sum(axis=1),
                "samples": known["samples"].to_numpy(),
                "bandwidth_hz": allocation.bandwidth_hz,
                "cpu_hz": allocation.cpu_hz,
                "compute_s": cost.compute_delay_s,
                "upload_s": cost.upload_delay_s,
                "seconds": seconds,
                "joules": cost.compute_energy_j + cost.upload_energy_j,
                "straggler": np.isin(one, list(late.values())),
            }
        )
        table = pd.DataFrame(
            {
                "edge": range(fleet.num_edges),
                "devices": cost.edge_devices,
                "delay_s": cost.edge_delay_s,
                "energy_j": cost.edge_energy_j,
                "cloud_s": cloud_hop(fleet, self.work.model_bits)[0],
                "straggler": [int(chosen[late[edge]]) if edge in late else -1 for edge in range(fleet.num_edges)],
                "slowest": np.arange(fleet.num_edges) == cost.edge_delay_s.argmax(),
            }
        )
        return Round(number, devices, table, cost, self.work.edge_iterations)


def _straggler(members: IntArray, seconds: FloatArray, allocation: Allocation) -> int:
    """The device its edge waits for. The allocation makes (nearly) all of an edge finish together; of the last ones it
    is the one with the highest frequency: a second less would cost the most there (the price of delay is α f³).
    """
    last = members[seconds[members] >= seconds[members].max() * (1 - TOGETHER)]
    return int(max(last, key=lambda i: (allocation.cpu_hz[i], seconds[i])))
