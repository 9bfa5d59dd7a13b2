"""A kernel with random data of the right shape, because the values do not matter for its speed."""

from __future__ import annotations

import numpy as np
import torch

from hflray.models import build, init_vector, is_papers, to_vector
from hflray.models.problem import Problem
from hflray.training.kernels import Kernel, KernelName, Precision, build_kernel
from hflray.training.machine import quiet_heap


def sample_kernel(name: KernelName, problem: Problem, batch_size: int, precision: Precision) -> Kernel:
    """Return a kernel that has made a step."""
    quiet_heap()
    rng = np.random.default_rng(0)
    module = build(problem)
    kernel = build_kernel(name, module, problem, 0.01, precision)
    kernel.load(init_vector(module, rng) if is_papers(problem) else to_vector(module))
    inputs, targets = problem.random_samples(4 * batch_size, rng)
    kernel.hold(torch.from_numpy(inputs), torch.from_numpy(targets))
    kernel.step(np.arange(batch_size))
    return kernel
