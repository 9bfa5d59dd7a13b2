"""How the D3QN assigner is trained: Algorithm 5 of the paper."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticUndefined

from hflray.config.base import IntRange, Range, Section, as_range, registered


class TeacherConfig(Section):
    """Whose assignments the learned assigner is taught."""

    name: str = Field("hfel", description="any assigner that needs no policy; the paper: hfel")
    exchanges: int = Field(300, ge=0, description="hfel: random exchanges tried (the paper: 300)")
    start: Literal["geographic", "best_gain", "random"] | None = Field(
        "best_gain",
        description="where hfel and local_search start. From geographic HFEL's labels are so noisy that no policy "
        "returns more than 17.6 of 50, from best_gain 27.3 (hflray.rl.ceilings); null: the assigner's default",
    )
    options: dict[str, Any] = Field(
        {},
        description="further arguments of the assigner. Whatever allocation.coupling is, the teacher lowers the "
        "per-edge objective, unless this says {coupling: joint}",
    )

    @field_validator("name")
    @classmethod
    def _known_teacher(cls, name: str) -> str:
        return registered("assigner", name)


class LearningConfig(Section):
    """Algorithm 5: how the D3QN assigner is trained (task ``train_assigner``). "Measured" is shared/notes/rllib.md."""

    features: Literal["paper", "db"] = Field("db", description="equation (24) as written, or gains in dB and more")
    architecture: Literal["bilstm", "shared"] = Field("bilstm", description="the paper's, for one M; or for any M")
    hidden: int = Field(256, ge=1, description="units of each LSTM (the paper: 256)")
    width: int = Field(64, ge=1, description="shared: units of the link encoder")
    refinements: int = Field(2, ge=0, description="shared: rounds of load balancing")
    teacher: TeacherConfig = TeacherConfig()
    fleets: int = Field(2000, ge=1, description="fleets solved by the teacher before training; kept in the cache")
    cache: str | None = Field(None, description="folder of solved fleets; null: ~/.cache/hflray/fleets/<hash>")
    num_scheduled: IntRange | None = Field(None, description="H, or its range; null: scheduling.num_scheduled")
    num_edges: IntRange | None = Field(None, description="M, or its range (shared); null: fleet.num_edges")
    delay_weight: Range | None = Field(None, description="λ, drawn in logarithms; null: cost.delay_weight")
    model_kb: tuple[float, ...] | None = Field(None, description="values of z to draw from; null: cost.model_kb")
    base_share: float = Field(0.5, ge=0, le=1, description="fleets with cost.delay_weight and cost.model_kb anyway")
    reward: Literal["teacher", "cost"] = Field(
        "teacher", description="teacher: ±1, equation (26); cost: minus what the device adds to the objective"
    )
    minutes: float | None = Field(5.0, gt=0, description="stop after so long; the result depends on the machine")
    env_steps: int | None = Field(None, ge=1, description="stop after so many devices assigned; null: no limit")
    learning_rate: float = Field(1e-3, gt=0, description="of Adam (measured: 1e-3)")
    final_learning_rate: float = Field(1e-4, gt=0, description="where it falls to, linearly")
    learning_rate_steps: int = Field(1_000_000, ge=1, description="environment steps until it is there")
    gamma: float = Field(0.99, ge=0, le=1, description="the paper's discount; measured: hardly matters")
    double_q: bool = Field(True, description="the title's double Q; false: target (22) as printed")
    td_loss: Literal["huber", "squared"] = Field("huber", description="of the TD error; equation (21) is the square")
    replay: Literal["episodes", "transitions"] = Field(
        "episodes",
        description="what an update draws: whole episodes; or, as in Algorithm 5, single transitions, each uniformly, "
        "for which each episode that they are of is passed through the network once",
    )
    train_batch: int = Field(200, ge=1, description="O, transitions of an update (the paper: 128)")
    target_update_steps: int = Field(2000, ge=1, description="J: environment steps between target network updates")
    epsilon: Annotated[tuple[float, float], BeforeValidator(as_range)] = Field(
        (1.0, 0.05), description="exploration, from the first value to the second"
    )
    epsilon_steps: int = Field(50_000, ge=1, description="environment steps until the second")
    training_intensity: float | None = Field(
        4.0, gt=0, description="transitions replayed for each one sampled; null: update_every says it"
    )
    update_every: int | None = Field(
        None, ge=1, description="environment steps for each update (Algorithm 5: 1); null: training_intensity says it"
    )
    grad_clip: float | None = Field(10.0, gt=0, description="largest norm of a gradient; null: it is not clipped")
    learning_starts: int = Field(1000, ge=0, description="environment steps before the first update")
    td: float = Field(1.0, ge=0, description="weight of the TD loss (21)")
    ce: float = Field(0.0, ge=0, description="weight of the cross-entropy of Q against the teacher's edge, as in DQfD")
    buffer_capacity: int = Field(100_000, ge=1, description="transitions kept for replay")
    environments: int = Field(4, ge=1, description="episodes sampled at once")
    evaluate_every: int = Field(10_000, ge=1, description="environment steps between evaluations")
    evaluation_fleets: int = Field(100, ge=1, description="held-out fleets (the paper: 100)")

    @field_validator("num_scheduled", "num_edges", "delay_weight")
    @classmethod
    def _above_zero(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] <= 0:
            raise ValueError("accepted: a number above 0, or [low, high] with both above 0; correct it")
        return value

    @field_validator("model_kb")
    @classmethod
    def _sizes(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and not (value and all(size > 0 for size in value)):
            raise ValueError("accepted: a list of numbers above 0; correct it")
        return value

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_pace_updates(cls, tree: Any) -> Any:
        """`update_every` alone leaves `training_intensity` null, which is also how it is saved."""
        if not isinstance(tree, dict):
            return tree
        every, intensity = tree.get("update_every"), tree.get("training_intensity", PydanticUndefined)
        if every is None and intensity is None:
            raise ValueError("training_intensity, update_every: both are null and nothing would be learned; set one")
        if every is not None and intensity is PydanticUndefined:
            return {**tree, "training_intensity": None}
        if every is not None and intensity is not None:
            raise ValueError(
                f"update_every = {every} and training_intensity = {intensity} both say how often the network is "
                "updated; accepted: one of the two; remove training_intensity, or set it to null"
            )
        return tree

    @field_validator("epsilon")
    @classmethod
    def _shares(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= share <= 1 for share in value):
            raise ValueError("accepted: [first, last], each from 0 to 1; correct it")
        return value

    @model_validator(mode="after")
    def _can_be_trained(self) -> Self:
        if self.architecture == "shared" and self.features == "paper":
            raise ValueError(
                "features: got 'paper' for the shared network, which needs each edge's bandwidth; set features: db, or "
                "architecture: bilstm"
            )
        if self.td == 0 and self.ce == 0:
            raise ValueError("td, ce: both weights are 0 and nothing would be learned; raise one of them")
        if self.minutes is None and self.env_steps is None:
            raise ValueError("minutes, env_steps: both are null and training would not end; set one of them")
        if self.architecture == "bilstm" and self.num_edges is not None and self.num_edges[0] != self.num_edges[1]:
            raise ValueError(
                f"num_edges: got {list(self.num_edges)} for the bilstm network, which is for one M; set architecture: "
                "shared, or one number"
            )
        return self
