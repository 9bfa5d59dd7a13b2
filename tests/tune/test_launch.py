"""`hflray.tune`: the resources of trials, what a cluster allows, what trials share, and older checkpoints."""

from __future__ import annotations

import json
import math
import os
import pickle
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import ray.tune
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hflray.config import ExperimentConfig
from hflray.data import Dataset, load_dataset
from hflray.errors import ConfigError
from hflray.experiment.fleets import Fleets
from hflray.experiment.scenario import Scenario, data_key
from hflray.support.checkpoint import Checkpoints
from hflray.sweep import SweepFile, expand, load_sweep, make_trial
from hflray.sweep.preflight import CheckedTrials, check_trials
from hflray.tracking import Journal, Tracker
from hflray.training.actor_pool import ActorPool
from hflray.training.job import DeviceData
from hflray.tune import nodes
from hflray.tune import trial as trial_module
from hflray.tune.driver import _tune_config, adopt_older, begun, check_data
from hflray.tune.launch import LAST, TRIAL, Placement, parameters
from hflray.tune.trial import SharedSettings, run_trial, share, trial_experiment
from tests.conftest import refusal, small_config
from tests.training.test_local import make_data, make_job

SMALL = ["data.name=digits", "fleet.num_devices=12", "scheduling.num_scheduled=6"]
HALF = ("training.device=cuda", "tune.gpus_per_trial=0.5", "training.num_actors=2")


def make_placement(*overrides: str) -> tuple[SweepFile, Placement, ExperimentConfig]:
    """Return a sweep, its placement as the driver makes it, and a trial's configuration, without a GPU in torch."""
    file = load_sweep(None, [*SMALL, *overrides])
    trials = expand(file)
    placements = Placement(file, trials, check_trials(trials, file.task, measure=False))
    return file, placements, trials[0].config


def bundles(*overrides: str) -> list[dict[str, float]]:
    _, placements, config = make_placement(*overrides)
    return placements.bundles(config)


def test_a_trial_does_not_go_on_with_other_samples(tmp_path) -> None:
    trials = expand(load_sweep(None, SMALL))
    checked, tracker = check_trials(trials, "experiment", measure=False), Tracker("", "", "x", tmp_path, sinks=())
    tracker.start(trials[0].name, "x", trials[0].config, {}, checked.described(trials[0].config))
    check_data(trials, checked, tracker.journal)
    checked._digests[data_key(trials[0].config)] = "another"
    with pytest.raises(
        ConfigError, match=r"data.name: digits has other samples than when .* began; accepted with --res"
    ):
        check_data(trials, checked, tracker.journal)


def test_a_search_does_not_go_on_with_other_samples(tmp_path) -> None:
    file = load_sweep(None, [*SMALL, "sweep.seed={randint: [0, 9]}", "tune.search={metric: test_loss}"])
    trials = expand(file)
    checked, tracker = check_trials(trials, "experiment", measure=False), Tracker("", "", "x", tmp_path, sinks=())
    tracker.journal.write("x-00000", {"draw": 0, "values": {"seed": 3}})
    tracker.start("x-00000", "x", trials[0].config, {}, checked.described(trials[0].config))
    check_data(begun(file, trials, tracker.journal), checked, tracker.journal)
    checked._digests[data_key(trials[0].config)] = "another"
    with refusal(ConfigError, "data.name: digits has other samples than when x-00000 began"):
        check_data(begun(file, trials, tracker.journal), checked, tracker.journal)


