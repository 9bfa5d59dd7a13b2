"""Checks before a sweep starts: whether every trial can be made, what it needs, and how long it may take."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.data import Dataset
from hflray.data.datasets import data_root
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.fleets import Fleets
from hflray.experiment.scenario import DataKey, Scenario, data_key
from hflray.losses import METRIC_OF
from hflray.models import build
from hflray.models.problem import Problem
from hflray.models.vector import num_parameters
from hflray.support.files import size_text
from hflray.support.references import short
from hflray.sweep import SweepFile, Trial
from hflray.sweep.progress import duration
from hflray.sweep.tasks import find_task, tasks_where
from hflray.sweep.tasks.experiment import kept_inside
from hflray.training.hierarchy import edge_actors
from hflray.training.local import DeviceHost
from hflray.training.plan import pool_size

# The memory that a process of each kind adds, in MiB: the proportional set size, measured on Linux.
# The estimate of the time trains on at most this many samples of a device, for at most this many local iterations.
MEASURED_SAMPLES, MEASURED_ITERATIONS = 1000, 5
START_S = 12.0  # of Ray and of a trial
DRIVER_MB, TRIAL_MB, DEVICE_ACTOR_MB, EDGE_ACTOR_MB, RAY_MB = 600, 530, 280, 70, 250


@dataclass
class CheckedTrials:
    """The results of the checks.

    Attributes:
        notes: lines for the user.
        datasets: the data sets, each loaded once.
        resolved: configurations by trial name in which the settings chosen on this machine are filled in. The runs
            are logged with them.
        samples: the mean number of a device's samples by trial name.
        fleets: the fleets that were made.
    """

    notes: list[str] = field(default_factory=list)
    datasets: dict[DataKey, Dataset] = field(default_factory=dict)
    resolved: dict[str, ExperimentConfig] = field(default_factory=dict)
    samples: dict[str, float] = field(default_factory=dict)
    fleets: Fleets = field(default_factory=Fleets)
    _digests: dict[DataKey, str] = field(default_factory=dict)

    def described(self, config: ExperimentConfig) -> dict[str, str] | None:
        """Return a trial's data set as MLflow records it, or None if it is not loaded.

        The keys are ``name``, ``digest``, ``source`` and ``profile``.
        """
        key = data_key(config)
        dataset = self.datasets.get(key)
        if dataset is None:
            return None
        profile: dict[str, Any] = {
            "train": len(dataset.y_train) - config.data.validation, "test": len(dataset.y_test),
            "classes": dataset.num_classes,
            "image_shape" if dataset.has_images else "input_shape": list(dataset.input_shape),
        }  # fmt: skip
        name, root, options = key[0], key[1], config.data.options
        source = {"name": name, "root": root} | ({"options": options} if options else {})
        if config.data.split == "official":
            source["split"] = config.data.split
        if config.data.validation:
            profile["validation"] = config.data.validation
        return {
            "name": Path(short(name)).stem, "digest": self.digest(key), "source": json.dumps(source),
            "profile": json.dumps(profile),
        }  # fmt: skip

    def digest(self, key: DataKey) -> str:
        """Return the start of the SHA-256 of a loaded data set's arrays, as text."""
        if key not in self._digests:  # computed once for all trials: CIFAR-10 has 180 MB
            digest, dataset = hashlib.sha256(), self.datasets[key]
            for array in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test):
                digest.update(np.ascontiguousarray(array).data)
            self._digests[key] = digest.hexdigest()[:36]
        return self._digests[key]

    def check_names(self) -> None:
        """Raise ConfigError if a name stands for other samples in another folder: reports would pool them as seeds."""
        first: dict[tuple[str, str], DataKey] = {}
        for key in self.datasets:
            name, root, rest = key
            other = first.setdefault((name, rest), key)
            if root != other[1] and self.digest(key) != self.digest(other):
                raise ConfigError(
                    f"data.root: '{name}' has other samples in {data_root(root)} than in {data_root(other[1])}, and "
                    "reports tell data sets apart by their names; name the files instead, as in data.name: "
                    f"FOLDER/{name}.npz"
                )


def check_trials(
    trials: Sequence[Trial], task: str, measure: bool = True, fleets: Fleets | None = None
) -> CheckedTrials:
    """Build every trial's data, partition, model and assigner before anything starts.

    With `measure`, the training kernel is also chosen, so that a trial has the same one on each node.

    Args:
        trials, task, measure: see above.
        fleets: where a sweep that goes on keeps its fleets; None: they are made, and kept in the result.

    Raises:
        ConfigError: a mistake that only the data or the assigner reveal, such as images too small for the model, or
            two data sets of one name.
        DataError: the data are missing or malformed, or a partition cannot be made.
    """
    checked = CheckedTrials() if fleets is None else CheckedTrials(fleets=fleets)
    scenarios: dict[str, Scenario] = {}
    kind = find_task(task)
    for trial in trials:
        config = trial.config
        if not kind.needs_data:
            kind.check(config)
            continue
        key = str((config.seed, config.data, config.fleet, config.cost, config.tree))
        if key not in scenarios:
            scenario = Scenario.build(config, dataset=checked.datasets.get(data_key(config)), fleets=checked.fleets)
            scenarios = {key: scenario}  # only one is kept in memory
            checked.datasets[data_key(config)] = scenario.dataset
        checked.samples[trial.name] = float(np.mean(scenarios[key].fleet.samples))
        resolved = kind.check(config, scenarios[key], measure)
        checked.notes += [note for note in scenarios[key].notes if note not in checked.notes]
        if resolved is not None:
            checked.resolved[trial.name] = resolved
    checked.check_names()
    return checked


