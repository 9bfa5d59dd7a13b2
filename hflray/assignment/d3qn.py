"""The learned assigner (paper, section V): one pass of a Q-network over the scheduled devices, then ``argmax`` (23).

This module runs inference only, and needs neither Ray nor RLlib. The policy is a file (`hflray.assignment.policy` names
the shipped ones), which `hflray train-assigner` makes.

With `polish_ms`, a local search on the objective of `coupling` improves the policy's assignment, for that many
milliseconds or to a local ``optimum``. The policy itself does not depend on the coupling.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from hflray.allocation import Coupling
from hflray.assignment.features import Rows, rows_of
from hflray.assignment.local_search import search_for
from hflray.assignment.network import QNetwork
from hflray.assignment.objective import check_coupling, round_problem
from hflray.assignment.policy import SHIPPED, TRAIN, load_policy, policy_path
from hflray.assignment.shared_network import SharedPass, shared_pass
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray

AT_ONCE = 50  # exchanges that a polish solves between two checks of the clock
logger = logging.getLogger("hflray")
_warned: set[str] = set()


@cache
def _pass_of(network: QNetwork) -> SharedPass | None:
    """Return the pass that all assigners of a loaded policy share; its weights never change."""
    return shared_pass(network)


class D3QN:
    """The learned assigner.

    Args:
        policy: path of a policy, or name of a shipped one; None: ``any_deployment``.
        polish_ms: milliseconds of local search from the policy's assignment. With None or 0 there is none; with
            ``optimum`` it ends at a local optimum over transfers and exchanges. With a number the result depends on the
            machine's speed.
        coupling: objective of the polish, ``per_edge`` or ``joint``, as in `hflray.assignment.local_search`.
        features: if not None, the feature set on which the policy must have been trained (``paper`` or ``db``).

    Raises:
        ConfigError: the name is unknown, the file is missing, damaged or no policy, the feature set is another one, or
            `polish_ms` is wrong.
    """

    def __init__(
        self,
        policy: str | Path | None = None,
        polish_ms: float | Literal["optimum"] | None = None,
        features: str | None = None,
        coupling: Coupling = "per_edge",
    ) -> None:
        budget = np.inf if polish_ms == "optimum" else polish_ms or 0.0
        if isinstance(budget, str) or not budget >= 0:
            raise ConfigError(
                f"assignment.polish_ms: got {polish_ms!r}; a number of at least 0, 'optimum' or null is needed"
            )
        self.path = SHIPPED if policy is None else policy_path(policy)
        self.network, self.card = load_policy(self.path)
        self.spec, self._fast = self.network.spec, _pass_of(self.network)
        if features is not None and features != self.spec.features:
            raise ConfigError(
                f"assignment.features: got '{features}', but {self.path} was trained on '{self.spec.features}'; "
                f"leave it out, or train one: {TRAIN} --set learning.features={features}"
            )
        self.polish_ms, self.coupling = float(budget), check_coupling(coupling)

    @property
    def fixed_edges(self) -> int | None:
        """The only number of edges that the policy can assign to; None: any."""
        return self.spec.num_edges if self.spec.architecture == "bilstm" else None

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices; `rng` is not used.

        Raises:
            ConfigError: an index or a value is wrong, or the policy is for another number of edges.
        """
        self._check(fleet.num_edges, np.size(devices))
        problem, scheduled = round_problem(fleet, work, devices)
        rows = rows_of(self.spec.features, fleet, problem, scheduled)
        begin = time.perf_counter()
        assignment = None if self._fast is None else self._fast.edges(rows)
        if assignment is None:
            assignment = self._edges(rows)
        if self.polish_ms and fleet.num_edges > 1:
            search = search_for(problem, True, self.coupling)
            # Each check of the clock ranks the exchanges again, so without a limit it is not checked more often.
            limited = {"at_once": AT_ONCE} if self.polish_ms < np.inf else {}
            search.run(assignment, begin + self.polish_ms / 1e3, **limited)
            return search.assignment
        return assignment

    def _edges(self, rows: Rows) -> IntArray:
        """Return the edges that torch chooses, (H,)."""
        with torch.inference_mode(), one_thread():
            q = self.network(torch.from_numpy(rows)[None])[0]
        if not bool(torch.isfinite(q).all()):
            bad = int(torch.nonzero(~torch.isfinite(q).all(dim=-1))[0])
            raise ConfigError(
                f"devices[{bad}]: the policy {self.path.name} gives it no finite value; the fleet is beyond what the "
                "network can represent; use assignment.name: local_search for it"
            )
        return np.asarray(q.argmax(dim=-1).numpy(), dtype=np.intp)

    def _check(self, num_edges: int, num_scheduled: int) -> None:
        """Refuse an M that the policy cannot take, and warn once of an H or M beyond its training."""
        if self.fixed_edges not in (None, num_edges):
            raise ConfigError(
                f"assignment.policy: {self.path} is for M = {self.fixed_edges} edges, this fleet has {num_edges}; "
                f"leave assignment.policy out for the shipped policy (any M), or train one: "
                f"{TRAIN} --set fleet.num_edges={num_edges}"
            )
        trained = self.card.get("trained_on", {})
        for name, value in (("num_scheduled", num_scheduled), ("num_edges", num_edges)):
            largest = trained.get(name, [value, value])[1]
            if value > largest and (key := f"{self.path}:{name}") not in _warned:
                _warned.add(key)
                logger.warning(
                    "d3qn: %s = %d, more than the %d that %s was trained up to; it works, but is not tuned for it "
                    "(assignment.polish_ms helps)", name, value, largest, self.path.name,
                )  # fmt: skip

    def on_deployment(self, seed: int | None) -> None:
        """Warn once if the policy was trained on another deployment (`fleet.deployment_seed`) only."""
        learned = self.card.get("trained_on", {}).get("specification", {}).get("fleet", {}).get("deployment_seed")
        if learned is not None and seed != learned and (key := f"{self.path}:deployment {seed}") not in _warned:
            _warned.add(key)
            logger.warning(
                "d3qn: fleet.deployment_seed is %s, and %s learned the edges of deployment %d alone; its answers on "
                "others are arbitrary", "null" if seed is None else seed, self.path.name, learned,
            )  # fmt: skip


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch in one thread: small layers gain nothing from a second one, and their bits stay the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
