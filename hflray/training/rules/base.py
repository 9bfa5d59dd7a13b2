"""What a device does with each gradient, and what it keeps: the contract of a local rule.

All rules share the same steps (`hflray.training.differences`): a kernel makes a plain step of SGD, and the rule changes
what this step added. Momentum, weight decay and clipping therefore belong to every rule. The functions of a rule read
like the published algorithm. They act on arrays of any floating type, so that tests can follow them in float64.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hflray.support.arrays import FloatArray

Vector = NDArray[np.floating[Any]]  # the numbers of a model that are trained, (P,)
Memory = Mapping[str, Any]  # what a device keeps, by name: vectors (P,) and numbers; it never changes in place
State = Mapping[str, NDArray[Any]]  # what the cloud keeps for a rule, by name
# Names in a device's memory beside those of its rule: what its compressor has not sent yet; and the turn in which it
# trained last, a round and the number of the turn's first edge iteration, if its rule forgets something at its end.
RESIDUAL, TURN = "residual", "turn"


@dataclass(frozen=True, eq=False)
class Received:
    """What a device receives at the beginning of an edge iteration.

    Attributes:
        model: w₀, (P,).
        vectors: the rule's vectors that come with it, (P,) each, such as SCAFFOLD's c.
        iteration: the edge iteration in this round, from 0.
        last: whether it is the edge's last edge iteration of the round, or of its turn where the cloud is asynchronous.
        round: i, from 1.
        device: n.
        mean_rate: Kβ of the device's last edge iteration before this one, the mean over its edge's devices by weight; 0
            in the edge's first one, and if the edge kept its model then, because too few models arrived. With momentum
            it is what `finish` gets as `rate`.
        entered: the model into which the device's update of that edge iteration was combined, (P,), if the edge has
            combined others since, in which the device did not count; None: it is `model`.
    """

    model: Vector
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    iteration: int = 0
    mean_rate: float = 0.0
    last: bool = True
    round: int = 0
    device: int = 0
    entered: Vector | None = None


@dataclass(frozen=True, eq=False)
class EdgeReport:
    """What the cloud knows of an edge at the end of a round.

    Attributes:
        model: the edge's model, (P,).
        rate: Σ Kβ over its edge iterations, each the mean over its devices by weight; 0 if it has combined nothing.
    """

    model: Vector
    rate: float


@dataclass(frozen=True, eq=False)
class CloudReport:
    """What the cloud knows at the end of a round.

    Attributes:
        before: the global model before the round, (P,).
        mean: the weighted mean of the edges' models, (P,), before any step of the cloud's aggregator.
        edges: the edges whose models reached the cloud, by index.
        extra: the sums of what devices handed up beside their models, (P,) each, over all edge iterations. A name that
            no device has handed up is missing.
        num_devices: N.
    """

    before: Vector
    mean: Vector
    edges: Mapping[int, EdgeReport]
    extra: Mapping[str, Vector]
    num_devices: int


class LocalRule:
    """The base class of local rules; without a change it is plain SGD.

    Attributes:
        vectors: how many further vectors a device sends to its edge, and an edge to the cloud; they are billed.
        once: whether a device sends them with the last edge iteration of a round only. The bill spreads them evenly
            over the round's uploads, because an allocation knows one size of an upload.
        memory: the names of the vectors that a device keeps between edge iterations, and that `correction` sees.
        forgets: the names of what a device forgets at the end of a round, or of its edge's turn where the cloud is
            asynchronous; True: all that it keeps.
        extra: the names of the vectors that devices hand up. Where `vectors` bills no device for them, an edge must be
            able to compute them from the models that it receives, and these must be sent whole.
        needs_edges: whether `cloud` needs each edge's model.
        makes_model: whether `cloud` makes the global model; the cloud's aggregator must then be ``mean``.
        needs_uniform: whether all devices must have the same weight (``aggregation.weights: uniform``).
        constant: whether `correction` does not depend on `weights`. It is then computed once for all steps of an edge
            iteration, which is faster.
        flat: whether `correction` sees all tensors of the network at once, as one flat vector, (P,).
        stacked: whether `correction` works number by number, so that it may be called for several devices at once, with
            a leading axis of devices, which is faster on a GPU. A norm or a mean would mix the devices.
        revision: is raised when the rule changes what it computes in a round of several edge iterations. A checkpoint
            of another revision is refused.

    Examples:
        A file of one's own needs one class, such as FedProx, and is used by ``training.rule: {name: mine.py:Prox}``:

        >>> import numpy as np
        >>> from hflray.training.rules import LocalRule
        >>> class Prox(LocalRule):
        ...     def __init__(self, mu=0.01):
        ...         self.mu = mu
        ...
        ...     def correction(self, weights, received, vectors, memory):
        ...         return self.mu * (weights - received)
        >>> Prox(mu=0.5).correction(np.array([2.0, 3.0]), np.array([1.0, 3.0]), {}, {}).tolist()
        [0.5, 0.0]
    """

    vectors: ClassVar[tuple[int, int]] = (0, 0)
    once: ClassVar[bool] = False
    memory: ClassVar[tuple[str, ...]] = ()
    forgets: ClassVar[bool | tuple[str, ...]] = False
    extra: ClassVar[tuple[str, ...]] = ()
    needs_edges: ClassVar[bool] = False
    makes_model: ClassVar[bool] = False
    needs_uniform: ClassVar[bool] = False
    constant: ClassVar[bool] = False
    flat: ClassVar[bool] = False
    stacked: ClassVar[bool] = False
    revision: ClassVar[int] = 1

    def start(self, size: int, num_edges: int) -> State:
        """Return what the cloud keeps before round 1, for P = `size` trained numbers and M edges."""
        return {}

    def sends(self, state: State, edge: int) -> Mapping[str, Vector]:
        """Return the vectors that come with the model to the devices of an edge, (P,) each."""
        return {}

    def begin(self, received: Received, memory: Memory) -> Memory:
        """Return a device's memory at the beginning of an edge iteration. It is empty before its first one."""
        return memory

    def correction(self, weights: Any, received: Any, vectors: Mapping[str, Any], memory: Mapping[str, Any]) -> Any:
        """Return what is added to the gradient of one device at `weights`, a tensor of their shape; None: nothing.

        It is called in each step for each tensor of the network alone, so that a norm is that of a tensor. With
        ``flat = True`` it is called once a step for the whole model, (P,), and a norm is that of the model. All
        arguments are float32 tensors of torch of the same shape, and none may be changed in place. A method that has
        further parameters `device` or `round` receives n, or i from 1.

        Args:
            weights: w.
            received: w₀.
            vectors: the rule's vectors that came with w₀, by name.
            memory: the vectors that the device keeps, by their names in the attribute `memory`.
        """
        return None

    def finish(
        self, received: Received, trained: Vector, rate: float, memory: Memory
    ) -> tuple[Memory, Mapping[str, Vector]]:
        """Return a device's memory after an edge iteration, and what it hands up beside its model.

        Args:
            received: what it began with.
            trained: its model now, (P,).
            rate: Kβ, the sum of the learning rates of its K steps; with momentum, by how much a constant gradient of 1
                would have moved it (`hflray.training.method.Method.total_rate`).
            memory: what `begin` returned.
        """
        return memory, {}

    def scales(
        self, place: Literal["edge", "cloud"], steps: FloatArray, weights: FloatArray, momentum: float
    ) -> tuple[FloatArray, float] | None:
        """Return the factor of each sender's update, (n,), and the effective number of steps; None: all are 1.

        Args:
            place: whether devices send to an edge, or edges to the cloud.
            steps: the steps of each device in this edge iteration, or the effective steps of each edge, (n,).
            weights: the share of each sender, (n,); they add up to 1.
            momentum: ρ.
        """
        return None

    def cloud(self, report: CloudReport, state: State) -> tuple[Vector | None, State]:
        """Return the global model, (P,), and what the cloud keeps, at the end of a round.

        A model of None is what the cloud's aggregator makes.
        """
        return None, state


