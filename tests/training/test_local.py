"""hflray.training.local: equation (1) against plain torch, the mini-batches, and the place named in errors."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import torch

from hflray.aggregation.fixed_point import fraction_bits, mean
from hflray.errors import ConfigError, DivergedError, HflrayError
from hflray.models import build, initial_vector
from hflray.models.paper import init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.models.vector import load_vector, num_parameters, to_vector
from hflray.registry import register
from hflray.seeding import stream
from hflray.support import references
from hflray.support.native import compiler
from hflray.training.job import EVALUATION_BATCH, DeviceData, LocalJob, batches_of
from hflray.training.local import DeviceHost
from tests.models.samples import build_model
from tests.training.rounds import sums

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


@pytest.mark.parametrize("kernel", ["eager", "channels_last", "fused", "batched"])
@pytest.mark.parametrize("kind", ["epoch", "full_batch", "step"])
def test_a_device_is_trained_by_equation_1(kind, kernel, start) -> None:
    """Also one of a single sample, one of fewer samples than a batch, and one whose last batch has one sample."""
    if kernel == "fused" and compiler() is None:
        pytest.skip("no C compiler")
    sizes = (7, 1, 3, 5)
    data, job = make_data(sizes), make_job(local_iteration=kind, kernel=kernel)
    host = DeviceHost(job, data)
    for device, size in enumerate(sizes):
        batches = list(batches_of(size, job, stream(1, "batches", 4, 2, device)))
        expected = reference_sgd(start, data, device, batches, job.learning_rate)
        (total,) = sums(host, 4, 2, fraction_bits(size), ((device,),), start)
        assert not np.allclose(expected, start, atol=1e-4)
        np.testing.assert_allclose(mean(total, size, fraction_bits(size)), expected, rtol=1e-4, atol=1e-6)


def test_batches_of_each_kind_of_local_iteration() -> None:
    def sizes(kind: str, samples: int) -> list[int]:
        return [len(b) for b in batches_of(samples, make_job(local_iteration=kind), np.random.default_rng(0))]

    assert sizes("epoch", 10) == [4, 4, 2, 4, 4, 2]
    assert sizes("full_batch", 10) == [10, 10]
    assert sizes("step", 10) == [4, 4]
    assert sizes("step", 3) == [3, 3]  # if a batch exceeds the device's data, it holds all of them
    assert sizes("epoch", 1) == [1, 1]
    epoch = list(batches_of(10, make_job(local_iterations=1), np.random.default_rng(0)))
    assert sorted(np.concatenate(epoch)) == list(range(10))


def test_partial_sums_are_per_edge_and_in_the_order_of_the_edges(start) -> None:
    data, job = make_data(), make_job()
    host, bits = DeviceHost(job, data), fraction_bits(15)
    both = sums(host, 1, 0, bits, ((0, 2), (1,)), start, start)
    alone = [sums(host, 1, 0, bits, ((d,),), start)[0] for d in (0, 1, 2)]
    np.testing.assert_array_equal(both[0], alone[0] + alone[2])
    np.testing.assert_array_equal(both[1], alone[1])


def test_mini_batch_order_depends_on_round_edge_iteration_and_device(start) -> None:
    host, bits = DeviceHost(make_job(), make_data()), fraction_bits(7)
    results = [sums(host, r, q, bits, ((0,),), start)[0].tobytes() for r, q in [(1, 0), (1, 1), (2, 0)]]
    assert len(set(results)) == 3
    assert results[0] == sums(host, 1, 0, bits, ((0,),), start)[0].tobytes()


def test_auxiliary_models_are_trained_one_by_one(start) -> None:
    data, job = make_data(), make_job()
    models = DeviceHost(job, data).train_each(start, [2, 0])
    expected = reference_sgd(start, data, 2, batches_of(3, job, stream(1, "batches", 0, 0, 2)), job.learning_rate)
    assert models.shape == (2, len(start))
    np.testing.assert_allclose(models[0], expected, rtol=1e-5, atol=1e-6)


def test_evaluation_by_shards_covers_the_test_set_once(start) -> None:
    data = make_data(tests=2 * EVALUATION_BATCH + 5)
    host = DeviceHost(make_job(), data)
    shards = host.evaluate(start, [0, 1, 2]).sums
    model = build_model("hfl", SHAPE, 3)
    load_vector(model, start)
    with torch.no_grad():
        scores = model((torch.tensor(data.x_test).float() / 255 - 0.5) / 0.25)
    labels = torch.tensor(data.y_test)
    assert sum(correct for correct, _ in shards) == int((scores.argmax(1) == labels).sum())
    loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
    assert sum(loss for _, loss in shards) == pytest.approx(float(loss), rel=1e-5)
    assert host.evaluate(start, [2]).sums == [shards[2]]


def test_divergence_names_round_edge_iteration_and_device(start) -> None:
    host = DeviceHost(make_job(learning_rate=1e30), make_data())
    with pytest.raises(DivergedError, match=r"round 3, edge iteration 1, device 2: .*learning_rate"):
        sums(host, 3, 1, fraction_bits(3), ((2,),), start)


def test_the_callers_thread_count_is_left_as_it_was(start) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sums(DeviceHost(make_job(threads=1), make_data()), 1, 0, fraction_bits(3), ((2,),), start)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kernel", ["eager", "channels_last", "fused", "batched"])
@pytest.mark.parametrize("bad", ["images of another shape", "labels beyond the classes", "an empty device"])
def test_an_error_in_training_names_its_place(kernel, bad, start) -> None:
    if kernel == "fused" and compiler() is None:
        pytest.skip("no C compiler")
    data = make_data(sizes=(4, 0)) if bad == "an empty device" else make_data(sizes=(4, 4))
    if bad == "images of another shape":
        data = dataclasses.replace(data, x=np.zeros((8, 1, 10, 10), np.uint8))
    if bad == "labels beyond the classes":
        data = dataclasses.replace(data, y=data.y + 3)
    with pytest.raises(HflrayError, match=r"round 5, edge iteration 1, device 1: "):
        sums(DeviceHost(make_job(kernel=kernel), data), 5, 1, fraction_bits(8), ((1,),), start)


@pytest.mark.parametrize(
    "kernel, error", [("eager", AssertionError), ("channels_last", TypeError), ("batched", RuntimeError)]
)
def test_a_model_whose_forward_fails_names_its_place(kernel, error, start, monkeypatch) -> None:
    host = DeviceHost(make_job(kernel=kernel), make_data())
    module = host._kernel._module

    def forward(images: torch.Tensor) -> torch.Tensor:
        raise error("no such layer")

    monkeypatch.setattr(module, "forward", forward)
    with pytest.raises(HflrayError, match=rf"round 2, edge iteration 3, device 1: {error.__name__}: no such layer"):
        sums(host, 2, 3, fraction_bits(5), ((1,),), start)


def test_an_error_in_a_users_network_shows_the_users_line(tmp_path, start) -> None:
    text = "def net(input_shape, num_outputs):\n    from torch import nn\n    class Net(nn.Linear):\n"
    text += "        def forward(self, images):\n            return images.no_such_thing\n"
    (tmp_path / "own.py").write_text(text + "    return Net(4, num_outputs)\n")
    problem = Problem(SHAPE, 3, model=ModelSpec(references.pin("own.py:net", tmp_path)))
    host = DeviceHost(make_job(problem=problem, kernel="eager"), make_data())
    with pytest.raises(HflrayError) as error:
        sums(host, 2, 3, fraction_bits(5), ((1,),), start[:15])
    where = "round 2, edge iteration 3, device 1: own.py:5: AttributeError: "
    assert str(error.value) == f"{where}'Tensor' object has no attribute 'no_such_thing'"


def test_labels_that_have_no_class_are_refused_before_a_step(start) -> None:
    """A GPU would only report a failed assertion, and the process could no longer use it."""
    data = make_data()
    data = dataclasses.replace(data, y=data.y - 1)
    with pytest.raises(HflrayError, match=r"device 0: the device's labels go from -1 to 1; accepted: 0 to 2"):
        sums(DeviceHost(make_job(kernel="batched"), data), 1, 0, fraction_bits(15), ((0, 1, 2),), start)


IMAGES = (3, 8, 8)


def network_job(model: ModelSpec, **changes) -> LocalJob:
    problem = Problem(IMAGES, 3, model=model, buffers=changes.pop("buffers", "average"))
    return make_job(problem=problem, learning_rate=0.05, **{"kernel": "eager"} | changes)


def colour_data(sizes: tuple[int, ...] = (8, 7, 4)) -> DeviceData:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (sum(sizes) + 11, *IMAGES), dtype=np.uint8)
    grey = dict.fromkeys(("channel_mean", "channel_std"), np.full(3, 0.5, np.float32))
    return dataclasses.replace(make_data(sizes), x=images[: sum(sizes)], x_test=images[sum(sizes) :], **grey)


def plain_training(job: LocalJob, data: DeviceData, start: np.ndarray, device: int) -> torch.nn.Module:
    """Train in ordinary PyTorch, in train mode; return the network in evaluation mode."""
    module = build(job.problem, job.seed)
    load_vector(module, start)
    optimiser = torch.optim.SGD(module.parameters(), lr=job.learning_rate)
    index = data.samples_of(device)
    x, y = (torch.tensor(data.x[index]).float() / 255 - 0.5) / 0.5, torch.tensor(data.y[index])
    module.train()
    for batch in batches_of(len(index), job, stream(job.seed, "batches", 0, 0, device)):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimiser.step()
    return module.eval()


def test_statistics_are_trained_in_train_mode_sent_and_used_in_evaluation() -> None:
    job, data = network_job(ModelSpec.of("resnet8", {"norm": "batch"})), colour_data()
    start, host = initial_vector(job.problem, 1), DeviceHost(job, data)
    (trained,) = host.train_each(start, [0])
    plain = plain_training(job, data, start, 0)
    np.testing.assert_allclose(trained, to_vector(plain), rtol=1e-4, atol=1e-5)
    assert np.abs(trained[-672:] - start[-672:]).max() > 0.01  # the statistics have moved
    ((_, loss),) = host.evaluate(trained, [0]).sums
    x = (torch.tensor(data.x_test).float() / 255 - 0.5) / 0.5
    expected = torch.nn.functional.cross_entropy(plain(x), torch.tensor(data.y_test), reduction="sum")
    assert loss == pytest.approx(expected.item(), rel=1e-3)
    np.testing.assert_array_equal(host.train_each(start, [0])[0], trained)  # evaluation leaves nothing behind


def test_integer_buffers_start_anew_at_each_local_training() -> None:
    job, data = network_job(ModelSpec.of("resnet8", {"norm": "batch"})), colour_data()
    host, start = DeviceHost(job, data), initial_vector(job.problem, 1)
    for _ in range(2):
        host.train_each(start, [0])
        counters = [buffer.item() for buffer in host._kernel._module.buffers() if not buffer.is_floating_point()]
        assert set(counters) == {4}  # the steps of one local training: two passes of two batches


@pytest.mark.parametrize("kernel", ["eager", "fused"])
def test_a_dropout_layer_draws_from_the_devices_stream(kernel: str) -> None:
    """The bits do not depend on which devices a host has trained before, and devices draw different numbers."""
    if kernel == "fused" and compiler() is None:
        pytest.skip("no C compiler")
    data = dataclasses.replace(colour_data(), index=np.tile(np.arange(4), 3), offsets=np.array([0, 4, 8, 12]))
    model = ModelSpec.of("mlp", {"hidden": [32], "dropout": 0.5})
    job = network_job(model, kernel=kernel, local_iteration="full_batch")
    start, before = initial_vector(job.problem, 1), torch.get_rng_state()
    together = DeviceHost(job, data).train_each(start, [0, 1, 2])
    alone = [DeviceHost(job, data).train_each(start, [device])[0] for device in (2, 1, 0)]
    np.testing.assert_array_equal(together, alone[::-1])
    assert not np.array_equal(together[0], together[1])  # the same samples, in the same order
    assert torch.equal(torch.get_rng_state(), before)
    host = DeviceHost(job, data)
    assert host.evaluate(start, [0]) == host.evaluate(start, [0])  # nothing is dropped in evaluation


def test_without_local_statistics_nothing_of_a_batch_is_sent() -> None:
    job = network_job(ModelSpec.of("resnet8", {"norm": "batch"}), buffers="local")
    data, start = colour_data(), initial_vector(job.problem, 1)
    (trained,) = DeviceHost(job, data).train_each(start, [1])
    np.testing.assert_allclose(trained, to_vector(plain_training(job, data, start, 1)), rtol=1e-4, atol=1e-5)
    assert len(trained) == num_parameters(build(job.problem))


class Partly(torch.nn.Module):
    """A frozen layer, a shared weight, and a layer that no output uses."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.frozen, self.unused = torch.nn.Linear(192, num_outputs), torch.nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.shared, self.again = (torch.nn.Linear(num_outputs, num_outputs, bias=False) for _ in range(2))
        self.again.weight = self.shared.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.again(torch.tanh(self.shared(self.frozen(x.flatten(1)))))
        return scores


def test_frozen_shared_and_unused_parameters_train_as_in_plain_torch() -> None:
    with contextlib.suppress(ConfigError):
        register("model", "partly", Partly)
    job, data = network_job(ModelSpec("partly")), colour_data()
    start = initial_vector(job.problem, 1)
    assert len(start) == 6 + 9
    (trained,) = DeviceHost(job, data).train_each(start, [0])
    np.testing.assert_allclose(trained, to_vector(plain_training(job, data, start, 0)), rtol=1e-5, atol=1e-7)
    assert np.array_equal(trained[:6], start[:6])
    assert not np.array_equal(trained[6:], start[6:])