def check_metrics(file: SweepFile, checked: CheckedTrials) -> None:
    """Check that the data of the trials have the metrics that Tune is to compare.

    Raises:
        ConfigError: a setting names the main metric of data of another kind, which no trial would ever log.
    """
    for dataset in checked.datasets.values() if find_task(file.task).trains_model else ():
        main = METRIC_OF[dataset.kind]
        for key, name in file.tune.named_metrics:
            if name in metrics.MAIN and name != main:
                raise ConfigError(
                    f"{key}: got '{name}', but data of the kind {dataset.kind} log '{main}' in its place; put {main} "
                    "there"
                )


def estimate(file: SweepFile, trials: Sequence[Trial], checked: CheckedTrials, cpus: int) -> str:
    """Return one line on time and memory, from a short measurement of training on each data set on this machine."""
    if not find_task(file.task).trains_model:
        return f"no estimate: only the task {tasks_where(lambda task: task.trains_model)} trains for long"
    gpus, gpu_trials = torch.cuda.device_count(), [t for t in trials if t.config.training.device == "cuda"]
    if gpu_trials and not gpus:
        return "no estimate: training.device is cuda, and this machine has no GPU to measure"
    rates: dict[DataKey, float] = {}
    work_s = 0.0
    for trial in trials:
        config = trial.config
        key = data_key(config)
        if key not in rates:
            scenario = Scenario.build(config, dataset=checked.datasets[key], fleets=checked.fleets)
            rates[key] = _samples_per_second(config, scenario)
        work_s += config.max_rounds * _round_s(trial, checked, rates[key])
    pools = [pool_size(t.config.training, t.config.scheduling.num_scheduled, file.tune.cpus_per_trial) for t in trials]
    limits = [len(trials), cpus // file.tune.cpus_per_trial, file.tune.max_concurrent or len(trials)]
    limits += [int(gpus / (file.tune.gpus_per_trial or 1.0))] if gpu_trials else []
    concurrent = max(1, min(limits))
    start_s = START_S * math.ceil(len(trials) / concurrent)
    actors = max(pool.actors for pool in pools)
    edges = max(edge_actors(t.config.fleet.num_edges, pool.actors) for t, pool in zip(trials, pools, strict=True))
    problems = [Problem.of(checked.datasets[data_key(trial.config)], trial.config) for trial in trials]
    memory_mb = DRIVER_MB + RAY_MB + concurrent * (TRIAL_MB + actors * DEVICE_ACTOR_MB + edges * EDGE_ACTOR_MB)
    model_bytes = {problem: 4 * num_parameters(build(problem)) for problem in set(problems)}
    memories = [kept_inside(t.config, model_bytes[problem]) for t, problem in zip(trials, problems, strict=True)]
    memory_mb += concurrent * max(memories) // 2**20
    most = concurrent * max(memories)
    keeps = f" ({size_text(most)} of it for what devices, edges and the cloud keep between rounds)" if most else ""
    seconds = start_s + work_s / min(cpus, concurrent * file.tune.cpus_per_trial)
    speed = ", ".join(f"{rate:,.0f}" for rate in rates.values())
    return (
        f"about {duration(seconds)} and {memory_mb / 1024:.1f} GiB{keeps}: at most {len(trials)} trials to their last "
        f"round, {concurrent} at a time on {cpus} CPU{'s' * (cpus > 1)}, at {speed} samples/s each as measured just now"
    )


def least_s(trial: Trial, checked: CheckedTrials) -> float:
    """Return the seconds that starting Ray and one round of a trial take about, as measured here just now."""
    dataset = checked.datasets[data_key(trial.config)]
    scenario = Scenario.build(trial.config, dataset=dataset, fleets=checked.fleets)
    return START_S + _round_s(trial, checked, _samples_per_second(trial.config, scenario))


def _round_s(trial: Trial, checked: CheckedTrials, samples_per_s: float) -> float:
    training = trial.config.training
    passes = training.local_iterations * trial.config.round_iterations * checked.samples[trial.name]
    return trial.config.scheduling.num_scheduled * passes / samples_per_s


def _samples_per_second(config: ExperimentConfig, scenario: Scenario) -> float:
    experiment = Experiment(config, scenario=scenario)
    job = experiment.job()
    job = replace(job, local_iterations=min(job.local_iterations, MEASURED_ITERATIONS))
    data = scenario.device_data()
    if job.kernel == "batched":
        devices = range(config.scheduling.num_scheduled)  # as many as train at a time
    else:
        devices = range(1)
        first = data.samples_of(0)[:MEASURED_SAMPLES]
        data = replace(data, index=first, offsets=np.array([0, len(first)]), drawn=None)
    host = DeviceHost(job, data)
    passes = job.local_iterations * int(data.offsets[len(devices)])
    host.train_each(experiment.global_model, devices)  # the first call also loads libraries and is not timed
    begin = time.perf_counter()
    host.train_each(experiment.global_model, devices)
    return passes / (time.perf_counter() - begin)
