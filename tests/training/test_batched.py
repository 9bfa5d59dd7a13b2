"""hflray.training.batched: devices that train together get the models of separate training.

Unless marked `gpu`, the tests run the code of the GPU on CPU tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from hflray.aggregation.fixed_point import fraction_bits, mean
from hflray.errors import HflrayError
from hflray.models.paper import init_vector
from hflray.seeding import stream
from hflray.training import batched
from hflray.training.batched import Group, rounded_up
from hflray.training.local import DeviceHost
from tests.conftest import says
from tests.models.samples import build_model
from tests.training.rounds import exact_sums, serial_rounds, sums, task_of
from tests.training.test_local import SHAPE, make_data, make_job

SIZES = (9, 1, 5, 12)


@pytest.fixture
def start() -> np.ndarray:
    return init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))


def relative(vector: np.ndarray, expected: np.ndarray, start: np.ndarray) -> float:
    return float(np.linalg.norm(vector - expected) / np.linalg.norm(expected - start))


@pytest.mark.parametrize("kind", ["epoch", "full_batch", "step"])
def test_devices_trained_together_get_the_models_of_separate_training(kind, start) -> None:
    """The D_n are unequal, one device has a single sample, and each edge starts from a different model."""
    data, task = make_data(SIZES), task_of(3, 1, fraction_bits(27), ((0, 1), (2, 3)))
    other = (start * 1.1).astype(np.float32)
    results = {}
    for kernel in ("eager", "batched"):
        job = make_job(kernel=kernel, local_iteration=kind, learning_rate=0.05)
        results[kernel] = exact_sums(DeviceHost(job, data), task, start, other)
    for samples, begin, alone, together in zip((10, 17), (start, other), *results.values(), strict=True):
        expected, model = (mean(alone, samples, fraction_bits(27)), mean(together, samples, fraction_bits(27)))
        assert relative(model, expected, begin) < 1e-5


def test_rounds_clustering_and_evaluation_agree_with_the_serial_kernels(start) -> None:
    data, devices, edges = make_data(SIZES), np.array([0, 1, 3]), np.array([1, 0, 1])
    models, scores, each = [], [], []
    for kernel in ("channels_last", "batched"):
        job = make_job(kernel=kernel)
        backend = serial_rounds(job, data, 2)
        models.append(backend.train_round(1, start, devices, edges))
        scores.append(backend.evaluate(start))
        each.append(backend.train_each(job, data, start))
    assert relative(models[1], models[0], start) < 1e-5
    assert scores[1][:2] == pytest.approx(scores[0][:2], rel=1e-5)
    assert relative(each[1], each[0], start) < 1e-5


class Small:
    """A memory that holds the training of at most `holds` devices."""

    def __init__(self, host: DeviceHost, holds: int) -> None:
        self._fit, self._holds = host._kernel._fit, holds
        self.tried: list[int] = []
        host._kernel._fit = self

    def __call__(self, starts, batches, stepping):
        self.tried.append(len(starts))
        if len(starts) > self._holds:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 1 TiB")
        return self._fit(starts, batches, stepping)


def test_out_of_memory_splits_the_devices_with_one_warning(start, caplog) -> None:
    data, task = make_data((3,) * 7), task_of(1, 0, fraction_bits(21), (tuple(range(7)),))
    expected = exact_sums(DeviceHost(make_job(kernel="batched"), data), task, start)
    host = DeviceHost(make_job(kernel="batched"), data)
    small = Small(host, holds=2)
    with caplog.at_level(logging.WARNING):
        totals = exact_sums(host, task, start)
        again = exact_sums(host, task, start)
    assert small.tried == [7, 3, 1, *[1] * 6, *[1] * 7]
    assert len(caplog.records) == 1
    assert relative(mean(totals[0], 21, 30), mean(expected[0], 21, 30), start) < 1e-5
    np.testing.assert_array_equal(totals[0], again[0])


def test_a_device_that_does_not_fit_is_refused_with_its_place(start) -> None:
    host = DeviceHost(make_job(kernel="batched"), make_data())
    Small(host, holds=0)
    with pytest.raises(HflrayError, match=r"round 4, edge iteration 2, device.*does not hold.*training.batch_size"):
        sums(host, 4, 2, fraction_bits(15), ((0, 1), (2,)), start, start)


@given(st.integers(1, 5000))
def test_shapes_become_few_and_grow_by_an_eighth_at_most(count) -> None:
    assert count <= rounded_up(count) <= count * 1.125
    assert rounded_up(rounded_up(count)) == rounded_up(count)
    assert len({rounded_up(n) for n in range(count, 2 * count)}) <= 17


def test_shapes_that_need_no_rounding() -> None:
    assert [rounded_up(n) for n in (1, 16, 17, 50, 64, 550)] == [1, 16, 18, 52, 64, 576]


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Return a stand-in for a CUDA graph: the recorded operations of one step, repeated on the same CPU tensors.

    As in a CUDA graph, a step's Python code runs once, and all but operations on the group's tensors is constant.
    """
    assert isinstance(step, partial)
    group: Group = step.args[0]
    pick, parameters = group.pick, dict(group.parameters)

    def traced(pick: torch.Tensor, *values: torch.Tensor) -> None:
        original = group.pick, group.parameters
        group.pick, group.parameters = pick, dict(zip(parameters, values, strict=True))
        step()
        group.pick, group.parameters = original

    graph = make_fx(traced)(pick.clone(), *(value.clone() for value in parameters.values()))
    captured.append(tuple(pick.shape))
    return lambda: graph(pick, *parameters.values())


