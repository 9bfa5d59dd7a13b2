"""The network of the learned scheduler: one score for each device, from the rows of all devices.

The same weights score every device, so that a network works for any N, M, H and number of classes. The scores do not
depend on the order of the devices or of the classes. A device is compared with the others by attention. To the logits
of each head a learned multiple of the likeness of two devices' labels is added, Σ_c p_c q_c with their shares p and q
of each class, so that a device may be compared with those that hold the same classes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hflray.scheduling.rows import OWN

HEADS = 2
LIKENESS = (8.0, 0.0)  # first weight of the likeness in each head: one compares within a class, one with everybody


@dataclass(frozen=True)
class ScoreSpec:
    """The specification from which a policy's network is built; `width` is the number of units of its layers."""

    width: int = 32

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as values that JSON can hold."""
        return asdict(self)


class ScoreNetwork(nn.Module):
    """A network from rows, (B, N, 6 + C), to scores, (B, N)."""

    def __init__(self, spec: ScoreSpec) -> None:
        super().__init__()
        self.spec, width = spec, spec.width
        self.embed = nn.Sequential(nn.Linear(OWN, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.project = nn.Linear(width, 3 * HEADS * width)
        self.likeness = nn.Parameter(torch.tensor(LIKENESS))
        mix, score = nn.Linear((1 + HEADS) * width, width), nn.Linear(width, 1)
        nn.init.normal_(score.weight, std=0.01)  # all scores are nearly equal before training
        self.score = nn.Sequential(mix, nn.Tanh(), score)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the score of each device, (B, N)."""
        classes = rows[..., OWN:]
        own = self.embed(rows[..., :OWN])
        batch, devices, width = own.shape
        query, key, value = self.project(own).view(batch, devices, 3 * HEADS, width).transpose(1, 2).chunk(3, dim=1)
        likeness = self.likeness[:, None, None] * (classes @ classes.transpose(1, 2))[:, None]
        weights = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(width) + likeness, dim=-1)
        compared = (weights @ value).transpose(1, 2).reshape(batch, devices, HEADS * width)
        scores: Tensor = self.score(torch.cat([own, compared], dim=-1))[..., 0]
        return scores
