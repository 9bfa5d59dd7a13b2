"""The D3QN algorithm on RLlib's new API stack, and its configuration from `hflray.config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.rllib.algorithms.dqn.dqn import DQN, DQNConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from hflray.assignment.network import QNetwork
from hflray.config import ExperimentConfig
from hflray.rl.env import ENV_ID
from hflray.rl.fleets import network_spec
from hflray.rl.module import D3QNLearner, D3QNModule, EpisodesToBatch
from hflray.rl.portable import restore_state, save_state
from hflray.rl.replay import WholeEpisodeReplayBuffer
from hflray.rl.runner import WholeEpisodeRunner
from hflray.rl.solved_fleets import FleetPool
from hflray.seeding import stream
from hflray.support.ray_private import learner_module

ITERATION = 2000  # most environment steps of one call of `train()`
TD_LOSSES = {"huber": "huber", "squared": "mse"}  # our names → RLlib's names


class D3QN(DQN):  # type: ignore[misc]
    """RLlib's DQN with a replay buffer of whole episodes and complete checkpoints.

    `save_to_path` and `restore_from_path` also save and restore the replay buffer and every random generator, so that
    a restored run continues bit for bit (`hflray.rl.portable`).
    """

    @classmethod
    def get_default_config(cls) -> D3QNConfig:
        return D3QNConfig()

    # RLlib takes the buffer's class from a string, but Tune turns that string into a class, which RLlib then refuses.
    # This method therefore builds the buffer itself.
    def _create_local_replay_buffer_if_necessary(self, config: Any) -> WholeEpisodeReplayBuffer:
        capacity = config["replay_buffer_config"]["capacity"]
        seed = int(stream(self.config.seed or 0, "assigner/replay").integers(2**63))
        return WholeEpisodeReplayBuffer(capacity, seed, config["replay_buffer_config"]["transitions"])

    def network(self) -> QNetwork:
        """Return the network that is being trained."""
        network: QNetwork = learner_module(self).network
        return network

    def save_to_path(self, path: Any = None, **kwargs: Any) -> str:
        """Write the whole state to the folder `path`."""
        return save_state(self, Path(path), self.get_state(), **self.local_replay_buffer.state_dict())

    def restore_from_path(self, path: Any, **kwargs: Any) -> None:
        """Restore everything that `save_to_path` saved.

        Raises:
            DamagedError, ConfigError: see `checked_state`.
        """
        state, _ = restore_state(self, Path(path))
        spaces = self.env_runner.env.single_observation_space, self.env_runner.env.single_action_space
        self.local_replay_buffer.load_state_dict(state, spaces)


class D3QNConfig(DQNConfig):  # type: ignore[misc]
    """The configuration of a `D3QN`."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or D3QN)


def algorithm_config(config: ExperimentConfig, pool: FleetPool, cpus: int = 1) -> D3QNConfig:
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
    rllib_config: D3QNConfig = (
        D3QNConfig()
        .environment(ENV_ID, env_config=environment, disable_env_checking=True)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=learning.environments,
            env_runner_cls=WholeEpisodeRunner,
            batch_mode="complete_episodes",
            rollout_fragment_length=max(1, round(devices)),
        )
        # RLlib would scan for NaN 48 times per update. `AssignerTraining.advance` checks that the loss is finite.
        .framework("torch", torch_skip_nan_gradients=True)
        .learners(num_learners=0, learner_class=D3QNLearner, learner_connector=lambda *_: EpisodesToBatch())
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
                model_config={"network": spec.to_dict(), "seed": config.seed, "two_threads": cpus > 1},
            )
        )
        .reporting(
            min_sample_timesteps_per_iteration=min(ITERATION, learning.evaluate_every),
            metrics_num_episodes_for_smoothing=50,
        )
        .debugging(seed=config.seed)
    )
    return rllib_config
