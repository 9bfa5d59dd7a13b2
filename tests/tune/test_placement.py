"""hflray.tune.placement: what trials reserve, on a Ray with a GPU that is not there (tests/conftest.py)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.preflight import check_trials
from hflray.sweep import SweepFile, expand, load_sweep
from hflray.training.pool import ActorPool
from hflray.tune import placement
from hflray.tune.placement import Placement
from hflray.tune.trial import trial_experiment
from tests.training.test_local import make_data, make_job

SMALL = ["data.name=digits", "fleet.num_devices=12", "scheduling.num_scheduled=6", "training.autotune=false"]
HALF = ("training.device=cuda", "tune.gpus_per_trial=0.5", "training.num_actors=2")


def placed(*overrides: str) -> tuple[SweepFile, Placement, ExperimentConfig]:
    """As the driver does it, but without asking torch for a GPU."""
    file = load_sweep(None, [*SMALL, *overrides])
    trials = expand(file)
    made = Placement(file, trials, check_trials(trials, file.task, measure=False))
    return file, made, trials[0].config


def bundles(*overrides: str, per_gpu: int | None = None) -> list[dict[str, float]]:
    _, made, config = placed(*overrides)
    if per_gpu is not None:
        made._default = per_gpu
    return made.bundles(config)


def test_trials_on_cpus_reserve_no_gpu(ray_session) -> None:
    assert bundles() == [{"CPU": 0}, {"CPU": 1}]
    assert bundles("tune.cpus_per_trial=2") == [{"CPU": 0}, {"CPU": 1}, {"CPU": 1}]
    assert bundles("tune.cpus_per_trial=2", "training.backend=serial") == [{"CPU": 2}]


def test_device_actors_of_a_trial_reserve_its_gpu(ray_session) -> None:
    cuda = "training.device=cuda"
    assert bundles(cuda) == bundles("training.device=auto") == [{"CPU": 0}, {"CPU": 1, "GPU": 1}]
    assert bundles(*HALF) == [{"CPU": 0}, *[{"CPU": 0.5, "GPU": 0.25}] * 2]
    assert bundles(cuda, "training.backend=serial") == [{"CPU": 1, "GPU": 1}]
    assert bundles(cuda, "tune.gpus_per_trial=0.5", "training.backend=serial") == [{"CPU": 1, "GPU": 0.5}]


def test_as_many_actors_as_were_measured_share_it(ray_session, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(placement, "processes_per_gpu", lambda *what: (asked.append(what), 4)[1])
    sweep = ("training.device=cuda", "training.autotune=true", "sweep.seed={grid: [1, 2]}")
    _, made, config = placed(*sweep)
    assert len(made.to_measure) == 1  # for two trials that train alike
    made.measure()
    ((load, share),) = asked
    assert (load.devices, load.device, load.image_shape, share) == (6, "cuda", (1, 28, 28), 1.0)
    assert made.bundles(config) == [{"CPU": 0}, *[{"CPU": 0.25, "GPU": 0.25}] * 4]
    other = config.model_copy(update={"training": config.training.model_copy(update={"batch_size": 5})})
    assert len(made.bundles(other)) == 5  # what a search comes to later is not measured beside running trials
    _, made, _ = placed(*sweep, "training.num_actors=2")
    assert made.to_measure == []


def test_more_gpus_than_there_are_is_an_error_at_once(ray_session) -> None:
    with pytest.raises(ConfigError, match=r"tune.gpus_per_trial: a trial needs 2 GPUs, Ray has 1; accepted: up to 1"):
        placed("training.device=cuda", "tune.gpus_per_trial=2")


def test_a_part_of_a_gpu_or_whole_ones() -> None:
    for fits in (0.25, 1, 2):
        assert load_sweep(None, [f"tune.gpus_per_trial={fits}"]).tune.gpus_per_trial == fits
    for wrong in (1.5, 0, -1):
        with pytest.raises(ConfigError, match=r"tune.gpus_per_trial: got"):
            load_sweep(None, [f"tune.gpus_per_trial={wrong}"])


def test_no_gpu_at_all_is_an_error_or_a_cpu(ray_session, monkeypatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(ConfigError, match=r"a trial needs 1 GPUs, Ray has 0; set training.device to cpu"):
        placed("training.device=cuda")
    assert bundles("training.device=auto") == [{"CPU": 0}, {"CPU": 1}]


@pytest.mark.parametrize("overrides", [(), ("task=assignment",)])
def test_gpus_that_nothing_trains_on_are_refused(ray_session, overrides, tmp_path) -> None:
    (tmp_path / "sweep.yaml").write_text("task: assignment\n")
    path = tmp_path / "sweep.yaml" if overrides else None
    file = load_sweep(path, [*SMALL, "tune.gpus_per_trial=0.5"])
    trials = expand(file)
    with pytest.raises(ConfigError, match=r"tune.gpus_per_trial: got 0.5, but no trial trains on a GPU"):
        Placement(file, trials, check_trials(trials, file.task, measure=False))


def test_it_travels_without_the_data(ray_session) -> None:
    _, made, _ = placed("training.device=cuda")
    assert len(ray.cloudpickle.dumps(made)) < 100_000  # digits alone have 1.4 MB


def in_a_trial(file: SweepFile, params: dict[str, Any]) -> dict[str, Any]:
    """What a trial's process finds in its placement group, and its actors; they train on CPU tensors."""
    config = expand(file)[0].config
    experiment = trial_experiment(config, file, {}, {})
    size = experiment.backend.pool(file.tune.cpus_per_trial)
    settled = experiment.resolve().training
    pool = ActorPool(make_job(kernel="batched"), ray.put(make_data()), size.actors, size.cpus, 1, size.gpus)

    def look(_: Any) -> tuple[list[int], str, dict[str, float]]:
        mine = ray.get_runtime_context().get_assigned_resources()
        return ray.get_gpu_ids(), os.environ["CUDA_VISIBLE_DEVICES"], mine

    try:
        ray.get([actor.about.remote() for actor in pool.devices])
        return {
            "settled": (settled.device, settled.kernel, settled.num_actors),
            "actors": ray.get([actor.__ray_call__.remote(look) for actor in pool.devices]),
            "left": ray.available_resources().get("GPU", 0.0),
        }
    finally:
        pool.close()


