"""The PPO that trains the learned scheduler, on RLlib's new API stack, and its configuration from `hflray.config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.algorithms.ppo.ppo import PPO, PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from hflray.config import BITS_PER_KB, ExperimentConfig
from hflray.cost import Workload
from hflray.experiment.study import MODEL_KB, sized_by_data
from hflray.fleet import given_fleet
from hflray.rl.portable import restore_state, save_state
from hflray.rl.scheduling_env import ENV_ID
from hflray.rl.scheduling_module import ScoreModule, ScoreRunner
from hflray.scheduling.network import ScoreNetwork, ScoreSpec
from hflray.support.ray_private import learner_module

TARGET = 0.85  # the accuracy at which an episode ends if ``target_accuracy`` is not set


class ScorePPO(PPO):  # type: ignore[misc]
    """RLlib's PPO whose checkpoints hold every random generator, as safetensors and JSON instead of pickles."""

    @classmethod
    def get_default_config(cls) -> PPOConfig:
        return PPOConfig(algo_class=cls)

    def network(self) -> ScoreNetwork:
        """Return the network that is being trained."""
        network: ScoreNetwork = learner_module(self).network
        return network

    def save_to_path(self, path: Any = None, **kwargs: Any) -> str:
        """Write the whole state to the folder `path`."""
        # RLlib shuffles a batch by NumPy's global generator.
        whole = {"rllib": self.get_state(), "numpy": np.random.get_state()}  # noqa: NPY002
        return save_state(self, Path(path), whole)

    def restore_from_path(self, path: Any, **kwargs: Any) -> None:
        """Restore everything that `save_to_path` saved.

        Raises:
            DamagedError, ConfigError: see `hflray.rl.portable.checked_state`.
        """
        _, whole = restore_state(self, Path(path))
        np.random.set_state(whole["numpy"])  # noqa: NPY002


def environment(config: ExperimentConfig) -> dict[str, Any]:
    """Return the arguments of the `hflray.rl.scheduling_env.SchedulingEnv` of a configuration.

    Raises:
        ConfigError: see `hflray.experiment.study.sized_by_data`.
    """
    config = sized_by_data(config)
    return {
        "fleet": given_fleet(config.fleet, config.seed) or config.fleet,
        "num_scheduled": config.scheduling.num_scheduled,
        "majority_fraction": config.data.majority_fraction,
        "work": Workload.of(config, MODEL_KB * BITS_PER_KB),
        "assigner": config.assignment.name,
        "reward": config.agent.reward,
        "target": config.target_accuracy or TARGET,
        "max_rounds": config.max_rounds,
    }


def scheduling_algorithm_config(config: ExperimentConfig) -> PPOConfig:
    """Return RLlib's configuration. Sampling and learning run in this process."""
    agent = config.agent
    model_config = {
        "network": ScoreSpec(agent.width).to_dict(),
        "num_devices": config.fleet.num_devices,
        "num_scheduled": config.scheduling.num_scheduled,
        "seed": config.seed,
    }
    rllib_config: PPOConfig = (
        ScorePPO.get_default_config()
        .environment(ENV_ID, env_config=environment(config), disable_env_checking=True)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=agent.environments,
            env_runner_cls=ScoreRunner,
            batch_mode="complete_episodes",
        )
        .framework("torch", torch_skip_nan_gradients=True)  # the training checks that the loss is finite
        .learners(num_learners=0)
        .training(
            lr=agent.learning_rate,
            gamma=agent.gamma,
            lambda_=agent.gae_lambda,
            train_batch_size=agent.train_batch,
            minibatch_size=min(agent.minibatch, agent.train_batch),
            num_epochs=agent.epochs,
            clip_param=agent.clip,
            vf_clip_param=float("inf"),  # RLlib would give no gradient to large errors of the critic
            entropy_coeff=agent.entropy,
            use_kl_loss=False,
            grad_clip=agent.grad_clip,
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=ScoreModule, model_config=model_config))
        .reporting(metrics_num_episodes_for_smoothing=100)
        .debugging(seed=config.seed)
    )
    return rllib_config
