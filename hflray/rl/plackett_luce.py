"""The distribution of an agent that draws H of N devices one after the other, in proportion to exp(score).

An action is one number for each device, and its H largest, in order, are the devices drawn. Their probability is that
of Plackett and Luce: the product, over the draws, of ``exp(score) / Σ exp(score of the devices that are left)``.
Adding a Gumbel number to each score and sorting makes such a draw (Yellott, 1977). Only the order of the H devices
counts for the probability of an action, because nothing else of it reaches the environment.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from ray.rllib.core.distribution.distribution import Distribution
from torch import Tensor


class PlackettLuce(Distribution):  # type: ignore[misc]
    """The distribution of the actions of one state, or of a batch of states.

    Args:
        scores: (…, N).
        count: H.
    """

    def __init__(self, scores: Tensor, count: int) -> None:
        super().__init__()
        self.scores, self.count = scores, count

    @classmethod
    def from_logits(cls, logits: Tensor, count: int = 1, **kwargs: Any) -> PlackettLuce:
        return PlackettLuce(logits, count)

    def logp(self, value: Tensor, **kwargs: Any) -> Tensor:
        """Return the logarithm of the probability of each action's first H devices, in order, (…,)."""
        ordered = self.scores.gather(-1, value.argsort(dim=-1, descending=True, stable=True))
        left = ordered.flip(-1).logcumsumexp(-1).flip(-1)
        return (ordered - left)[..., : self.count].sum(-1)

    def entropy(self, **kwargs: Any) -> Tensor:
        """Return the entropy of the first draw, (…,); that of all draws has no closed form."""
        logp = self.scores.log_softmax(-1)
        return -(logp.exp() * logp).sum(-1)

    def sample(self, *, sample_shape: Any = None, **kwargs: Any) -> Tensor:
        uniform = torch.rand(self.scores.shape)
        return noisy(self.scores, uniform)

    def rsample(self, *, sample_shape: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError("a draw of devices has no gradient")

    def kl(self, other: Distribution, **kwargs: Any) -> Any:
        raise NotImplementedError("the divergence of two draws has no closed form; set use_kl_loss=False")

    @staticmethod
    def required_input_dim(space: gym.Space[Any], **kwargs: Any) -> int:
        return int(space.shape[0]) if space.shape else 0


def noisy(scores: Tensor, uniform: Tensor) -> Tensor:
    """Return the action that uniform numbers in [0, 1) draw, (…, N), scaled into (-1, 1) without a change of order."""
    tiny = torch.finfo(torch.float32).tiny
    gumbel = -torch.log(-torch.log(uniform.clamp(tiny, 1 - 2**-24)))
    return torch.nn.functional.softsign(scores + gumbel)
