"""hflray.training.local: equation (1) against plain torch, the mini-batches, and the place named in errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hflray.errors import DivergedError, HflrayError
from hflray.models import build_model, init_vector, load_vector, to_vector
from hflray.problem import Problem
from hflray.seeding import stream
from hflray.training.aggregate import fraction_bits, mean
from hflray.training.local import EVALUATION_BATCH, DeviceData, DeviceHost, EdgeTask, LocalJob, _batches
from hflray.training.native import compiler

SHAPE = (1, 16, 16)


def make_data(sizes: tuple[int, ...] = (7, 5, 3), tests: int = 11) -> DeviceData:
    rng = np.random.default_rng(0)
    n = sum(sizes)
    return DeviceData(
        x=rng.integers(0, 256, (n, *SHAPE), dtype=np.uint8),
        y=rng.integers(0, 3, n),
        index=rng.permutation(n),
        offsets=np.cumsum((0, *sizes)),
        x_test=rng.integers(0, 256, (tests, *SHAPE), dtype=np.uint8),
        y_test=rng.integers(0, 3, tests),
        channel_mean=np.float32([0.5]),
        channel_std=np.float32([0.25]),
    )


def make_job(**changes) -> LocalJob:
    return dataclasses.replace(LocalJob(Problem(SHAPE, 3), seed=1, local_iterations=2, batch_size=4), **changes)


@pytest.fixture
def start() -> np.ndarray:
    return init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))


def reference_sgd(vector: np.ndarray, data: DeviceData, device: int, batches, rate: float) -> np.ndarray:
    """Do the same training in a dozen lines of ordinary PyTorch; return the parameters."""
    model = build_model("hfl", SHAPE, 3)
    load_vector(model, vector)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    index = data.samples_of(device)
    x = (torch.tensor(data.x[index]).float() / 255 - 0.5) / 0.25
    y = torch.tensor(data.y[index])
    for batch in batches:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
    return to_vector(model)


@pytest.mark.parametrize("kind", ["epoch", "full_batch", "step"])
def test_a_device_is_trained_by_equation_1(kind, start) -> None:
    data, job = make_data(), make_job(local_iteration=kind)
    batches = list(_batches(7, job, stream(1, "batches", 4, 2, 0)))
    expected = reference_sgd(start, data, 0, batches, job.learning_rate)
    bits = fraction_bits(7)
    (total,) = DeviceHost(job, data).train(EdgeTask(4, 2, bits, ((0,),)), start)
    assert not np.allclose(expected, start, atol=1e-4)
    np.testing.assert_allclose(mean(total, 7, bits), expected, rtol=1e-5, atol=1e-6)


def test_batches_of_each_kind_of_local_iteration() -> None:
    def sizes(kind: str, samples: int) -> list[int]:
        return [len(b) for b in _batches(samples, make_job(local_iteration=kind), np.random.default_rng(0))]

    assert sizes("epoch", 10) == [4, 4, 2, 4, 4, 2]
    assert sizes("full_batch", 10) == [10, 10]
    assert sizes("step", 10) == [4, 4]
    assert sizes("step", 3) == [3, 3]  # if a batch exceeds the device's data, it holds all of them
    assert sizes("epoch", 1) == [1, 1]
    epoch = list(_batches(10, make_job(local_iterations=1), np.random.default_rng(0)))
    assert sorted(np.concatenate(epoch)) == list(range(10))


def test_partial_sums_are_per_edge_and_in_the_order_of_the_edges(start) -> None:
    data, job = make_data(), make_job()
    host, bits = DeviceHost(job, data), fraction_bits(15)
    both = host.train(EdgeTask(1, 0, bits, ((0, 2), (1,))), start, start)
    alone = [host.train(EdgeTask(1, 0, bits, ((d,),)), start)[0] for d in (0, 1, 2)]
    np.testing.assert_array_equal(both[0], alone[0] + alone[2])
    np.testing.assert_array_equal(both[1], alone[1])


def test_mini_batch_order_depends_on_round_edge_iteration_and_device(start) -> None:
    host, bits = DeviceHost(make_job(), make_data()), fraction_bits(7)
    results = [host.train(EdgeTask(r, q, bits, ((0,),)), start)[0].tobytes() for r, q in [(1, 0), (1, 1), (2, 0)]]
    assert len(set(results)) == 3
    assert results[0] == host.train(EdgeTask(1, 0, bits, ((0,),)), start)[0].tobytes()


def test_auxiliary_models_are_trained_one_by_one(start) -> None:
    data, job = make_data(), make_job()
    models = DeviceHost(job, data).train_each(start, [2, 0])
    expected = reference_sgd(start, data, 2, _batches(3, job, stream(1, "batches", 0, 0, 2)), job.learning_rate)
    assert models.shape == (2, len(start))
    np.testing.assert_allclose(models[0], expected, rtol=1e-5, atol=1e-6)


def test_evaluation_by_shards_covers_the_test_set_once(start) -> None:
    data = make_data(tests=2 * EVALUATION_BATCH + 5)
    host = DeviceHost(make_job(), data)
    shards = host.evaluate(start, [0, 1, 2])
    model = build_model("hfl", SHAPE, 3)
    load_vector(model, start)
    with torch.no_grad():
        scores = model((torch.tensor(data.x_test).float() / 255 - 0.5) / 0.25)
    labels = torch.tensor(data.y_test)
    assert sum(correct for correct, _ in shards) == int((scores.argmax(1) == labels).sum())
    loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
    assert sum(loss for _, loss in shards) == pytest.approx(float(loss), rel=1e-5)
    assert host.evaluate(start, [2]) == [shards[2]]


def test_divergence_names_round_edge_iteration_and_device(start) -> None:
    host = DeviceHost(make_job(learning_rate=1e30), make_data())
    with pytest.raises(DivergedError, match=r"round 3, edge iteration 1, device 2: .*learning_rate"):
        host.train(EdgeTask(3, 1, fraction_bits(3), ((2,),)), start)


def test_an_empty_device_is_refused_by_name(start) -> None:
    host = DeviceHost(make_job(), make_data(sizes=(4, 0)))
    with pytest.raises(HflrayError, match=r"round 1, edge iteration 0, device 1: .*no samples"):
        host.train(EdgeTask(1, 0, fraction_bits(4), ((1,),)), start)


def test_the_callers_thread_count_is_left_as_it_was(start) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        DeviceHost(make_job(threads=1), make_data()).train(EdgeTask(1, 0, fraction_bits(3), ((2,),)), start)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kernel", ["eager", "channels_last", "native", "batched"])
def test_awkward_devices_are_trained(kernel, start) -> None:
    """The devices have one sample, fewer samples than a batch, and a last batch of one sample."""
    if kernel == "native" and compiler() is None:
        pytest.skip("no C compiler")
    data, job = make_data(sizes=(1, 3, 5)), make_job(kernel=kernel)
    for device in (0, 1, 2):
        batches = list(_batches((1, 3, 5)[device], job, stream(1, "batches", 0, 0, device)))
        expected = reference_sgd(start, data, device, batches, job.learning_rate)
        (model,) = DeviceHost(job, data).train_each(start, [device])
        np.testing.assert_allclose(model, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kernel", ["eager", "channels_last", "native", "batched"])
@pytest.mark.parametrize("bad", ["images of another shape", "labels beyond the classes", "an empty device"])
def test_an_error_in_training_names_its_place(kernel, bad, start) -> None:
    if kernel == "native" and compiler() is None:
        pytest.skip("no C compiler")
    data = make_data(sizes=(4, 0)) if bad == "an empty device" else make_data(sizes=(4, 4))
    if bad == "images of another shape":
        data = dataclasses.replace(data, x=np.zeros((8, 1, 10, 10), np.uint8))
    if bad == "labels beyond the classes":
        data = dataclasses.replace(data, y=data.y + 3)
    with pytest.raises(HflrayError, match=r"round 5, edge iteration 1, device 1: "):
        DeviceHost(make_job(kernel=kernel), data).train(EdgeTask(5, 1, fraction_bits(8), ((1,),)), start)


@pytest.mark.parametrize("kernel", ["eager", "channels_last", "batched"])
@pytest.mark.parametrize("error", [RuntimeError, AssertionError, TypeError])
def test_a_model_whose_forward_fails_names_its_place(kernel, error, start, monkeypatch) -> None:
    host = DeviceHost(make_job(kernel=kernel), make_data())
    module = (host._batched or host._kernel)._module

    def forward(images: torch.Tensor) -> torch.Tensor:
        raise error("no such layer")

    monkeypatch.setattr(module, "forward", forward)
    with pytest.raises(HflrayError, match=rf"round 2, edge iteration 3, device 1: {error.__name__}: no such layer"):
        host.train(EdgeTask(2, 3, fraction_bits(5), ((1,),)), start)


def test_labels_that_have_no_class_are_refused_before_a_step(start) -> None:
    """A GPU would only report a failed assertion, and the process could no longer use it."""
    data = make_data()
    data = dataclasses.replace(data, y=data.y - 1)
    with pytest.raises(HflrayError, match=r"device 0: the device's labels go from -1 to 1; accepted: 0 to 2"):
        DeviceHost(make_job(kernel="batched"), data).train(EdgeTask(1, 0, fraction_bits(15), ((0, 1, 2),)), start)
