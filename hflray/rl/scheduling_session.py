"""A training run of the learned scheduler, which can be saved and resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from hflray import metrics
from hflray.assignment.policy import save_policy
from hflray.config import ExperimentConfig
from hflray.rl.resumable import ResumableTraining
from hflray.rl.scheduling_algorithm import environment, scheduling_algorithm_config
from hflray.rl.scheduling_evaluation import SchedulingEvaluation


class SchedulerTraining(ResumableTraining):
    """A training run, from evaluation to evaluation.

    Args:
        config: the configuration; ``agent``, ``fleet``, ``cost``, ``scheduling.num_scheduled``, ``training``,
            ``assignment.name``, ``data.majority_fraction``, ``target_accuracy`` and ``max_rounds`` matter.

    Raises:
        ConfigError: the assigner is unknown, or H is more than N.
    """

    section: ClassVar[str] = "agent"
    limits: ClassVar[frozenset[str]] = frozenset({"env_steps"})

    def __init__(self, config: ExperimentConfig) -> None:
        super().__init__(config)
        self.evaluate = SchedulingEvaluation(environment(config), config.agent.evaluation_fleets, config.seed)
        self.algorithm = scheduling_algorithm_config(config).build_algo()

    @property
    def finished(self) -> bool:
        """Whether ``agent.env_steps`` rounds have been played."""
        return self.env_steps >= self.config.agent.env_steps

    def measured(self, episode_return: float, loss: float, steps_per_s: float) -> dict[str, float]:
        """Return the metrics of a point."""
        return {
            metrics.AGENT_RETURN: episode_return,
            metrics.AGENT_LOSS: loss,
            metrics.WALL_LEARN_S: self.learn_s,
            **self.evaluate(self.algorithm.network()),
        }

    def surroundings(self) -> dict[str, Any]:
        """Return the seed and the environment."""
        return {"seed": self.config.seed, "environment": described(self.config)}

    def save_policy(self, path: str | Path) -> None:
        """Write the policy with its card, for ``scheduling.name: learned``."""
        card = self.card(described(self.config), self.points[-1] if self.points else {})
        save_policy(path, self.algorithm.network(), card)


def described(config: ExperimentConfig) -> dict[str, Any]:
    """Return the environment of a configuration, JSON-ready."""
    arguments = environment(config)
    fleet = arguments["fleet"].model_dump(mode="json", exclude_defaults=True)
    return {**arguments, "fleet": fleet, "work": vars(arguments["work"]).copy()}
