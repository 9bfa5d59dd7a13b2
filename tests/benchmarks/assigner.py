"""Training the assigner: RLlib compared with the same algorithm in plain torch, in one run.

Both sides have the same network, the same fleets and environment, the same replay of whole episodes and the same number
of updates per environment step, so the comparison shows the overhead of RLlib. They take turns of a few seconds, so
that a busy machine slows both. CPU seconds are shown besides wall seconds, and the ratio is that of CPU time. Before
the timing, the losses of both on the same batch with the same weights must be equal.
Targets: ratio at least 0.75; on a quiet machine at least 2,400 environment steps/s from a cached pool, one thread.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from hflray.assignment.network import build_network
from hflray.config import ExperimentConfig, load_config
from hflray.rl.dqn import AssignerDQN, dqn_config, shifted
from hflray.rl.env import DeviceAssignmentEnv
from hflray.rl.fleets import FleetSpec, network_spec
from hflray.rl.sampling import LENGTHS, batch_of
from hflray.rl.session import start_quiet_ray
from hflray.rl.solved_fleets import FleetPool, prepare
from tests.benchmarks._report import Table

TURN_S = 5.0
TWO = "RLlib, both directions at once on two CPUs"


class Plain:
    """AssignerDQN over whole episodes in plain torch, which is the training without RLlib."""

    def __init__(self, config: ExperimentConfig, pool: FleetPool) -> None:
        learning = self.learning = config.learning
        self.envs = [
            DeviceAssignmentEnv(pool, features=learning.features, reward=learning.reward)
            for _ in range(learning.environments)
        ]
        self.network = build_network(network_spec(config))
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=learning.learning_rate)
        self.replay: deque[dict[str, np.ndarray]] = deque()
        self.held = self.steps = self.updated_at = 0
        self.rng = np.random.default_rng(config.seed)

    def train(self) -> int:
        """Sample an episode of each environment, update as often as RLlib does, and return the environment steps."""
        sampled = self.sample()
        if self.steps >= self.learning.learning_starts:
            fragment = round(sampled / len(self.envs)) * len(self.envs)
            every = self.learning.update_every or self.learning.train_batch / self.learning.training_intensity
            for _ in range(max(1, round(fragment / every))):
                self.update(self.draw())
        return sampled

    def sample(self) -> int:
        """Play one episode in each environment."""
        infos = [env.reset()[1] for env in self.envs]
        batch = batch_of([info["rows"] for info in infos])
        with torch.no_grad():
            actions = self.network(batch[Columns.OBS], batch[LENGTHS]).argmax(-1).numpy()
        first, last = self.learning.epsilon
        epsilon = np.interp(self.steps, [0, self.learning.epsilon_steps], [first, last])
        before = self.steps
        for env, info, greedy in zip(self.envs, infos, actions, strict=True):
            n = len(info["rows"])
            explored = self.rng.integers(int(info["action_mask"].sum()), size=n)
            taken = np.where(self.rng.random(n) < epsilon, explored, greedy[:n])
            rewards = np.array([env.step(edge)[1] for edge in taken.tolist()], dtype=np.float32)
            self.replay.append({"rows": info["rows"], "actions": taken, "rewards": rewards})
            self.held += n
            self.steps += n
            while self.held > self.learning.buffer_capacity:
                self.held -= len(self.replay.popleft()["rows"])
        return self.steps - before

    def draw(self) -> list[dict[str, np.ndarray]]:
        """Return whole episodes with at least `train_batch` transitions together."""
        drawn, count = [], 0
        while count < self.learning.train_batch:
            drawn.append(self.replay[int(self.rng.integers(len(self.replay)))])
            count += len(drawn[-1]["rows"])
        return drawn

    def loss(self, episodes: list[dict[str, np.ndarray]]) -> torch.Tensor:
        """Return the loss of equation (21), with the Huber loss, over the devices of these episodes."""
        batch = batch_of([episode["rows"] for episode in episodes])
        rows, lengths = batch[Columns.OBS], batch[LENGTHS]
        steps = rows.shape[1]
        actions, rewards = torch.zeros(rows.shape[:2], dtype=torch.long), torch.zeros(rows.shape[:2])
        for i, episode in enumerate(episodes):
            actions[i, : len(episode["actions"])] = torch.from_numpy(episode["actions"])
            rewards[i, : len(episode["rewards"])] = torch.from_numpy(episode["rewards"])
        q = self.network(rows, lengths)
        with torch.no_grad():
            following = shifted(self.target(rows, lengths))
            best = (shifted(q) if self.learning.double_q else following).argmax(-1, keepdim=True)
            valid = torch.arange(steps)[None] < lengths[:, None]
            goes_on = torch.arange(steps)[None] < lengths[:, None] - 1
            goal = rewards + self.learning.gamma * following.gather(-1, best)[..., 0] * goes_on
        taken = q.gather(-1, actions[..., None])[..., 0]
        return torch.nn.functional.huber_loss(taken[valid], goal[valid])

    def update(self, episodes: list[dict[str, np.ndarray]]) -> None:
        """Take one step of Adam, and update the target network at its interval."""
        self.optimizer.zero_grad()
        self.loss(episodes).backward()
        if self.learning.grad_clip is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.learning.grad_clip)
        self.optimizer.step()
        if self.steps - self.updated_at >= self.learning.target_update_steps:
            self.target.load_state_dict(self.network.state_dict())
            self.updated_at = self.steps


def check_equal_losses(algorithm: AssignerDQN, plain: Plain) -> str:
    """Assert that both compute the same loss from the same batch and weights, and return a sentence with both."""
    episodes = algorithm.local_replay_buffer.sample(plain.learning.train_batch)
    module = algorithm.learner_group._learner.module["default_policy"]
    plain.network.load_state_dict(algorithm.network().state_dict())
    plain.target.load_state_dict(module._target.state_dict())
    mine = [
        {
            "rows": episode.observations.data[:-1],
            "actions": np.asarray(episode.actions.data),
            "rewards": np.asarray(episode.rewards.data, dtype=np.float32),
        }
        for episode in episodes
    ]
    expected = float(plain.loss(mine).detach())
    steps = {"num_env_steps_sampled_lifetime": 0, "num_agent_steps_sampled_lifetime": {}}
    [result] = algorithm.learner_group.update(episodes=episodes, timesteps=steps)
    found = float(result["default_policy"]["qf_loss"].peek())
    assert abs(found - expected) <= 1e-5 * max(1.0, abs(expected)), f"losses differ: {found} and {expected}"
    return f"loss of the same batch: RLlib {found:.6f}, plain torch {expected:.6f}"


def advancing(algorithm: AssignerDQN) -> Callable[[], int]:
    """Return a function that trains one iteration and returns its environment steps."""
    done = [0]

    def advance() -> int:
        before, done[0] = done[0], int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
        return done[0] - before

    return advance


def turn(advance: Callable[[], int], total: dict[str, float]) -> None:
    """Train one side for `TURN_S` seconds, and add steps and times to `total`."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < TURN_S:
        total["steps"] += advance()
    total["wall"] += time.perf_counter() - wall
    total["cpu"] += time.process_time() - cpu


