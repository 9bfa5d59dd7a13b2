"""What the testbed plays: configurations whose devices, edges, bandwidths and CPU frequencies hflray decides.

The planned fleet is random. Its frequencies become shares of a core, and its rates those of `tbf`. In the *reference*
allocation every device has its largest frequency, and every link the rate of a quarter of its edge's bandwidth, so
that a device and a link are the same in all configurations, as `hflray calibrate` expects. Others are allocated by
`allocate_round`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from hflray import Fleet, FleetConfig, Workload, allocate_round, build_assigner, build_scheduler, sample_fleet
from hflray.cost import LocalSteps
from hflray.physics.equations import rate_bps
from hflray.support.arrays import FloatArray, IntArray

DEVICES, EDGES, EDGE_ITERATIONS = 8, 2, 2
CORES = 1.6  # of two, that all devices together use at most
PER_EDGE = DEVICES // EDGES  # devices between which the reference splits an edge's bandwidth
MODEL_BYTES = 4 * 114_662  # of the paper's network on images of 28 × 28
FLEET = FleetConfig(
    num_devices=DEVICES, num_edges=EDGES, area_km=0.5, shadowing_db=6, samples=(110, 230), power_dbm=(15, 23),
    edge_bandwidth_mhz=(3, 4), cloud_bandwidth_mhz=1.5, max_cpu_ghz=(1, 2.5), cycles_per_sample=(1.2e6, 1.2e6),
)  # fmt: skip
SEED = 62


class Setting(NamedTuple):
    """A configuration before it is planned; `kind` says for what it is held out, and `FITTED` that it is not."""

    name: str
    kind: str
    num_scheduled: int
    assigner: str
    batch_size: int
    local_iterations: int
    allocation: str = "reference"
    seed: int = 0


FITTED, ASSIGNMENT, NUMBER, BATCH, ALLOCATION = "fitted", "assignment", "H", "batch and steps", "allocation"
LONG = (
    Setting("A", FITTED, 8, "best_gain", 20, 5),
    Setting("B", FITTED, 6, "random", 10, 2, seed=1),
    Setting("C", FITTED, 7, "random", 40, 10, seed=1),
    Setting("D", FITTED, 8, "random", 64, 6, seed=7),
    Setting("E", ALLOCATION, 6, "hfel", 20, 5, "newton", seed=4),
)
BRIEF = (
    Setting("F", ASSIGNMENT, 8, "random", 20, 5, seed=6),
    Setting("G", ASSIGNMENT, 8, "local_search", 10, 2),
    Setting("H", ASSIGNMENT, 8, "random", 40, 10, seed=7),
    Setting("I", NUMBER, 4, "best_gain", 20, 5, seed=8),
    Setting("J", NUMBER, 3, "random", 40, 10, seed=10),
    Setting("K", NUMBER, 5, "local_search", 10, 2, seed=10),
    Setting("L", BATCH, 8, "best_gain", 32, 7),
    Setting("M", BATCH, 8, "best_gain", 16, 2),
    Setting("N", BATCH, 6, "random", 100, 10, seed=2),
    Setting("O", ALLOCATION, 8, "best_gain", 20, 5, "equal"),
)
SETTINGS = (*LONG, *BRIEF)
LONG_ROUNDS, BRIEF_ROUNDS = 20, 8


@dataclass(frozen=True, eq=False)
class Plan:
    """A configuration as it is played.

    Attributes:
        setting: what was asked for.
        devices, edges: who trains, and at which edge, (H,).
        cores: the share of a core of each, (H,).
        rate_bps: the rate of each one's link, (H,), bit/s.
    """

    setting: Setting
    devices: IntArray
    edges: IntArray
    cores: FloatArray
    rate_bps: FloatArray


@cache
def fleet() -> Fleet:
    """Return the planned fleet."""
    return sample_fleet(FLEET, np.random.default_rng(SEED))


def workload(setting: Setting) -> Workload:
    """Return the work of a round."""
    return Workload(
        8 * MODEL_BYTES, setting.local_iterations, EDGE_ITERATIONS, steps=LocalSteps("epoch", setting.batch_size)
    )


def core_hz() -> float:
    """Return the frequency that stands for a whole core of the machine."""
    return float(fleet().max_cpu_hz.sum() / CORES)


def reference() -> tuple[FloatArray, FloatArray]:
    """Return the share of a core of each device, (N,), and the rate of each link, (N, M), bit/s."""
    system = fleet()
    width = system.edge_bandwidth_hz[None, :] / PER_EDGE
    gain = np.asarray(system.gain)
    return system.max_cpu_hz / core_hz(), rate_bps(width, gain, system.power_w[:, None], system.noise_w_per_hz)


def cloud_rate_bps() -> FloatArray:
    """Return the rate of each edge to the cloud, (M,), bit/s (equation 11)."""
    system = fleet()
    width = np.asarray(system.cloud_bandwidth_hz)
    return rate_bps(width, system.cloud_gain, system.edge_power_w, system.noise_w_per_hz)


def plan(setting: Setting) -> Plan:
    """Return who trains, where and with what, as hflray decides it."""
    system, work, rng = fleet(), workload(setting), np.random.default_rng(setting.seed)
    scheduler = build_scheduler("fedavg", num_devices=DEVICES, num_scheduled=setting.num_scheduled)
    devices = np.sort(scheduler.schedule(rng))
    edges = np.asarray(build_assigner(setting.assigner).assign(system, work, devices, rng))
    cores, rates = reference()
    if setting.allocation == "reference":
        return Plan(setting, devices, edges, cores[devices], rates[devices, edges])
    chosen = allocate_round(system, work, devices, edges, setting.allocation)  # type: ignore[arg-type]
    gain, power_w = system.gain_of(devices, edges), system.power_w[devices]
    rate = rate_bps(chosen.bandwidth_hz, gain, power_w, system.noise_w_per_hz)
    return Plan(setting, devices, edges, chosen.cpu_hz / core_hz(), rate)
