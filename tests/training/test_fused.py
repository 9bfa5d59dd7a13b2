"""hflray.training.fused: every width of vectors, refusals, and reads in bounds. test_kernels.py tests its steps."""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from hflray.errors import HflrayError
from hflray.models import build
from hflray.models.paper import init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.models.vector import load_vector, to_vector
from hflray.support import native as support
from hflray.training.fused import FusedKernel, fused_library
from hflray.training.kernel_base import library
from hflray.training.kernels import build_kernel, suitable
from tests.conftest import own_module
from tests.models.samples import build_model

SHAPES = [(1, 28, 28), (3, 32, 32), (2, 18, 19), (1, 16, 16)]
# Instruction sets without AVX, with vectors of 8 numbers, and with vectors of 16.
OF_ALL_WIDTHS = ("cnn_20_50", "lenet")
WIDTHS = ["x86-64", "x86-64-v3", "x86-64-v4"]


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if support.compiler() is None:
        pytest.skip("no C compiler")


NETWORKS = [
    ("cnn_6_16", {}),
    ("cnn_20_50", {"hidden": 33}),  # its channels fill more than one block
    ("lenet", {}),
    ("mlp", {"hidden": [33, 7]}),  # no widths are whole vectors
    ("mlp", {"hidden": [33, 7], "dropout": 0.3}),
    ("mlp_200_200", {}),
    ("logistic", {}),
]


def moved(name: str, shape: tuple[int, int, int], options: dict, kernels: list[str], precision: str = "float32"):
    """Return by how much each kernel moves the weights of a network in two steps."""
    problem = Problem(shape, 10, model=ModelSpec.of(name, options))
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((70, *shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 70))
    start = to_vector(build(problem))
    for kernel_name in kernels:
        kernel = build_kernel(kernel_name, build(problem), problem, 0.05, precision)
        kernel.load(start)
        kernel.hold(x, y)
        torch.manual_seed(3)  # of dropout
        for batch in (np.arange(66), np.arange(3)):
            kernel.step(batch)
        if isinstance(kernel, FusedKernel):  # the padding is zero, and stays it
            zeros = [sum(int((part == 0).sum()) for part in parts) for parts in (kernel._resident, kernel._views)]
            sizes = [sum(part.numel() for part in parts) for parts in (kernel._resident, kernel._views)]
            assert zeros[0] - zeros[1] == sizes[0] - sizes[1]
        yield kernel.vector() - start


@pytest.mark.parametrize("shape", [(1, 19, 18), (3, 28, 29)])
@pytest.mark.parametrize("name, options", NETWORKS)
def test_other_networks_make_the_steps_of_plain_torch(name: str, options: dict, shape: tuple[int, int, int]) -> None:
    """With dropout too, because the same numbers are dropped."""
    assert suitable(Problem(shape, 10, model=ModelSpec.of(name, options)))[-1] == "fused"
    plain, fused = moved(name, shape, options, ["eager", "fused"])
    assert np.linalg.norm(fused - plain) < 1e-4 * np.linalg.norm(plain)


def needs_bf16() -> None:
    """Skip a test where a CPU has no bf16."""
    if not library("fused").fused_has_bf16():
        pytest.skip("this CPU has no AVX512-BF16")


@pytest.mark.parametrize("kernel", ["fused", "fused_bf16"])
@pytest.mark.parametrize("name", ["cnn_20_50", "lenet"])
def test_other_networks_are_near_in_bf16(name: str, kernel: str) -> None:
    if kernel == "fused":
        needs_bf16()
    (plain,), (fused,) = moved(name, (1, 28, 28), {}, ["eager"]), moved(name, (1, 28, 28), {}, [kernel], "bf16")
    assert 0 < np.linalg.norm(fused - plain) < 0.1 * np.linalg.norm(plain)  # PyTorch in bf16: 0.06


