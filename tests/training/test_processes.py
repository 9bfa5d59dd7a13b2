"""hflray.training.processes: the measured number of processes on CPUs, and on a GPU that CPU tensors replace."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hflray.config import TrainingConfig
from hflray.errors import HflrayError
from hflray.models.problem import Problem
from hflray.training import processes
from hflray.training.autotune import WORTH_MEASURING, available_cpus
from hflray.training.processes import Load, gpu_load, measure_rates, useful_cpus, useful_gpu_processes
from tests.training.test_autotune import rates

SHAPE = (1, 16, 16)
PROBLEM = Problem(SHAPE, 3)
TINY = Load("batched", PROBLEM, 4, "float32", "cpu", devices=3, steps=2)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(processes, "REPEATS", 1)


def test_half_the_cpus_are_used_where_the_others_add_nothing(monkeypatch) -> None:
    monkeypatch.setattr(processes, "available_cpus", lambda: tuple(range(8)))
    config = TrainingConfig(kernel="eager", threads=1)

    def useful(changes: dict, passes: int = WORTH_MEASURING, cpus: int = 8) -> int:
        return useful_cpus(config.model_copy(update=changes), PROBLEM, passes, cpus)

    measurements = rates(monkeypatch, {"4": 100.0, "8": 102.0}, processes)
    assert useful({}) == 4
    rates(monkeypatch, {"4": 100.0, "8": 150.0}, processes)
    assert useful({}) == 8
    measurements.clear()
    assert useful({}, passes=1) == useful({"autotune": False}) == useful({"threads": 2}) == 8
    assert useful({}, cpus=1) == 1
    assert useful({}, cpus=64) == 64  # these belong to a cluster, which this machine cannot measure
    assert measurements == []


def test_the_pool_is_measured_with_processes() -> None:
    config = TrainingConfig(kernel="eager", threads=1, batch_size=4)
    assert useful_cpus(config, PROBLEM, WORTH_MEASURING, min(2, len(available_cpus()))) in (1, 2)


def test_a_gpu_gets_the_fewest_processes_with_nearly_the_best_rate(monkeypatch) -> None:
    def useful(rate_by_count: dict[str, float], load: Load = TINY) -> int:
        rates(monkeypatch, rate_by_count, processes)
        return useful_gpu_processes(load)

    assert useful({"1": 100.0, "2": 102.0, "4": 101.0}) == 1
    assert useful({"1": 100.0, "2": 180.0, "4": 185.0}) == 2
    assert useful({"1": 100.0, "2": 150.0, "4": 300.0}) == 4
    assert useful({"1": 100.0, "2": 150.0, "4": 0.0}) == 2  # the memory does not hold four


def test_the_load_for_a_gpu_holds_the_settings_that_decide_its_speed() -> None:
    config = TrainingConfig(device="cuda", batch_size=4096, precision="tf32", cuda_graph=False)
    load = gpu_load(config, PROBLEM, 25)
    assert (load.device, load.devices, load.batch_size) == ("cuda", 25, 256)
    assert (load.precision, load.cuda_graph) == ("tf32", False)
    # Settings that do not affect the speed cause no further measurement.
    assert gpu_load(config.model_copy(update={"learning_rate": 0.5}), PROBLEM, 25) == load


def test_a_measurement_with_the_batched_kernel_is_saved(monkeypatch, tmp_path) -> None:
    """Two processes run the code of the GPU on CPU tensors, each with its share of the devices."""
    monkeypatch.setattr(processes, "GPU_COUNTS", (1, 2))
    count = useful_gpu_processes(TINY)
    (path,) = (tmp_path / "hflray" / "autotune").iterdir()
    saved = json.loads(path.read_text())
    assert saved["of"]["gpu"] == "cpu"
    assert saved["of"]["load"] == {  # the key of hflray 0.1
        "kernel": "batched", "image_shape": [1, 16, 16], "num_classes": 3, "batch_size": 4, "precision": "float32",
        "device": "cpu", "devices": 3, "steps": 2, "cuda_graph": None,
    }  # fmt: skip
    assert set(saved["rates"]) == {"1", "2"}
    assert min(saved["rates"].values()) > 0
    assert count in (1, 2)
    monkeypatch.setattr(processes, "measure_rates", lambda *_: pytest.fail("measured again"))
    assert useful_gpu_processes(TINY) == count


def test_processes_that_cannot_start_are_an_error() -> None:
    with pytest.raises(HflrayError, match=r"training.num_actors: measuring the pool failed"):
        measure_rates(dataclasses.replace(TINY, problem=Problem((1, 2, 2), 3)), [1])


def test_a_gpu_that_torch_does_not_find_is_named(monkeypatch) -> None:
    monkeypatch.setattr(processes.torch.cuda, "is_available", lambda: False)
    with pytest.raises(HflrayError, match=r"torch .* finds no CUDA device on .*, which Ray says has one"):
        useful_gpu_processes(dataclasses.replace(TINY, device="cuda"))


@pytest.mark.gpu
def test_processes_on_a_real_gpu() -> None:
    if not processes.torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert useful_gpu_processes(gpu_load(TrainingConfig(device="cuda"), Problem((1, 28, 28), 10), 50)) in (1, 2, 4)
