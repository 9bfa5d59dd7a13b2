"""The whole configuration of an experiment, and the rules that combine settings of several sections."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from hflray import metrics
from hflray.config.agent import AgentConfig
from hflray.config.base import Named, Section
from hflray.config.clock import ClockConfig, CloudClockConfig
from hflray.config.combining import AggregationConfig, CompressionConfig, PrivacyConfig
from hflray.config.decisions import AllocationConfig, AssignmentConfig, SchedulingConfig
from hflray.config.learning import LearningConfig
from hflray.config.model import ModelConfig
from hflray.config.size import check_size
from hflray.config.system import CostConfig, FleetConfig
from hflray.config.training import DataConfig, TrainingConfig
from hflray.config.tree import TreeConfig
from hflray.config.world import WorldConfig
from hflray.support import references
from hflray.support.text import holds_secret, shorten


class CheckpointConfig(Section):
    """When the state of an experiment is saved."""

    every: int = Field(
        1, ge=0, description="rounds between checkpoints; 0: no checkpoints, so that a run cannot be resumed"
    )


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
    sinks: Annotated[tuple[str, ...], Named("sink")] = Field(
        ("mlflow",), description="trackers that runs are sent to: mlflow, csv; []: none"
    )

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

    metric: Annotated[str | None, Named("metric", keywords=OF_A_KIND)] = Field(
        None,
        description="the metric; null: accuracy, r2 or token_accuracy, by the data; test_loss falls to its value, the "
        "others rise; a function of your own, as in mine.py:macro_f1, is logged beside them",
    )
    value: float | None = Field(None, description="the value; null: run max_rounds")
    epsilon: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="ε at which a run with the section privacy ends, before the round that would exceed it; null: none",
    )

    @property
    def own(self) -> str | None:
        """The metric if it is a function of the user's own, as a reference or a registered name; else None."""
        return None if self.metric in OF_A_KIND else self.metric

    @property
    def name(self) -> str | None:
        """The name under which the metric is logged; None: that of the kind of data."""
        return None if self.metric is None else references.short(self.metric)

    @model_validator(mode="after")
    def _names_a_value(self) -> Self:
        if self.metric is not None and self.own is None and self.value is None:
            raise ValueError(f"value: null with metric = {self.metric!r}; give the value, or remove metric")
        return self

    @model_validator(mode="after")
    def _is_logged_under_a_name_of_its_own(self) -> Self:
        if self.own is not None and self.name is not None and not metrics.may_be_own(self.name):
            raise ValueError(
                f"metric: got {shorten(references.spoken(self.own))}, which would be logged as {shorten(self.name)}; "
                "accepted: a Python name that no other logged value has; call the function otherwise"
            )
        return self


