"""What a round of training depends on, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation import FloatVector, State
from hflray.cost import Schedule
from hflray.fleet.tree import CLOUD_ALONE, Tree
from hflray.support.arrays import BoolArray, IntArray
from hflray.training.exchange import Version
from hflray.training.method import Method
from hflray.training.rules.base import Memory
from hflray.training.rules.own import started

if TYPE_CHECKING:
    from hflray.world.turns import AsynchronousRound

PREFIX = "training."  # of the names of arrays in a checkpoint
Losses = Mapping[int, tuple[float, float]]  # mean loss and utility, by device


@dataclass(frozen=True, eq=False)
class TrainingState:
    """All that a round's training depends on, beside its plan. It does not change: a round returns the next one.

    Attributes:
        model: the global model, (P,) float32.
        memories: what each device keeps, by device.
        residuals: what each edge keeps of its compressed updates, by edge.
        rule: what the cloud keeps for the local rule, by name.
        cloud: what the cloud's aggregator keeps, by name. Under an asynchronous cloud these are the sum in its buffer,
            and FedAT's newest models of the edges.
        fetched: what the edges under way have fetched, by edge; empty with any other cloud.
        versions: the models of asynchronous edges that devices under way have fetched, by edge and version.
        edges: the edges' own models after a round without a cloud, by edge; empty with a cloud, and before round 1.
    """

    model: FloatVector
    memories: Mapping[int, Memory] = field(default_factory=dict)
    residuals: Mapping[int, FloatVector] = field(default_factory=dict)
    rule: State = field(default_factory=dict)
    cloud: State = field(default_factory=dict)
    fetched: Mapping[int, Version] = field(default_factory=dict)
    versions: Mapping[tuple[int, int], FloatVector] = field(default_factory=dict)
    edges: Mapping[int, FloatVector] = field(default_factory=dict)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all but the model as arrays by name, for a checkpoint; there are none where nothing is kept."""
        named: dict[str, NDArray[Any]] = {}
        for device, memory in self.memories.items():
            named |= {f"{PREFIX}memory.{device}.{name}": np.asarray(value) for name, value in memory.items()}
        named |= {f"{PREFIX}residual.{edge}": residual for edge, residual in self.residuals.items()}
        named |= {f"{PREFIX}rule.{name}": np.asarray(value) for name, value in self.rule.items()}
        for edge, version in self.fetched.items():
            named[f"{PREFIX}fetched.{edge}.model"] = version.model
            named |= {f"{PREFIX}fetched.{edge}.vectors.{name}": vector for name, vector in version.vectors.items()}
        named |= {f"{PREFIX}version.{edge}.{number}": model for (edge, number), model in self.versions.items()}
        named |= {f"{PREFIX}edge.{edge}": model for edge, model in self.edges.items()}
        return named | {f"{PREFIX}cloud.{name}": np.asarray(value) for name, value in self.cloud.items()}

    @classmethod
    def first(cls, method: Method, model: FloatVector, size: int, num_edges: int) -> TrainingState:
        """Return the state before round 1, of a network with `size` trained numbers and M edges."""
        parts = method.parts()
        rule, cloud = parts.rule.start(size, num_edges), parts.cloud.start(size)
        started(parts.rule, "training.rule.name", rule)
        started(parts.cloud, "aggregation.cloud.name", cloud)
        return cls(model, rule=rule, cloud=cloud)

    @classmethod
    def of_arrays(cls, model: FloatVector, named: Mapping[str, Any]) -> TrainingState:
        """Return the state of `arrays`; other names are ignored."""
        nested: dict[str, dict[int, dict[str, Any]]] = {"memory": {}, "fetched": {}}
        models: dict[tuple[int, int], FloatVector] = {}
        state: dict[str, dict[Any, Any]] = {"residual": {}, "rule": {}, "cloud": {}, "edge": {}}
        for key, value in named.items():
            if not key.startswith(PREFIX):
                continue
            part, _, name = key.removeprefix(PREFIX).partition(".")
            if part in nested:
                owner, _, name = name.partition(".")
                nested[part].setdefault(int(owner), {})[name] = value if value.ndim else value.item()
            elif part == "version":
                edge, _, number = name.partition(".")
                models[int(edge), int(number)] = value
            else:
                state[part][int(name) if part in ("residual", "edge") else name] = value
        versions = {
            edge: Version(held.pop("model"), {name.removeprefix("vectors."): vector for name, vector in held.items()})
            for edge, held in nested["fetched"].items()
        }
        residual, rule, cloud, edges = state.values()
        return cls(model, nested["memory"], residual, rule, cloud, versions, models, edges)


class RoundTask(NamedTuple):
    """What a round trains.

    Attributes:
        round_index: i, from 1.
        schedule: the scheduled devices and the edge of each, (H,).
        participates: whether a device takes part in an edge iteration, (Q, H). An edge keeps its model in an iteration
            without devices. Its weight at the cloud is that of its last iteration with some; without any it has none,
            and if no edge has any, the global model stays.
        wants_losses: whether the losses of the devices are computed.
        mixes: without a cloud, which edges send their models to their neighbours and take theirs, (M,); None: all.
        played: what happens where cloud or edges do not wait; the turns whose updates arrive are trained, in place of
            the schedule. None: they wait.
        ends: the last edge iteration of each edge where edges make different numbers of them, (M,); None: Q − 1.
    """

    round_index: int
    schedule: Schedule
    participates: BoolArray
    wants_losses: bool = False
    mixes: BoolArray | None = None
    played: AsynchronousRound | None = None
    ends: IntArray | None = None


class RoundResult(NamedTuple):
    """What a round's training returns.

    Attributes:
        state: the state after the round.
        losses: the losses of each device that took part, of the model that it received in its last edge iteration;
            empty unless they were asked for.
        measures: metrics of the updates, by name; empty unless they are measured.
    """

    state: TrainingState
    losses: Losses
    measures: Mapping[str, float] = {}


@dataclass(frozen=True, eq=False)
class TrainingSetting:
    """What is the same in all rounds of an experiment.

    Attributes:
        method: what happens inside a round.
        seed: the experiment's seed.
        samples: D_n of all devices, (N,).
        num_edges: M.
        steps: the gradient steps of each device in an edge iteration, (N,).
        rate: β.
        sizes: how many numbers each trained tensor of the network has.
        statistics: how many numbers at the end of a model are statistics of normalisation layers.
        tree: what lies above the edges.
    """

    method: Method
    seed: int
    samples: NDArray[np.int64]
    num_edges: int
    steps: NDArray[np.int64]
    rate: float
    sizes: tuple[int, ...]
    statistics: int = 0
    tree: Tree = CLOUD_ALONE

    @property
    def weights(self) -> NDArray[np.int64]:
        """The weight of each device's model, (N,)."""
        return np.ones_like(self.samples) if self.method.uniform else self.samples
