"""The Q-network as an RLlib module."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.dqn.dqn_learner import QF_NEXT_PREDS, QF_PREDS, QF_TARGET_NEXT_PREDS
from ray.rllib.core.columns import Columns

from hflray.assignment.network import NetworkSpec
from hflray.rl.fleets import FleetSpec
from hflray.rl.module import (
    DRAWS,
    EPSILON,
    LENGTHS,
    NUMBERS,
    TEACHER,
    D3QNModule,
    Drawn,
    EpisodesToBatch,
    padded,
    shifted,
)
from hflray.rl.replay import whole_episode
from hflray.rl.runner import batch_of

SPEC = FleetSpec(num_scheduled=(3, 6), num_edges=(2, 4))


def module(seed: int = 0) -> D3QNModule:
    network = NetworkSpec(architecture="shared", num_edges=4, hidden=8, width=8, refinements=1)
    return D3QNModule(
        observation_space=gym.spaces.Box(-np.inf, np.inf, (network.row,), np.float32),
        action_space=gym.spaces.Discrete(4),
        model_config={"network": network.to_dict(), "seed": seed},
        inference_only=False,
    )


def batch(count: int = 6):
    solved = [SPEC.solve(index) for index in range(count)]
    return solved, batch_of([fleet.rows("db", 4) for fleet in solved])


def test_the_seed_alone_decides_the_weights_without_torchs_generator() -> None:
    state = torch.random.get_rng_state()
    one, two, other = (module(seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_exploration_takes_available_edges_only() -> None:
    agent = module()
    solved, columns = batch()
    rng, taken = np.random.default_rng(0), [set() for _ in solved]
    for _ in range(60):
        draws = torch.as_tensor(rng.random((*columns[Columns.OBS].shape[:2], 2), dtype=np.float32))
        actions = agent.forward_exploration(columns | {DRAWS: draws, EPSILON: 1.0})[Columns.ACTIONS].numpy()
        for fleet, row, edges in zip(solved, actions, taken, strict=True):
            edges.update(row[: len(fleet.labels)].tolist())
    assert taken == [set(range(len(fleet.problem.bandwidth))) for fleet in solved]


def test_epsilon_is_the_probability_of_exploration() -> None:
    agent = module()
    _, columns = batch()
    greedy = agent.forward_inference(columns)[Columns.ACTIONS]
    shape = (*columns[Columns.OBS].shape[:2], 2)
    draws = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    never = agent.forward_exploration(columns | {DRAWS: draws, EPSILON: 0.0})[Columns.ACTIONS]
    assert torch.equal(never, greedy)
    half = agent.forward_exploration(columns | {DRAWS: draws, EPSILON: 0.5})[Columns.ACTIONS]
    unexplored = draws[..., 0] >= 0.5
    assert torch.equal(half[unexplored], greedy[unexplored])
    assert not torch.equal(half, greedy)


def test_next_q_values_are_those_of_the_same_pass_shifted() -> None:
    agent = module()
    agent.make_target_networks()
    _, columns = batch()
    with torch.no_grad():
        for parameter in agent.network.parameters():
            parameter.add_(0.1)  # so that the target network differs
    out = agent.forward_train(columns)
    q = out[QF_PREDS]
    assert q.requires_grad
    assert torch.equal(out[QF_NEXT_PREDS][:, :-1], q[:, 1:].detach())
    assert not out[QF_NEXT_PREDS][:, -1].any()
    target = agent.forward_target(columns)[QF_PREDS]
    assert torch.equal(out[QF_TARGET_NEXT_PREDS], shifted(target))
    assert not torch.equal(target, q)
    # A fresh target network equals the network.
    fresh = module()
    fresh.make_target_networks()
    assert torch.equal(fresh.forward_target(columns)[QF_PREDS], fresh.compute_q_values(columns)[QF_PREDS])


def test_an_episode_has_the_same_q_values_alone_and_in_a_batch() -> None:
    agent = module()
    solved, columns = batch()
    together = agent.compute_q_values(columns)[QF_PREDS]
    for index, fleet in enumerate(solved):
        alone = agent.compute_q_values(batch_of([fleet.rows("db", 4)]))[QF_PREDS]
        n = int(columns[LENGTHS][index])
        torch.testing.assert_close(together[index : index + 1, :n], alone, rtol=1e-4, atol=1e-5)


SPACES = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(4)


def episode(length: int, number: int):
    rows = np.arange(length * 3, dtype=np.float32).reshape(length, 3) + 100 * number
    return whole_episode(rows, np.arange(length) % 4, np.linspace(-1, 1, length), np.arange(length) % 3, SPACES)


def laid_out(episodes):
    columns = EpisodesToBatch()(rl_module=None, batch={}, episodes=episodes)
    return {name: np.stack([np.asarray(v[0]) for v in column.values()]) for name, column in columns.items()}


def test_columns_are_padded_to_the_longest() -> None:
    episodes = [episode(2, 0), episode(5, 1)]
    batch = laid_out(episodes)
    assert batch[Columns.OBS].shape == (2, 5, 3)
    assert batch[LENGTHS].tolist() == [2, 5]
    assert batch[Columns.LOSS_MASK].sum(axis=1).tolist() == [2, 5]
    for i, e in enumerate(episodes):
        n = len(e)
        np.testing.assert_array_equal(batch[Columns.OBS][i, :n], e.observations.data[:n])
        np.testing.assert_array_equal(batch[Columns.ACTIONS][i, :n], e.actions.data)
        np.testing.assert_allclose(batch[Columns.REWARDS][i, :n], e.rewards.data, rtol=1e-6)
        np.testing.assert_array_equal(batch[TEACHER][i, :n], np.arange(n) % 3)
        assert not batch[Columns.OBS][i, n:].any()
        # The last device ends the episode. Padding is terminal too, so that no value flows back from it.
        assert batch[Columns.TERMINATEDS][i].tolist() == [False] * (n - 1) + [True] * (5 - n + 1)
    assert not batch[Columns.TRUNCATEDS].any()


def test_an_episode_drawn_twice_has_two_rows() -> None:
    one = episode(3, 0)
    assert laid_out([one, one])[Columns.OBS].shape == (2, 3, 3)


def test_drawn_transitions_are_weighted_by_how_often() -> None:
    episodes = [episode(2, 0), episode(5, 1)]
    counts = [np.array([0, 3]), np.array([1, 0, 0, 2, 0])]
    batch = laid_out(Drawn(episodes, counts, [7, 9]))
    assert batch[Columns.LOSS_MASK].tolist() == [[False, True, False, False, False], [True, False, False, True, False]]
    assert batch[NUMBERS].tolist() == [7, 9]
    # RLlib's masked mean is then the mean over the six drawn transitions.
    losses = np.arange(10.0).reshape(2, 5)
    mask = batch[Columns.LOSS_MASK]
    mean = (batch["weights"] * losses)[mask].sum() / mask.sum()
    assert mean == np.float32((3 * 1 + 1 * 5 + 2 * 8) / 6)
    assert NUMBERS not in laid_out(episodes)


def test_one_device_still_has_a_time_dimension() -> None:
    batch = laid_out([episode(1, 0), episode(1, 1)])
    assert batch[Columns.OBS].shape == (2, 2, 3)
    assert batch[Columns.LOSS_MASK].tolist() == [[True, False]] * 2


def test_padding_appends_zeros() -> None:
    assert padded([1, 2], 4, np.int64).tolist() == [1, 2, 0, 0]
    assert padded(np.ones((2, 3)), 2, np.float32).shape == (2, 3)
