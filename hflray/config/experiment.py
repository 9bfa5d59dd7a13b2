"""The whole configuration of an experiment, and the rules that combine settings of several sections.

A count that no machine would come to the end of is refused (`too_large`). The bounds are far above what any experiment
here has used, and the times are lower bounds: the arithmetic of a step of SGD, or of an edge that combines models, is
added to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from hflray import metrics
from hflray.config.base import Named, QuietSection, Section
from hflray.config.clock import ClockConfig, CloudClockConfig
from hflray.config.decisions import AllocationConfig, AssignmentConfig, SchedulingConfig
from hflray.config.learning import AgentConfig, LearningConfig
from hflray.config.system import CostConfig, FleetConfig, TreeConfig
from hflray.config.training import (
    AggregationConfig,
    CompressionConfig,
    DataConfig,
    ModelConfig,
    PrivacyConfig,
    TrainingConfig,
)
from hflray.config.world import WorldConfig
from hflray.support import references
from hflray.support.text import holds_secret, shorten

MOST_ROUNDS, ROUND_S = 100_000_000, 1e-3
MOST_COMBINATIONS, COMBINATION_S = 500_000, 1e-3  # models that edges make in a round
MOST_ITERATIONS, ITERATION_S = 30_000_000, 1e-4  # local ones in a round


class CheckpointConfig(Section):
    """When the state of an experiment is saved."""

    every: int = Field(1, ge=0)
    """rounds between checkpoints; 0: no checkpoints, so that a run cannot be resumed"""


# Why an address with a password is refused, and where the password goes.
NO_SECRET = (
    "it holds a password or a token, which would be stored with the sweep; accepted: an address without one; give it "
    "in the environment: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, for a "
    "server, and the whole address as MLFLOW_TRACKING_URI for a database"
)


class TrackingConfig(Section):
    """Where runs are logged."""

    uri: str | None = Field(None, description="MLflow tracking URI; null: sqlite in the results folder")
    experiment: str = Field("hflray", min_length=1, description="name of the MLflow experiment")
    sinks: Annotated[tuple[str, ...], Named("sink")] = ("mlflow",)
    """trackers that runs are sent to; []: none"""

    @field_validator("uri")
    @classmethod
    def _no_secrets(cls, uri: str | None) -> str | None:
        if uri is not None and holds_secret(uri):
            raise ValueError(NO_SECRET)
        return uri

    @field_validator("sinks")
    @classmethod
    def _each_once(cls, sinks: tuple[str, ...]) -> tuple[str, ...]:
        for name in sinks:
            if sinks.count(name) > 1:
                raise ValueError(f"'{name}' is listed twice; list each tracker once")
        return sinks


OF_A_KIND = (*metrics.MAIN, metrics.TEST_LOSS)  # the metrics that follow from the kind of data


class TargetConfig(Section):
    """The value of a metric at which a run stops, for data of any kind."""

    metric: Annotated[str | None, Named("metric", keywords=OF_A_KIND)] = None
    """the metric; null: accuracy, r2 or token_accuracy, by the data; test_loss falls to its value, the others rise; a
    function of your own, as in mine.py:macro_f1, is logged beside them"""
    value: float | None = Field(None, description="the value; null: run max_rounds")
    epsilon: float | None = Field(None, gt=0, le=1e9)
    """ε at which a run with the section privacy ends, before the round that would exceed it; null: none"""

    @property
    def own_metric(self) -> str | None:
        """The metric if it is a function of the user's own, as a reference or a registered name; else None."""
        return None if self.metric in OF_A_KIND else self.metric

    @property
    def name(self) -> str | None:
        """The name under which the metric is logged; None: that of the kind of data."""
        return None if self.metric is None else references.short(self.metric)

    def contradictions(self) -> Iterator[str]:
        if self.metric is not None and self.own_metric is None and self.value is None:
            yield f"value: null with metric = {self.metric!r}; give the value, or remove metric"
        if self.own_metric is not None and self.name is not None and not metrics.may_be_own(self.name):
            yield (
                f"metric: got {shorten(references.spoken(self.own_metric))}, which would be logged as "
                f"{shorten(self.name)}; accepted: a Python name that no other logged value has; call the function "
                "otherwise"
            )


