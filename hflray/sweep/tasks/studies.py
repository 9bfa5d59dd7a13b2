"""Tasks that train no global model: ``assignment``, Figure 6's study, and ``clustering``, the costs of Table II."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hflray import metrics
from hflray.config import ExperimentConfig, SchedulingConfig
from hflray.errors import ConfigError
from hflray.support.contract import is_ours
from hflray.support.references import short, spoken
from hflray.sweep.tasks.base import Job, Result, Results, Shown, Task, TrialProgress

if TYPE_CHECKING:
    from hflray.experiment.scenario import Scenario


class AssignmentTask(Task):
    """Bill one assigner on ``max_rounds`` random fleets, a result for each (`hflray.experiment.study`)."""

    name = "assignment"
    needs_data = False
    trains_devices = False
    shown = Shown(
        counted="fleets", repetitions="deployments", per="a round", averaged=True, curves=False, front=True,
        table="assignment", figures={"assignment": "assignment_bars", "pareto": "pareto"},
    )  # fmt: skip

    def check(self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False) -> None:
        """Build the assigner, which reads its policy file if it has one; try one of the user's own on a fleet.

        Raises:
            ConfigError: the assigner, or a setting that changes each bill of an experiment and none of the study.
        """
        from hflray.assignment import configured_assigner
        from hflray.experiment.study import Instance, refuse_other_uploads

        refuse_other_uploads(config, "the task assignment")
        for name in ("world", "clock"):
            if (section := getattr(config, name)) != type(section)():
                raise ConfigError(
                    f"{name}: got settings for the task assignment, which bills single rounds in which nothing changes "
                    "and all wait for each other; accepted: the defaults; leave it out"
                )
        if config.scheduling.name not in (SchedulingConfig().name, "fedavg"):
            raise ConfigError(
                f"scheduling.name: got {spoken(config.scheduling.name)} for the task assignment, which draws the "
                "devices of each fleet uniformly; accepted: fedavg; leave it out"
            )
        if config.allocation.limits.drop:
            raise ConfigError(
                "allocation.limits.drop: got true for the task assignment, which bills all devices of a fleet; "
                "accepted: false; leave it out"
            )
        assigner = configured_assigner(config)
        if not is_ours(assigner):
            Instance.of(config, 0).assigned(assigner, config.seed)

    def run(self, job: Job) -> Results:
        """Yield a result for each fleet. The step is the number of the fleet."""
        from hflray.experiment.study import run_study

        for fleet in run_study(job.config):
            yield Result(fleet.fleet, fleet.metrics(), last=fleet.fleet == job.config.max_rounds)

    def label(self, config: ExperimentConfig) -> dict[str, str]:
        """Return the parts of a trial's name: neither data nor scheduler, but the full name of the assigner."""
        parts = super().label(config)
        del parts["data.name"]
        return parts | {
            "scheduling.name": "", "assignment.name": assigner_label(config), "assignment.exchanges": "",
            "assignment.polish_ms": "", "assignment.policy": "", "assignment.start": "", "allocation.coupling": "",
        }  # fmt: skip


class ClusteringTask(Task):
    """Train the auxiliary models of all devices, and cluster the devices (Algorithm 2). The one result is step 0."""

    name = "clustering"
    consecutive = False  # its one result is step 0
    shown = Shown(counted=None, curves=False, table="clustering", figures={"clustering": "clustering_bars"})

    def run(self, job: Job) -> Results:
        """Yield the only result, which has step 0."""
        with job.make(job.config) as experiment:
            experiment.cluster()
            yield Result(0, experiment.summary(), last=True)

    def steps(self, config: ExperimentConfig) -> int:
        """Return 1: there is one result."""
        return 1

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> TrialProgress:
        """Return complete progress with the adjusted Rand index."""
        return TrialProgress(1, 1, "round", f"ARI {values.get(metrics.CLUSTERING_ARI, 0):.3f}")


def assigner_label(config: ExperimentConfig) -> str:
    """Return the assigner's name as in the paper, such as ``hfel-300``, with `joint` if all edges share one deadline.

    The name of a d3qn includes its policy, unless that is the default one.
    """
    name = short(config.assignment.name)
    name = f"{name}-{config.assignment.exchanges}" if name == "hfel" else name
    name = f"{name} redraw" if config.assignment.options.get("redraw") else name
    polish, policy = (config.assignment.polish_ms, config.assignment.policy) if name == "d3qn" else (None, None)
    name = f"{name} {Path(policy).stem}" if policy else name
    name = f"{name} {config.assignment.start}" if config.assignment.start else name
    if polish:
        name = f"{name} optimum" if polish == "optimum" else f"{name} {polish:g} ms"
    return f"{name} joint" if config.allocation.coupling == "joint" else name
