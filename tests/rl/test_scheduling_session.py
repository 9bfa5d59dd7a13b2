"""The training of the learned scheduler: what it learns on toys, and that it resumes bit for bit."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from hflray import metrics
from hflray.config import ExperimentConfig, load_config
from hflray.errors import ConfigError, DivergedError
from hflray.rl.scheduling_algorithm import environment
from hflray.rl.scheduling_env import SchedulingEnv
from hflray.rl.scheduling_session import SchedulerTraining
from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.learned import Learned, load_scores, scores_of
from hflray.scheduling.network import ScoreNetwork
from hflray.seeding import stream

pytestmark = pytest.mark.usefixtures("ray_session")

# Six devices at one edge, all with the same mix of classes, and three rounds that never reach the target. The reward of
# a round is minus its energy, so that the best choice is the pair of the least energy, in every round.
TOY = (
    "fleet.num_devices=6",
    "fleet.num_edges=1",
    "scheduling.num_scheduled=2",
    "scheduling.num_clusters=2",
    "assignment.name=best_gain",
    "data.majority_fraction=0.1",
    "max_rounds=3",
    "target_accuracy=0.99",
    "agent.width=16",
    "agent.gamma=0",
    "agent.learning_rate=0.005",
    "agent.train_batch=240",
    "agent.minibatch=60",
    "agent.environments=16",
    "agent.env_steps=480",
    "agent.evaluate_every=240",
    "agent.evaluation_fleets=2",
)


def toy(*overrides: str) -> ExperimentConfig:
    return load_config(None, [*TOY, *overrides])


def joules_over_the_least(network: ScoreNetwork, env: SchedulingEnv, fleets: int = 10) -> float:
    """Return the energy of the pairs that a network chooses on random fleets over that of the best pairs.

    The best pair of a fleet is known by trying all fifteen.
    """
    chosen_j = least_j = 0.0
    for index in range(fleets):
        env.begin(stream(0, "test/toy", index))
        joules = {pair: env._bill(np.array(pair))[1].energy_j for pair in itertools.combinations(range(6), 2)}
        scores = scores_of(network, env.observation().reshape(6, -1))
        chosen_j += joules[tuple(sorted(np.argsort(-scores)[:2].tolist()))]
        least_j += min(joules.values())
    return chosen_j / least_j


def test_the_agent_learns_the_known_best_choice_of_a_toy() -> None:
    config = toy("agent.env_steps=480", "agent.evaluate_every=480")
    env = SchedulingEnv(**environment(config))
    with SchedulerTraining(config) as training:
        assert joules_over_the_least(training.algorithm.network(), env) > 3
        point = training.advance()
        assert joules_over_the_least(training.algorithm.network(), env) < 1.3
        assert training.finished
    assert point.metrics[metrics.agent_metric("reached")] == 0  # and nothing to the target is logged
    assert metrics.agent_metric("joules") not in point.metrics


def test_a_resumed_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    with SchedulerTraining(toy()) as whole:
        first = whole.advance()
        whole.save(tmp_path / "state")
        second = whole.advance()
        weights = whole.algorithm.network().state_dict()
        weights = {name: tensor.clone() for name, tensor in weights.items()}
    with SchedulerTraining(toy()) as resumed:
        resumed.restore(tmp_path / "state")
        assert resumed.env_steps == first.env_steps
        again = resumed.advance()
        for name, tensor in resumed.algorithm.network().state_dict().items():
            assert torch.equal(tensor, weights[name]), name
        assert resumed.points[0][metrics.AGENT_RETURN] == first.metrics[metrics.AGENT_RETURN]
    measured = {metrics.WALL_LEARN_S}
    assert {k: v for k, v in again.metrics.items() if k not in measured} == {
        k: v for k, v in second.metrics.items() if k not in measured
    }
    with SchedulerTraining(toy("agent.reward=cost")) as other, pytest.raises(ConfigError, match="reward = energy in"):
        other.restore(tmp_path / "state")


def test_the_policy_that_is_saved_gives_the_scores_of_the_training(tmp_path: Path) -> None:
    config = toy()
    with SchedulerTraining(config) as training:
        training.advance()
        training.save_policy(tmp_path / "policy.safetensors")
        trained = training.algorithm.network()
        env = SchedulingEnv(**environment(config))
        env.begin(stream(0, "test/saved"))
        expected = scores_of(trained, env.observation().reshape(6, -1))
    network, card = load_scores(tmp_path / "policy.safetensors")
    assert scores_of(network, env.observation().reshape(6, -1)).tolist() == expected.tolist()
    assert card["trained_on"]["target"] == 0.99
    assert card["trained_on"]["fleet"] == {"num_devices": 6, "num_edges": 1}
    assert card["results"][metrics.AGENT_RETURN] == training.points[-1][metrics.AGENT_RETURN]
    options = {"policy": str(tmp_path / "policy.safetensors")}
    scheduler = build_scheduler("learned", num_devices=6, num_scheduled=2, **options)
    assert isinstance(scheduler, Learned)
    assert choose_devices(scheduler, env.context()).tolist() == sorted(np.argsort(-expected)[:2].tolist())


def test_a_loss_that_is_not_finite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with SchedulerTraining(toy()) as training:
        sampled = {"num_env_steps_sampled_lifetime": 480, "num_episodes_lifetime": 160}
        result = {"env_runners": sampled, "learners": {"default_policy": {"total_loss": math.nan}}}
        monkeypatch.setattr(training.algorithm, "train", lambda: result)
        with pytest.raises(DivergedError, match=r"agent: the loss is nan after 480 steps; lower agent\.learning_rate"):
            training.advance()
