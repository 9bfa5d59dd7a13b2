"""The gradient of the objective: the exact one, and resumed bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from hflray import checkpoint
from hflray.config import FleetConfig
from hflray.rl.fleets import FleetSpec, objective_of
from hflray.rl.gradient import CostGradient, batch_of
from tests.rl.small import tiny_network

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_gradient_is_that_of_the_expected_objective():
    """Three devices, two edges: all eight assignments, against the mean of many drawn updates' gradients."""
    spec = FleetSpec(
        fleet=FleetConfig(num_devices=3, num_edges=2),
        num_scheduled=(3, 3),
        num_edges=(2, 2),
        teacher="best_gain",
        options={},
    )
    fleet = spec.solve(0)
    net = tiny_network()
    rows, lengths = batch_of([fleet], net, [np.arange(3)])
    share = net(rows, lengths)[0].softmax(-1)
    expected = sum(
        torch.stack([share[h, m] for h, m in enumerate(choice)]).prod()
        * np.log(objective_of(fleet.problem, np.array(choice)))
        for choice in itertools.product(range(2), repeat=3)
    )
    exact = torch.autograd.grad(expected, net.advantage[-1].weight)[0]
    learner = CostGradient(net, learning_rate=0.0, seed=1)
    total, count = torch.zeros_like(exact), 0
    for _ in range(300):
        learner.update([fleet] * 4)
        # The loss is the mean over devices, times ten, clipped as a whole: undo what is known.
        total += net.advantage[-1].weight.grad * learner.clipped / 10.0 * 3.0
        count += 1
    torch.testing.assert_close(total / count, exact, rtol=0.15, atol=0.05 * float(exact.abs().max()))


def test_resuming_is_bit_identical(fleets, tmp_path):
    whole = CostGradient(tiny_network(), learning_rate=1e-3, batch=4)
    for _ in range(2):
        for some in whole.draw(fleets):
            whole.update(some)
    first = CostGradient(tiny_network(), learning_rate=1e-3, batch=4)
    for some in first.draw(fleets):
        first.update(some)
    checkpoint.save(tmp_path / "state", first.state_dict())
    second = CostGradient(tiny_network(7), learning_rate=1e-3, batch=4, seed=5)
    second.load_state_dict(checkpoint.load(tmp_path / "state"))
    for some in second.draw(fleets):
        second.update(some)
    for name, value in whole.weights().items():
        np.testing.assert_array_equal(value, second.weights()[name])
    assert second.updates == whole.updates == 8
