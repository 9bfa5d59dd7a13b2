"""A training run of the learned scheduler, which can be saved and resumed bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hflray import metrics
from hflray.assignment.policy import save_policy
from hflray.config import AgentConfig, ExperimentConfig
from hflray.rl.resumable import ResumableTraining
from hflray.rl.scheduling_algorithm import environment, scheduling_algorithm_config
from hflray.rl.scheduling_evaluation import SchedulingEvaluation
from hflray.support.provenance import git_commit, release


@dataclass(frozen=True)
class SchedulerPoint:
    """A point of the learning curve.

    Attributes:
        env_steps: number of rounds played so far.
        values: the logged metrics by name; `hflray.metrics` explains them.
    """

    env_steps: int
    values: dict[str, float]

    def metrics(self) -> dict[str, float]:
        """Return the logged metrics by name."""
        return self.values


class SchedulerTraining(ResumableTraining):
    """A training run, from evaluation to evaluation.

    Args:
        config: the configuration; ``agent``, ``fleet``, ``cost``, ``scheduling.num_scheduled``, ``training``,
            ``assignment.name``, ``data.majority_fraction``, ``target_accuracy`` and ``max_rounds`` matter.

    Raises:
        ConfigError: the assigner is unknown, or H is more than N.
    """

    section: ClassVar[str] = "agent"

    def __init__(self, config: ExperimentConfig) -> None:
        super().__init__()
        self.config = config
        self.evaluate = SchedulingEvaluation(environment(config), config.agent.evaluation_fleets, config.seed)
        self.algorithm = scheduling_algorithm_config(config).build_algo()

    @property
    def finished(self) -> bool:
        """Whether ``agent.env_steps`` rounds have been played."""
        return self.env_steps >= self.config.agent.env_steps

    def advance(self) -> SchedulerPoint:
        """Train until the next evaluation or to the end, and evaluate.

        Raises:
            DivergedError: the loss is not finite.
        """
        every = self.config.agent.evaluate_every
        result, loss = self.train_until((self.env_steps // every + 1) * every)
        values = {
            metrics.AGENT_RETURN: float(result["env_runners"]["episode_return_mean"]),
            metrics.AGENT_LOSS: loss,
            metrics.WALL_LEARN_S: self.learn_s,
            **self.evaluate(self.algorithm.network()),
        }
        self.points.append({"env_steps": float(self.env_steps), **values})
        return SchedulerPoint(self.env_steps, values)

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share: ``agent`` without its limit, and the environment's."""
        agent = {k: v for k, v in self.config.agent.model_dump(mode="json").items() if k != "env_steps"}
        return {**agent, "seed": self.config.seed, "environment": described(self.config)}

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of ``agent``."""
        return AgentConfig().model_dump(mode="json")

    def save_policy(self, path: str | Path) -> None:
        """Write the policy with its card, for ``scheduling.name: learned``."""
        card = {
            "trained_on": described(self.config),
            "algorithm": self.config.agent.model_dump(mode="json"),
            "seed": self.config.seed,
            "env_steps": self.env_steps,
            "learn_s": round(self.learn_s, 1),
            "results": self.points[-1] if self.points else {},
            "git_commit": git_commit(),
            "release": release(),
        }
        save_policy(path, self.algorithm.network(), card)


def described(config: ExperimentConfig) -> dict[str, Any]:
    """Return the environment of a configuration, JSON-ready."""
    arguments = environment(config)
    fleet = arguments["fleet"].model_dump(mode="json", exclude_defaults=True)
    return {**arguments, "fleet": fleet, "work": vars(arguments["work"]).copy()}
