"""The learned assigner (paper, section V): one pass of a Q-network over the scheduled devices, then ``argmax`` (23).

This module runs inference only, and needs neither Ray nor RLlib. The policy is a file (`hflray.assignment.policy` names
the shipped ones), which `hflray train-assigner` makes.

With `polish_ms`, a local search on the objective of `coupling` improves the policy's assignment, for that many
milliseconds or to a local ``optimum``. The policy itself does not depend on the coupling.

`SharedPass` computes the pass of the network for any number of edges (`SharedBiLstm`) in C, for the decisions of one
fleet; `shared_network.c` says how. Its sums have another order than torch's, so its Q-values differ from torch's by
rounding. Where the best edge of each device leads the second one by much more than rounding, torch would choose the
same edges. Elsewhere it gives no answer, and torch decides, so that the answers are torch's to the last edge.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike

from hflray.allocation import Coupling
from hflray.assignment.features import Rows, feature_rows
from hflray.assignment.local_search import search_for
from hflray.assignment.network import QNetwork, SharedBiLstm
from hflray.assignment.policy import SHIPPED, TRAIN, load_policy, policy_path
from hflray.config.options import one_of
from hflray.cost import Workload
from hflray.errors import ConfigError, HflrayError
from hflray.fleet import Fleet
from hflray.physics.access import MeasuredAccess
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.native import load_library

AT_ONCE = 50  # exchanges that a polish solves between two checks of the clock
SOURCE = Path(__file__).with_name("shared_network.c")
# The least lead of an edge that rounding cannot turn, up to `DEVICES` devices and in proportion to them above. On 1,860
# fleets of up to 500 devices the Q-values of both passes differed by at most 7.4e-6 in the unit of the lead.
SURE, DEVICES = 2.0**-12, 200
LARGEST = 40.0  # feature; far larger ones, which no fleet has, are rounded more
KEPT_FLOATS = 4_000_000  # a larger workspace is given back after a pass
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

    Raises:
        ConfigError: the name is unknown, the file is missing, damaged or no policy, or `polish_ms` is wrong.
    """

    def __init__(
        self,
        policy: str | Path | None = None,
        polish_ms: float | Literal["optimum"] | None = None,
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
        self.polish_ms, self.coupling = float(budget), one_of("assignment.coupling", coupling, get_args(Coupling))

    @property
    def fixed_edges(self) -> int | None:
        """The only number of edges that the policy can assign to; None: any."""
        return self.spec.num_edges if self.spec.architecture == "bilstm" else None

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices; `rng` is not used.

        Raises:
            ConfigError: an index or a value is wrong, or the policy is for another number of edges.
        """
        rows, scheduled = self._rows(fleet, work, devices)
        begin = time.perf_counter()
        assignment = None if self._fast is None else self._fast.edges(rows)
        if assignment is None:
            assignment = self._values(rows).argmax(axis=1).astype(np.intp)
        if self.polish_ms and fleet.num_edges > 1:
            search, _ = search_for(fleet, work, scheduled, True, self.coupling)
            # Each check of the clock ranks the exchanges again, so without a limit it is not checked more often.
            limited = {"at_once": AT_ONCE} if self.polish_ms < np.inf else {}
            search.run(assignment, begin + self.polish_ms / 1e3, **limited)
            return search.assignment
        return assignment

    def values(self, fleet: Fleet, work: Workload, devices: ArrayLike) -> Rows:
        """Return Q of each edge for each of `devices`, (H, M): the largest is the policy's choice before a polish.

        Raises:
            ConfigError: as `assign`.

        Examples:
            >>> import numpy as np
            >>> from hflray import FleetConfig, Workload, build_assigner, sample_fleet
            >>> fleet = sample_fleet(FleetConfig(num_devices=4, num_edges=2), np.random.default_rng(0))
            >>> policy, work = build_assigner("d3qn"), Workload(model_bits=1e6)
            >>> policy.values(fleet, work, [0, 3]).argmax(axis=1).tolist()
            [1, 0]
            >>> policy.assign(fleet, work, [0, 3], np.random.default_rng(0)).tolist()
            [1, 0]
        """
        return self._values(self._rows(fleet, work, devices)[0])

    def _values(self, rows: Rows) -> Rows:
        """Return Q by torch, (H, M)."""
        with torch.inference_mode(), one_thread():
            q = self.network(torch.from_numpy(rows)[None])[0]
        if not bool(torch.isfinite(q).all()):
            bad = int(torch.nonzero(~torch.isfinite(q).all(dim=-1))[0])
            raise ConfigError(
                f"devices[{bad}]: the policy {self.path.name} gives it no finite value; the fleet is beyond what the "
                "network can represent; use assignment.name: local_search for it"
            )
        return np.asarray(q.numpy())

    def _rows(self, fleet: Fleet, work: Workload, devices: ArrayLike) -> tuple[Rows, IntArray]:
        """Return the features and the checked indices of the devices.

        It refuses an M that the policy cannot take, and warns once of an H or M beyond its training, and of uploads
        that do not follow from what it sees.
        """
        num_edges, num_scheduled = fleet.num_edges, np.size(devices)
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
        if isinstance(fleet.access, MeasuredAccess) and (key := f"{self.path}:measured") not in _warned:
            _warned.add(key)
            logger.warning(
                "d3qn: it sees gains and bandwidths, and with cost.access.name = measured uploads depend on neither; "
                "its answers are arbitrary there; assignment.name: local_search sees the rates"
            )
        return feature_rows(self.spec.features, fleet, work, devices)

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


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled code; None where it cannot be built, so that torch decides."""
    try:
        code = load_library(SOURCE)
    except (HflrayError, OSError):
        return None
    number, large, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    code.shared_floats.argtypes, code.shared_floats.restype = [number] * 3 + [large] * 2, ctypes.c_size_t
    code.shared_pass.argtypes = [pointer, *[number] * 5, pointer, large, large, *[pointer] * 3]
    code.shared_pass.restype = ctypes.c_float
    return code


class SharedPass:
    """The pass of a `SharedBiLstm` with the weights that it has now.

    Args:
        network: a network of sizes that `shared_pass` accepts.
        lanes: floats in a vector of the compiled code.
    """

    def __init__(self, network: SharedBiLstm, lanes: int) -> None:
        self.spec, self._features = network.spec, network.sizes
        self._weights = torch.from_numpy(packed_weights(network, lanes))
        self._free: list[torch.Tensor] = []  # workspaces that no thread uses

    def __call__(self, rows: Rows) -> tuple[Rows, IntArray, float]:
        """Return Q, (H, M), the best edge of each device, (H,), and the smallest lead of a best edge over the second.

        The lead is in units of the largest numbers that are added up to a Q; it is NaN if a Q is not finite.
        """
        code, sizes = _library(), (self.spec.width, self.spec.hidden)
        assert code is not None  # else `shared_pass` makes none
        num_devices, num_edges = len(rows), self._features.edges(rows.shape[1])
        q, best = np.empty((num_devices, num_edges), dtype=np.float32), np.empty(num_devices, dtype=np.int64)
        floats = code.shared_floats(*sizes, self._features.device, num_devices, num_edges)
        space = self._free.pop() if self._free else torch.empty(0)
        if len(space) < floats:
            space = torch.empty(floats)
        lead = code.shared_pass(
            self._weights.data_ptr(), *sizes, self.spec.refinements, *self._features, rows.ctypes.data, num_devices,
            num_edges, space.data_ptr(), q.ctypes.data, best.ctypes.data,
        )  # fmt: skip
        if len(space) <= KEPT_FLOATS:
            self._free.append(space)
        return q, best.astype(np.intp, copy=False), lead

    def edges(self, rows: Rows) -> IntArray | None:
        """Return the edge that torch would choose for each device, (H,), or None where it must be asked."""
        if not np.abs(rows).max() <= LARGEST:
            return None
        _, best, lead = self(rows)
        return best if lead > SURE * max(1.0, len(rows) / DEVICES) else None


def shared_pass(network: QNetwork) -> SharedPass | None:
    """Return the pass of a network; None for another network or other sizes, and where there is no C compiler."""
    code = _library() if isinstance(network, SharedBiLstm) else None
    if code is None or not isinstance(network, SharedBiLstm):
        return None
    lanes: int = code.shared_lanes()
    return None if network.spec.width % (4 * lanes) or network.spec.hidden % lanes else SharedPass(network, lanes)


def packed_weights(network: SharedBiLstm, lanes: int) -> Rows:
    """Return all weights in the order in which `shared_network.c` reads them.

    Two linear layers without anything between them are one: what a load, or the reading of the recurrent layers, passes
    through. The bias of a softmax changes nothing.
    """
    link, hidden, refinements = network.sizes.link, network.spec.hidden, network.spec.refinements
    of: dict[str, FloatArray] = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    parts: list[FloatArray] = []

    def add(*vectors: FloatArray) -> None:
        for vector in vectors:
            parts.append(np.append(vector.ravel(), np.zeros(-vector.size % lanes)))

    def panels(matrix: FloatArray) -> FloatArray:
        """Return a matrix, (outputs, inputs), as (outputs / 4 lanes, inputs, 4 lanes)."""
        return matrix.reshape(-1, 4 * lanes, matrix.shape[1]).swapaxes(1, 2)

    def gates(name: str) -> FloatArray:
        """Return the rows of both directions, each (4 hidden, …), by units and then by gates, (8 hidden, …)."""
        both = np.stack([of[f"body.{direction}.{name}_l0"] for direction in ("ahead", "back")])
        return both.reshape(2, 4, hidden // lanes, lanes, -1).swapaxes(1, 2).reshape(8 * hidden, -1)

    first = of["encode.0.weight"]
    add(panels(first[:, :link]), panels(first[:, link:]), of["encode.0.bias"])
    add(panels(of["encode.2.weight"]), of["encode.2.bias"])
    for step in range(refinements + 1):
        last = step == refinements
        layer = "advantage" if last else f"again.{step}"
        of_code, of_load, of_other = np.split(of[f"{layer}.0.weight"], 3, axis=1)
        bias, second = of[f"{layer}.0.bias"], of[f"{layer}.2.weight"]
        if last:
            bias = bias + of_other @ of["reading.bias"]
            of_other = of_other @ of["reading.weight"]
        add(of[f"spread.{step}.weight"], panels(of_code), panels(of_load @ of[f"bring.{step}.weight"] / 10.0))
        add(of_load @ of[f"bring.{step}.bias"] / 10.0, panels(of_other), bias)
        add(second if last else panels(second), of[f"{layer}.2.bias"])
    add(panels(gates("weight_ih")), gates("bias_ih") + gates("bias_hh"), panels(gates("weight_hh")))
    add(of["value.weight"], of["value.bias"])
    return np.concatenate(parts).astype(np.float32)