class ObserverConfig(Section):
    """An observer; its name alone will do in place of the mapping."""

    name: Annotated[str, Named("observer")] = Field(description="the observer")
    options: dict[str, Any] = Field({}, description="arguments of its constructor")

    @property
    def label(self) -> str:
        """The observer in words, with its options."""
        return ", ".join([self.name, *(f"{key} {value}" for key, value in self.options.items())])

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, written: Any) -> Any:
        if not isinstance(written, str | dict | ObserverConfig):
            raise ValueError("accepted: a name, as in mine.py:Mine, or {name: …, options: {…}}; write one of these")
        return {"name": written} if isinstance(written, str) else written


class ExperimentConfig(QuietSection):
    """The configuration of a whole experiment (Algorithm 6).

    Examples:
        >>> from hflray import ExperimentConfig
        >>> config = ExperimentConfig.model_validate({"seed": 1, "fleet": {"num_devices": 200}})
        >>> config.fleet.num_devices, config.training.learning_rate
        (200, 0.01)
    """

    quiet: ClassVar[tuple[str, ...]] = ("tree", "observers")

    seed: int = Field(0, ge=0, description="root seed of every random stream")
    max_rounds: int = Field(50, ge=1, description="largest number of rounds I")
    target_accuracy: float | None = Field(None, gt=0, le=1)
    """test accuracy at which the run stops; null: run max_rounds"""
    target: TargetConfig = TargetConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    fleet: FleetConfig = FleetConfig()
    cost: CostConfig = CostConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    assignment: AssignmentConfig = AssignmentConfig()
    allocation: AllocationConfig = AllocationConfig()
    clock: ClockConfig = ClockConfig()
    world: WorldConfig = WorldConfig()
    learning: LearningConfig = LearningConfig()
    agent: AgentConfig = AgentConfig()
    training: TrainingConfig = TrainingConfig()
    aggregation: AggregationConfig = AggregationConfig()
    compression: CompressionConfig = CompressionConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    tree: TreeConfig = TreeConfig()
    observers: Annotated[list[ObserverConfig], Named("observer")] = Field([])
    """what watches each round, and may log numbers or end the run; NAME or {name: …, options: {…}}"""
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def round_iterations(self) -> int:
        """The edge iterations of a round: Q, or with regions Q times their iterations."""
        return self.training.edge_iterations * self.tree.iterations

    def _beside_each_other(self) -> Iterator[str]:
        """Yield what settings of two sections that do not go together are."""
        tree, clock, coupling = self.tree, self.clock, self.allocation.coupling
        waits = clock.cloud == CloudClockConfig()
        above = "tree.region" if tree.gossip is None else "tree.gossip"
        aggregator = references.spoken(self.aggregation.cloud.name)
        rules = [
            (tree != TreeConfig() and not waits, f"clock.cloud: got {clock.cloud.kind} with {above}", "synchronous"),
            (tree != TreeConfig() and clock.edge.asynchronous is not None,
             f"clock.edge.asynchronous: got settings with {above}", "null"),
            (tree != TreeConfig() and self.privacy.clip is not None,
             f"privacy.clip: got {self.privacy.clip or 0:g} with {above}, whose account is not defined there", "null"),
            (tree.gossip is not None and aggregator != "mean",
             f"aggregation.cloud.name: got {aggregator} with tree.gossip, which has no cloud", "mean"),
            (tree.gossip is not None and coupling == "joint",
             "allocation.coupling: got joint with tree.gossip, and one deadline for all edges belongs to a cloud",
             "per_edge"),
            (not waits and coupling == "joint",
             f"allocation.coupling: got joint with clock.cloud = {clock.cloud.kind}, and one deadline for all edges "
             "belongs to a cloud that waits for them", "per_edge"),
            (self.minimised == "mean_edge" and coupling == "joint",
             "assignment.minimise: got mean_edge with allocation.coupling = joint, whose one deadline is the delay of "
             "the round", "round"),
            (self.allocation.limits.are_set and not (waits and clock.edge.asynchronous is None),
             "allocation.limits: got limits with a cloud or edges that do not wait, where a round has no fixed number "
             "of edge iterations", "clock.cloud synchronous, and edges that wait"),
        ]  # fmt: skip
        for clash, problem, accepted in rules:
            if clash:
                yield f"{problem}; accepted with it: {accepted}; remove one of them"

    def contradictions(self) -> Iterator[str]:
        if self.target_accuracy is not None and self.target.value is not None:
            yield (
                f"target_accuracy: got {self.target_accuracy} beside target.value = {self.target.value}; accepted: one "
                "of the two; remove target_accuracy, which stands for target: {metric: accuracy, value: …}"
            )
        if self.target.epsilon is not None and self.privacy.clip is None:
            yield (
                f"target.epsilon: got {self.target.epsilon:g} with privacy.clip = null, which spends no ε; accepted: "
                "null, or a number beside privacy.clip; set privacy.clip, or remove target.epsilon"
            )
        yield from self._beside_each_other()
        n, edges, scheduled = self.fleet.num_devices, self.fleet.num_edges, self.scheduling.num_scheduled
        if self.tree.region is not None and self.tree.region.count > edges:
            yield (
                f"tree.region.count: got {self.tree.region.count} with fleet.num_edges = {edges}, and a region would "
                f"have no edge; accepted: 1 to {edges}; lower it, or raise fleet.num_edges"
            )
        blocks = self.cost.access.options.get("blocks", 50)
        if self.cost.access.name == "ofdma" and isinstance(blocks, int) and 0 < blocks * edges < scheduled:
            yield (
                f"cost.access.options.blocks: got {blocks} with scheduling.num_scheduled = {scheduled} and "
                f"fleet.num_edges = {edges}, so that an edge would have fewer blocks than devices; accepted: "
                f"{-(-scheduled // edges)} or more; raise it, or lower scheduling.num_scheduled"
            )
        yield from too_large(self)
        if scheduled > n:
            yield (
                f"scheduling.num_scheduled: {scheduled} devices cannot be scheduled out of fleet.num_devices = {n}; "
                f"accepted: 1 to {n}; lower the one or raise the other"
            )
        # Only IKC and VKC use K: the default K must not be an error for FedAvg on a small fleet.
        k = self.scheduling.num_clusters
        if k is not None and k > n and self.scheduling.name in ("ikc", "vkc"):
            yield (
                f"scheduling.num_clusters: {k} clusters cannot be made of fleet.num_devices = {n} devices; "
                f"accepted: 1 to {n}; lower the one or raise the other"
            )

    @property
    def minimised(self) -> Literal["round", "mean_edge"]:
        """Which delay assignments weigh: ``assignment.minimise``, or what the cloud's clock suggests."""
        by_clock: Literal["round", "mean_edge"] = "round" if self.clock.cloud.asynchronous is None else "mean_edge"
        return self.assignment.minimise or by_clock


