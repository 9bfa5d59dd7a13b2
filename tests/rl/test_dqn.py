"""The module, losses and schedules of the DQN, what it learns, and its complete checkpoints."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from dataclasses import asdict
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import ray
import torch
from ray.rllib.core.columns import Columns

from hflray import ConfigError
from hflray.assignment.network import NetworkSpec
from hflray.config import ExperimentConfig, load_config
from hflray.rl.dqn import AssignerDQN, D3QNModule, EpisodesToBatch, dqn_config
from hflray.rl.fleets import FleetSpec
from hflray.rl.sampling import DRAWS, EPSILON, LENGTHS, STATE, TEACHER, DrawnTransitions, batch_of, whole_episode
from hflray.rl.solved_fleets import FleetPool, prepare
from tests.rl.small import identity_pool, small

pytestmark = pytest.mark.usefixtures("ray_session", "one_thread")


def build(config: ExperimentConfig, pool: FleetPool | None = None) -> AssignerDQN:
    pool = pool or prepare(FleetSpec.of(config), config.learning.fleets, config.learning.cache)
    return dqn_config(config, pool).build_algo()


def learner(algorithm: AssignerDQN):
    return algorithm.learner_group._learner


def by_hand(algorithm: AssignerDQN, episodes, double_q: bool, loss) -> tuple[float, float]:
    """Compute equations (21) and (22), transition by transition, and the cross-entropy."""
    module = learner(algorithm).module["default_policy"]
    losses, entropies = [], []
    for number, episode in enumerate(episodes):
        rows = torch.as_tensor(episode.observations.data[:-1])[None]
        with torch.no_grad():
            q, target = module.network(rows)[0], module._target(rows)[0]
        teacher = torch.as_tensor(episode.extra_model_outputs[TEACHER].data)
        times = episodes.counts[number] if isinstance(episodes, DrawnTransitions) else np.ones(len(episode), dtype=int)
        for t in np.repeat(np.arange(len(episode)), times):  # each transition as often as it was drawn
            goal = torch.tensor(float(episode.rewards.data[t]))
            if t + 1 < len(episode):
                goal = goal + 0.99 * target[t + 1, (q if double_q else target)[t + 1].argmax()]
            losses.append(loss(q[t, int(episode.actions.data[t])], goal))
            entropies.append(torch.nn.functional.cross_entropy(q[t], teacher[t]))
    return float(torch.stack(losses).mean()), float(torch.stack(entropies).mean())


LITERAL_REPLAY = ("learning.replay=transitions", "learning.td_loss=squared", "learning.environments=1")


@pytest.mark.parametrize(
    "double_q, td, ce, more",
    [
        (False, 0.5, 2.0, ("learning.target_update_steps=100000", "learning.reward=cost")),
        (True, 0.5, 2.0, (*LITERAL_REPLAY, "learning.update_every=5", "learning.target_update_steps=300")),
    ],
)
def test_the_loss_is_that_of_the_papers_equations(tmp_path, double_q, td, ce, more) -> None:
    settings = (f"learning.double_q={double_q}", f"learning.td={td}", f"learning.ce={ce}")
    algorithm = build(small(tmp_path, *settings, "learning.num_scheduled=[1, 8]", *more))
    for _ in range(3):
        algorithm.train()  # so that the network and the target network differ
    episodes = algorithm.local_replay_buffer.sample(60)
    loss = torch.nn.functional.mse_loss if "learning.td_loss=squared" in more else torch.nn.functional.huber_loss
    expected_td, expected_ce = by_hand(algorithm, episodes, double_q, loss)
    # RLlib logs the TD loss of an update before the step is taken.
    [result] = algorithm.learner_group.update(
        episodes=episodes, timesteps={"num_env_steps_sampled_lifetime": 900, "num_agent_steps_sampled_lifetime": {}}
    )
    logged = result["default_policy"]
    assert float(logged["qf_loss"].peek()) == pytest.approx(expected_td, rel=1e-4)
    assert float(logged["total_loss"].peek()) == pytest.approx(td * expected_td + ce * expected_ce, rel=1e-4)
    algorithm.stop()


def test_cached_q_values_are_those_of_the_target_network(tmp_path) -> None:
    # Each episode passes through the target network once between two updates of that network, and again after one.
    algorithm = build(
        small(
            tmp_path, "learning.replay=transitions", "learning.update_every=4", "learning.target_update_steps=200",
            "learning.environments=1", "learning.num_scheduled=[2, 8]",
        )
    )  # fmt: skip
    module, buffer = learner(algorithm).module["default_policy"], algorithm.local_replay_buffer
    for _ in range(3):
        algorithm.train()
        first = buffer._num_episodes_evicted
        cached = {number: q for number, q in module._target_cache.items() if number >= first}
        assert cached
        for number, q in cached.items():
            episode = buffer.episodes[number - first]
            with torch.no_grad():
                assert torch.equal(q, module._target(torch.as_tensor(episode.observations.data[:-1])[None])[0])
    algorithm.stop()


def test_update_every_counts_environment_steps(tmp_path) -> None:
    algorithm = build(
        small(
            tmp_path, "learning.update_every=4", "learning.environments=1", "learning.learning_starts=0",
            "learning.replay=transitions", "learning.evaluate_every=160",
        )
    )  # fmt: skip
    optimizer = next(iter(learner(algorithm)._named_optimizers.values()))
    algorithm.train()
    updates = {int(state["step"]) for state in optimizer.state.values()}
    assert updates == {algorithm.env_runner.num_env_steps_sampled_lifetime // 4}
    algorithm.stop()


def weights(algorithm: AssignerDQN) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in algorithm.network().state_dict().items()}


def test_the_target_network_and_the_learning_rate_follow_their_schedules(tmp_path) -> None:
    algorithm = build(small(tmp_path, "learning.target_update_steps=700", "learning.learning_rate_steps=900"))
    module = learner(algorithm).module["default_policy"]
    rates, targets = [], []
    for _ in range(4):
        algorithm.train()
        rates.append(next(iter(learner(algorithm)._named_optimizers.values())).param_groups[0]["lr"])
        targets.append(next(module._target.parameters()).clone())
    assert rates[0] > rates[1] > rates[-1] == pytest.approx(1e-4)
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(targets)]
    assert changed == [False, True, False]  # after 320, 640, 960 and 1,280 steps
    algorithm.stop()


def test_exploration_decreases_by_the_schedule(tmp_path) -> None:
    algorithm = build(small(tmp_path, "learning.epsilon=[1, 0]", "learning.epsilon_steps=200"))
    runner = algorithm.env_runner
    assert [runner._epsilon(step) for step in (0, 50, 200, 900)] == [1.0, 0.75, 0.0, 0.0]
    algorithm.train()
    after = runner.sample()
    greedy = algorithm.network()(batch_of([e.observations.data[:-1] for e in after])[Columns.OBS]).argmax(-1)
    assert all(np.array_equal(e.actions.data, greedy[i].numpy()) for i, e in enumerate(after))
    algorithm.stop()


def test_a_checkpoint_of_another_ray_version_is_refused(tmp_path) -> None:
    config = small(tmp_path)
    algorithm = build(config)
    algorithm.save_to_path(tmp_path / "saved")
    state = tmp_path / "saved" / STATE / "state.json"
    content = {name: value for name, value in json.loads(state.read_text()).items() if name != "sha256"}
    state.write_text(json.dumps(content | {"ray": "2.9.0"}))
    with pytest.raises(ConfigError, match=r"made with Ray 2\.9\.0, this is Ray .*install ray==2\.9\.0"):
        algorithm.restore_from_path(tmp_path / "saved")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="not a whole checkpoint"):
        algorithm.restore_from_path(tmp_path / "empty")
    algorithm.stop()


class Evil:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_no_pickle_is_written_or_loaded(tmp_path) -> None:
    """Older versions saved RLlib's pickles; such a checkpoint is refused and not opened."""
    algorithm = build(small(tmp_path))
    algorithm.save_to_path(tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert names == {"arrays.safetensors", "state.json"}
    for name in ("class_and_ctor_args.pkl", "state.pkl", "learner_group/state.pkl", "algorithm_state.pkl"):
        path = tmp_path / "saved" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(Evil(tmp_path / "code ran")))
    algorithm.restore_from_path(tmp_path / "saved")
    state = tmp_path / "saved" / STATE / "state.json"
    state.write_text(json.dumps({"ray": ray.__version__}))
    with pytest.raises(ConfigError, match="wrote it with pickles, which may run code and are not loaded"):
        algorithm.restore_from_path(tmp_path / "saved")
    assert not (tmp_path / "code ran").exists()
    pickle.loads((tmp_path / "saved" / "state.pkl").read_bytes()).close()
    assert (tmp_path / "code ran").exists()  # the pickle would have run code
    algorithm.stop()


