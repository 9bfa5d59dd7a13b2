"""The drawn gradient is the exact one in the mean, and training resumes bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from hflray.config import FleetConfig
from hflray.rl.fleets import FleetSpec, assignment_objective
from hflray.rl.gradient import CostGradient, batch_of
from hflray.support import checkpoint
from tests.rl.small import tiny_network

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_gradient_is_that_of_the_expected_objective():
    """With three devices and two edges, compare the sum over all eight assignments with the mean drawn gradient."""
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
        * np.log(assignment_objective(fleet.problem, np.array(choice)))
        for choice in itertools.product(range(2), repeat=3)
    )
    exact = torch.autograd.grad(expected, net.advantage[-1].weight)[0]
    learner = CostGradient(net, learning_rate=0.0, seed=1)
    total, count = torch.zeros_like(exact), 0
    for _ in range(300):
        learner.update([fleet] * 4)
        # The loss is ten times the mean over the devices, and its gradient is clipped: undo the three factors.
        total += net.advantage[-1].weight.grad * learner.clipped / 10.0 * 3.0
        count += 1
    torch.testing.assert_close(total / count, exact, rtol=0.15, atol=0.05 * float(exact.abs().max()))


def test_resuming_is_bit_identical(fleets, tmp_path):
    unbroken = CostGradient(tiny_network(), learning_rate=1e-3, batch=4)
    for _ in range(2):
        for fleet_batch in unbroken.draw(fleets):
            unbroken.update(fleet_batch)
    first = CostGradient(tiny_network(), learning_rate=1e-3, batch=4)
    for fleet_batch in first.draw(fleets):
        first.update(fleet_batch)
    checkpoint.save(tmp_path / "state", first.state_dict())
    second = CostGradient(tiny_network(7), learning_rate=1e-3, batch=4, seed=5)
    second.load_state_dict(checkpoint.load(tmp_path / "state"))
    for fleet_batch in second.draw(fleets):
        second.update(fleet_batch)
    for name, value in unbroken.weights().items():
        np.testing.assert_array_equal(value, second.weights()[name])
    assert second.updates == unbroken.updates == 8
