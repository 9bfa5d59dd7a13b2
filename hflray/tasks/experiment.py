"""Task ``experiment``: Algorithm 6 to its last round or its target; a result for each round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hflray import metrics
from hflray.errors import ConfigError
from hflray.tasks.base import Job, Result, Results, Shown, Task

if TYPE_CHECKING:
    from hflray.experiment import Experiment

STATE = "state"  # folder of the state in a checkpoint
DETAILED_DEVICES = 10_000  # fleets up to which every round's schedule is kept: a line of the journal stays under 1 MB


class ExperimentTask(Task):
    """Schedules, assigns, allocates, trains and bills, round by round."""

    name = "experiment"
    refuses = ()
    trains_model = True
    saves = True
    shown = Shown(
        front=True, until="Up to the target accuracy, or the last round.", explorable=True,
        figures=(metrics.ACCURACY, "cost", "pareto"),
    )  # fmt: skip

    def run(self, job: Job) -> Results:
        """Yield a result for each round that is left."""
        with job.make(job.config) as experiment:
            note = go_on(experiment, job)
            watch, every = job.watch(experiment), experiment.config.checkpoint.every
            told = False
            for record in experiment:
                watch(record)
                last = experiment.finished
                detailed = experiment.config.fleet.num_devices <= DETAILED_DEVICES
                yield Result(
                    step=record.round,
                    metrics=record.metrics() | (experiment.summary() if last else {}),
                    last=last,
                    note=note,
                    model_hash=record.model_hash,
                    schedule=record.schedule() if detailed else None,
                    devices=experiment.devices() if detailed and not told else None,
                    changes=experiment.changes,
                    save=lambda folder: save(experiment, folder),
                    due=bool(every) and (not record.round % every or last),
                )
                note, told = None, True


def save(experiment: Experiment, folder: Path) -> None:
    """Write the experiment's state into a checkpoint's folder."""
    from hflray import checkpoint

    checkpoint.save(folder / STATE, experiment.state_dict())


def go_on(experiment: Experiment, job: Job) -> str | None:
    """Go on from the newest checkpoint, if there is one; a damaged one is passed over for the one before.

    Returns:
        A note if that is not plainly the trial's own last round: what is damaged, or, in a population, which trial's
        state was taken over with which settings.
    """
    from hflray import checkpoint

    said: list[str] = []
    found = False
    for saved in job.saved:
        found = True
        try:
            with saved.open() as folder:
                experiment.load_state_dict(checkpoint.load(Path(folder) / STATE), may_change=job.mutable)
            if experiment.changes and experiment.changes[-1]["after_round"] == experiment.round:
                change = experiment.changes[-1]
                change["from"] = saved.trial
                what = ", ".join(f"{key} {old:g} → {new:g}" for key, (old, new) in change["changed"].items())
                said.append(f"takes over {saved.trial} after round {experiment.round}, with {what}")
                return "; ".join(said)
            return "; ".join([*said, f"going on after round {experiment.round}"]) if said else None
        except (ConfigError, OSError) as error:
            said.append(str(error))
    return "; ".join([*said, "starting from round 1"]) if found else None
