"""``hflray/Assignment-v0``, the Gymnasium environment of the paper's section V (once ``DeviceAssignment-v0``).

An episode is a fleet, and each step assigns the next of its H devices to an edge. The state of equation (25) consists
of the episode's feature matrix and the step. An observation therefore is the row of device t, and `reset` returns the
whole matrix once, as ``info["rows"]``. An agent that reads the whole matrix decides all H actions at once, and RLlib's
replay holds each row once.

There are two rewards. ``teacher`` is equation (26): +1 for the teacher's edge and -1 for any other. ``cost`` is minus
the amount by which the device raises the round's objective, given the devices assigned so far, in units of the
teacher's objective / H. An episode's rewards then add up to minus its final objective, and to -H for an assignment as
good as the teacher's.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hflray.assignment.features import PAPERS, WIDTHS, FeatureSet, Rows
from hflray.assignment.state import blank_state, restart
from hflray.config.options import one_of
from hflray.errors import ConfigError
from hflray.rl.fleets import FleetSpec, SolvedFleet
from hflray.rl.solved_fleets import FleetPool

ENV_ID, OLD_ENV_ID = "hflray/Assignment-v0", "hflray/DeviceAssignment-v0"
Reward = Literal["teacher", "cost"]


class DeviceAssignmentEnv(gym.Env[NDArray[np.float32], np.int64]):
    """The assignment of a fleet's devices to edges, as the module's docstring describes it.

    Args:
        pool: solved fleets, or the folder of their cache; None: fleets are drawn and solved as episodes begin.
        count: number of fleets to use from a folder, from the first; None: all.
        spec: the fleets that are drawn when there is no pool; None: Table I with HFEL-300 as teacher.
        features: the feature set of the rows.
        num_edges: number of edges that rows are padded to; None: the largest M of the specification.
        reward: ``teacher`` or ``cost``.
        shuffle: put the devices of each episode in a random order, which makes many fleets of one.

    An observation is ``Box((row,), float32)``, the row of the device to assign, and zeros after the last device. An
    action is ``Discrete(num_edges)``. Each ``info`` has:

    * ``action_mask``: 1 for each edge of this fleet and 0 for padding, (num_edges,), int8;
    * ``rows``, from `reset` only: the feature matrix, (H, row);
    * ``teacher``, from `reset` only: the teacher's edges, (H,);
    * ``fleet``, from `reset` only: the fleet's number.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium declares it as a plain dict too

    def __init__(
        self,
        pool: FleetPool | str | Path | None = None,
        count: int | None = None,
        spec: FleetSpec | None = None,
        features: FeatureSet = "db",
        num_edges: int | None = None,
        reward: Reward = "teacher",
        shuffle: bool = True,
    ) -> None:
        one_of("learning.reward", reward, get_args(Reward))
        one_of("learning.features", features, tuple(WIDTHS))
        self.pool = pool if isinstance(pool, FleetPool) or pool is None else open_pool(str(pool), count)
        self.drawn = self.pool.spec if self.pool is not None else spec or FleetSpec()  # Gymnasium uses the name `spec`
        largest = self.drawn.num_edges[1]
        self.num_edges = largest if num_edges is None else num_edges
        if self.num_edges < largest:
            raise ConfigError(f"num_edges: got {self.num_edges} for fleets of up to {largest} edges; raise it")
        if features in PAPERS and self.drawn.num_edges != (self.num_edges, self.num_edges):
            raise ConfigError(f"learning.features: '{features}' rows cannot be padded to more edges; use db, or one M")
        self.features: FeatureSet = features
        self.reward, self.shuffle = reward, shuffle
        row = WIDTHS[features].row(self.num_edges)
        low, high = (0.0, 1.0) if features in PAPERS else (-np.inf, np.inf)
        self.observation_space = gym.spaces.Box(low, high, (row,), np.float32)
        self.action_space = gym.spaces.Discrete(self.num_edges)
        self._end = np.zeros(row, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; ``options={"fleet": i}`` chooses fleet i of the pool.

        Raises:
            DataError: a feature of the fleet is not finite.
        """
        super().reset(seed=seed)
        number, solved = self._fleet(options or {})
        order = np.arange(len(solved.labels))
        if self.shuffle:
            self.np_random.shuffle(order)
        self._rows: Rows = solved.rows(self.features, self.num_edges)[order]
        self._labels, self._t = solved.labels[order].astype(np.int64), 0
        self._m = len(solved.problem.bandwidth)
        mask = np.zeros(self.num_edges, dtype=np.int8)
        mask[: self._m] = 1
        self._info = {"action_mask": mask}
        if self.reward == "cost":
            self._start_costs(solved, order)
        return self._rows[0], {"rows": self._rows, "teacher": self._labels, "fleet": number, **self._info}

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Assign device t to edge `action`.

        Raises:
            ConfigError: the fleet has no such edge; see ``info["action_mask"]``.
        """
        edge = int(action)
        if not 0 <= edge < self._m:
            raise ConfigError(f"action: edge {edge} of a fleet of {self._m} edges; accepted: 0 to {self._m - 1}")
        t = self._t
        reward = self._cost_reward(t, edge) if self.reward == "cost" else 1.0 if edge == self._labels[t] else -1.0
        self._t = t + 1
        if self._t == len(self._labels):
            return self._end, reward, True, False, self._info
        return self._rows[self._t], reward, False, False, self._info

    def _fleet(self, options: dict[str, Any]) -> tuple[int, SolvedFleet]:
        if self.pool is None:
            number = int(self.np_random.integers(2**31))
            return number, self.drawn.solve(number)
        number = int(options["fleet"] if "fleet" in options else self.np_random.integers(len(self.pool)))
        return number, self.pool[number]

    def _start_costs(self, solved: SolvedFleet, order: NDArray[np.intp]) -> None:
        p = solved.problem
        self._problem = p._replace(
            snr=np.ascontiguousarray(p.snr[:, order]), cycles=p.cycles[order], power=p.power[order], cap=p.cap[order]
        )
        self._state = blank_state(self._problem, 0, False)
        self._objective, self._unit = 0.0, solved.objective / len(order)

    def _cost_reward(self, device: int, edge: int) -> float:
        """Return the cost reward of assigning `device`; the first device's includes the cloud hops of empty edges."""
        assignment = self._state.assignment.copy()
        assignment[device] = edge
        before, self._objective = self._objective, restart(self._problem, self._state, assignment)
        return (before - self._objective) / self._unit


@lru_cache(maxsize=8)
def open_pool(folder: str, count: int | None = None) -> FleetPool:
    """Return the pool of a folder, read once per process: configurations hold the folder's name, not the pool."""
    return FleetPool(folder, count)


for _name in (ENV_ID, OLD_ENV_ID):
    if _name not in gym.registry:
        gym.register(id=_name, entry_point="hflray.rl.env:DeviceAssignmentEnv")
