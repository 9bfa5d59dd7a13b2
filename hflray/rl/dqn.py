"""The DQN that trains the assigner, on RLlib's new API stack: its module, loss (equations (18) to (23)) and settings.

A pass computes Q of all devices of an episode. The loss is RLlib's of DQN on whole episodes (equations (21) and (22)),
plus a cross-entropy against the teacher. `EpisodesToBatch` is the first connector of the learner's pipeline. It lays
episodes out as padded (B, T, …) columns with a loss mask, and RLlib's own connectors do not change these columns.

The network comes from `hflray.assignment.network`, so that RLlib trains the same network that inference loads. A batch
has ``obs`` (B, T, row), padded, and ``lengths`` (B,). The next state of step t is step t + 1 of the same episode, so
the next Q-values are those of the same pass, shifted by one step.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.dqn.dqn import DQN, DQNConfig
from ray.rllib.algorithms.dqn.dqn_learner import QF_NEXT_PREDS, QF_PREDS, QF_TARGET_NEXT_PREDS
from ray.rllib.algorithms.dqn.torch.dqn_torch_learner import DQNTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, QNetAPI, TargetNetworkAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from hflray.assignment.network import NetworkSpec, build_network
from hflray.config import ExperimentConfig
from hflray.rl.env import ENV_ID
from hflray.rl.fleets import network_spec
from hflray.rl.sampling import (
    DRAWS,
    EPSILON,
    LENGTHS,
    NUMBERS,
    TEACHER,
    DrawnTransitions,
    SeededAlgorithm,
    WholeEpisodeReplayBuffer,
    WholeEpisodeRunner,
    local_config,
)
from hflray.rl.solved_fleets import FleetPool
from hflray.seeding import stream

ITERATION = 2000  # most environment steps of one call of `train()`
TD_LOSSES = {"huber": "huber", "squared": "mse"}  # our names → RLlib's names
LAST_TARGET_UPDATES = "last_target_updates"


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
        if isinstance(episodes, DrawnTransitions):
            all_counts = np.concatenate(episodes.counts)
            scale = np.float32((all_counts > 0).sum() / all_counts.sum())
        for number, episode in enumerate(episodes):
            key = (f"{episode.id_}_{number}",)  # the number keeps two draws of one episode apart
            laid_out = _columns(episode, steps)
            if isinstance(episodes, DrawnTransitions):
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


class AssignerDQN(SeededAlgorithm, DQN):  # type: ignore[misc]
    """RLlib's DQN with a replay buffer of whole episodes, which its checkpoints hold too."""

    @classmethod
    def get_default_config(cls) -> DQNConfig:
        return DQNConfig(algo_class=cls)

    # RLlib takes the buffer's class from a string, but Tune turns that string into a class, which RLlib then refuses.
    # This method therefore builds the buffer itself.
    def _create_local_replay_buffer_if_necessary(self, config: Any) -> WholeEpisodeReplayBuffer:
        capacity = config["replay_buffer_config"]["capacity"]
        seed = int(stream(self.config.seed or 0, "assigner/replay").integers(2**63))
        return WholeEpisodeReplayBuffer(capacity, seed, config["replay_buffer_config"]["transitions"])

    def beside(self) -> dict[str, Any]:
        """Return the state of the replay buffer."""
        return self.local_replay_buffer.state_dict()  # type: ignore[no-any-return]

    def take(self, state: dict[str, Any], tree: Any) -> None:
        """Restore the replay buffer."""
        spaces = self.env_runner.env.single_observation_space, self.env_runner.env.single_action_space
        self.local_replay_buffer.load_state_dict(state, spaces)


def dqn_config(config: ExperimentConfig, pool: FleetPool, cpus: int = 1) -> DQNConfig:
    """Return RLlib's configuration for training on the fleets of `pool` with `cpus` CPUs, which change no result.

    Sampling and learning run in this process, because the learner's LSTM takes most of the time and sampling a few
    per cent.
    """
    learning, spec = config.learning, network_spec(config)
    devices = sum(pool.spec.num_scheduled) / 2
    environment = {
        "pool": str(pool.folder),
        "count": len(pool),
        "features": learning.features,
        "num_edges": spec.num_edges,
        "reward": learning.reward,
    }
    rllib_config: DQNConfig = (
        local_config(AssignerDQN, ENV_ID, environment, learning.environments, WholeEpisodeRunner, config.seed)
        .env_runners(rollout_fragment_length=max(1, round(devices)))
        .learners(learner_class=D3QNLearner, learner_connector=lambda *_: EpisodesToBatch())
        .training(
            lr=[[0, learning.learning_rate], [learning.learning_rate_steps, learning.final_learning_rate]],
            gamma=learning.gamma,
            train_batch_size=learning.train_batch,
            double_q=learning.double_q,
            dueling=True,
            n_step=1,
            target_network_update_freq=learning.target_update_steps,
            # RLlib counts replayed transitions per sampled step, and rounds to whole updates between two samples.
            training_intensity=learning.training_intensity or learning.train_batch / (learning.update_every or 1),
            td_error_loss_fn=TD_LOSSES[learning.td_loss],
            num_steps_sampled_before_learning_starts=learning.learning_starts,
            epsilon=[(0, learning.epsilon[0]), (learning.epsilon_steps, learning.epsilon[1])],
            replay_buffer_config={
                "type": "EpisodeReplayBuffer",
                "capacity": learning.buffer_capacity,
                "transitions": learning.replay == "transitions",
            },
            grad_clip=learning.grad_clip,
            learner_config_dict={"td": learning.td, "ce": learning.ce},
        )
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=D3QNModule,
                model_config={"network": asdict(spec), "seed": config.seed, "two_threads": cpus > 1},
            )
        )
        .reporting(
            min_sample_timesteps_per_iteration=min(ITERATION, learning.evaluate_every),
            metrics_num_episodes_for_smoothing=50,
        )
    )
    return rllib_config