captured: list[tuple[int, int]] = []


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record steps as on a GPU; return the list of recorded shapes."""
    captured.clear()
    monkeypatch.setattr(batched, "capture", recorded)
    return captured


def replaying(data, **changes) -> DeviceHost:
    host = DeviceHost(make_job(kernel="batched", learning_rate=0.05, **changes), data)
    assert host._kernel._graph is False  # a CPU does not use graphs by default
    host._kernel._graph = True
    return host


def test_replayed_steps_are_the_steps_bit_for_bit(graphs, start) -> None:
    """Groups of several sizes alternate, so that values from a graph's recording would show in later replays."""
    data = make_data((9, 1, 5, 12, *(3,) * 16))
    host, plain = replaying(data), DeviceHost(make_job(kernel="batched", learning_rate=0.05), data)
    for index, devices in enumerate([(0, 1, 2), (3,), (2, 0, 1), tuple(range(17)), tuple(range(2, 20))]):
        task = task_of(index, 0, fraction_bits(100), (devices,))
        (ours,), (expected,) = exact_sums(host, task, start), exact_sums(plain, task, start)
        np.testing.assert_array_equal(ours, expected)
        alone = exact_sums(DeviceHost(make_job(learning_rate=0.05), data), task, start)
        count = sum(len(data.samples_of(d)) for d in devices)
        ours, alone = (mean(total, count, fraction_bits(100)) for total in (ours, *alone))
        assert relative(ours, alone, start) < 1e-5
    assert graphs == [(3, 4), (1, 4), (18, 4)]  # 17 and 18 devices share a graph; so do the first and third groups


def test_only_the_most_recent_shapes_stay_in_memory(graphs, start, monkeypatch) -> None:
    monkeypatch.setattr(batched, "KEPT_GROUPS", 2)
    host = replaying(make_data((3,) * 6))
    for count in (1, 2, 1, 3, 1, 2):
        host.train_each(start, range(count))
        assert len(host._kernel._groups) <= 2
    assert [shape[0] for shape in graphs] == [1, 2, 3, 2]  # the least recently used shape is dropped