class ExperimentConfig(Section):
    """The configuration of a whole experiment (Algorithm 6).

    Examples:
        >>> from hflray import ExperimentConfig
        >>> config = ExperimentConfig.model_validate({"seed": 1, "fleet": {"num_devices": 200}})
        >>> config.fleet.num_devices, config.training.learning_rate
        (200, 0.01)
    """

    seed: int = Field(0, ge=0, description="root seed of every random stream")
    max_rounds: int = Field(50, ge=1, description="largest number of rounds I")
    target_accuracy: float | None = Field(
        None, gt=0, le=1, description="test accuracy at which the run stops; null: run max_rounds"
    )
    target: TargetConfig = TargetConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    fleet: FleetConfig = FleetConfig()
    tree: TreeConfig = TreeConfig()
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
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.target_accuracy is not None and self.target.value is not None:
            raise ValueError(
                f"target_accuracy: got {self.target_accuracy} beside target.value = {self.target.value}; accepted: one "
                "of the two; remove target_accuracy, which stands for target: {metric: accuracy, value: …}"
            )
        return self

    @model_validator(mode="after")
    def _clock_fits_the_allocation(self) -> Self:
        cloud = self.clock.cloud
        if self.allocation.coupling == "joint" and cloud != CloudClockConfig():
            raise ValueError(
                f"allocation.coupling: got joint with clock.cloud = {cloud.kind}, and one deadline for all edges "
                "belongs to a cloud that waits for them; accepted with it: per_edge; remove one of them"
            )
        return self

    @property
    def minimised(self) -> Literal["round", "mean_edge"]:
        """Which delay assignments weigh: ``assignment.minimise``, or what the cloud's clock suggests."""
        by_clock: Literal["round", "mean_edge"] = "round" if self.clock.cloud.asynchronous is None else "mean_edge"
        return self.assignment.minimise or by_clock

    @model_validator(mode="after")
    def _minimised_fits_the_allocation(self) -> Self:
        if self.allocation.coupling == "joint" and self.minimised == "mean_edge":
            raise ValueError(
                "assignment.minimise: got mean_edge with allocation.coupling = joint, whose one deadline is the delay "
                "of the round; accepted with it: round; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _epsilon_needs_privacy(self) -> Self:
        if self.target.epsilon is not None and self.privacy.clip is None:
            raise ValueError(
                f"target.epsilon: got {self.target.epsilon:g} with privacy.clip = null, which spends no ε; accepted: "
                "null, or a number beside privacy.clip; set privacy.clip, or remove target.epsilon"
            )
        return self

    @model_validator(mode="after")
    def _tree_fits_the_rest(self) -> Self:
        """Refuse what is not defined with regions, or without a cloud."""
        region, gossip = self.tree.region, self.tree.gossip
        if region is None and gossip is None:
            return self
        beside = "tree.gossip" if region is None else "tree.region"
        waits = "accepted with it: synchronous; remove one of them"
        if self.clock.cloud != CloudClockConfig():
            raise ValueError(f"clock.cloud: got {self.clock.cloud.kind} with {beside}; {waits}")
        if self.clock.edge.asynchronous is not None:
            raise ValueError(f"clock.edge.asynchronous: got settings with {beside}; accepted with it: null; remove one")
        if self.privacy.clip is not None:
            raise ValueError(
                f"privacy.clip: got {self.privacy.clip:g} with {beside}, whose account is not defined there; accepted "
                "with it: null; remove one of them"
            )
        if region is not None and region.count > self.fleet.num_edges:
            raise ValueError(
                f"tree.region.count: got {region.count} with fleet.num_edges = {self.fleet.num_edges}, and a region "
                f"would have no edge; accepted: 1 to {self.fleet.num_edges}; lower it, or raise fleet.num_edges"
            )
        if gossip is None:
            return self
        if self.aggregation.cloud.name != "mean":
            raise ValueError(
                f"aggregation.cloud.name: got {references.spoken(self.aggregation.cloud.name)} with tree.gossip, which "
                "has no cloud; accepted with it: mean; remove one of them"
            )
        if self.allocation.coupling == "joint":
            raise ValueError(
                "allocation.coupling: got joint with tree.gossip, and one deadline for all edges belongs to a cloud; "
                "accepted with it: per_edge; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _rounds_end(self) -> Self:
        check_size(self)
        return self

    @model_validator(mode="after")
    def _counts_fit_the_fleet(self) -> Self:
        n = self.fleet.num_devices
        if self.scheduling.num_scheduled > n:
            raise ValueError(
                f"scheduling.num_scheduled: {self.scheduling.num_scheduled} devices cannot be scheduled out of "
                f"fleet.num_devices = {n}; accepted: 1 to {n}; lower the one or raise the other"
            )
        edges = self.learning.num_edges
        if self.fleet.deployment_seed is not None and edges is not None and edges[0] != edges[1]:
            raise ValueError(
                f"learning.num_edges: got {list(edges)} with fleet.deployment_seed = {self.fleet.deployment_seed}, "
                "which keeps the edges of one deployment; accepted: one number of edges; give one, or set "
                "fleet.deployment_seed to null"
            )
        # Only IKC and VKC use K: the default K must not be an error for FedAvg on a small fleet.
        k = self.scheduling.num_clusters
        if k is not None and k > n and self.scheduling.name in ("ikc", "vkc"):
            raise ValueError(
                f"scheduling.num_clusters: {k} clusters cannot be made of fleet.num_devices = {n} devices; "
                f"accepted: 1 to {n}; lower the one or raise the other"
            )
        return self