def agreement(algorithm: AssignerDQN, pool: FleetPool, features: str) -> float:
    edges = algorithm.network().spec.num_edges
    batch = batch_of([fleet.rows(features, edges) for fleet in pool.fleets])
    with torch.no_grad():
        best = algorithm.network()(batch[Columns.OBS], batch[LENGTHS]).argmax(-1).numpy()
    return float(np.mean(np.concatenate([best[i, : len(f.labels)] == f.labels for i, f in enumerate(pool.fleets)])))


def identity(tmp_path, seconds: float, *overrides: str, enough: float = 0.999) -> float:
    """Train on fleets of `identity_pool`; return the share of held-out devices that get their strong edge."""
    config = load_config(None, ["learning.target_update_steps=500", "learning.learning_starts=500", *overrides])
    spec = FleetSpec.of(config)
    pool = identity_pool(tmp_path / "seen", 60, spec)
    unseen = identity_pool(tmp_path / "all", 90, spec)
    del unseen.fleets[:60]
    algorithm = build(config, pool)
    begin = time.process_time()
    share = 0.0
    while time.process_time() - begin < seconds and share < enough:
        algorithm.train()
        share = agreement(algorithm, unseen, config.learning.features)
    algorithm.stop()
    return share


def test_each_device_goes_to_its_only_strong_edge(tmp_path) -> None:
    small_network = ("learning.hidden=16", "scheduling.num_scheduled=10", "fleet.num_edges=3")
    quick = ("learning.epsilon_steps=4000", "learning.learning_rate=5e-3", "learning.evaluate_every=1000")
    assert identity(tmp_path, 40.0, *small_network, *quick, enough=0.9) >= 0.9  # a third by chance