def table(seconds: float = 60.0, fleets: int = 1000, overrides: Sequence[str] = ()) -> Table:
    """Measure all sides together for `seconds`, with `fleets` cached fleets and the settings of `overrides`."""
    torch.set_num_threads(1)
    config = load_config(None, [f"learning.fleets={fleets}", "learning.epsilon_steps=1", *overrides])
    pool = prepare(FleetSpec.of(config), config.learning.fleets, config.learning.cache)
    start_quiet_ray()
    algorithm, on_two = (dqn_config(config, pool, cpus).build_algo() for cpus in (1, 2))
    plain = Plain(config, pool)
    rllib, rllib_on_two = advancing(algorithm), advancing(on_two)
    for _ in range(2):  # train past the first updates, to fill the replay buffer
        rllib()
        rllib_on_two()
    weights = zip(*(each.network().parameters() for each in (algorithm, on_two)), strict=True)
    assert all(torch.equal(one, two) for one, two in weights), "two CPUs gave other weights than one"
    while plain.steps < 2 * config.learning.learning_starts:
        plain.train()
    said = check_equal_losses(algorithm, plain)
    sides = {"RLlib": rllib, "plain torch": plain.train, TWO: rllib_on_two}
    totals = {name: {"steps": 0.0, "wall": 0.0, "cpu": 0.0} for name in sides}
    while sum(total["wall"] for total in totals.values()) < seconds:
        for name, advance in sides.items():
            turn(advance, totals[name])
    algorithm.stop()
    on_two.stop()
    columns = [("row", "", ""), ("per_s", "steps/s", ",.0f"), ("per_cpu_s", "steps/CPU s", ",.0f")]
    found = Table("assigner/learning", f"training the assigner, one torch thread, {len(pool)} cached fleets", columns)
    for name, total in totals.items():
        found.add(name, per_s=total["steps"] / total["wall"], per_cpu_s=total["steps"] / total["cpu"])
    mine, plainly, on_two_cpus = found.rows
    ratio, both = mine["per_cpu_s"] / plainly["per_cpu_s"], on_two_cpus["per_s"] / mine["per_s"]
    found.ratios = {"RLlib, of plain torch by CPU time": ratio, "RLlib, two CPUs over one": both}
    found.notes = [said, f"RLlib / plain torch: {ratio:.2f} by CPU time (target: at least 0.75)",
                   f"two CPUs / one: {both:.2f} by wall time, with equal weights (goal: 4,000 steps/s)"]  # fmt: skip
    return found
