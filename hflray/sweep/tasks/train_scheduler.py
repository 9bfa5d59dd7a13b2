"""Task ``train_scheduler``: an agent learns to schedule in ``hflray/Scheduling-v0``; a result is an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.sweep.tasks.base import Job, Progress, Shown, Task
from hflray.sweep.tasks.train_assigner import TrainAssignerTask

if TYPE_CHECKING:
    from hflray.experiment.scenario import Scenario
    from hflray.rl.session import ResumableTraining

SMALL = {"env_steps": 200, "width": 8, "train_batch": 100, "minibatch": 50, "environments": 4, "evaluate_every": 100,
         "evaluation_fleets": 2}  # fmt: skip
STATE_BYTES = 100_000  # measured: RLlib's counters and settings as JSON


class TrainSchedulerTask(TrainAssignerTask):
    """Train the policy of the scheduler ``learned`` in the trial's process. A step counts one round that was played."""

    name = "train_scheduler"
    learns = "agent"
    shown = Shown(step_label="Rounds played", counted="rounds played", table="learning", figures=("agent",))

    def check(self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False) -> None:
        """Build the environment."""
        from hflray.experiment.study import sized_by_data
        from hflray.rl.scheduling_env import SchedulingEnv

        sized_by_data(config)
        SchedulingEnv(assigner=config.assignment.name)

    def begin(self, job: Job) -> tuple[ResumableTraining, str | None]:
        """Return a new training, and no note."""
        from hflray.rl.session import SchedulerTraining  # this imports RLlib, which takes seconds

        return SchedulerTraining(job.config), None

    def steps(self, config: ExperimentConfig) -> int:
        """Return the rounds to be played; the last batch may play some more."""
        return config.agent.env_steps

    def total(self, config: ExperimentConfig) -> int:
        """Return the rounds to be played."""
        return config.agent.env_steps

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> Progress:
        """Return the rounds played so far, and what the policy needs on held-out fleets."""
        parts = [f"return {values[metrics.AGENT_RETURN]:.1f}, held-out {values[metrics.agent_metric('return')]:.1f}"]
        ratio = metrics.agent_metric("ratio", "energy_aware")
        if ratio in values:
            parts.append(f"joules {values[ratio]:.3f} × energy_aware")
        return Progress(min(step, self.total(config)), self.total(config), "round", ", ".join(parts))

    def label(self, config: ExperimentConfig) -> dict[str, str]:
        """Return the parts of a trial's name: the reward in place of data and scheduler."""
        base = Task.label(self, config)
        return {
            "scheduling.num_scheduled": base["scheduling.num_scheduled"],
            "cost.delay_weight": base["cost.delay_weight"],
            "agent.reward": config.agent.reward,
            "scheduling.name": "",
            "assignment.name": base["assignment.name"],
            "seed": base["seed"],
        }

    def shrink(self, config: ExperimentConfig) -> dict[str, Any]:
        """Return the settings of a small trial, with few rounds and a small network."""
        small = Task.shrink(self, config) | {f"agent.{key}": value for key, value in SMALL.items()}
        return small | {"max_rounds": 10}