LITERAL = (
    "learning.features=paper", "learning.replay=transitions", "learning.td_loss=squared", "learning.double_q=false",
    "learning.grad_clip=null", "learning.environments=1", "learning.train_batch=128", "learning.update_every=1",
    "learning.buffer_capacity=1000", "fleet.deployment_seed=0",
)  # fmt: skip


@pytest.mark.slow  # up to 40 s of a CPU
def test_algorithm_5_as_printed_learns_where_one_edge_is_strong(tmp_path) -> None:
    # There are three edges. The printed settings stay below whole episodes of a large buffer, so the bar is low.
    small_network = ("learning.hidden=16", "scheduling.num_scheduled=10", "fleet.num_edges=3")
    quick = ("learning.learning_rate=4e-3", "learning.final_learning_rate=4e-3", "learning.evaluate_every=500")
    assert identity(tmp_path, 40.0, *small_network, *LITERAL, *quick, "learning.epsilon=0", enough=0.68) >= 0.68


SEVERAL = FleetSpec(num_scheduled=(3, 6), num_edges=(2, 4))


def agent_module(seed: int = 0) -> D3QNModule:
    network = NetworkSpec(architecture="shared", num_edges=4, hidden=8, width=8, refinements=1)
    return D3QNModule(
        observation_space=gym.spaces.Box(-np.inf, np.inf, (network.row,), np.float32),
        action_space=gym.spaces.Discrete(4),
        model_config={"network": asdict(network), "seed": seed},
        inference_only=False,
    )


def batch_of_fleets(count: int = 6):
    solved = [SEVERAL.solve(index) for index in range(count)]
    return solved, batch_of([fleet.rows("db", 4) for fleet in solved])


def test_the_seed_alone_decides_the_weights_without_torchs_generator() -> None:
    state = torch.random.get_rng_state()
    one, two, other = (agent_module(seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_exploration_takes_available_edges_only() -> None:
    agent = agent_module()
    solved, columns = batch_of_fleets()
    rng, taken = np.random.default_rng(0), [set() for _ in solved]
    for _ in range(60):
        draws = torch.as_tensor(rng.random((*columns[Columns.OBS].shape[:2], 2), dtype=np.float32))
        actions = agent.forward_exploration(columns | {DRAWS: draws, EPSILON: 1.0})[Columns.ACTIONS].numpy()
        for fleet, row, edges in zip(solved, actions, taken, strict=True):
            edges.update(row[: len(fleet.labels)].tolist())
    assert taken == [set(range(len(fleet.problem.bandwidth))) for fleet in solved]


def test_epsilon_is_the_probability_of_exploration() -> None:
    agent = agent_module()
    _, columns = batch_of_fleets()
    greedy = agent.forward_inference(columns)[Columns.ACTIONS]
    shape = (*columns[Columns.OBS].shape[:2], 2)
    draws = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    never = agent.forward_exploration(columns | {DRAWS: draws, EPSILON: 0.0})[Columns.ACTIONS]
    assert torch.equal(never, greedy)
    half = agent.forward_exploration(columns | {DRAWS: draws, EPSILON: 0.5})[Columns.ACTIONS]
    unexplored = draws[..., 0] >= 0.5
    assert torch.equal(half[unexplored], greedy[unexplored])
    assert not torch.equal(half, greedy)


THREE_WIDE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(4)


def test_one_device_still_has_a_time_dimension() -> None:
    rows = np.ones((1, 3), dtype=np.float32)
    episodes = [whole_episode(rows, [0], [1.0], [0], THREE_WIDE) for _ in range(2)]
    batch = EpisodesToBatch()(rl_module=None, batch={}, episodes=episodes)
    assert [np.shape(value) for (value,) in batch[Columns.OBS].values()] == [(2, 3)] * 2
    assert [mask.tolist() for (mask,) in batch[Columns.LOSS_MASK].values()] == [[True, False]] * 2
