"""How an edge, or the cloud, combines the models that it receives: the contract of an aggregator.

An aggregator is a monoid with a beginning and an end. `Aggregator.lift` turns what one sender sent into a part,
`Aggregator.combine` merges parts, and `Aggregator.finish` turns the last part into a model. Devices are spread over
actors, so that parts are merged in groups that depend on the number of actors. Both `lift` and `combine` must therefore
give the same bits in any grouping: by exact sums (`hflray.aggregation.mean`), or by rows that are sorted by sender
(`OfModels`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation.fixed_point import FloatVector
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.contract import Contract, all_finite, is_ours

State = Mapping[str, NDArray[Any]]  # what the cloud's aggregator keeps from round to round, by name


class Sent(NamedTuple):
    """What a device hands to its edge, or an edge to the cloud, as it arrives.

    Attributes:
        model: the sender's model, (P,).
        received: the model that it started from, (P,).
        weight: its weight in a weighted mean, a whole number above 0.
        sender: the index of the device or edge.
    """

    model: FloatVector
    received: FloatVector
    weight: int
    sender: int


@dataclass(frozen=True)
class Frame:
    """Where and when models are combined. The plan of the round gives every value.

    Attributes:
        place: whether an edge combines devices, a region edges, or the cloud what lies below it.
        index: the index of the edge or region; 0 at the cloud.
        round: i, from 1.
        iteration: the edge iteration, from 0; 0 at the cloud.
        size: the number of senders.
        weight: the sum of their weights.
        statistics: how many numbers at the end of a model are statistics of normalisation layers.
        fraction_bits: the binary places of exact sums; see `hflray.aggregation.fixed_point`.
        seed: the experiment's seed, for draws by `hflray.seeding.stream`.
        deviation: the standard deviation of the noise of privacy (`hflray.training.privacy`) in the sum of an edge;
            0: none.
    """

    place: Literal["edge", "region", "cloud"]
    index: int
    round: int
    iteration: int
    size: int
    weight: int
    statistics: int
    fraction_bits: int
    seed: int = 0
    deviation: float = 0.0


class Aggregator(ABC):
    """The base class of aggregators.

    Attributes:
        linear: whether the parts of several edges may be combined as if all of their devices sent to the cloud
            (equation 16 of the paper).
        at_cloud: whether it may stand at the cloud.
        at_edge: whether it may stand at an edge. An edge's aggregator keeps no state.

    Examples:
        A file of one's own needs one class, and is used by ``aggregation.cloud: {name: mine.py:Half}``:

        >>> import numpy as np
        >>> from hflray.aggregation import Frame, Mean, Sent
        >>> class Half(Mean):
        ...     linear = False  # the cloud needs the edges' models, and not their sums alone
        ...     def finish(self, total, before, state, frame):
        ...         mean, state = super().finish(total, before, state, frame)
        ...         return (before + mean) / 2, state
        >>> frame = Frame("cloud", 0, round=1, iteration=0, size=2, weight=4, statistics=0, fraction_bits=20)
        >>> before, half = np.zeros(1, np.float32), Half()
        >>> first = Sent(np.float32([1]), before, weight=3, sender=0)
        >>> second = Sent(np.float32([5]), before, weight=1, sender=1)
        >>> total = half.combine([half.lift(sent, frame) for sent in (first, second)])
        >>> half.finish(total, before, {}, frame)[0].tolist()  # half of the mean (3 · 1 + 1 · 5) / 4
        [1.0]
    """

    linear: ClassVar[bool] = False
    at_cloud: ClassVar[bool] = True
    at_edge: ClassVar[bool] = True

    @property
    def least(self) -> int:
        """The number of senders that it needs. With fewer, the model before stays."""
        return 1

    def start(self, size: int) -> State:
        """Return the state before round 1 for models of `size` numbers that are trained."""
        return {}

    @abstractmethod
    def lift(self, sent: Sent, frame: Frame) -> Any:
        """Return the part of one sender."""

    @abstractmethod
    def combine(self, parts: Sequence[Any]) -> Any:
        """Return the part of all senders in `parts`, of which there is at least one."""

    @abstractmethod
    def finish(self, total: Any, before: FloatVector, state: State, frame: Frame) -> tuple[FloatVector, State]:
        """Return the combined model, (P,) float32, and the next state.

        Args:
            total: the part of all senders.
            before: the model that the place had before, (P,).
            state: the state of `start` or of the round before; this one must not change.
            frame: where and when.
        """


def finished(
    aggregator: Aggregator, total: Any, before: FloatVector, state: State, frame: Frame
) -> tuple[FloatVector, State]:
    """Return what `Aggregator.finish` returns, after a look if the class is a user's own.

    Raises:
        ConfigError: it is no model of finite numbers and no next state, although all that it was made of is finite.
    """
    made = aggregator.finish(total, before, state, frame)
    if is_ours(aggregator):
        return made
    contract = _contract(
        aggregator, frame, "finish", f"the model, finite numbers of shape {before.shape}, and the next state"
    )
    model = contract.array(contract.pair(made)[0], before.shape, finite=all_finite((total, before)))
    return np.asarray(model, dtype=np.float32), contract.arrays(made[1])


def checked_numbers(aggregator: Aggregator, frame: Frame, method: str, numbers: Any, size: int) -> FloatArray:
    """Return the numbers, (P,), that a method of an aggregator returned. Raises ConfigError: their shape is another."""
    if is_ours(aggregator):
        return np.asarray(numbers)
    accepted = f"{size} numbers of shape ({size},)"
    return _contract(aggregator, frame, method, accepted).array(numbers, (size,), finite=False)


def checked_step(aggregator: Aggregator, frame: Frame, made: Any, size: int) -> tuple[FloatArray, State]:
    """Return the change, (P,), and the state that a user's step returned. Raises ConfigError: they are none."""
    if is_ours(aggregator):
        change, state = made
        return change, state
    accepted = f"the change of the model, {size} numbers of shape ({size},), and the next state"
    contract = _contract(aggregator, frame, "step", accepted)
    change, state = contract.pair(made)
    return contract.array(change, (size,), finite=False), contract.arrays(state)