@pytest.mark.parametrize("faster", [True, False])
def test_a_graph_is_used_where_it_is_faster(graphs, start, monkeypatch, faster) -> None:
    timed = []
    monkeypatch.setattr(batched, "_faster", lambda *runs: (timed.append(len(runs)), faster)[1])
    host = replaying(make_data())
    host._kernel._graph = None
    expected = DeviceHost(make_job(kernel="batched", learning_rate=0.05), make_data()).train_each(start, (0, 1))
    np.testing.assert_array_equal(host.train_each(start, (0, 1)), expected)
    host.train_each(start, (0, 1, 2))
    assert timed == [2]  # once
    assert host._kernel._graph is faster
    assert len(graphs) == (2 if faster else 1)


def test_timing_takes_the_best_of_each() -> None:
    def slow() -> None:
        float(torch.ones(200_000).sum())

    assert batched._faster(lambda: None, slow)
    assert not batched._faster(slow, lambda: None)


def test_without_graphs_steps_are_issued_one_by_one_with_one_warning(start, monkeypatch, caplog) -> None:
    def refuse(step) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(batched, "capture", refuse)
    host = replaying(make_data())
    expected = DeviceHost(make_job(kernel="batched", learning_rate=0.05), make_data()).train_each(start, (0, 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            np.testing.assert_array_equal(host.train_each(start, (0, 1)), expected)
        host.train_each(start, (2,))
    (record,) = caplog.records
    assert says(record.getMessage(), "CUDA graph", "(CUDA error: operation not permitted when stream is capturing)")


def test_a_graph_that_does_not_fit_splits_the_devices(start, monkeypatch, caplog) -> None:
    def small(step):
        if step.args[0].pick.shape[0] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return recorded(step)

    monkeypatch.setattr(batched, "capture", small)
    host = replaying(make_data((3,) * 5))
    expected = DeviceHost(make_job(kernel="batched", learning_rate=0.05), make_data((3,) * 5)).train_each(
        start, range(5)
    )
    with caplog.at_level(logging.WARNING):
        models = host.train_each(start, range(5))
    assert relative(models, expected, start) < 1e-5
    assert len(caplog.records) == 1


def test_memory_of_other_shapes_is_released_before_devices_are_split(graphs, start, caplog) -> None:
    data = make_data((3,) * 6)
    host = replaying(data)
    trainer, group_counts = host._kernel, []
    group = trainer._group

    def full(count: int, width: int) -> Group:
        new_group = group(count, width)
        group_counts.append(len(trainer._groups))
        if len(trainer._groups) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return new_group

    trainer._group = full
    with caplog.at_level(logging.WARNING):
        for count in (1, 2, 3):
            host.train_each(start, range(count))
    assert group_counts == [1, 2, 3, 1]
    assert caplog.records == []
    assert trainer._max_group is None


def needs_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_graph_on_a_gpu_gives_the_bits_of_plain_steps(start, precision) -> None:
    needs_gpu()
    data, models = make_data(SIZES), []
    for graph in (True, False):
        host = DeviceHost(make_job(kernel="batched", device="cuda", cuda_graph=graph, precision=precision), data)
        models.append(host.train_each(start, range(4)))
        assert bool(host._kernel._graph) is graph
        assert all((group.replay is not None) is graph for group in host._kernel._groups.values())
    np.testing.assert_array_equal(*models)


@pytest.mark.gpu
def test_a_gpu_chooses_between_graph_and_plain_steps(start) -> None:
    needs_gpu()
    host = DeviceHost(make_job(kernel="batched", device="cuda"), make_data(SIZES))
    host.train_each(start, range(4))
    assert host._kernel._graph in (True, False)


@pytest.mark.gpu
def test_a_gpu_trains_as_the_cpu_does(start) -> None:
    needs_gpu()
    data, task = make_data(SIZES), task_of(1, 0, fraction_bits(27), ((0, 1, 2, 3),))
    (cpu,) = exact_sums(DeviceHost(make_job(), data), task, start)
    (gpu,) = exact_sums(DeviceHost(make_job(kernel="batched", device="cuda"), data), task, start)
    assert relative(mean(gpu, 27, fraction_bits(27)), mean(cpu, 27, fraction_bits(27)), start) < 1e-3
