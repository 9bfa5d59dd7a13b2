"""Task ``experiment``: Algorithm 6 up to its last round or its target, with a result for each round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hflray import metrics
from hflray.support.arrays import deflated
from hflray.sweep.tasks.base import Job, Result, Results, Shown, Task, restore

if TYPE_CHECKING:
    from hflray.config import ExperimentConfig
    from hflray.experiment import Experiment
    from hflray.experiment.record import RoundRecord

STATE = "state"  # the folder of the state in a checkpoint
DETAILED_DEVICES = 10_000  # larger fleets log no schedules, so that a line of the journal stays under 1 MB


class ExperimentTask(Task):
    """Schedule, assign, allocate, train and compute the bill, round by round."""

    name = "experiment"
    refuses = ()
    trains_model = True
    saves = True
    shown = Shown(
        front=True, until="Up to the target accuracy, or the last round.", explorable=True,
        figures={metrics.ACCURACY: "curves", "cost": "cost_bars", "pareto": "pareto"},
    )  # fmt: skip

    def run(self, job: Job) -> Results:
        """Yield a result for each remaining round."""
        with job.make(job.config) as experiment:
            note = go_on(experiment, job)
            watch, every = job.watch(experiment), experiment.config.checkpoint.every
            first = True
            for record in experiment:
                watch(record)
                ended_by = experiment.ended_by  # once, because it may plan the next round
                result = result_of(experiment, record, bool(ended_by), detailed=True, with_devices=first)
                if ended_by.startswith("observers"):
                    ending = f"{ended_by} ends the run after round {record.round}"
                    note = "; ".join([*filter(None, [note]), ending])
                due = bool(every) and (not record.round % every or result.last)
                yield replace(result, note=note, save=lambda folder: save(experiment, folder), due=due)
                note, first = None, False


def result_of(experiment: Experiment, record: RoundRecord, last: bool, *, detailed: bool, with_devices: bool) -> Result:
    """Return the result of the experiment's last round.

    Args:
        experiment: the experiment after the round.
        record: the round's record.
        last: whether the run ends with it.
        detailed: whether the schedule and the timeline are wanted, which fleets above `DETAILED_DEVICES` do not log.
        with_devices: whether the facts about the devices are wanted as well.
    """
    detailed = detailed and experiment.config.fleet.num_devices <= DETAILED_DEVICES
    return Result(
        step=record.round,
        metrics=record.metrics() | (experiment.summary() if last else {}),
        last=last,
        model_hash=record.model_hash,
        schedule=record.schedule() if detailed else None,
        timeline=deflated(record.timeline.table()) if detailed and record.deviates else None,
        devices=experiment.devices() if detailed and with_devices else None,
        changes=experiment.changes,
    )


def kept_inside(config: ExperimentConfig, model_bytes: int) -> int:
    """Return the most bytes of what is kept between rounds beside the model.

    Rule, aggregators, compressors and privacy keep it, and under an asynchronous cloud the versions that edges have
    fetched with the rule's vectors, and the cloud's buffer or the newest models; with asynchronous edges the versions
    that devices have fetched.
    """
    from hflray.training.method import Method

    method, numbers = Method.of(config), model_bytes // 4
    parts = method.parts()
    num_devices, num_edges = config.fleet.num_devices, config.fleet.num_edges
    started = (*parts.rule.start(numbers, num_edges).values(), *parts.cloud.start(numbers).values())
    states = sum(np.asarray(array).nbytes for array in started)
    releases = 8 * num_devices if method.privacy is not None else 0
    clock, fetched = config.clock.cloud.asynchronous, 0
    if clock is not None:
        fetched = num_edges * (1 + parts.rule.vectors[0]) * model_bytes
        fetched += num_edges * model_bytes if clock.rule == "fedat" else 2 * model_bytes * (clock.buffer > 1)
    if config.clock.edge.asynchronous is not None:
        fetched += num_devices * model_bytes  # at most a version for each device under way
    return method.kept_bytes(numbers, num_devices, num_edges) + states + releases + fetched


def save(experiment: Experiment, folder: Path) -> None:
    """Write the experiment's state into a checkpoint's folder."""
    from hflray.support import checkpoint

    checkpoint.save(folder / STATE, experiment.state_dict())


def go_on(experiment: Experiment, job: Job) -> str | None:
    """Load the newest checkpoint that can be loaded, if there is one.

    Returns:
        A note for the user, or None if the trial simply continues after its own last round. The note names damaged
        checkpoints, and, in a population, the trial whose state was adopted and the settings that changed.

    Raises:
        RefusedError: see `hflray.sweep.tasks.base.restore`.
    """
    from hflray.support import checkpoint

    def load(folder: Path) -> None:
        experiment.load_state_dict(checkpoint.load(folder / STATE), may_change=job.mutable)

    saved, notes = restore(job, load)
    if saved is None:
        return "; ".join([*notes, "starting from round 1"]) if notes else None
    if experiment.changes and experiment.changes[-1]["after_round"] == experiment.round:
        change = experiment.changes[-1]
        change["from"] = saved.trial
        settings = ", ".join(f"{key} {old:g} → {new:g}" for key, (old, new) in change["changed"].items())
        notes.append(f"adopts the state of {saved.trial} after round {experiment.round}, with {settings}")
    elif notes:
        notes.append(f"going on after round {experiment.round}")
    return "; ".join(notes) or None
