"""hflray.rl.plackett_luce: probabilities by hand, and draws that have them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from hflray.rl.plackett_luce import PlackettLuce, noisy

SCORES = torch.tensor([1.0, 0.0, -0.5, 0.3])


def action_of(order: tuple[int, ...]) -> torch.Tensor:
    """Return an action whose largest numbers are those of the devices of `order`, in this order."""
    action = torch.full((len(SCORES),), -1.0)
    action[list(order)] = torch.linspace(0.9, 0.1, len(order))
    return action


def test_the_probability_of_a_draw_by_hand() -> None:
    weights = SCORES.exp()
    first, second = weights[2] / weights.sum(), weights[0] / (weights.sum() - weights[2])
    logp = PlackettLuce(SCORES, 2).logp(action_of((2, 0)))
    assert logp.exp().item() == pytest.approx((first * second).item(), rel=1e-6)


def test_the_probabilities_of_all_draws_add_up_to_1() -> None:
    draws = torch.stack([action_of(order) for order in itertools.permutations(range(4), 2)])
    assert PlackettLuce(SCORES.expand(12, 4), 2).logp(draws).exp().sum().item() == pytest.approx(1.0, rel=1e-6)


def test_noise_draws_with_these_probabilities() -> None:
    uniform = torch.as_tensor(np.random.default_rng(0).random((20_000, 4), dtype=np.float32))
    actions = noisy(SCORES.expand(20_000, 4), uniform)
    assert actions.abs().max() < 1
    order = actions.argsort(descending=True)[:, :2]
    for pair in ((0, 3), (2, 1)):
        share = (order == torch.tensor(pair)).all(dim=1).float().mean().item()
        expected = PlackettLuce(SCORES, 2).logp(action_of(pair)).exp().item()
        assert share == pytest.approx(expected, abs=4 * (expected / 20_000) ** 0.5)  # four standard errors


def test_extreme_uniform_numbers_give_finite_actions() -> None:
    assert torch.isfinite(noisy(torch.zeros(3), torch.tensor([0.0, 0.5, 1.0]))).all()


def test_the_entropy_is_that_of_the_first_draw() -> None:
    assert PlackettLuce(torch.zeros(2, 8), 3).entropy().tolist() == pytest.approx([np.log(8)] * 2)


def test_rllib_gets_h_from_the_partial_class() -> None:
    partial = PlackettLuce.get_partial_dist_cls(count=2)
    action = action_of((2, 0))
    assert torch.equal(partial.from_logits(SCORES).logp(action), PlackettLuce(SCORES, 2).logp(action))
