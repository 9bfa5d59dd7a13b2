"""Task ``assignment``: the study of the paper's Figure 6, one assigner on many fleets; a result for each fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hflray.config import ExperimentConfig
from hflray.tasks.base import Job, Result, Results, Shown, Task

if TYPE_CHECKING:
    from hflray.scenario import Scenario


class AssignmentTask(Task):
    """Bills the assignments of ``max_rounds`` random fleets, without training, see `hflray.study`."""

    name = "assignment"
    needs_data = False
    trains_devices = False
    keeps_history = True
    shown = Shown(
        counted="fleets", repetitions="deployments", per="a round", averaged=True, curves=False, front=True,
        table="assignment", figures=("assignment", "pareto"),
    )  # fmt: skip

    def check(self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False) -> None:
        """Make the assigner, which reads a policy if it has one."""
        from hflray.assignment import configured_assigner

        configured_assigner(config)

    def run(self, job: Job) -> Results:
        """Yield a result for each fleet, its number being the step."""
        from hflray.study import run_study

        for fleet in run_study(job.config):
            yield Result(fleet.fleet, fleet.metrics(), last=fleet.fleet == job.config.max_rounds)

    def label(self, config: ExperimentConfig) -> dict[str, str]:
        """No data and no scheduler, but every assigner by its full name."""
        parts = super().label(config)
        del parts["data.name"]
        return parts | {
            "scheduling.name": "", "assignment.name": assigner_label(config), "assignment.exchanges": "",
            "assignment.polish_ms": "", "assignment.policy": "", "allocation.coupling": "",
        }  # fmt: skip


def assigner_label(config: ExperimentConfig) -> str:
    """An assigner as the paper calls it, such as ``hfel-300``; `joint` where all edges share one deadline.

    A d3qn of another policy than the default is named by that.
    """
    name = config.assignment.name
    name = f"{name}-{config.assignment.exchanges}" if name == "hfel" else name
    name = f"{name} redraw" if config.assignment.options.get("redraw") else name
    polish, policy = (config.assignment.polish_ms, config.assignment.policy) if name == "d3qn" else (None, None)
    name = f"{name} {Path(policy).stem}" if policy else name
    if polish:
        name = f"{name} optimum" if polish == "optimum" else f"{name} {polish:g} ms"
    return f"{name} joint" if config.allocation.coupling == "joint" else name
