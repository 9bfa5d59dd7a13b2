"""The base class of all schedulers, and that of Algorithms 3 and 4 of the paper: clusters, quotas and the fill-up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from hflray.config.options import whole
from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray, IntArray, Stateful
from hflray.support.text import shorten

if TYPE_CHECKING:
    from hflray.scheduling.context import RoundContext


def option(default: Any, check: Callable[..., Any], *accepted: Any) -> Any:
    """Return the field of an option that a check of `hflray.config.options` reads when the scheduler is built.

    Args:
        default: the default; None stands for a value that the scheduler finds itself.
        check: called with the setting's name, the value and what is `accepted`; returns the value.
    """
    return field(default=default, metadata={"check": check, "accepted": accepted})


@dataclass(kw_only=True, eq=False, repr=False)
class Scheduler(Stateful, ABC):
    """A scheduler chooses H of N devices for each round. A subclass defines `schedule`, and its state if it has any.

    `schedule` receives a `RoundContext`, or its `rng` alone if it names its parameter ``rng``. Options are further
    fields (`option`).

    Args:
        num_devices: N.
        num_scheduled: H, from 1 to N.
        clusters: one label per device, (N,) integers from 0; or a list of K index arrays, some possibly empty, that
            together hold each device once. Schedulers whose `auxiliary` is None ignore the clusters.

    Raises:
        ConfigError: a count or the clusters are not as described.

    Examples:
        >>> import numpy as np
        >>> from hflray import Scheduler
        >>> class Lowest(Scheduler):
        ...     def schedule(self, rng):
        ...         return np.arange(self.num_scheduled)
        >>> Lowest(num_devices=5, num_scheduled=3).schedule(np.random.default_rng(0)).tolist()
        [0, 1, 2]
    """

    auxiliary: ClassVar[Literal["mini", "global"] | None] = None
    """The model that Algorithm 2 trains on the devices to find the clusters; None: the scheduler needs no clusters."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """What is computed only on request: ``loss`` (the context's `last_loss` and `last_utility`), ``poll`` (its
    `poll_loss`), and ``accuracy`` (in the context's and the observed `record`). A round is planned while actors
    evaluate the one before, unless ``poll`` or ``accuracy`` is needed."""

    looks_back: ClassVar[bool] = True
    """Whether `schedule` looks at the context's `record` or at what it remembers of devices (`participation` to
    `edge_of`). For a class that says False, and for one whose `schedule` takes ``rng``, neither is kept or saved."""

    num_devices: int
    num_scheduled: int
    clusters: Any = None  # as given; a subclass that schedules from them keeps the sorted members of each

    def __post_init__(self) -> None:
        self.num_devices = whole("num_devices", _plain(self.num_devices), 1)
        self.num_scheduled = whole("num_scheduled", _plain(self.num_scheduled), 1, self.num_devices)
        for part in fields(self):
            value, rule = getattr(self, part.name), part.metadata
            if rule and (value is not None or part.default is not None):
                setattr(self, part.name, rule["check"](f"scheduling.options.{part.name}", value, *rule["accepted"]))

    @abstractmethod
    def schedule(self, context: Any) -> IntArray:
        """Return the next round's devices: min(H, number of available devices) sorted, unique, available indices.

        Args:
            context: a `RoundContext`, whose `rng` is the only source of randomness.
        """

    def observe(self, record: Any) -> None:
        """Take note of a round that has ended, from its `hflray.experiment.record.RoundRecord`; called once a round."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that `schedule` depends on besides its `rng`, JSON-ready."""
        return self._identity() | super().state_dict()

    def _identity(self) -> dict[str, Any]:
        return {
            "scheduler": type(self).__name__,
            "num_devices": self.num_devices,
            "num_scheduled": self.num_scheduled,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            ConfigError: the state is of another scheduler, N or H.
        """
        for key, expected in self._identity().items():
            if state.get(key) != expected:
                raise ConfigError(
                    f"scheduler state: {key} is {state.get(key)!r}, but this scheduler has {expected!r}; "
                    "resume with the configuration that saved the state, or start anew"
                )
        super().load_state_dict(state)


class QuotaScheduler(Scheduler):
    """A scheduler that takes the same number h of devices from each of K clusters.

    The paper has H = K·h. For any other H, every cluster's quota is H // K, and H % K clusters get one device more.
    These clusters change round-robin over the labels, from an offset that advances by H % K each round, so that over K
    rounds the quotas of each cluster add up to H. This holds for H < K too: then H clusters in turn give one device.

    Attributes:
        clusters: the sorted devices of each cluster.
        offset: the first cluster with one device more than H // K.

    Raises:
        ConfigError: besides the reasons of `Scheduler`, the clusters are missing.
    """

    offset = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters is None:
            raise ConfigError(
                f"clusters: got None, but {type(self).__name__} schedules from clusters; accepted: one label for each "
                f"of the {self.num_devices} devices; give those of hflray.scheduling.cluster_devices"
            )
        self.clusters = _as_clusters(self.clusters, self.num_devices)

    def quotas(self) -> IntArray:
        """Return the quotas h_k of the next round, (K,); they add up to H."""
        least, extra = divmod(self.num_scheduled, len(self.clusters))
        quotas = np.full(len(self.clusters), least, dtype=np.intp)
        quotas[(self.offset + np.arange(extra)) % len(self.clusters)] += 1
        return quotas

    def advance(self) -> None:
        """Go on to the quotas of the round after."""
        self.offset = (self.offset + self.num_scheduled) % len(self.clusters)

    def state_dict(self) -> dict[str, Any]:
        """Return the base state, the clusters (to recognise them) and the offset of the quotas."""
        clusters = [members.tolist() for members in self.clusters]
        return super().state_dict() | {"clusters": clusters, "offset": self.offset}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            ConfigError: the state is of another scheduler, N, H or clusters, or is damaged.
        """
        super().load_state_dict(state)
        if state.get("clusters") != [members.tolist() for members in self.clusters]:
            raise ConfigError(
                "scheduler state: it belongs to other clusters than this scheduler has; "
                "build the scheduler with the cluster labels saved beside the state"
            )
        offset = state.get("offset")
        if type(offset) is not int or not 0 <= offset < len(self.clusters):
            raise ConfigError(
                f"scheduler state: offset is {offset!r}; accepted: 0 to {len(self.clusters) - 1}; "
                "the state is damaged, use an earlier checkpoint"
            )
        self.offset = offset


class ClusterScheduler(QuotaScheduler):
    """A scheduler that picks the devices of each cluster by themselves (Algorithms 3 and 4).

    A cluster smaller than its quota gives all its devices, and random devices that are not yet scheduled in this round
    fill up to exactly H. Clusters are visited in label order and pools are kept sorted, so that the same state and the
    same `rng` give the same schedule. Only available devices are scheduled; with fewer than H of them, all are.

    Attributes:
        available: whether a device answers in the round that is being scheduled, (N,).
    """

    available: BoolArray

    def present(self, devices: IntArray) -> IntArray:
        """Return those of some devices that are available."""
        return devices[self.available[devices]]

    @abstractmethod
    def pick(self, cluster: int, quota: int, rng: np.random.Generator) -> IntArray:
        """Return `quota` available devices of a cluster, or all of them if it has fewer; see `present`."""

    def schedule(self, context: RoundContext | np.random.Generator) -> IntArray:
        """Return the next round's devices: sorted, unique indices, min(H, number of available devices) of them."""
        rng, self.available = rng_and_available(context, self.num_devices)
        picked = np.concatenate([self.pick(k, int(quota), rng) for k, quota in enumerate(self.quotas())])
        if len(picked) < self.num_scheduled:  # the fill-up: Lines 12-15 of Algorithm 3, Lines 21-24 of Algorithm 4
            unscheduled = np.setdiff1d(np.flatnonzero(self.available), picked, assume_unique=True)
            missing = min(self.num_scheduled - len(picked), len(unscheduled))
            picked = np.concatenate([picked, draw(unscheduled, missing, rng)])
        self.advance()
        return np.sort(picked)


def _plain(number: Any) -> Any:
    """Return a NumPy integer as a plain one, and anything else as it is."""
    return int(number) if isinstance(number, np.integer) else number


def rng_and_available(
    context: RoundContext | np.random.Generator, num_devices: int
) -> tuple[np.random.Generator, BoolArray]:
    """Return a context's generator and available devices, (N,).

    A generator alone, with which hflray 0.1 called the paper's schedulers, stands for a round in which everybody is.
    """
    available = getattr(context, "available", None)
    if available is None:
        return cast("np.random.Generator", context), np.broadcast_to(True, num_devices)
    return cast("RoundContext", context).rng, available


def draw(pool: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw `count` devices of `pool` uniformly without replacement; `rng` is not used if there is no choice."""
    if count in (0, len(pool)):
        return pool[:count].copy()
    return np.asarray(rng.choice(pool, count, replace=False), dtype=np.intp)


def highest(scores: FloatArray, candidates: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Return the `count` candidates of the highest scores, (n,); chance decides between equal ones.

    Args:
        scores: score of each candidate, (c,).
        candidates: devices, (c,).
        count: number of devices to return; all candidates if they are fewer.
        rng: source of the ties' order.
    """
    order = np.lexsort((rng.random(len(candidates)), -np.asarray(scores)))
    return np.asarray(candidates[order[:count]], dtype=np.intp)


def weighted_draw(weights: FloatArray, candidates: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw `count` of the candidates without replacement, with probabilities in proportion to `weights`, (c,).

    Candidates of weight 0 are drawn only if the others do not suffice, and then uniformly.
    """
    with np.errstate(divide="ignore"):
        # The largest of these keys are such a draw (Efraimidis and Spirakis, 2006).
        keys = np.log(rng.random(len(candidates))) / np.asarray(weights, dtype=np.float64)
    return highest(keys, candidates, count, rng)


def _as_clusters(clusters: ArrayLike | Sequence[ArrayLike], num_devices: int) -> tuple[IntArray, ...]:
    """Return the sorted members of each cluster, from labels (N,) or from a list of index arrays."""
    if isinstance(clusters, Sequence) and any(isinstance(part, Sequence | np.ndarray) for part in clusters):
        parts = [_indices(part) for part in clusters]
        if np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_devices)):
            return tuple(np.sort(part) for part in parts)
    else:
        labels = _indices(clusters)
        if len(labels) == num_devices and labels.min() >= 0 and labels.max() < num_devices:
            return tuple(np.flatnonzero(labels == k) for k in range(labels.max() + 1))
    got = clusters.tolist() if isinstance(clusters, np.ndarray) else clusters
    raise ConfigError(
        f"clusters: got {shorten(got)}; accepted: an integer from 0 to "
        f"{num_devices - 1} for each of the {num_devices} devices, or a list of arrays that together hold each index "
        "once; give those of hflray.scheduling.cluster_devices"
    )


def _indices(values: Any) -> IntArray:
    """Return a 1-D array of integers, or an array that no check accepts."""
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        return np.array([-1])
    is_indices = array.ndim == 1 and (not array.size or array.dtype.kind in "iu")
    return array.astype(np.intp) if is_indices else np.array([-1])