class SGD(LocalRule):
    """Plain mini-batch SGD, equation (1) of the paper, and the default: nothing is added to the gradient or kept."""


def of_correction(rule: LocalRule, name: Literal["constant", "flat", "stacked"]) -> bool:
    """Return an attribute that tells of a rule's correction, of the class that defines it or of one below that.

    A subclass with a correction of its own does not inherit it.
    """
    for base in type(rule).__mro__:
        if name in vars(base) or "correction" in vars(base):
            break
    return bool(vars(base).get(name, False))


def corrects(rule: LocalRule) -> bool:
    """Return whether a rule changes gradients."""
    return type(rule).correction is not LocalRule.correction


def further(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return which of ``device`` and ``round`` a user's function has parameters for."""
    return tuple(name for name in ("device", "round") if name in inspect.signature(function).parameters)


def after_turn(rule: LocalRule, memory: Memory) -> dict[str, object]:
    """Return what of a device's memory lasts beyond a round, or a turn of its edge where the cloud is asynchronous."""
    forgotten = (*(memory if rule.forgets is True else rule.forgets or ()), TURN)
    return {name: value for name, value in memory.items() if name == RESIDUAL or name not in forgotten}


def recalled(rule: LocalRule, memory: Memory, turn: tuple[int, int]) -> Memory:
    """Return what the rule has of a device's memory at a reception in a turn."""
    now = memory if memory.get(TURN, turn) == turn else after_turn(rule, memory)
    return {name: value for name, value in now.items() if name not in (RESIDUAL, TURN)}
