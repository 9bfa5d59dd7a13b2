"""The sections of what is learned: the D3QN assigner (Algorithm 5 of the paper), and the scheduler ``learned``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hflray.config.base import Named, Pair, Positive, Range, Section, Share

Count = Annotated[int, Field(ge=1)]


class TeacherConfig(Section):
    """The assigner whose assignments the learned assigner imitates."""

    name: Annotated[str, Named("assigner")] = "hfel"
    """an assigner that needs no policy; the paper: hfel"""
    exchanges: int = Field(300, ge=0, le=10_000_000, description="hfel: random exchanges tried (the paper: 300)")
    start: Literal["geographic", "best_gain", "random"] | None = "best_gain"
    """first assignment of hfel and local_search; null: the assigner's default. HFEL's labels from geographic depend on
    distances, which no feature contains (docs/design.md, D8)"""
    options: dict[str, Any] = Field({})
    """further arguments of the assigner. The teacher minimises the per-edge objective, whatever allocation.coupling is,
    unless its options are {coupling: joint}"""


class LearningConfig(Section):
    """How the D3QN assigner is trained (Algorithm 5; task ``train_assigner``).

    A description that says "measured" reports prototypes, which a greedy teacher taught at H = 50 and M = 5.
    """

    features: Literal["paper", "paper_db", "db"] = "db"
    """paper: equation (24) with linear gains; paper_db: equation (24) with gains in dB; db: gains in dB and further
    features"""
    architecture: Literal["bilstm", "shared"] = "bilstm"
    """bilstm: the paper's network, for one M; shared: a network for any M"""
    hidden: int = Field(256, ge=1, le=65_536, description="units of each LSTM (the paper: 256)")
    width: int = Field(64, ge=1, le=65_536, description="shared: units of the link encoder")
    refinements: int = Field(2, ge=0, le=1_000, description="shared: rounds of load balancing inside the network")
    teacher: TeacherConfig = TeacherConfig()
    fleets: int = Field(2000, ge=1, le=10_000_000)
    """fleets that the teacher solves before training; they are cached"""
    cache: str | None = Field(None, description="folder of the solved fleets; null: ~/.cache/hflray/fleets/<hash>")
    num_scheduled: Range[Count] | None = Field(None, description="H, or a range of H; null: scheduling.num_scheduled")
    num_edges: Range[Count] | None = Field(None, description="M, or a range of M (shared only); null: fleet.num_edges")
    delay_weight: Range[Positive] | None = None
    """λ, or a range in which its logarithm is uniform; null: cost.delay_weight"""
    model_kb: tuple[Positive, ...] | None = Field(None, min_length=1)
    """values of z in KB, from which one is drawn; null: cost.model_kb"""
    base_share: float = Field(0.5, ge=0, le=1, description="share of fleets with cost.delay_weight and cost.model_kb")
    reward: Literal["teacher", "cost"] = "teacher"
    """teacher: ±1, as in equation (26); cost: minus the objective that the device adds"""
    minutes: float | None = Field(5.0, gt=0)
    """minutes of training; the result then depends on the machine; null: no limit"""
    env_steps: int | None = Field(None, ge=1, le=10_000_000_000)
    """devices assigned in training; null: no limit"""
    learning_rate: float = Field(1e-3, gt=0, description="learning rate of Adam at the start (measured: 1e-3)")
    final_learning_rate: float = Field(1e-4, gt=0, description="learning rate of Adam at the end; it falls linearly")
    learning_rate_steps: int = Field(1_000_000, ge=1, description="environment steps until final_learning_rate")
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor, as in the paper; measured: it hardly matters")
    double_q: bool = True
    """double Q-learning, as in the paper's title; false: target (22) as printed"""
    td_loss: Literal["huber", "squared"] = Field("huber", description="loss of the TD error; squared: equation (21)")
    replay: Literal["episodes", "transitions"] = "episodes"
    """episodes: an update draws whole episodes; transitions: it draws single transitions uniformly, as in Algorithm 5,
    and passes each of their episodes through the network once"""
    train_batch: int = Field(200, ge=1, le=10_000_000, description="O, transitions in an update (the paper: 128)")
    target_update_steps: int = Field(2000, ge=1)
    """J, environment steps between updates of the target network"""
    epsilon: Pair[Share] = Field((1.0, 0.05), description="[first, last] probability of a random action")
    epsilon_steps: int = Field(50_000, ge=1, description="environment steps until the last epsilon")
    training_intensity: float | None = Field(4.0, gt=0)
    """transitions replayed for each transition sampled; null: set by update_every"""
    update_every: int | None = Field(None, ge=1)
    """environment steps between updates (Algorithm 5: 1); null: set by training_intensity"""
    grad_clip: float | None = Field(10.0, gt=0)
    """largest norm of a gradient; null: gradients are not clipped"""
    learning_starts: int = Field(1000, ge=0, description="environment steps before the first update")
    td: float = Field(1.0, ge=0, description="weight of the TD loss (21)")
    ce: float = Field(0.0, ge=0, description="weight of the cross-entropy between Q and the teacher's edge, as in DQfD")
    buffer_capacity: int = Field(100_000, ge=1, le=100_000_000, description="transitions in the replay buffer")
    environments: int = Field(4, ge=1, le=10_000, description="episodes sampled at the same time")
    evaluate_every: int = Field(10_000, ge=1, description="environment steps between evaluations")
    evaluation_fleets: int = Field(100, ge=1, le=1_000_000, description="held-out fleets (the paper: 100)")

    @model_validator(mode="before")
    @classmethod
    def _paced_by_steps(cls, tree: Any) -> Any:
        """Set `training_intensity` to null where only `update_every` is set."""
        if isinstance(tree, dict) and tree.get("update_every") is not None and "training_intensity" not in tree:
            return {**tree, "training_intensity": None}
        return tree

    def contradictions(self) -> Iterator[str]:
        if self.architecture == "shared" and self.features != "db":
            yield (
                f"features: got '{self.features}' for the shared network, which needs each edge's bandwidth; set "
                "features: db, or architecture: bilstm"
            )
        every, intensity = self.update_every, self.training_intensity
        if every is None and intensity is None:
            yield "training_intensity, update_every: both are null and nothing would be learned; set one"
        if every is not None and intensity is not None:
            yield (
                f"update_every = {every} and training_intensity = {intensity:g} both say how often the network is "
                "updated; accepted: one of the two; set training_intensity to null"
            )
        if self.td == 0 and self.ce == 0:
            yield "td, ce: both weights are 0 and nothing would be learned; raise one of them"
        if self.minutes is None and self.env_steps is None:
            yield "minutes, env_steps: both are null and training would not end; set one of them"
        if self.architecture == "bilstm" and self.num_edges is not None and self.num_edges[0] != self.num_edges[1]:
            yield (
                f"num_edges: got {list(self.num_edges)} for the bilstm network, which is made for one M; set "
                "architecture: shared, or give one number"
            )


