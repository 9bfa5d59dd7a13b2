"""Evaluation of policies on held-out fleets: an assigner's against references, a scheduler's against rivals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hflray import DivergedError, metrics
from hflray.assignment import build_assigner
from hflray.assignment.network import NetworkSpec, QNetwork, build_network
from hflray.assignment.state import assigned_objective
from hflray.rl import evaluation as module
from hflray.rl.evaluation import AssignerEvaluation, PlayedEpisodes, SchedulerEvaluation, references
from hflray.rl.fleets import FleetSpec, held_out
from hflray.rl.scheduling_env import LearningCurve, SchedulingEnv
from hflray.rl.solved_fleets import prepare
from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.learned import ScoreNetwork, ScoreSpec
from hflray.seeding import stream
from hflray.support.pairs import Pairs

UNSEEN = held_out(FleetSpec(num_scheduled=(3, 7), num_edges=(3, 3)))


class FixedAnswers(QNetwork):
    """A network whose best edges are the given `answers`, fleet by fleet."""

    def __init__(self, answers: list[np.ndarray]) -> None:
        super().__init__()
        self.spec = NetworkSpec(num_edges=3)
        self.answers, self.answered = answers, 0

    def forward(self, rows: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        q = torch.zeros((*rows.shape[:2], 3))
        for i, n in enumerate(lengths.tolist()):
            answer = self.answers[self.answered + i]
            assert len(answer) == n
            q[i, torch.arange(n), torch.as_tensor(answer).long()] = 1.0
        self.answered += len(lengths)
        return q


def test_a_policy_that_answers_as_its_teacher_agrees_fully(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2)
    pool = prepare(UNSEEN, 5, tmp_path)
    quality = AssignerEvaluation(pool)(FixedAnswers([fleet.labels for fleet in pool.fleets]))
    assert quality.agreement == 1.0
    assert quality.greedy_return == np.mean([len(fleet.labels) for fleet in pool.fleets])
    assert quality.ratio["teacher"] == pytest.approx(1.0, rel=1e-9)
    assert quality.objectives.tolist() == pytest.approx([fleet.objective for fleet in pool.fleets])
    worse = [np.zeros_like(fleet.labels) for fleet in pool.fleets]
    one_edge = AssignerEvaluation(pool)(FixedAnswers(worse))
    assert one_edge.objective > quality.objective
    assert one_edge.agreement == np.mean(np.concatenate([fleet.labels == 0 for fleet in pool.fleets]))


def test_references_are_solved_once_and_grow_with_the_pool(tmp_path, monkeypatch) -> None:
    pool = prepare(UNSEEN, 3, tmp_path)
    first = references(pool)
    fleet, work = UNSEEN.draw(1)
    devices = np.arange(fleet.num_devices)
    search = build_assigner("local_search").assign(fleet, work, devices, np.random.default_rng(0))
    assert first["local_search"][1] == pytest.approx(assigned_objective(pool[1].problem, search))
    for name in ("teacher", "hfel-100", "hfel-300", "local_search"):
        assert (first["lower_bound"] <= first[name]).all()
    grown = references(prepare(UNSEEN, 5, tmp_path))
    assert all(np.array_equal(grown[name][:3], first[name]) for name in first)
    assert len(grown["hfel-300"]) == 5
    monkeypatch.setattr(module, "_solve_references", lambda *_: pytest.fail("solved again"))
    cached = references(pool)
    assert all(np.array_equal(cached[name], first[name]) for name in first)


def test_q_values_that_are_not_finite_are_an_error(tmp_path) -> None:
    pool = prepare(UNSEEN, 2, tmp_path)
    network = build_network(NetworkSpec(num_edges=3, hidden=4))
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite"):
        AssignerEvaluation(pool)(network)


SMALL = {"num_devices": 8, "num_edges": 2, "num_scheduled": 3, "num_classes": 4, "reward": "energy"}
QUICK = SMALL | {"curve": LearningCurve(1.0, 1.0, 1.0, 0.0)}


@pytest.fixture(scope="module")
def network() -> ScoreNetwork:
    torch.manual_seed(0)
    return ScoreNetwork(ScoreSpec(width=4))


@pytest.fixture(scope="module")
def evaluation() -> SchedulerEvaluation:
    return SchedulerEvaluation(QUICK, fleets=10, seed=3)


def test_a_schedulers_figures_are_those_of_its_episodes(evaluation: SchedulerEvaluation) -> None:
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
    evaluation: SchedulerEvaluation, network: ScoreNetwork
) -> None:
    values, agent = evaluation(network), evaluation.play(network)
    assert set(values) <= set(metrics.names_logged("agent"))
    assert values[metrics.agent_metric("joules")] == agent.joules.mean()
    for name in metrics.RIVALS:
        rival = evaluation.rivals[name]
        pairs = Pairs.censored(agent.joules, agent.reached, rival.joules, rival.reached)
        assert pairs.uncertain == 0
        assert (values[metrics.agent_metric("ratio", name)],) * 2 == pairs.median
        assert values[metrics.agent_metric("p", name)] == pairs.p
        assert values[metrics.agent_metric("rounds", name)] == evaluation.rivals[name].rounds.mean()


def test_an_episode_that_misses_the_target_is_censored_at_its_joules(
    evaluation: SchedulerEvaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = PlayedEpisodes(*np.array([[0.0] * 6, [5.0] * 6, [7.0] * 6, [9.0] * 6, [1.0] * 6]))
    monkeypatch.setattr(evaluation, "rivals", dict.fromkeys(metrics.RIVALS, rival))
    joules = np.array([3.5, 3.5, 3.5, 14.0, 14.0, 3.5])
    agent = PlayedEpisodes(*np.zeros((2, 6)), joules, np.zeros(6), np.array([1.0, 1, 1, 0, 1, 0]))
    pairs = evaluation.compared(agent)["energy_aware"]
    np.testing.assert_allclose(pairs.steps, np.log([0.5, 0.5, 0.5, 2, 2, 1]))
    assert pairs.uncertain == 1