def _contract(aggregator: Aggregator, frame: Frame, method: str, accepted: str) -> Contract:
    return Contract.of(f"aggregation.{frame.place}.name", aggregator, accepted, f"mend its method {method}")


class Rows(NamedTuple):
    """Models as rows, sorted by sender.

    Attributes:
        senders: (n,).
        weights: (n,).
        models: (n, P).
    """

    senders: IntArray
    weights: NDArray[np.int64]
    models: NDArray[np.float32]


class OfModels(Aggregator):
    """The base class of aggregators that look at each model, such as a median.

    Every model travels to the place that combines it, so that traffic grows with the number of devices. Statistics of
    normalisation layers are their weighted mean, whatever the aggregator does with weights. It stands at an edge,
    unless a class of one's own sets `at_cloud`.
    """

    at_cloud: ClassVar[bool] = False

    def lift(self, sent: Sent, frame: Frame) -> Rows:
        """See `Aggregator.lift`."""
        return Rows(np.array([sent.sender]), np.array([sent.weight], dtype=np.int64), sent.model[None])

    def combine(self, parts: Sequence[Rows]) -> Rows:
        """See `Aggregator.combine`."""
        senders = np.concatenate([part.senders for part in parts])
        order = np.argsort(senders, kind="stable")
        weights, models = (np.concatenate([part[i] for part in parts])[order] for i in (1, 2))
        return Rows(senders[order], weights, models)

    def finish(self, total: Rows, before: FloatVector, state: State, frame: Frame) -> tuple[FloatVector, State]:
        """See `Aggregator.finish`."""
        end = len(before) - frame.statistics
        models, weights = total.models.astype(np.float64), total.weights.astype(np.float64)
        combined = checked_numbers(self, frame, "of_models", self.of_models(models[:, :end], weights), end)
        statistics = (weights[:, None] * models[:, end:]).sum(axis=0) / weights.sum()
        return np.concatenate([combined, statistics]).astype(np.float32), state

    @abstractmethod
    def of_models(self, models: FloatArray, weights: FloatArray) -> FloatArray:
        """Return one model, (P,), of the models (n, P) with their weights (n,), sorted by sender."""
