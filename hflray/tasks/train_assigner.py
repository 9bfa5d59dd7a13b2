"""Task ``train_assigner``: Algorithm 5, learning to assign; a result for each evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.rl.files import POLICY
from hflray.tasks.base import Job, Product, Progress, Result, Results, Shown, Task

if TYPE_CHECKING:
    from hflray.rl.session import AssignerTraining
    from hflray.scenario import Scenario

STATE = "training"  # folder of the state in a checkpoint, beside the policy
SMALL = {
    "fleets": 10, "evaluation_fleets": 2, "hidden": 16, "minutes": None, "env_steps": 2000, "evaluate_every": 1000,
    "num_scheduled": None, "learning_starts": 500,
}  # fmt: skip


class TrainAssignerTask(Task):
    """Trains the policy of the assigner ``d3qn`` in the trial's process; its steps are devices assigned so far."""

    name = "train_assigner"
    needs_data = False
    trains_devices = False
    saves = True
    product = Product(POLICY, "policies", "policy")
    learns = True
    shown = Shown(step_label="Environment steps", counted="environment steps", table="learning", figures=("learning",))

    def check(self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False) -> None:
        """Make the teacher and the network."""
        from hflray.assignment import build_assigner
        from hflray.rl.fleets import FleetSpec, network_spec

        spec = FleetSpec.of(config)
        build_assigner(spec.teacher, **spec.options)
        network_spec(config)

    def run(self, job: Job) -> Results:
        """Train to the limits of ``learning``; the end is saved whatever ``checkpoint.every`` says."""
        from hflray.rl.session import AssignerTraining  # with RLlib, which takes seconds to import

        with AssignerTraining(job.config, workers=job.cpus) as training:
            note: str | None = f"{len(training.pool)} fleets solved in {training.pool.solve_s:.0f} s, now or earlier"
            latest = next(iter(job.saved), None)
            if latest is not None:
                with latest.open() as folder:
                    training.restore(Path(folder) / STATE)
                note = None
            every = job.config.checkpoint.every
            while not training.finished:
                point = training.advance()
                yield Result(
                    step=point.env_steps,
                    metrics=point.metrics(),
                    last=training.finished,
                    note=note,
                    save=lambda folder: save(training, folder),
                    due=training.finished or (bool(every) and len(training.points) % every == 0),
                )
                note = None

    def steps(self, config: ExperimentConfig) -> int:
        """Steps of the environment, unless it is ended by time."""
        return config.learning.env_steps or 0 if config.learning.minutes is None else 0

    def total(self, config: ExperimentConfig) -> int:
        """Seconds, if it is ended by time, or else steps."""
        minutes = config.learning.minutes
        return self.steps(config) if minutes is None else int(60 * minutes)

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> Progress:
        """So many seconds or steps, and how good the policy is on held-out fleets."""
        text = (
            f"return {values[metrics.ASSIGNER_RETURN]:.1f}, held-out {values[metrics.ASSIGNER_GREEDY_RETURN]:.1f}, "
            f"objective {values[metrics.assigner_ratio('local_search')]:.3f} × local search"
        )
        if config.learning.minutes is None:
            return Progress(step, self.total(config), "step", text)
        return Progress(int(values[metrics.WALL_LEARN_S]), self.total(config), "second", text)

    def label(self, config: ExperimentConfig) -> dict[str, str]:
        """No data, no scheduler and no assigner, but the features and the teacher."""
        known, teacher = super().label(config), config.learning.teacher
        return {
            "scheduling.num_scheduled": known["scheduling.num_scheduled"],
            "cost.delay_weight": known["cost.delay_weight"],
            "learning.features": config.learning.features,
            "learning.teacher.name": f"{teacher.name}-{teacher.exchanges}" if teacher.name == "hfel" else teacher.name,
            "learning.teacher.exchanges": "",
            "scheduling.name": "",
            "assignment.name": "",
            "seed": known["seed"],
        }

    def shrink(self, config: ExperimentConfig) -> dict[str, Any]:
        """Few fleets and a small network as well."""
        return super().shrink(config) | {f"learning.{key}": value for key, value in SMALL.items()}


def save(training: AssignerTraining, folder: Path) -> None:
    """Write the training's state, and the policy beside it, into a checkpoint's folder."""
    training.save_policy(folder / POLICY)
    training.save(folder / STATE)