def test_a_data_set_that_a_search_has_drawn_is_loaded_as_its_trials_load_it(tmp_path) -> None:
    """Of owners, the trials lack the samples that have no device; the driver checks those, and not the file's."""
    (tmp_path / "d.csv").write_text("device,x_m,y_m\nmill,0,0\nhill,10,10\npond,20,0\n")
    rows = "".join(f"{owner},{n % 7},{n % 2}\n" for n in range(60) for owner in ("mill", "hill", "gone"))
    (tmp_path / "t.csv").write_text("site,a,y\n" + rows)
    options = f"{{file: {tmp_path}/t.csv, target: y, owner: site, unmatched: drop}}"
    own = f"{{name: table, partition: owners, options: {options}}}"
    file = load_sweep(None, [
        f"fleet={{name: table, num_edges: 2, options: {{devices: {tmp_path}/d.csv}}}}", "scheduling.num_scheduled=2",
        "scheduling.name=fedavg", "sweep.seed={randint: [0, 9]}", "tune.search={metric: test_loss}",
        f"sweep.data={{choice: [{{name: digits}}, {own}]}}", "model.name=logistic",
    ])  # fmt: skip
    values = {"seed": 3, "data": file.sweep["data"].choice[1]}
    trial = replace(make_trial(file, values), name="x-00000")
    scenario = Scenario.build(trial.config)
    assert len(scenario.dataset.y_train) < 0.8 * len(load_own(trial.config).y_train)
    begun_with, tracker = CheckedTrials(), Tracker("", "", "x", tmp_path / "r", sinks=())
    begun_with.datasets[data_key(trial.config)] = scenario.dataset
    tracker.journal.write("x-00000", {"draw": 0, "values": values})
    tracker.start("x-00000", "x", trial.config, {}, begun_with.described(trial.config))
    now = CheckedTrials()
    check_data(begun(file, [trial], tracker.journal), now, tracker.journal)
    assert data_key(trial.config) in now.datasets


def load_own(config: ExperimentConfig) -> Dataset:
    return load_dataset(config.data.name, options=config.data.options)


def test_halving_lasts_as_long_as_the_longest_trial_of_a_search(tmp_path) -> None:
    for axis in ("{choice: [2, 40]}", "{randint: [2, 40]}"):
        file = load_sweep(None, [*SMALL, f"sweep.max_rounds={axis}", "tune.search={metric: test_loss}",
                                 "tune.early_stopping={metric: accuracy}"])  # fmt: skip
        trials = expand(file)
        assert _tune_config(file, trials, trials, Journal(tmp_path))["scheduler"]._max_t == 40


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


def test_more_gpus_than_the_cluster_has_are_an_error_before_the_first_trial(ray_session) -> None:
    with pytest.raises(ConfigError, match=r"tune.gpus_per_trial: a trial needs 2 GPUs, Ray has 1; accepted: up to 1"):
        make_placement("training.device=cuda", "tune.gpus_per_trial=2")


def test_a_trial_takes_a_share_of_one_gpu_or_whole_gpus() -> None:
    for valid in (0.25, 1, 2):
        assert load_sweep(None, [f"tune.gpus_per_trial={valid}"]).tune.gpus_per_trial == valid
    for invalid in (1.5, 0, -1):
        with pytest.raises(ConfigError, match=r"tune.gpus_per_trial: got"):
            load_sweep(None, [f"tune.gpus_per_trial={invalid}"])


