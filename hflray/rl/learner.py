"""RLlib's DQN loss on whole episodes (paper, equations (21) and (22)), plus a cross-entropy against the teacher.

`EpisodesToBatch` is the first connector of the learner's pipeline. It lays episodes out as padded (B, T, …) columns
with a loss mask, and RLlib's own connectors do not change these columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.dqn.dqn_learner import QF_PREDS
from ray.rllib.algorithms.dqn.torch.dqn_torch_learner import DQNTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from torch import Tensor

from hflray.rl.module import LENGTHS, NUMBERS

TEACHER = "teacher"  # the teacher's edge of each device, in an episode's extra_model_outputs
LAST_TARGET_UPDATES = "last_target_updates"


class D3QNLearner(DQNTorchLearner):  # type: ignore[misc]
    """A learner whose loss is ``td`` × RLlib's TD loss + ``ce`` × cross-entropy of Q against the teacher, as in DQfD.

    The weights ``td`` and ``ce`` are in ``learner_config_dict`` of the algorithm's configuration.
    """

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Tensor:
        weights = config.learner_config_dict
        loss: Tensor = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        loss = weights["td"] * loss
        if weights["ce"]:
            mask = batch[Columns.LOSS_MASK]
            q, edges = fwd_out[QF_PREDS][mask], batch[TEACHER][mask]
            if NUMBERS in batch:  # single transitions: one that was drawn twice counts twice
                losses = torch.nn.functional.cross_entropy(q, edges, reduction="none")
                imitation = (batch["weights"][mask] * losses).mean()
            else:
                imitation = torch.nn.functional.cross_entropy(q, edges)
            self.metrics.log_value((module_id, "cross_entropy"), imitation, window=1)
            loss = loss + weights["ce"] * imitation
        return loss

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        before = dict(self.last_update_ts_by_mid)
        super().after_gradient_based_update(timesteps=timesteps)
        if before != self.last_update_ts_by_mid:
            self._forget_targets()

    def _forget_targets(self) -> None:
        for module_id in self.module.keys():  # noqa: SIM118 (no mapping)
            self.module[module_id].unwrapped().forget_targets()

    # RLlib's state lacks the time of the target network's last update, so a restored run would update it at once.
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state(*args, **kwargs)
        return {**state, LAST_TARGET_UPDATES: dict(self.last_update_ts_by_mid)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.last_update_ts_by_mid.update(state.get(LAST_TARGET_UPDATES, {}))
        self._forget_targets()


class Drawn(list[SingleAgentEpisode]):
    """The distinct episodes that a draw of single transitions came from.

    Attributes:
        counts: for each episode, how often each of its transitions was drawn, (H,).
        numbers: each episode's number, counted from the first episode that was ever added to the buffer.
    """

    def __init__(self, episodes: list[SingleAgentEpisode], counts: list[NDArray[np.intp]], numbers: list[int]) -> None:
        super().__init__(episodes)
        self.counts, self.numbers = counts, numbers


class EpisodesToBatch(ConnectorV2):  # type: ignore[misc]
    """A connector that converts whole episodes to columns, padded with zeros to the longest episode.

    For a draw of single transitions, the loss mask selects the transitions that were drawn, and the weights are
    proportional to how often each was drawn. RLlib divides the weighted sum by the number of masked transitions, so the
    weights are scaled to make the loss the mean over the draw, equation (21).
    """

    def __call__(self, *, batch: dict[str, Any], episodes: list[Any], **kwargs: Any) -> dict[str, Any]:
        # RLlib's loss squeezes dimensions: at T = 1 it would mistake the batch dimension for time.
        steps = max(2, *(len(episode) for episode in episodes))
        columns: dict[str, dict[tuple[str], list[Any]]] = {}
        scale = np.float32(1.0)
        if isinstance(episodes, Drawn):
            all_counts = np.concatenate(episodes.counts)
            scale = np.float32((all_counts > 0).sum() / all_counts.sum())
        for number, episode in enumerate(episodes):
            key = (f"{episode.id_}_{number}",)  # the number keeps two draws of one episode apart
            laid_out = _columns(episode, steps)
            if isinstance(episodes, Drawn):
                counts = padded(episodes.counts[number], steps, np.float32)
                laid_out |= {Columns.LOSS_MASK: counts > 0, "weights": counts * scale}
                laid_out[NUMBERS] = np.int64(episodes.numbers[number])
            for name, value in laid_out.items():
                columns.setdefault(name, {})[key] = [value]
        batch.update(columns)
        return batch


def _columns(episode: Any, steps: int) -> dict[str, Any]:
    n = len(episode)
    extra = episode.extra_model_outputs
    terminated, mask = np.zeros(steps, dtype=bool), np.zeros(steps, dtype=bool)
    terminated[n - 1 :], mask[:n] = True, True
    ones = np.ones(steps, dtype=np.float32)
    return {
        Columns.OBS: padded(episode.observations.data[:n], steps, np.float32),
        Columns.NEXT_OBS: np.zeros(1, dtype=np.float32),  # the next state is the next step of the same episode
        Columns.ACTIONS: padded(episode.actions.data, steps, np.int64),
        Columns.REWARDS: padded(episode.rewards.data, steps, np.float32),
        Columns.TERMINATEDS: terminated,
        Columns.TRUNCATEDS: np.zeros(steps, dtype=bool),
        Columns.LOSS_MASK: mask,
        TEACHER: padded(extra[TEACHER].data, steps, np.int64),
        LENGTHS: np.int64(n),
        "weights": ones,
        "n_step": ones,
    }


def padded(values: Any, steps: int, dtype: type) -> NDArray[Any]:
    """Return `values` (n, …) padded with zeros to `steps` rows."""
    array = np.asarray(values)
    out = np.zeros((steps, *array.shape[1:]), dtype=dtype)
    out[: len(array)] = array
    return out
