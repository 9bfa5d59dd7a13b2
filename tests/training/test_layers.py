"""hflray.training.layers: the layers in C compute what torch's do, and what they do not know is left to torch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hflray.errors import HflrayError
from hflray.models import build
from hflray.models.problem import ModelSpec, Problem
from hflray.models.vector import to_vector
from hflray.support.native import compiler
from hflray.training.kernel_base import library
from hflray.training.kernels import build_kernel, suitable
from hflray.training.layers import replace_layers, replaceable
from tests.models.samples import random_samples

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")

GRU = Problem((7,), 11, kind="next_token", model=ModelSpec.of("gru", {"embedding": 5, "hidden": 32}), num_tokens=11)
RESNET = Problem((3, 16, 16), 4, model=ModelSpec("resnet8"))


def both(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the module, and a copy whose layers compute in C."""
    replaced = copy.deepcopy(module)
    replace_layers(replaced)
    return module, replaced


def results(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Return the outputs, and the gradients of a fixed sum of them with respect to inputs and parameters."""
    inputs = tuple(tensor.clone(memory_format=torch.preserve_format).requires_grad_() for tensor in inputs)
    found = module(*inputs)
    outputs = list(found) if isinstance(found, tuple) else [found]
    generator = torch.Generator().manual_seed(1)
    total = sum((out.float() * torch.rand(out.shape, generator=generator)).sum() for out in outputs)
    assert isinstance(total, Tensor)
    gradients = torch.autograd.grad(total, [*inputs, *module.parameters()])
    return [out.detach() for out in outputs] + list(gradients)


def check_alike(expected: list[Tensor], found: list[Tensor], tolerance: float) -> None:
    for was, now in zip(expected, found, strict=True):
        assert (was.shape, was.dtype) == (now.shape, now.dtype)
        assert (was - now).float().norm() <= tolerance * was.float().norm() + 1e-6


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("batch, inputs, hidden", [(1, 5, 16), (7, 32, 48), (64, 40, 32), (11, 16, 112)])
def test_a_gru_computes_what_torch_computes(batch_first, layers, batch, inputs, hidden) -> None:
    torch.manual_seed(0)
    plain, ours = both(nn.GRU(inputs, hidden, layers, batch_first=batch_first))
    x = torch.randn(batch, 6, inputs) if batch_first else torch.randn(6, batch, inputs)
    first = torch.randn(layers, batch, hidden)
    check_alike(results(plain, x, first), results(ours, x, first), 1e-5)
    check_alike(results(plain, x), results(ours, x), 1e-5)


@pytest.mark.parametrize("channels, groups", [(16, 8), (48, 3), (80, 80), (128, 1)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("n, side", [(1, 1), (3, 5), (8, 8)])
def test_group_normalisation_computes_what_torch_computes(channels, groups, dtype, tolerance, n, side) -> None:
    torch.manual_seed(0)
    layer = nn.GroupNorm(groups, channels)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    plain, ours = both(layer)
    x = (3 * torch.randn(n, channels, side, side + 1) + 1).to(dtype).contiguous(memory_format=torch.channels_last)
    found = results(ours, x)  # torch's sums in float32 are less exact for two pixels that are nearly equal
    exact = zip(results(plain.double(), x.double()), found, strict=True)
    check_alike([number.to(now.dtype) for number, now in exact], found, tolerance)


@pytest.mark.parametrize(
    "layer",
    [
        nn.GRU(4, 16, bidirectional=True),
        nn.GRU(4, 16, 2, dropout=0.5),
        nn.GRU(4, 16, bias=False),
        nn.GRU(4, 10),
        nn.LSTM(4, 16),
        nn.GroupNorm(4, 12),
        nn.GroupNorm(4, 16, affine=False),
        nn.BatchNorm2d(16),
    ],
)
def test_a_network_without_a_known_layer_is_refused(layer: nn.Module) -> None:
    with pytest.raises(HflrayError, match=r"'layers' computes GRUs and group normalisation.*set it to auto"):
        replace_layers(nn.Sequential(layer))


def test_inputs_that_are_not_known_are_left_to_torch() -> None:
    plain, ours = both(nn.GRU(4, 16))
    packed = nn.utils.rnn.pack_sequence([torch.randn(5, 4), torch.randn(3, 4)])
    for inputs in (packed, torch.randn(5, 4), torch.randn(5, 0, 4)):  # the second is not a batch
        torch.testing.assert_close(plain(inputs), ours(inputs), rtol=0, atol=0)
    plain, ours = both(nn.GroupNorm(4, 16))
    for inputs in (torch.randn(5, 16), torch.randn(2, 16, 5), torch.randn(2, 16, 5, 5)):
        torch.testing.assert_close(plain(inputs), ours(inputs), rtol=0, atol=0)


def test_shapes_that_do_not_fit_are_refused_by_torch() -> None:
    _, ours = both(nn.GRU(4, 16))
    with pytest.raises(RuntimeError, match="size"):
        ours(torch.randn(3, 2, 5))
    with pytest.raises(RuntimeError, match="hidden size"):
        ours(torch.randn(3, 2, 4), torch.zeros(1, 3, 16))
    _, ours = both(nn.GroupNorm(4, 16))
    with pytest.raises(RuntimeError, match="weight"):
        ours(torch.randn(2, 32, 4, 4).contiguous(memory_format=torch.channels_last))


def test_a_second_backward_pass_fails_and_does_not_lie() -> None:
    _, ours = both(nn.GRU(4, 16))
    loss = ours(torch.randn(3, 2, 4))[0].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    weights = list(ours.parameters())
    (gradient, *_) = torch.autograd.grad(ours(torch.randn(3, 2, 4))[0].sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):  # of the gradient
        torch.autograd.grad(gradient.sum(), weights)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_stay_visible(number: float) -> None:
    _, gru = both(nn.GRU(4, 16))
    _, norm = both(nn.GroupNorm(4, 16))
    sequence, images = torch.randn(3, 2, 4), torch.randn(2, 16, 4, 4).contiguous(memory_format=torch.channels_last)
    images[0, 0, 0, 0] = number
    assert not norm(images).isfinite().all()
    sequence[0, 0, 0] = float("nan")
    assert not gru(sequence)[0].isfinite().all()


@pytest.mark.parametrize("problem, plain", [(GRU, "eager"), (RESNET, "channels_last")])
@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-3), ("bf16", 0.3)])
def test_the_kernel_makes_the_steps_of_the_plain_one(problem, plain, precision, tolerance) -> None:
    rng = np.random.default_rng(0)
    start = to_vector(build(problem))
    x, y = map(torch.from_numpy, random_samples(problem, 48, rng))
    batches = [rng.permutation(48)[:size] for size in (16, 16, 5, 1)]
    ends, scores = {}, {}
    for name, each in ((plain, "float32"), ("layers", precision)):
        kernel = build_kernel(name, build(problem), problem, 0.05, each)
        kernel.load(start)
        kernel.hold(x, y)
        for batch in batches:
            kernel.step(batch)
        ends[name], scores[name] = kernel.vector(), kernel.logits(x)
    assert np.linalg.norm(ends["layers"] - ends[plain]) < tolerance * np.linalg.norm(ends[plain] - start)
    assert (scores["layers"] - scores[plain]).norm() < tolerance * scores[plain].norm()


def test_our_networks_take_the_kernel_without_a_measurement_and_others_try_it() -> None:
    assert suitable(GRU)[-1] == suitable(RESNET)[-1] == "layers"
    assert "layers" not in suitable(Problem((3, 16, 16), 4, model=ModelSpec.of("resnet8", {"norm": "batch"})))
    assert "layers" not in suitable(Problem((7,), 11, model=ModelSpec.of("gru", {"hidden": 10}), num_tokens=11))
    assert "layers" not in suitable(Problem((1, 28, 28), 10))
    assert suitable(Problem((1, 28, 28), 10, model=ModelSpec("mine.py:Net"))) == ("layers", "eager", "channels_last")
    assert not replaceable(build(Problem((1, 28, 28), 10, model=ModelSpec("lenet"))))


def test_bf16_without_its_instructions_leaves_the_normalisation_to_torch(monkeypatch) -> None:
    plain, ours = both(nn.GroupNorm(4, 16))
    monkeypatch.setattr(library("layers"), "has_bf16", lambda: 0)
    x = torch.randn(2, 16, 5, 5).bfloat16().contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(plain(x), ours(x), rtol=0, atol=0)
