"""hflray.rl.scheduling_evaluation: what each player needs, checked by playing the episodes again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hflray import metrics
from hflray.rl.scheduling_env import SchedulingEnv
from hflray.rl.scheduling_evaluation import Played, SchedulingEvaluation
from hflray.rl.surrogate import Curve
from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.network import ScoreNetwork, ScoreSpec
from hflray.seeding import stream
from hflray.support.pairs import Pairs

SMALL = {"num_devices": 8, "num_edges": 2, "num_scheduled": 3, "num_classes": 4, "reward": "energy"}
QUICK = SMALL | {"curve": Curve(1.0, 1.0, 1.0, 0.0)}


@pytest.fixture(scope="module")
def network() -> ScoreNetwork:
    torch.manual_seed(0)
    return ScoreNetwork(ScoreSpec(width=4))


@pytest.fixture(scope="module")
def evaluation() -> SchedulingEvaluation:
    return SchedulingEvaluation(QUICK, fleets=10, seed=3)


def test_a_schedulers_figures_are_those_of_its_episodes(evaluation: SchedulingEvaluation) -> None:
    env, joules, returns, rounds = SchedulingEnv(**QUICK), [], [], []
    for index in range(10):
        env.begin(stream(3, "scheduler/held-out", index))
        scheduler = build_scheduler("energy_aware", num_devices=8, num_scheduled=3)
        total, rewards, ended = 0.0, 0.0, False
        while not ended:
            devices = choose_devices(scheduler, env.context())
            _, reward, ended, _, info = env.step(env.scores_of(devices))
            scheduler.observe(env.played)
            total, rewards = total + info["energy_j"], rewards + float(reward)
        joules.append(total)
        returns.append(rewards)
        rounds.append(env.round)
    played = evaluation.rivals["energy_aware"]
    assert played.joules.tolist() == joules
    assert played.episode_return.tolist() == returns
    assert played.rounds.tolist() == rounds
    assert played.reached.tolist() == [1.0] * 10


def test_the_metrics_compare_the_agent_with_each_scheduler(
    evaluation: SchedulingEvaluation, network: ScoreNetwork
) -> None:
    values, agent = evaluation(network), evaluation.play(network)
    assert set(values) <= set(metrics.OF_AGENTS)
    assert values[metrics.agent_metric("joules")] == agent.joules.mean()
    for name in metrics.RIVALS:
        rival = evaluation.rivals[name]
        pairs = Pairs.censored(agent.joules, agent.reached, rival.joules, rival.reached)
        assert pairs.uncertain == 0
        assert (values[metrics.agent_metric("ratio", name)],) * 2 == pairs.median
        assert values[metrics.agent_metric("p", name)] == pairs.p
        assert values[metrics.agent_metric("rounds", name)] == evaluation.rivals[name].rounds.mean()


def test_every_player_has_the_same_fleets_and_the_agents_scores_decide(network: ScoreNetwork) -> None:
    evaluation = SchedulingEvaluation(QUICK, fleets=2, seed=4)
    seen = []
    original = evaluation.env.begin

    def begin(rng: np.random.Generator) -> None:
        original(rng)
        seen.append(evaluation.env.fleet.gain.tobytes())

    evaluation.env.begin = begin  # type: ignore[method-assign]
    first = evaluation.play(network)
    again = evaluation.play(network)
    assert seen[:2] == seen[2:]
    assert seen[0] != seen[1]
    assert first.joules.tolist() == again.joules.tolist()


def test_an_episode_that_misses_the_target_is_censored_at_its_joules(
    evaluation: SchedulingEvaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = Played(*np.array([[0.0] * 6, [5.0] * 6, [7.0] * 6, [9.0] * 6, [1.0] * 6]))
    monkeypatch.setattr(evaluation, "rivals", dict.fromkeys(metrics.RIVALS, rival))
    joules = np.array([3.5, 3.5, 3.5, 14.0, 14.0, 3.5])
    agent = Played(*np.zeros((2, 6)), joules, np.zeros(6), np.array([1.0, 1, 1, 0, 1, 0]))
    pairs = evaluation.compared(agent)["energy_aware"]
    np.testing.assert_allclose(pairs.steps, np.log([0.5, 0.5, 0.5, 2, 2, 1]))
    assert pairs.uncertain == 1