class Rounded(torch.autograd.Function):
    """A layer whose products take numbers in bf16. Its sums, its bias and what it returns stay in float32."""

    @staticmethod
    def forward(ctx, layer, x, weight, bias):
        """Return the output of `layer`, a linear layer or a convolution."""
        x, weight = x.bfloat16().float(), weight.bfloat16().float()
        ctx.save_for_backward(x, weight)
        ctx.is_linear = isinstance(layer, torch.nn.Linear)
        return (torch.nn.functional.linear if ctx.is_linear else torch.conv2d)(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients."""
        (x, weight), g = ctx.saved_tensors, gradient.bfloat16().float()
        if ctx.is_linear:
            return None, g @ weight, g.T @ x, gradient.sum(0)
        below = torch.nn.grad.conv2d_input(x.shape, weight, g)
        return None, below, torch.nn.grad.conv2d_weight(x, weight.shape, g), gradient.sum((0, 2, 3))


def error_of_bf16(name: str, options: dict, shape: tuple[int, int, int]) -> float:
    """Return how far a step of `fused_bf16` is from one of rounded layers, relative to the step."""
    problem, rng = Problem(shape, 10, model=ModelSpec.of(name, options)), np.random.default_rng(1)
    x, y = torch.from_numpy(rng.standard_normal((9, *shape), dtype=np.float32)), torch.arange(9)
    kernel = build_kernel("fused_bf16", build(problem), problem, 0.05, "bf16")
    start = init_vector(build(problem), rng) if name == "paper_cnn" else to_vector(build(problem))
    kernel.load(start)
    kernel.hold(x, y)
    torch.manual_seed(3)  # of dropout
    kernel.step(np.arange(9))
    module = build(problem)
    load_vector(module, start)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            layer.forward = lambda x, layer=layer: Rounded.apply(layer, x, layer.weight, layer.bias)
    torch.manual_seed(3)
    torch.nn.functional.cross_entropy(module.train()(x), y).backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.05 * parameter.grad
    expected = to_vector(module) - start
    return float(np.linalg.norm(kernel.vector() - start - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("shape", [(1, 19, 18), (3, 28, 29)])
@pytest.mark.parametrize("name, options", [("paper_cnn", {}), *NETWORKS])
def test_a_step_in_bf16_is_that_of_rounded_layers(name: str, options: dict, shape: tuple[int, int, int]) -> None:
    """Where a sum is near 0, its order decides whether it passes a ReLU; one step with few images has few of these."""
    assert error_of_bf16(name, options, shape) < 2e-3


def test_a_number_that_is_none_stays_so_in_bf16() -> None:
    problem = Problem((1, 16, 16), 10)
    kernel = build_kernel("fused_bf16", build_model("hfl", (1, 16, 16), 10), problem, 0.05, "bf16")
    vector = to_vector(build_model("hfl", (1, 16, 16), 10))
    vector.view(np.uint32)[:] = 0x7FFFFFFF  # rounding that carries would make it zero
    kernel.load(vector)
    assert np.isnan(kernel.logits(torch.ones(1, 1, 16, 16)).numpy()).all()


def test_nothing_is_dropped_in_an_evaluation() -> None:
    problem, rng = Problem((1, 16, 16), 10, model=ModelSpec("lenet")), np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((7, 1, 16, 16), dtype=np.float32))
    kernel = build_kernel("fused", build(problem), problem, 0.05, "float32")
    kernel.load(to_vector(build(problem)))
    kernel.hold(x, torch.arange(7))
    kernel.step(np.arange(7))
    module = build(problem).eval()
    load_vector(module, kernel.vector())
    with torch.no_grad():
        np.testing.assert_allclose(kernel.logits(x).numpy(), module(x).numpy(), rtol=1e-3, atol=1e-4)


def test_networks_of_many_layers_or_another_loss_are_left_to_torch() -> None:
    for problem in (
        Problem((1, 28, 28), 10, model=ModelSpec.of("mlp", {"hidden": [4] * 8})),
        Problem((7,), 1, "regression", ModelSpec("mlp")),
    ):
        assert "fused" not in suitable(problem)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_of_vectors_makes_the_steps_of_plain_torch(width: str, monkeypatch, tmp_path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("these instruction sets are those of x86-64")
    if width == "x86-64-v4" and "avx512bw" not in support.cpu_model():
        pytest.skip("this CPU has no AVX-512")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(support, "OPTIONS", (f"-march={width}", *(o for o in support.OPTIONS if "march" not in o)))
    library.cache_clear()
    try:
        # 66 = 8 · 8 + 2 images are no whole number of tiles, and 3 are fewer than one.
        for name, shape in (*(("paper_cnn", shape) for shape in SHAPES), *((n, (1, 28, 28)) for n in OF_ALL_WIDTHS)):
            plain, fused = moved(name, shape, {}, ["eager", "fused"])
            assert np.linalg.norm(fused - plain) < 1e-4 * np.linalg.norm(plain)
        for name in OF_ALL_WIDTHS:
            assert error_of_bf16(name, {}, (1, 19, 18)) < 2e-3
    finally:
        library.cache_clear()


@pytest.mark.parametrize("bf16", [False, True])
def test_the_size_of_the_workspace_changes_no_bit(bf16: bool) -> None:
    rng = np.random.default_rng(1)
    start = init_vector(build_model("hfl", (1, 16, 16), 10), rng)
    x = torch.from_numpy(rng.standard_normal((70, 1, 16, 16), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 70))
    kernel = FusedKernel(build_model("hfl", (1, 16, 16), 10), (1, 16, 16), 0.05, bf16, bf16)
    kernel.hold(x, y)
    kernel.load(start)
    kernel.step(np.arange(5))
    small = kernel.vector()
    kernel.load(start)
    kernel.step(np.arange(70))  # what this leaves in the workspace must not matter
    kernel.load(start)
    kernel.step(np.arange(5))
    np.testing.assert_array_equal(kernel.vector(), small)


def test_bf16_without_the_instructions_is_refused(monkeypatch) -> None:
    class Code:
        @staticmethod
        def fused_has_bf16() -> int:
            return 0

    monkeypatch.setattr("hflray.training.fused.library", lambda name: Code)
    with pytest.raises(HflrayError, match=r"AVX512-BF16.*set training\.kernel to fused_bf16"):
        fused_library(True)


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(HflrayError, match="fused knows no such Linear"):
        FusedKernel(torch.nn.Linear(2, 2), (1, 16, 16), 0.1)
    kernel = FusedKernel(build_model("hfl", (1, 16, 16), 3), (1, 16, 16), 0.1)
    images = torch.zeros(4, 1, 16, 16)
    with pytest.raises(HflrayError, match="the model takes"):
        kernel.hold(torch.zeros(4, 1, 17, 16), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(HflrayError, match="4 images with 3 labels"):
        kernel.hold(images, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(HflrayError, match="labels from 0 to 3; the model has 3 classes"):
        kernel.hold(images, torch.arange(4))
    kernel.hold(images, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(HflrayError, match="positions from 0 to 4 of 4 images"):
        kernel.step(np.arange(5))


GUARDED = own_module("behind_the_last_image")


@pytest.mark.parametrize("shape", ["1,28,28", "3,32,32", "2,18,19"])
@pytest.mark.parametrize("precision", ["float32", "bf16", "all"])
def test_no_step_reads_behind_the_last_image(shape: str, precision: str) -> None:
    """The images end where a page begins that nobody may read."""
    if precision == "bf16":
        needs_bf16()
    if sys.platform != "linux":
        pytest.skip("mprotect is called as on Linux")
    result = subprocess.run(
        [sys.executable, "-c", GUARDED, shape, precision], capture_output=True, text=True, check=False
    )
    assert result.stdout == "in bounds\n", (result.returncode, result.stderr[-500:])