class AgentConfig(Section):
    """How the scheduler ``learned`` is trained by PPO on ``hflray/Scheduling-v0`` (task ``train_scheduler``).

    An episode ends at the target's accuracy (0.85 if none is set) or after ``max_rounds`` rounds.
    """

    reward: Literal["energy", "cost", "accuracy_per_joule"] = "energy"
    """energy: minus the round's energy; cost: minus its E + λT; accuracy_per_joule: the accuracy that the round gained
    per joule"""
    env_steps: int = Field(30_000, ge=1, le=10_000_000_000, description="rounds played in training")
    width: int = Field(32, ge=1, le=65_536, description="units of the network's layers")
    learning_rate: float = Field(1e-3, gt=0, description="learning rate of Adam")
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor of a round")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="λ of the generalised advantage estimate")
    clip: float = Field(0.2, gt=0, description="PPO: largest change of a probability's ratio that is rewarded")
    entropy: float = Field(0.0, ge=0, description="weight of the entropy of a round's first draw")
    grad_clip: float | None = Field(0.5, gt=0, description="largest norm of a gradient; null: they are not clipped")
    train_batch: int = Field(2000, ge=1, le=10_000_000)
    """least number of rounds in a batch, each played anew"""
    minibatch: int = Field(250, ge=1, le=10_000_000, description="rounds in an update")
    epochs: int = Field(4, ge=1, le=100_000, description="passes over a batch")
    environments: int = Field(16, ge=1, le=10_000, description="episodes played at the same time")
    evaluate_every: int = Field(6_000, ge=1, description="rounds between evaluations")
    evaluation_fleets: int = Field(20, ge=1, le=1_000_000, description="held-out fleets")
