"""Small configurations, networks and synthetic fleets for the tests of hflray.rl."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from hflray.assignment.network import NetworkSpec, QNetwork, build_network
from hflray.assignment.state import assigned_objective
from hflray.config import ExperimentConfig, FleetConfig, load_config
from hflray.rl.fleets import FORMAT, FleetSpec, SolvedFleet
from hflray.rl.solved_fleets import SPEC, FleetPool, write_shard

SMALL = (
    "scheduling.num_scheduled=8",
    "fleet.num_edges=3",
    "learning.fleets=12",
    "learning.evaluation_fleets=3",
    "learning.hidden=8",
    "learning.minutes=null",
    "learning.env_steps=1200",
    "learning.evaluate_every=300",
    "learning.train_batch=32",
    "learning.learning_starts=100",
    "learning.target_update_steps=150",
    "learning.epsilon_steps=800",
    "learning.learning_rate_steps=1000",
    "learning.buffer_capacity=500",
)


TINY = FleetSpec(
    fleet=FleetConfig(num_devices=8, num_edges=3),
    num_scheduled=(4, 8),
    num_edges=(2, 3),
    teacher="local_search",
    options={},
)


def tiny_network(seed: int = 0) -> QNetwork:
    """Return a network for the fleets of `TINY`, with weights from the seed."""
    torch.manual_seed(seed)
    return build_network(NetworkSpec("shared", "db", num_edges=3, hidden=8, width=8, refinements=1))


def small(folder: Path, *overrides: str) -> ExperimentConfig:
    """Return the configuration of a training that takes seconds and keeps its fleets in `folder`."""
    return load_config(None, [*SMALL, f"learning.cache={folder / 'fleets'}", *overrides])


def identity_pool(folder: Path, count: int, spec: FleetSpec) -> FleetPool:
    """Make fleets of `spec` in which one edge is 90 dB stronger than the others at each device, and is the label."""
    fleets = []
    for index in range(count):
        solved = spec.solve(index)
        problem = solved.problem
        m, h = problem.snr.shape
        strongest = np.random.default_rng(index).integers(m, size=h)
        snr = np.full((m, h), 1.0) * problem.snr.max(axis=0)
        snr[np.arange(m)[:, None] != strongest[None]] *= 1e-9
        problem = problem._replace(snr=snr)
        fleets.append(
            SolvedFleet(
                problem,
                strongest.astype(np.int8),
                assigned_objective(problem, strongest),
                solved.cycles_per_sample,
                solved.samples,
            )
        )
    folder.mkdir(parents=True)
    (folder / SPEC).write_text(json.dumps({"format": FORMAT, "hash": spec.hash, "spec": spec.to_dict()}))
    write_shard(folder / f"fleets-{0:08d}-{count:08d}.npz", fleets, 0.0)
    return FleetPool(folder)


# Six devices at one edge, all with the same mix of classes, and three rounds that never reach the target. The reward of
# a round is minus its energy, so that the best choice is the pair of the least energy, in every round.
TOY = (
    "fleet.num_devices=6",
    "fleet.num_edges=1",
    "scheduling.num_scheduled=2",
    "scheduling.num_clusters=2",
    "assignment.name=best_gain",
    "data.majority_fraction=0.1",
    "max_rounds=3",
    "target_accuracy=0.99",
    "agent.width=16",
    "agent.gamma=0",
    "agent.learning_rate=0.005",
    "agent.train_batch=240",
    "agent.minibatch=60",
    "agent.environments=16",
    "agent.env_steps=480",
    "agent.evaluate_every=240",
    "agent.evaluation_fleets=2",
)


def toy(*overrides: str) -> ExperimentConfig:
    return load_config(None, [*TOY, *overrides])
