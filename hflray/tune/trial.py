"""A trial of a sweep: an `Experiment` (or another task) in a process of Tune's, reporting and saving every round."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hflray import checkpoint
from hflray.config import ExperimentConfig
from hflray.data import Dataset
from hflray.errors import ConfigError, HflrayError, WorkerLostError
from hflray.experiment import Experiment, RoundRecord
from hflray.preflight import data_key
from hflray.scenario import Scenario
from hflray.study import run_study
from hflray.sweep import SearchConfig, SweepFile, make_trial

WORST = 1e12  # what a search is told of a trial without its metric
NAME = "name"  # rides along with the values of a trial; no key of the configuration is called so


def trial_config(sweep: SweepFile, params: dict[str, Any]) -> ExperimentConfig:
    """The configuration of the trial with Tune's parameters ``{"values": {dotted key: value}}``."""
    return make_trial(sweep, {key: value for key, value in params["values"].items() if key != NAME}).config


def run_trial(params: dict[str, Any], file: dict[str, Any], datasets: dict[Any, Dataset]) -> None:
    """What Tune runs: the trial with the values ``params["values"]`` of the sweep `file`.

    A mistake or a diverged model is reported as a result, ``{"error": …}``: trying again would end the same way. What
    a lost process or actor raises is left to Tune, which starts the trial again from its last checkpoint.
    """
    from ray import tune

    sweep = SweepFile.model_validate(file)
    config = trial_config(sweep, params)
    try:
        if sweep.task == "assignment":
            for fleet in run_study(config):
                tune.report({"round": fleet.fleet, "metrics": fleet.metrics()})
            return
        scenario = Scenario.build(config, dataset=datasets.get(data_key(config)))
        with Experiment(config, scenario=scenario, cpus=sweep.tune.cpus_per_trial) as experiment:
            if sweep.task == "clustering":
                experiment.cluster()
                tune.report({"round": 0, "metrics": experiment.summary()})
                return
            note = _restore(experiment)
            search = sweep.tune.search
            for record in experiment:
                _report(experiment, record, note, search)
                note = None
    except WorkerLostError:
        raise
    except HflrayError as error:
        tune.report({"round": -1, "metrics": {}, "error": str(error)})


def _restore(experiment: Experiment) -> str | None:
    """Go on from Tune's checkpoint, if there is one; a damaged one is passed over for the one before, with a note."""
    from ray import tune

    latest = tune.get_checkpoint()
    if latest is None:
        return None
    newest = Path(latest.path)
    folders = [newest, *sorted((p for p in newest.parent.glob("checkpoint_*") if p.name < newest.name), reverse=True)]
    said: list[str] = []
    for folder in folders:
        try:
            experiment.load_state_dict(checkpoint.load(folder / "state"))
            return "; ".join([*said, f"going on after round {experiment.round}"]) if said else None
        except ConfigError as error:
            said.append(str(error))
    return "; ".join([*said, "starting from round 1"])


def _report(experiment: Experiment, record: RoundRecord, note: str | None, search: SearchConfig | None) -> None:
    from ray import tune

    values = record.metrics() | (experiment.summary() if experiment.finished else {})
    result = {"round": record.round, "metrics": values, "model_hash": record.model_hash}
    if note:
        result["note"] = note
    if search is not None:  # it needs a number even of a trial that never reached its target
        result["search"] = values.get(search.metric, WORST if search.mode == "min" else -WORST)
    every = experiment.config.checkpoint.every
    if not every or (record.round % every and not experiment.finished):
        tune.report(result)
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "state", experiment.state_dict())
        tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))
