"""hflray.training.batched: many devices at once are each trained as alone. On CPU tensors, with the code of the GPU."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from hflray.errors import HflrayError
from hflray.models import build_model, init_vector
from hflray.seeding import stream
from hflray.training.aggregate import fraction_bits, mean
from hflray.training.hierarchy import SerialHierarchy
from hflray.training.local import DeviceHost, EdgeTask
from tests.training.test_local import SHAPE, make_data, make_job

SIZES = (9, 1, 5, 12)


@pytest.fixture
def start() -> np.ndarray:
    return init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))


def relative(found: np.ndarray, expected: np.ndarray, start: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected - start))


@pytest.mark.parametrize("kind", ["epoch", "full_batch", "step"])
def test_devices_trained_together_are_trained_as_alone(kind, start) -> None:
    """Unequal D_n, a device with one sample, and another start at each edge."""
    data, task = make_data(SIZES), EdgeTask(3, 1, fraction_bits(27), ((0, 1), (2, 3)))
    other = (start * 1.1).astype(np.float32)
    results = {}
    for kernel in ("eager", "batched"):
        job = make_job(kernel=kernel, local_iteration=kind, learning_rate=0.05)
        results[kernel] = DeviceHost(job, data).train(task, start, other)
    for samples, begin, alone, together in zip((10, 17), (start, other), *results.values(), strict=True):
        expected, found = mean(alone, samples, task.fraction_bits), mean(together, samples, task.fraction_bits)
        assert relative(found, expected, begin) < 1e-5


def test_rounds_clustering_and_evaluation_agree_with_the_serial_kernels(start) -> None:
    data, devices, edges = make_data(SIZES), np.array([0, 1, 3]), np.array([1, 0, 1])
    models, scores, each = [], [], []
    for kernel in ("channels_last", "batched"):
        job = make_job(kernel=kernel)
        backend = SerialHierarchy(job, data, edge_iterations=2)
        models.append(backend.train_round(1, start, devices, edges))
        scores.append(backend.evaluate(start))
        each.append(backend.train_each(job, data, start))
    assert relative(models[1], models[0], start) < 1e-5
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)
    assert relative(each[1], each[0], start) < 1e-5


class Small:
    """A memory that holds the training of so many devices."""

    def __init__(self, host: DeviceHost, holds: int) -> None:
        self._fit, self._holds = host._batched._fit, holds
        self.tried: list[int] = []
        host._batched._fit = self

    def __call__(self, starts, data, batches):
        self.tried.append(len(starts))
        if len(starts) > self._holds:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 1 TiB")
        return self._fit(starts, data, batches)


def test_out_of_memory_splits_the_devices_with_one_warning(start, caplog) -> None:
    data, task = make_data((3,) * 7), EdgeTask(1, 0, fraction_bits(21), (tuple(range(7)),))
    expected = DeviceHost(make_job(kernel="batched"), data).train(task, start)
    host = DeviceHost(make_job(kernel="batched"), data)
    small = Small(host, holds=2)
    with caplog.at_level(logging.WARNING):
        found = host.train(task, start)
        again = host.train(task, start)
    assert small.tried == [7, 3, 1, *[1] * 6, *[1] * 7]
    assert len(caplog.records) == 1
    assert relative(mean(found[0], 21, 30), mean(expected[0], 21, 30), start) < 1e-5
    np.testing.assert_array_equal(found[0], again[0])


def test_a_device_that_does_not_fit_is_refused_with_its_place(start) -> None:
    host = DeviceHost(make_job(kernel="batched"), make_data())
    Small(host, holds=0)
    with pytest.raises(HflrayError, match=r"round 4, edge iteration 2, device.*does not hold.*training.batch_size"):
        host.train(EdgeTask(4, 2, fraction_bits(15), ((0, 1), (2,))), start, start)


@pytest.mark.gpu
def test_a_gpu_trains_as_the_cpu_does(start) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    data, task = make_data(SIZES), EdgeTask(1, 0, fraction_bits(27), ((0, 1, 2, 3),))
    (cpu,) = DeviceHost(make_job(), data).train(task, start)
    (gpu,) = DeviceHost(make_job(kernel="batched", device="cuda"), data).train(task, start)
    assert relative(mean(gpu, 27, task.fraction_bits), mean(cpu, 27, task.fraction_bits), start) < 1e-3
