"""The Q-network as an RLlib module, which computes Q of all devices of an episode in one pass (equations (18) to (23)).

The network comes from `hflray.assignment.network`, so that RLlib trains the same network that inference loads. A batch
has ``obs`` (B, T, row), padded, and ``lengths`` (B,). The next state of step t is step t + 1 of the same episode, so
the next Q-values are those of the same pass, shifted by one step.
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

LENGTHS = "lengths"  # number of devices of each episode, (B,)
DRAWS = "draws"  # uniform numbers for exploration, (B, T, 2)
NUMBERS = "numbers"  # number of each episode, (B,); in batches of single transitions only
EPSILON = "epsilon"  # probability of exploration


class D3QNModule(TorchRLModule, InferenceOnlyAPI, TargetNetworkAPI, QNetAPI):  # type: ignore[misc]
    """A dueling double deep Q-network over whole episodes.

    ``model_config`` holds ``network``, a `NetworkSpec` as a dictionary, ``seed``, the seed of the initial weights, and
    may hold ``two_threads``, whether both directions of the BiLSTM are computed at the same time.
    """

    def setup(self) -> None:
        """Build the network, whose initial weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.model_config["seed"])
            self.network = build_network(NetworkSpec(**self.model_config["network"]))
        self.network.body.two_threads = self.model_config.get("two_threads", False)

    def get_non_inference_attributes(self) -> list[str]:
        return ["_target"]

    def make_target_networks(self) -> None:
        self._target = make_target_network(self.network)
        self.forget_targets()

    def forget_targets(self) -> None:
        """Drop the Q-values that `_targets` cached, because the target network has changed."""
        self._target_cache: dict[int, Tensor] = {}

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
        """Choose ε-greedy actions, exploring available edges only; the caller gives the random numbers (`DRAWS`)."""
        greedy = self._forward_inference(batch)[Columns.ACTIONS]
        mask, draws = self.network.edge_mask(batch[Columns.OBS]), batch[DRAWS]
        n = (draws[..., 1] * mask.sum(-1)).long() + 1  # explore the n-th available edge
        explored = (mask.cumsum(-1) == n[..., None]).int().argmax(-1)
        return {Columns.ACTIONS: torch.where(draws[..., 0] < batch[EPSILON], explored, greedy)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        q = self.compute_q_values(batch)[QF_PREDS]
        with torch.no_grad():
            target = self._targets(batch) if NUMBERS in batch else self.forward_target(batch)[QF_PREDS]
        return {QF_PREDS: q, QF_NEXT_PREDS: shifted(q.detach()), QF_TARGET_NEXT_PREDS: shifted(target)}

    def _targets(self, batch: dict[str, Any]) -> Tensor:
        """Return Q of the target network, (B, T, M), computed once per episode between two updates of that network.

        Each episode is passed alone, so that its bits do not depend on the episodes that were drawn with it.
        """
        rows, q_values = batch[Columns.OBS], []
        for i, (number, length) in enumerate(zip(batch[NUMBERS].tolist(), batch[LENGTHS].tolist(), strict=True)):
            if number not in self._target_cache:
                self._target_cache[number] = self._target(rows[i : i + 1, :length])[0]
            q_values.append(self._target_cache[number])
        q = torch.nn.utils.rnn.pad_sequence(q_values, batch_first=True)
        return torch.nn.functional.pad(q, (0, 0, 0, rows.shape[1] - q.shape[1]))


def shifted(q: Tensor) -> Tensor:
    """Shift `q` (B, T, M) so that step t holds Q of step t + 1; the last step, which is terminal, holds zeros."""
    return torch.cat([q[:, 1:], torch.zeros_like(q[:, :1])], dim=1)
