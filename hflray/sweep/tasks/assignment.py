"""Task ``assignment``: the study of the paper's Figure 6. One assigner runs on many fleets, with a result for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hflray.config import ExperimentConfig
from hflray.support.contract import is_ours
from hflray.support.references import short
from hflray.sweep.tasks.base import Job, Result, Results, Shown, Task

if TYPE_CHECKING:
    from hflray.experiment.scenario import Scenario


class AssignmentTask(Task):
    """Bill the assignments of ``max_rounds`` random fleets without training (`hflray.experiment.study`)."""

    name = "assignment"
    needs_data = False
    trains_devices = False
    keeps_history = True
    shown = Shown(
        counted="fleets", repetitions="deployments", per="a round", averaged=True, curves=False, front=True,
        table="assignment", figures=("assignment", "pareto"),
    )  # fmt: skip

    def check(self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False) -> None:
        """Build the assigner, which reads its policy file if it has one; try one of the user's own on a fleet."""
        from hflray.assignment import configured_assigner
        from hflray.experiment.study import Instance

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
