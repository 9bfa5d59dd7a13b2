"""The Q-network as an RLlib module: whole episodes in, Q of every device in one pass (paper, equations (18) to (23)).

The network is `hflray.assignment.network`'s, so that what RLlib trains is what inference loads. A batch has
``obs`` (B, T, row), padded, and ``lengths`` (B,). The next state of step t is step t + 1 of the same episode, so its
Q-values are the same pass, shifted.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.dqn.dqn_learner import QF_NEXT_PREDS, QF_PREDS, QF_TARGET_NEXT_PREDS
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, QNetAPI, TargetNetworkAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from hflray.assignment.network import NetworkSpec, build_network

LENGTHS = "lengths"  # devices of each episode, (B,)
DRAWS = "draws"  # uniform numbers for exploration, (B, T, 2)
NUMBERS = "numbers"  # of the episodes of single transitions, (B,)
EPSILON = "epsilon"  # how often to explore, from 0 to 1


class D3QNModule(TorchRLModule, InferenceOnlyAPI, TargetNetworkAPI, QNetAPI):  # type: ignore[misc]
    """Dueling double deep Q-network over whole episodes.

    ``model_config``: ``network``, a `NetworkSpec` as a dictionary, and ``seed`` of its first weights.
    """

    def setup(self) -> None:
        """Build the network; its first weights follow from the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.model_config["seed"])
            self.network = build_network(NetworkSpec(**self.model_config["network"]))

    def get_non_inference_attributes(self) -> list[str]:
        return ["_target"]

    def make_target_networks(self) -> None:
        self._target = make_target_network(self.network)
        self.forget_targets()

    def forget_targets(self) -> None:
        """The target network has changed: what `_targets` kept of it no longer holds."""
        self._kept: dict[int, Tensor] = {}

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.network, self._target)]

    def compute_q_values(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {QF_PREDS: self.network(batch[Columns.OBS], batch.get(LENGTHS))}

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {QF_PREDS: self._target(batch[Columns.OBS], batch.get(LENGTHS))}

    @torch.no_grad()
    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        return {Columns.ACTIONS: self.compute_q_values(batch)[QF_PREDS].argmax(-1)}

    @torch.no_grad()
    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        """ε-greedy; an explored edge is one that is there. The random numbers are the caller's (`DRAWS`)."""
        greedy = self._forward_inference(batch)[Columns.ACTIONS]
        mask, draws = self.network.edge_mask(batch[Columns.OBS]), batch[DRAWS]
        chosen = (draws[..., 1] * mask.sum(-1)).long() + 1  # the so-manieth edge of those there
        explored = (mask.cumsum(-1) == chosen[..., None]).int().argmax(-1)
        return {Columns.ACTIONS: torch.where(draws[..., 0] < batch[EPSILON], explored, greedy)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        q = self.compute_q_values(batch)[QF_PREDS]
        with torch.no_grad():
            target = self._targets(batch) if NUMBERS in batch else self.forward_target(batch)[QF_PREDS]
        return {QF_PREDS: q, QF_NEXT_PREDS: shifted(q.detach()), QF_TARGET_NEXT_PREDS: shifted(target)}

    def _targets(self, batch: dict[str, Any]) -> Tensor:
        """Q of the target network, (B, T, M), each episode passed once between two updates of that network.

        It is passed by itself: its bits then do not depend on which others were drawn with it.
        """
        rows, found = batch[Columns.OBS], []
        for i, (number, length) in enumerate(zip(batch[NUMBERS].tolist(), batch[LENGTHS].tolist(), strict=True)):
            if number not in self._kept:
                self._kept[number] = self._target(rows[i : i + 1, :length])[0]
            found.append(self._kept[number])
        q = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        return torch.nn.functional.pad(q, (0, 0, 0, rows.shape[1] - q.shape[1]))


def shifted(q: Tensor) -> Tensor:
    """Q of step t + 1 at t, (B, T, M); zeros after the last step, which the loss masks as terminal."""
    return torch.cat([q[:, 1:], torch.zeros_like(q[:, :1])], dim=1)