def test_without_a_gpu_cuda_is_an_error_and_auto_takes_a_cpu(ray_session, monkeypatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(ConfigError, match=r"a trial needs 1 GPUs, Ray has 0; set training.device to cpu"):
        make_placement("training.device=cuda")
    assert bundles("training.device=auto") == [{"CPU": 0}, {"CPU": 1}]


@pytest.mark.parametrize("overrides", [(), ("task=assignment",)])
def test_gpus_for_trials_that_do_not_train_on_them_are_refused(ray_session, overrides, tmp_path) -> None:
    (tmp_path / "sweep.yaml").write_text("task: assignment\n")
    path = tmp_path / "sweep.yaml" if overrides else None
    file = load_sweep(path, [*SMALL, "tune.gpus_per_trial=0.5"])
    trials = expand(file)
    with pytest.raises(ConfigError, match=r"tune.gpus_per_trial: got 0.5, but no trial trains on a GPU"):
        Placement(file, trials, check_trials(trials, file.task, measure=False))


def in_a_trial(file: SweepFile, params: dict[str, Any]) -> dict[str, Any]:
    """Return the settings and resources of a trial's process and its actors, which train on CPU tensors."""
    config = expand(file)[0].config
    experiment = trial_experiment(config, file, {}, {}, Fleets())
    size = experiment.backend.pool(file.tune.cpus_per_trial)
    settled = experiment.resolve().training
    pool = ActorPool(make_job(kernel="batched"), ray.put(make_data()), size, 1)

    def inspect(_: Any) -> tuple[list[int], str, dict[str, float]]:
        resources = ray.get_runtime_context().get_assigned_resources()
        return ray.get_gpu_ids(), os.environ["CUDA_VISIBLE_DEVICES"], resources

    try:
        pool.refresh()
        return {
            "settled": (settled.device, settled.kernel, settled.num_actors),
            "actors": ray.get([actor.__ray_call__.remote(inspect) for actor in pool.devices]),
            "free_gpus": ray.available_resources().get("GPU", 0.0),
        }
    finally:
        pool.close()


def test_two_trials_share_a_card_and_their_actors_see_it(ray_session) -> None:
    """Both trials are make_placement at the same time, and each actor has a quarter of card 0."""
    file, placements, _ = make_placement(*HALF)
    params = parameters("a", {})
    groups = [placements(params)() for _ in range(2)]
    try:
        ray.get([group.ready() for group in groups], timeout=60)
        assert ray.available_resources().get("GPU", 0.0) == 0
        task = ray.remote(num_cpus=0, max_retries=0)(in_a_trial)
        answers = ray.get(
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
    for trial in answers:
        assert trial["settled"] == ("cuda", "batched", 2)
        assert trial["free_gpus"] == 0
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


AWS = Path(__file__).with_name("aws.yaml").read_text(encoding="utf-8")
LOCAL = Path(__file__).with_name("local.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text, live, cpus, gpus",
    [
        (AWS, 1, 64, 8), (AWS.replace(", GPU: 2", ""), 1, 64, 0), (LOCAL, 2, math.inf, math.inf), (LOCAL, 3, 0, 0),
        ("a: [", 1, 0, 0), ("a: 1", 1, 0, 0), (None, 1, 0, 0),
    ],
)  # fmt: skip
def test_what_is_to_come_follows_from_the_cluster_file(tmp_path, text, live, cpus, gpus) -> None:
    path = tmp_path / "bootstrap.yaml"
    if text is not None:
        path.write_text(text)
    assert (nodes.to_come(path, live, "CPU"), nodes.to_come(path, live, "GPU")) == (cpus, gpus)


@pytest.mark.parametrize(
    "text, resource, there, most, facts",
    [
        (AWS, "CPU", 1, 64, ("needs 65 CPUs", "Ray has 1 and may have 64", "accepted: up to 64", "lower it")),
        ("", "GPU", 1, 1, ("needs 2 GPUs", "Ray has 1;", "accepted: up to 1", "lower it")),
        (AWS, "GPU", 0, 8, ("needs 9 GPUs", "Ray has 0 and may have 8", "accepted: up to 8")),
        ("", "GPU", 0, 0, ("needs 1 GPUs", "Ray has 0;", "set training.device to cpu")),
    ],
)
def test_a_trial_must_fit_into_the_machines_that_may_come(
    ray_session, tmp_path, monkeypatch, text, resource, there, most, facts
) -> None:
    (tmp_path / "bootstrap.yaml").write_text(text)
    monkeypatch.setattr(nodes, "BOOTSTRAP", tmp_path / "bootstrap.yaml")
    nodes.check_resources("tune.x", resource, most, there)
    with refusal(ConfigError, "tune.x: a trial", *facts):
        nodes.check_resources("tune.x", resource, most + 1, there)


def test_a_single_node_is_not_queried_and_answers_with_its_release(ray_session, tmp_path, monkeypatch) -> None:
    (node,) = nodes.live_nodes()
    assert nodes._query([node], None) == [{"release": nodes.release(), "sees": False}]
    monkeypatch.setattr(nodes, "_query", lambda *_: pytest.fail("queried"))
    nodes.check_nodes(tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_missing_cluster_gives_one_line(capsys, monkeypatch) -> None:
    monkeypatch.setattr(nodes, "start_ray", lambda: (_ for _ in ()).throw(ConfigError("RAY_ADDRESS: no")))
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert nodes.main([]) == 2
    assert capsys.readouterr().err == "error: RAY_ADDRESS: no\n"


def test_the_samples_are_pickled_without_images_and_restored(ray_session) -> None:
    scenario = Scenario.build(small_config())
    source = ray.put(scenario.dataset)
    data = scenario.device_data()
    shared = replace(scenario, share=partial(share, source)).device_data()
    restored = ray.get(ray.put(shared))
    for field in fields(DeviceData):
        np.testing.assert_array_equal(getattr(restored, field.name), getattr(data, field.name))
        np.testing.assert_array_equal(getattr(shared, field.name), getattr(data, field.name))
    _, parts = shared.__reduce__()
    assert parts[0] is source
    assert sum(len(pickle.dumps(part)) for part in parts[1:]) < data.x.nbytes / 10


def test_crops_of_images_are_not_shared() -> None:
    """Algorithm 2 trains on crops of the images, which are not in the data set."""

    def refuse(data: DeviceData) -> DeviceData:
        raise AssertionError("shared")

    scenario = replace(Scenario.build(small_config()), share=refuse)
    crops = np.zeros((len(scenario.dataset.x_train), 1, 10, 10), np.uint8)
    assert scenario.device_data(crops).x is crops


def test_checkpoints_of_hflray_0_1_and_0_2_are_saved_by_their_step_and_damaged_ones_are_left_out(tmp_path) -> None:
    folder: Any = SimpleNamespace(path=tmp_path, place=str(tmp_path))
    contents = {
        "checkpoint_000000": ("state/state.json", {"round": 3}),
        "checkpoint_000001": ("state/state.json", {"round": 4}),
        "checkpoint_000002": ("state/state.json", {}),
        "checkpoint_000003": ("training/training.json", {"env_steps": 9000}),
    }
    for name, (file, content) in contents.items():
        path: Path = tmp_path / "t" / name / file
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    adopt_older(folder, "t")
    saved = Checkpoints(str(tmp_path), "t")
    assert saved.rounds() == [9000, 4]
    with saved.open(4) as opened:
        assert json.loads((opened / "state" / "state.json").read_text()) == {"round": 4}
    saved.save(9001, lambda scratch: None)
    adopt_older(folder, "t")  # those of today are not replaced
    assert saved.rounds() == [9001, 9000]
    adopt_older(folder, "another")


def test_a_trial_saves_the_round_in_which_a_stop_is_asked_and_goes_on_from_there(
    ray_session, tmp_path, monkeypatch
) -> None:
    """Checkpoints are due only every 100 rounds, and at the end."""
    monkeypatch.setenv("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")  # the trial sets it
    file = load_sweep(None, [*SMALL, "max_rounds=4", "training.backend=serial", "checkpoint.every=100"])
    shared = SharedSettings("s", file.model_dump(mode="json", exclude_unset=True), str(tmp_path), {})
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(ray.tune, "report", reports.append)
    monkeypatch.setattr(trial_module, "stop_requested", lambda place: len(reports) == 1)
    run_trial(parameters("t", {}), shared, {})
    assert [(report["round"], report["saved"]) for report in reports] == [(1, False), (2, True), (3, False), (4, True)]
    hashes = [report["model_hash"] for report in reports]
    again = parameters("t", {})
    again[TRIAL][LAST] = 3  # the checkpoint of round 4 is ahead of the journal
    reports.clear()
    run_trial(again, shared, {})
    assert [report["round"] for report in reports] == [3, 4]
    assert [report["model_hash"] for report in reports] == hashes[2:]
