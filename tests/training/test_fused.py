"""hflray.training.fused: every width of vectors, refusals, and reads in bounds. test_kernels.py tests its steps."""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from hflray.errors import HflrayError
from hflray.models import build, build_model, init_vector, to_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.support import native as support
from hflray.training import native
from hflray.training.fused import FusedKernel, fused_library
from hflray.training.kernels import build_kernel, suitable
from tests.training.test_kernels import reference

SHAPES = [(1, 28, 28), (3, 32, 32), (2, 18, 19), (1, 16, 16)]
# Instruction sets without AVX, with vectors of 8 numbers, and with vectors of 16.
WIDTHS = ["x86-64", "x86-64-v3", "x86-64-v4"]


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if support.compiler() is None:
        pytest.skip("no C compiler")


def trained(shape: tuple[int, int, int], batches: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """Return the weights after these steps, and their distance from plain torch's over the distance moved."""
    rng = np.random.default_rng(1)
    start = init_vector(build_model("hfl", shape, 10), rng)
    x = torch.from_numpy(rng.standard_normal((70, *shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 70))
    kernel = FusedKernel(build_model("hfl", shape, 10), shape, 0.05)
    kernel.load(start)
    kernel.hold(x, y)
    for batch in batches:
        kernel.step(batch)
    expected = reference("hfl", shape, start, x, y, batches, 0.05)
    return kernel.vector(), float(np.linalg.norm(kernel.vector() - expected) / np.linalg.norm(expected - start))


NETWORKS = {
    "cnn_6_16": {},
    "mlp": {"hidden": [33, 7]},  # no widths are whole vectors
    "mlp_200_200": {},
    "logistic": {},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_other_networks_make_the_steps_of_plain_torch(name: str) -> None:
    problem = Problem((1, 19, 18), 10, model=ModelSpec.of(name, NETWORKS[name]))
    assert suitable(problem)[-1] == "fused"
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((70, 1, 19, 18), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 70))
    weights, start = [], to_vector(build(problem))
    for kernel_name in ("eager", "fused"):
        kernel = build_kernel(kernel_name, build(problem), problem, 0.05, 66, "float32")
        kernel.load(start)
        kernel.hold(x, y)
        for batch in (np.arange(66), np.arange(3)):
            kernel.step(batch)
        weights.append(kernel.vector())
    assert np.linalg.norm(weights[1] - weights[0]) < 1e-4 * np.linalg.norm(weights[0] - start)


def test_networks_with_dropout_many_channels_or_another_loss_are_left_to_torch() -> None:
    for problem in (
        Problem((1, 28, 28), 10, model=ModelSpec.of("mlp", {"dropout": 0.5})),
        Problem((1, 28, 28), 10, model=ModelSpec("lenet")),
        Problem((1, 28, 28), 10, model=ModelSpec("cnn_20_50")),
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
    native.library.cache_clear()
    try:
        # 66 = 8 · 8 + 2 images are no whole number of tiles, and 3 are fewer than one.
        for shape in SHAPES:
            assert trained(shape, [np.arange(66), np.arange(3)])[1] < 1e-4
    finally:
        native.library.cache_clear()


def test_the_size_of_the_workspace_changes_no_bit() -> None:
    small, _ = trained((1, 16, 16), [np.arange(5)])
    rng = np.random.default_rng(1)
    start = init_vector(build_model("hfl", (1, 16, 16), 10), rng)
    x = torch.from_numpy(rng.standard_normal((70, 1, 16, 16), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 70))
    kernel = FusedKernel(build_model("hfl", (1, 16, 16), 10), (1, 16, 16), 0.05)
    kernel.hold(x, y)
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
    with pytest.raises(HflrayError, match=r"AVX512-BF16.*set training\.kernel to native"):
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


GUARDED = """
import ctypes, mmap, numpy as np, sys, torch
from hflray.models import build_model, init_vector
from hflray.training.fused import FusedKernel

shape = tuple(map(int, sys.argv[1].split(",")))
kernel = FusedKernel(build_model("hfl", shape, 10), shape, 0.05, sys.argv[2] == "bf16")
kernel.load(init_vector(build_model("hfl", shape, 10), np.random.default_rng(1)))
count = 3 * int(np.prod(shape))
pages = -(-4 * count // mmap.PAGESIZE)
memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
last = ctypes.c_void_p(address + pages * mmap.PAGESIZE)
assert ctypes.CDLL(None).mprotect(last, mmap.PAGESIZE, 0) == 0
images = np.frombuffer(memory, np.float32, count, pages * mmap.PAGESIZE - 4 * count)
images[:] = np.random.default_rng(2).standard_normal(count)
kernel.hold(torch.from_numpy(images).view(3, *shape), torch.arange(3))
kernel.step(np.arange(3))
assert np.isfinite(kernel.vector()).all()
print("in bounds")
import os
os._exit(0)
"""


@pytest.mark.parametrize("shape", ["1,28,28", "3,32,32", "2,18,19"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_no_step_reads_behind_the_last_image(shape: str, precision: str) -> None:
    """The images end where a page begins that nobody may read."""
    if precision == "bf16" and not native.library("fused").fused_has_bf16():
        pytest.skip("this CPU has no AVX512-BF16")
    if sys.platform != "linux":
        pytest.skip("mprotect is called as on Linux")
    result = subprocess.run(
        [sys.executable, "-c", GUARDED, shape, precision], capture_output=True, text=True, check=False
    )
    assert result.stdout == "in bounds\n", (result.returncode, result.stderr[-500:])
