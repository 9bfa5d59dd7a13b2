"""The section of the training of the learned scheduler."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hflray.config.base import Section


class AgentConfig(Section):
    """How the scheduler ``learned`` is trained by PPO on ``hflray/Scheduling-v0`` (task ``train_scheduler``).

    An episode ends at ``target_accuracy`` (0.85 if it is null) or after ``max_rounds`` rounds.
    """

    reward: Literal["energy", "cost", "accuracy_per_joule"] = Field(
        "energy",
        description="energy: minus the round's energy; cost: minus its E + λT; accuracy_per_joule: the accuracy that "
        "the round gained per joule",
    )
    env_steps: int = Field(30_000, ge=1, le=10_000_000_000, description="rounds played in training")
    width: int = Field(32, ge=1, le=65_536, description="units of the network's layers")
    learning_rate: float = Field(1e-3, gt=0, description="learning rate of Adam")
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor of a round")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="λ of the generalised advantage estimate")
    clip: float = Field(0.2, gt=0, description="PPO: largest change of a probability's ratio that is rewarded")
    entropy: float = Field(0.0, ge=0, description="weight of the entropy of a round's first draw")
    grad_clip: float | None = Field(0.5, gt=0, description="largest norm of a gradient; null: they are not clipped")
    train_batch: int = Field(
        2000, ge=1, le=10_000_000, description="least number of rounds in a batch, each played anew"
    )
    minibatch: int = Field(250, ge=1, le=10_000_000, description="rounds in an update")
    epochs: int = Field(4, ge=1, le=100_000, description="passes over a batch")
    environments: int = Field(16, ge=1, le=10_000, description="episodes played at the same time")
    evaluate_every: int = Field(6_000, ge=1, description="rounds between evaluations")
    evaluation_fleets: int = Field(20, ge=1, le=1_000_000, description="held-out fleets")
