"""The D3QN algorithm on RLlib's new API stack, and its configuration from `hflray.config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.dqn.dqn import DQN, DQNConfig
from ray.rllib.core import COMPONENT_ENV_RUNNER
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from hflray.assignment.network import QNetwork
from hflray.config import ExperimentConfig
from hflray.errors import ConfigError, DamagedError
from hflray.rl.fleets import network_spec
from hflray.rl.learner import D3QNLearner, EpisodesToBatch
from hflray.rl.module import D3QNModule
from hflray.rl.portable import TREE, flatten, restore
from hflray.rl.replay import WholeEpisodeReplayBuffer
from hflray.rl.runner import ConfiguredEnv, WholeEpisodeRunner
from hflray.rl.solved_fleets import FleetPool
from hflray.seeding import stream
from hflray.support import checkpoint
from hflray.support.ray_private import learner_module
from hflray.support.reader import read_json

STATE = "hflray_state"  # the folder of the state in that of a checkpoint
ITERATION = 2000  # most environment steps of one call of `train()`
TD_LOSSES = {"huber": "huber", "squared": "mse"}  # our names → RLlib's names


class D3QN(DQN):  # type: ignore[misc]
    """RLlib's DQN with a replay buffer of whole episodes and complete checkpoints.

    `save_to_path` and `restore_from_path` also save and restore the replay buffer and every random generator, so that
    a restored run continues bit for bit. They write safetensors and JSON instead of RLlib's pickles, so that a
    checkpoint from a stranger runs no code.
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
        runner: WholeEpisodeRunner = self.env_runner
        state = self.local_replay_buffer.state_dict()
        state |= {"generators": runner.generators(), "ray": ray.__version__} | flatten(self.get_state())
        checkpoint.save(Path(path) / STATE, state)
        return str(path)

    def restore_from_path(self, path: Any, **kwargs: Any) -> None:
        """Restore everything that `save_to_path` saved.

        Raises:
            ConfigError: `path` holds no such checkpoint, or one of another version.
        """
        state = checked_state(Path(path))
        of_rllib = restore(state)
        self.set_state(of_rllib)
        runner: WholeEpisodeRunner = self.env_runner
        # RLlib has just set the runner's count of steps, on which ε depends, to that of metrics that it restored later.
        runner.set_state(of_rllib[COMPONENT_ENV_RUNNER])
        spaces = runner.env.single_observation_space, runner.env.single_action_space
        self.local_replay_buffer.load_state_dict(state, spaces)
        runner.set_generators(state["generators"])


def checked_state(folder: Path) -> dict[str, Any]:
    """Return the state that `D3QN.save_to_path` wrote into `folder`.

    Raises:
        DamagedError: `folder` holds no such checkpoint, or a damaged one.
        ConfigError: it is one of another version.
    """
    try:
        content = read_json(folder / STATE / checkpoint.REST)
        version, portable = content["ray"], TREE in content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            f"checkpoint {folder}: not a training checkpoint of hflray ({error}); give the folder of one, or begin anew"
        ) from error
    if version != ray.__version__:
        raise ConfigError(
            f"checkpoint {folder}: made with Ray {version}, this is Ray {ray.__version__}, and RLlib's state works "
            f"only with the version that made it; install ray=={version} to go on, or begin anew"
        )
    if not portable:
        raise ConfigError(
            f"checkpoint {folder}: an older hflray wrote it with pickles, which may run code and are not loaded; go on "
            "with that version of hflray, or begin anew"
        )
    return checkpoint.load(folder / STATE)


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
        "seed_once": True,
    }
    rllib_config: D3QNConfig = (
        D3QNConfig()
        .environment(ConfiguredEnv, env_config=environment, disable_env_checking=True)
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
