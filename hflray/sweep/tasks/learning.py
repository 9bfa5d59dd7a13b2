"""Tasks that learn a policy: ``train_assigner`` (Algorithm 5), and ``train_scheduler``, whose agent plays rounds.

A result is an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.rl import POLICY
from hflray.support.contract import is_ours
from hflray.support.references import short
from hflray.sweep.tasks.base import Job, Product, Result, Results, Shown, Task, TrialProgress, restore

if TYPE_CHECKING:
    from hflray.experiment.scenario import Scenario
    from hflray.rl.session import ResumableTraining

STATE = "training"  # the folder of the state in a checkpoint, beside the policy
SMALL_LEARNING = {
    "fleets": 10, "evaluation_fleets": 2, "hidden": 16, "minutes": None, "env_steps": 2000, "evaluate_every": 1000,
    "num_scheduled": None, "learning_starts": 500,
}  # fmt: skip
SMALL_AGENT = {
    "env_steps": 200, "width": 8, "train_batch": 100, "minibatch": 50, "environments": 4, "evaluate_every": 100,
    "evaluation_fleets": 2,
}  # fmt: skip


class TrainAssignerTask(Task):
    """Train the policy of the assigner ``d3qn`` in the trial's process. A step counts one assigned device."""

    name = "train_assigner"
    needs_data = False
    trains_devices = False
    saves = True
    consecutive = False
    product = Product(POLICY, "policies", "policy")
    learns = "learning"
    shown = Shown(
        step_label="Environment steps", counted="environment steps", table="learning", figures={"learning": "learning"}
    )

    def check(self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False) -> None:
        """Build the teacher and the network's specification; try a teacher of the user's own on a fleet."""
        from hflray.assignment import build_assigner
        from hflray.rl.fleets import FleetSpec, network_spec

        spec = FleetSpec.of(config)
        if not is_ours(build_assigner(spec.teacher, **spec.options)):
            spec.solve(0)
        network_spec(config)

    def run(self, job: Job) -> Results:
        """Train up to the limits of the configuration. The final state is saved whatever ``checkpoint.every`` is."""
        training, note = self.begin(job)
        with training:
            note = go_on(training, job, note)
            every = job.config.checkpoint.every
            while not training.finished:
                point = training.advance()
                yield Result(
                    step=point.env_steps,
                    metrics=point.metrics,
                    last=training.finished,
                    note=note,
                    save=lambda folder: save(training, folder),
                    due=training.finished or (bool(every) and len(training.points) % every == 0),
                )
                note = None

    def begin(self, job: Job) -> tuple[ResumableTraining, str | None]:
        """Return a new training, and a note for the user about its preparation."""
        from hflray.rl.session import AssignerTraining  # this imports RLlib, which takes seconds

        training = AssignerTraining(job.config, workers=job.cpus)
        return training, f"{len(training.pool)} fleets solved in {training.pool.solve_s:.0f} s, now or earlier"

    def steps(self, config: ExperimentConfig) -> int:
        """Return the steps of the environment, or 0 if a time limit ends the training."""
        return config.learning.env_steps or 0 if config.learning.minutes is None else 0

    def total(self, config: ExperimentConfig) -> int:
        """Return the seconds of the time limit, or the steps if there is none."""
        minutes = config.learning.minutes
        return self.steps(config) if minutes is None else int(60 * minutes)

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> TrialProgress:
        """Return the seconds or steps so far, and the policy's quality on held-out fleets."""
        text = (
            f"return {values[metrics.ASSIGNER_RETURN]:.1f}, held-out {values[metrics.ASSIGNER_GREEDY_RETURN]:.1f}, "
            f"objective {values[metrics.assigner_ratio('local_search')]:.3f} × local search"
        )
        if config.learning.minutes is None:
            return TrialProgress(step, self.total(config), "step", text)
        return TrialProgress(int(values[metrics.WALL_LEARN_S]), self.total(config), "second", text)

    def label(self, config: ExperimentConfig) -> dict[str, str]:
        """Return the parts of a trial's name: features and teacher in place of data, scheduler and assigner."""
        base, teacher = super().label(config), config.learning.teacher
        return {
            "scheduling.num_scheduled": base["scheduling.num_scheduled"],
            "cost.delay_weight": base["cost.delay_weight"],
            "learning.features": config.learning.features,
            "learning.teacher.name": f"{teacher.name}-{teacher.exchanges}"
            if teacher.name == "hfel"
            else short(teacher.name),
            "learning.teacher.exchanges": "",
            "scheduling.name": "",
            "assignment.name": "",
            "seed": base["seed"],
        }

    def shrink(self, config: ExperimentConfig) -> dict[str, Any]:
        """Return the settings of a small trial, with few fleets and a small network."""
        return super().shrink(config) | {f"learning.{key}": value for key, value in SMALL_LEARNING.items()}


class TrainSchedulerTask(TrainAssignerTask):
    """Train the policy of the scheduler ``learned`` in the trial's process. A step counts one round that was played."""

    name = "train_scheduler"
    learns = "agent"
    shown = Shown(step_label="Rounds played", counted="rounds played", table="learning", figures={"agent": "agent"})

    def check(self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False) -> None:
        """Build the environment."""
        from hflray.rl.scheduling_env import SchedulingEnv, environment

        SchedulingEnv(**environment(config))

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

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> TrialProgress:
        """Return the rounds played so far, and what the policy needs on held-out fleets."""
        parts = [f"return {values[metrics.AGENT_RETURN]:.1f}, held-out {values[metrics.agent_metric('return')]:.1f}"]
        ratio = metrics.agent_metric("ratio", "energy_aware")
        if ratio in values:
            parts.append(f"joules {values[ratio]:.3f} × energy_aware")
        return TrialProgress(min(step, self.total(config)), self.total(config), "round", ", ".join(parts))

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
        small = Task.shrink(self, config) | {f"agent.{key}": value for key, value in SMALL_AGENT.items()}
        return small | {"max_rounds": 10}


def go_on(training: ResumableTraining, job: Job, note: str | None) -> str | None:
    """Load the newest checkpoint that can be loaded, if there is one.

    Returns:
        A note that names damaged checkpoints, or None if the training simply continues, or `note` if it begins.

    Raises:
        RefusedError: see `hflray.sweep.tasks.base.restore`.
    """
    saved, problems = restore(job, lambda folder: training.restore(folder / STATE))
    if not problems:
        return note if saved is None else None
    return "; ".join([*problems, f"going on after step {training.env_steps}" if saved else "starting from step 0"])


def save(training: ResumableTraining, folder: Path) -> None:
    """Write the training's state and the policy into a checkpoint's folder."""
    training.save_policy(folder / POLICY)
    training.save(folder / STATE)
