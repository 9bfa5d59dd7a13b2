"""The learned scheduler: a network scores the devices, and the H of the highest scores train.

The same weights score every device, so that a network works for any N, M, H and number of classes. The scores do not
depend on the order of the devices or of the classes. A device is compared with the others by attention. To the logits
of each head a learned multiple of the likeness of two devices' labels is added, Σ_c p_c q_c with their shares p and q
of each class, so that a device may be compared with those that hold the same classes. What it knows of a device is a
row of numbers (`hflray.scheduling.context.device_rows`).

This module runs inference only, and needs neither Ray nor RLlib. The policy is a file of safetensors and JSON that the
task ``train_scheduler`` makes (`hflray.rl.session`). ``digits`` is shipped; its card is in its header.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from hflray import metrics
from hflray.assignment.d3qn import one_thread
from hflray.assignment.policy import read_policy
from hflray.errors import ConfigError
from hflray.scheduling.base import Scheduler, highest
from hflray.scheduling.context import BEFORE_CLASSES, RoundContext, device_rows
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.pinned import locate

SHIPPED = Path(__file__).with_name("policies") / "digits.safetensors"
SETTING = "scheduling.options.policy"
FIX = "get the file again, or train one: hflray tune tune_configs/scheduling_agent.yaml"
HEADS = 2
LIKENESS = (8.0, 0.0)  # first weight of the likeness in each head: one compares within a class, one with everybody


@dataclass(frozen=True)
class ScoreSpec:
    """The specification from which a policy's network is built; `width` is the number of units of its layers."""

    width: int = 32


class ScoreNetwork(nn.Module):
    """A network from rows, (B, N, 6 + C), to scores, (B, N)."""

    def __init__(self, spec: ScoreSpec) -> None:
        super().__init__()
        self.spec, width = spec, spec.width
        self.embed = nn.Sequential(nn.Linear(BEFORE_CLASSES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.project = nn.Linear(width, 3 * HEADS * width)
        self.likeness = nn.Parameter(torch.tensor(LIKENESS))
        mix, score = nn.Linear((1 + HEADS) * width, width), nn.Linear(width, 1)
        nn.init.normal_(score.weight, std=0.01)  # all scores are nearly equal before training
        self.score = nn.Sequential(mix, nn.Tanh(), score)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the score of each device, (B, N)."""
        classes = rows[..., BEFORE_CLASSES:]
        embedded = self.embed(rows[..., :BEFORE_CLASSES])
        batch, devices, width = embedded.shape
        query, key, value = (
            self.project(embedded).view(batch, devices, 3 * HEADS, width).transpose(1, 2).chunk(3, dim=1)
        )
        likeness = self.likeness[:, None, None] * (classes @ classes.transpose(1, 2))[:, None]
        weights = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(width) + likeness, dim=-1)
        compared = (weights @ value).transpose(1, 2).reshape(batch, devices, HEADS * width)
        scores: Tensor = self.score(torch.cat([embedded, compared], dim=-1))[..., 0]
        return scores


@dataclass(kw_only=True, eq=False, repr=False)
class Learned(Scheduler):
    """Schedules the available devices of the highest scores.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        policy: path of a policy, pinned or not; None: the shipped one.

    Raises:
        ConfigError: the file is missing, damaged, another one than was pinned, or no policy of a scheduler.
    """

    needs: ClassVar[frozenset[str]] = frozenset({metrics.ACCURACY})

    policy: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.network, self.card = load_scores(SHIPPED if self.policy is None else locate(self.policy, SETTING))

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        scores = self.scores(context)[candidates]
        return np.sort(highest(scores, candidates, self.num_scheduled, context.rng))

    def scores(self, context: RoundContext) -> FloatArray:
        """Return the score of each device, (N,)."""
        accuracy = 0.0 if context.record is None else float(np.nan_to_num(context.record.accuracy))
        progress = min(1.0, accuracy / self.card["trained_on"]["target"])
        return scores_of(self.network, device_rows(context, self.num_scheduled, progress))


def scores_of(network: ScoreNetwork, rows: ArrayLike) -> FloatArray:
    """Return the scores of the devices of these rows, (N,)."""
    with torch.inference_mode(), one_thread():
        scores = network(torch.as_tensor(np.asarray(rows, dtype=np.float32))[None])[0]
    return np.asarray(scores.numpy(), dtype=np.float64)


def load_scores(path: str | Path) -> tuple[ScoreNetwork, dict[str, Any]]:
    """Return a policy's network, ready for inference, and its card.

    Raises:
        ConfigError: the file is missing, damaged, changed since it was written, or no policy of a scheduler.
    """
    network, card = read_policy(path, SETTING, FIX, lambda spec: ScoreNetwork(ScoreSpec(**spec)))
    if card.get("trained_on", {}).get("target") is None:
        raise ConfigError(f"{SETTING}: {path} is no policy of a scheduler (its card lacks trained_on.target); {FIX}")
    return network, card
