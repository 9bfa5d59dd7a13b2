"""hflray.training.kernels and the C code: every kernel makes the steps of ordinary PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hflray.models.paper import init_vector
from hflray.models.problem import Problem
from hflray.models.vector import load_vector, to_vector
from hflray.support.native import compiler
from hflray.training.kernel_base import library
from hflray.training.kernels import build_kernel
from tests.models.samples import build_model

KERNELS = ["eager", "channels_last", "fused"]
SHAPES = [
    ("hfl", (1, 28, 28)),  # Fashion-MNIST
    ("hfl", (3, 32, 32)),  # CIFAR-10
    ("hfl", (2, 18, 19)),  # odd sizes: the last row and column are in no pooling window
    ("mini", (1, 10, 10)),
]


def needs_compiler(name: str) -> None:
    if name == "fused" and compiler() is None:
        pytest.skip("no C compiler")


def reference(kind: str, shape: tuple[int, int, int], vector: np.ndarray, x, y, batches, rate: float) -> np.ndarray:
    """Train with textbook SGD, with ReLU before pooling; return the parameters."""
    model = build_model(kind, shape, 10)
    load_vector(model, vector)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for batch in batches:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
    return to_vector(model)


@pytest.mark.parametrize("kind, shape", SHAPES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_makes_the_steps_of_plain_torch(name: str, kind: str, shape: tuple[int, int, int]) -> None:
    needs_compiler(name)
    rng = np.random.default_rng(1)
    start = init_vector(build_model(kind, shape, 10), rng)
    x = torch.from_numpy(rng.standard_normal((50, *shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 50))
    batches = [rng.permutation(50)[:size] for size in (16, 16, 5, 1)]
    expected = reference(kind, shape, start, x, y, batches, 0.05)

    kernel = build_kernel(name, build_model(kind, shape, 10), Problem(shape, 10), 0.05, "float32")
    kernel.load(start)
    np.testing.assert_array_equal(kernel.vector(), start)
    kernel.hold(x, y)
    for batch in batches:
        kernel.step(batch)
    # The error is relative to the change of the weights, because a step changes them little.
    error = np.linalg.norm(kernel.vector() - expected) / np.linalg.norm(expected - start)
    assert error < 1e-4
    plain = build_model(kind, shape, 10)
    load_vector(plain, kernel.vector())
    with torch.no_grad():
        np.testing.assert_allclose(kernel.logits(x).numpy(), plain(x).numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_keeps_no_state_of_the_previous_device(name: str) -> None:
    needs_compiler(name)
    rng = np.random.default_rng(1)
    start = init_vector(build_model("hfl", (1, 16, 16), 3), rng)
    kernel = build_kernel(name, build_model("hfl", (1, 16, 16), 3), Problem((1, 16, 16), 3), 0.1, "float32")

    def fit(seed: int) -> np.ndarray:
        device_rng = np.random.default_rng(seed)
        kernel.load(start)
        kernel.hold(
            torch.from_numpy(device_rng.standard_normal((8, 1, 16, 16), dtype=np.float32)),
            torch.from_numpy(device_rng.integers(0, 3, 8)),
        )
        kernel.step(np.arange(8))
        return kernel.vector()

    first = fit(1)
    assert not np.array_equal(fit(2), first)
    np.testing.assert_array_equal(fit(1), first)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", KERNELS)
def test_a_vector_may_be_read_only_and_the_returned_vector_is_a_copy(name: str) -> None:
    """Vectors from Ray's object store are read-only, and torch would warn of that once per process."""
    needs_compiler(name)
    start = init_vector(build_model("mini", (1, 10, 10), 3), np.random.default_rng(1))
    start.flags.writeable = False
    kernel = build_kernel(name, build_model("mini", (1, 10, 10), 3), Problem((1, 10, 10), 3), 0.1, "float32")
    kernel.load(start)
    first = kernel.vector()
    first[:] = 0
    np.testing.assert_array_equal(kernel.vector(), start)


@pytest.mark.parametrize("name", KERNELS)
def test_bf16_is_near_float32_and_not_the_same(name: str) -> None:
    needs_compiler(name)
    if name == "fused" and not library("fused").fused_has_bf16():
        pytest.skip("this CPU has no AVX512-BF16")
    rng = np.random.default_rng(1)
    start = init_vector(build_model("hfl", (1, 28, 28), 10), rng)
    x = torch.from_numpy(rng.standard_normal((64, 1, 28, 28), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 64))
    results = {}
    for precision in ("float32", "bf16"):
        kernel = build_kernel(name, build_model("hfl", (1, 28, 28), 10), Problem((1, 28, 28), 10), 0.01, precision)
        kernel.load(start)
        kernel.hold(x, y)
        kernel.step(np.arange(64))
        results[precision] = kernel.vector() - start
    error = np.linalg.norm(results["bf16"] - results["float32"]) / np.linalg.norm(results["float32"])
    assert 0 < error < 0.05
