"""hflray.models.vector: what of a network travels, and what stays at home."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import nn

from hflray.models import build, initial_vector, load_vector, num_parameters, num_statistics, size_bits, to_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.models.vector import kept_at_home


class Tied(nn.Module):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight


def test_a_shared_weight_is_counted_and_sent_once() -> None:
    module = Tied()
    assert num_parameters(module) == 9
    load_vector(module, np.arange(9, dtype=np.float32))
    assert torch.equal(module.first.weight, module.second.weight)
    assert module.second.weight[0].tolist() == [0, 1, 2]


def test_a_frozen_parameter_is_not_sent_and_not_billed() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    assert num_parameters(module) == 8
    assert size_bits(module) == 8 * 32
    load_vector(module, np.ones(8, np.float32))
    assert torch.equal(module[0].weight, before)
    assert (module[1].weight == 1).all()


def test_statistics_travel_behind_the_weights_and_counters_do_not() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert (num_parameters(module), num_statistics(module)) == (6 + 8 + 6, 6)
    assert [buffer.dtype for buffer in kept_at_home(module)] == [torch.int64]
    assert to_vector(module)[-6:].tolist() == [0, 0, 0, 1, 1, 1]  # running mean and running variance
    load_vector(module, np.arange(20, dtype=np.float32))
    assert module[0].running_var.tolist() == [17, 18, 19]


def test_local_statistics_are_those_of_the_batch_in_evaluation_too() -> None:
    spec = ModelSpec.of("resnet8", {"norm": "batch"})
    average, local = (Problem((3, 8, 8), 4, model=spec, buffers=how) for how in ("average", "local"))
    assert len(initial_vector(average, 0)) - len(initial_vector(local, 0)) == num_statistics(build(average)) == 672
    images = 5 + 3 * torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    module = build(local).eval()
    normalised = module.norm(module.conv(images))
    torch.testing.assert_close(normalised.mean((0, 2, 3)), torch.zeros(16), atol=1e-5, rtol=0)


def test_other_networks_keep_the_first_weights_of_their_constructors() -> None:
    """He's rule of the paper's networks would set the weights of GroupNorm, of one dimension, to zero."""
    problem = Problem((3, 8, 8), 4, model=ModelSpec("resnet8"))
    module = build(problem)
    load_vector(module, initial_vector(problem, 3))
    assert (module.norm.weight == 1).all()


def test_vectors_are_copied_in_both_directions_and_may_be_read_only() -> None:
    module = nn.Linear(2, 1)
    before, vector = list(module.parameters()), np.arange(3, dtype=np.float32)
    vector.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_vector(module, vector)
    assert all(now is was for now, was in zip(module.parameters(), before, strict=True))
    to_vector(module)[:] = 3
    assert to_vector(module).tolist() == [0, 1, 2]  # in the order of parameters()