def test_two_trials_share_a_card_and_their_actors_see_it(ray_session) -> None:
    """Both are in place at once; each actor has a quarter of card 0."""
    file, made, _ = placed(*HALF)
    params: dict[str, Any] = {"values": {}}
    groups = [made(params)() for _ in range(2)]
    try:
        ray.get([group.ready() for group in groups], timeout=60)
        assert ray.available_resources().get("GPU", 0.0) == 0
        task = ray.remote(num_cpus=0, max_retries=0)(in_a_trial)
        found = ray.get(
            [
                task.options(
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
                    )
                ).remote(file, params)
                for group in groups
            ],
            timeout=120,
        )
    finally:
        for group in groups:
            ray.util.remove_placement_group(group)
    for trial in found:
        assert trial["settled"] == ("cuda", "batched", 2)
        assert trial["left"] == 0
        for ids, visible, resources in trial["actors"]:
            assert [str(number) for number in ids] == ["0"]
            assert visible == "0"
            assert resources["GPU"] == 0.25


@pytest.mark.gpu
def test_a_sweep_of_trials_that_share_a_real_gpu(tmp_path) -> None:
    import subprocess
    import sys

    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    overrides = [*SMALL, "max_rounds=2", "training.device=cuda", "tune.gpus_per_trial=0.5", "tune.cpus_per_trial=1"]
    command = [sys.executable, "-m", "hflray.tune", *(word for text in overrides for word in ("--set", text))]
    command += ["--set", "sweep.seed={grid: [1, 2]}"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 done" in done.stdout