def too_large(config: ExperimentConfig) -> Iterator[str]:
    """Yield what a round, or a run, would make more of than the bounds above allow."""
    training, cloud, edge = config.training, config.clock.cloud.asynchronous, config.clock.edge.asynchronous
    scheduled = config.scheduling.num_scheduled
    edges = min(config.fleet.num_edges, scheduled)
    turns = {"edges": edges}
    if cloud is not None:
        name = "fleet.num_edges" if cloud.updates is None else "clock.cloud.asynchronous.updates"
        turns = {name: cloud.updates or config.fleet.num_edges}
    passes = {"training.edge_iterations": training.edge_iterations}
    if config.tree.iterations > 1:
        passes["tree.region.iterations"] = config.tree.iterations
    devices = {"scheduling.num_scheduled": scheduled} if cloud is None else {"devices of an edge": scheduled // edges}
    if edge is not None:
        passes = {} if edge.updates is None else {"clock.edge.asynchronous.updates": edge.updates}
        devices = devices if edge.updates is None else {}
    # A cloud that waits has `scheduled` devices in all its turns together, unless each edge counts its arrivals.
    trained = (devices if cloud is None and devices else turns | devices) | passes
    trained["training.local_iterations"] = training.local_iterations
    for factors, most, unit_s, whole, unit in (
        ({"max_rounds": config.max_rounds}, MOST_ROUNDS, ROUND_S, "a run", "rounds"),
        (turns | passes, MOST_COMBINATIONS, COMBINATION_S, "a round", "models of edges"),
        (trained, MOST_ITERATIONS, ITERATION_S, "a round", "local iterations"),
    ):
        total = math.prod(factors.values())
        if total > most:
            settings = [name for name in factors if "." in name or name == "max_rounds"]
            name = max(settings, key=lambda setting: factors[setting])
            beside = ", ".join(f"{other} = {count:,}" for other, count in factors.items() if name != other)
            yield (
                f"{name}: got {factors[name]:,}; {whole} would have {total:,} {unit}, which take at least "
                f"{total * unit_s / 3600:,.0f} hours; accepted{beside and f' with {beside}'}: 1 to "
                f"{max(most // (total // factors[name]), 1):,}; lower it"
            )
