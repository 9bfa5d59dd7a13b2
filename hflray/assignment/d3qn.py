"""The learned assigner (paper, section V): one pass of a Q-network over the scheduled devices, then ``argmax`` (23).

Inference only, without Ray or RLlib. A policy is one safetensors file: the network's tensors and, in its header, the
model card (what it was trained on, by which commit, with which results) and a checksum. The shipped policy is for any
number of edges; `hflray.rl.train` makes others.

`polish_ms` lets local search go on from the policy's answer, for so many milliseconds or to a local ``optimum``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hflray.allocation.jit import IntArray
from hflray.assignment.features import rows_of
from hflray.assignment.local_search import descend
from hflray.assignment.neighbours import new_state
from hflray.assignment.network import NetworkSpec, QNetwork, build_network
from hflray.assignment.objective import round_problem
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import Fleet

SHIPPED = Path(__file__).with_name("policies") / "any_deployment.safetensors"
TRAIN = "python -m hflray.tune tune_configs/fig5_assigner_learning.yaml"
AT_ONCE = 50  # exchanges that a polish solves between looks at the clock
logger = logging.getLogger("hflray")
_warned: set[str] = set()


class D3QN:
    """The learned assigner.

    Args:
        policy: a policy file; None: the shipped one, for any number of edges.
        polish_ms: milliseconds of local search from the policy's answer; None or 0: the policy alone; ``optimum``: to
            a local optimum over transfers and exchanges. With a number the answer depends on the machine's speed.
        features: if given, the feature set that the policy must have been trained on (``paper`` or ``db``).

    Raises:
        ConfigError: a file that is missing, damaged or no policy; another feature set; a bad budget.
    """

    def __init__(
        self,
        policy: str | Path | None = None,
        polish_ms: float | Literal["optimum"] | None = None,
        features: str | None = None,
    ) -> None:
        budget = np.inf if polish_ms == "optimum" else polish_ms or 0.0
        if isinstance(budget, str) or not budget >= 0:
            raise ConfigError(
                f"assignment.polish_ms: got {polish_ms!r}; a number of at least 0, 'optimum' or null is needed"
            )
        self.path = SHIPPED if policy is None else Path(policy)
        self.network, self.card = load_policy(self.path)
        self.spec = self.network.spec
        if features is not None and features != self.spec.features:
            raise ConfigError(
                f"assignment.features: got '{features}', but {self.path} was trained on '{self.spec.features}'; "
                f"leave it out, or train one: {TRAIN} --set learning.features={features}"
            )
        self.polish_ms = float(budget)

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices; `rng` is not drawn from.

        Raises:
            ConfigError: a bad index or value, or a fleet of another M than a one-deployment policy is for.
        """
        self._check(fleet.num_edges, np.size(devices))
        problem, chosen = round_problem(fleet, work, devices)
        rows = rows_of(self.spec.features, fleet, problem, chosen)
        begin = time.perf_counter()
        with torch.inference_mode(), _one_thread():
            q = self.network(torch.from_numpy(rows)[None])[0]
        assignment = np.asarray(q.argmax(dim=-1).numpy(), dtype=np.intp)
        if not bool(torch.isfinite(q).all()):
            bad = int(torch.nonzero(~torch.isfinite(q).all(dim=-1))[0])
            raise ConfigError(
                f"devices[{bad}]: the policy {self.path.name} gives it no finite value; the fleet is beyond what the "
                "network can represent; use assignment.name: local_search for it"
            )
        if self.polish_ms and fleet.num_edges > 1:
            state = new_state(problem, assignment, exchanges=True)
            # Looking at the clock means ranking the exchanges again: not where there is no limit.
            limited = {"at_once": AT_ONCE} if self.polish_ms < np.inf else {}
            descend(problem, state, True, begin + self.polish_ms / 1e3, **limited)
            return state.assignment
        return assignment

    def _check(self, num_edges: int, num_scheduled: int) -> None:
        if self.spec.architecture == "bilstm" and num_edges != self.spec.num_edges:
            raise ConfigError(
                f"assignment.policy: {self.path} is for M = {self.spec.num_edges} edges, this fleet has {num_edges}; "
                f"leave assignment.policy out for the shipped policy (any M), or train one: "
                f"{TRAIN} --set fleet.num_edges={num_edges}"
            )
        trained = self.card.get("trained_on", {})
        for what, value in (("num_scheduled", num_scheduled), ("num_edges", num_edges)):
            most = trained.get(what, [value, value])[1]
            if value > most and (key := f"{self.path}:{what}") not in _warned:
                _warned.add(key)
                logger.warning(
                    "d3qn: %s = %d, more than the %d that %s was trained up to; it works, but is not tuned for it "
                    "(assignment.polish_ms helps)", what, value, most, self.path.name,
                )  # fmt: skip


@contextmanager
def _one_thread() -> Iterator[None]:
    """Layers this small gain nothing from a second thread, wait for it on a busy machine, and keep their bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save_policy(path: str | Path, network: QNetwork, card: dict[str, Any]) -> None:
    """Write a policy: the network's tensors, its specification, the card and a checksum, in one safetensors file.

    Args:
        path: the file; its folder is made.
        network: of `hflray.assignment.network`.
        card: what JSON can hold: ``trained_on`` with ``num_scheduled`` and ``num_edges`` as [low, high], and whatever
            else a reader should know.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    head = json.dumps({"spec": network.spec.to_dict(), "card": card}, sort_keys=True)
    # To a temporary name first: a reader never sees half a policy.
    partial = file.with_suffix(".partial")
    save_file(tensors, partial, metadata={"hflray_policy": head, "sha256": _digest(head, tensors)})
    partial.chmod(0o644)  # safetensors keeps files to their owner; a policy is there to be given on
    partial.replace(file)


def load_policy(path: str | Path) -> tuple[QNetwork, dict[str, Any]]:
    """Read a policy: its network, ready for inference, and its card. The same file is read once.

    Raises:
        ConfigError: the file is missing, damaged, changed since it was written, or no policy.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(
            f"assignment.policy: {file} does not exist; leave it out for the shipped policy, or train one: {TRAIN}"
        )
    state = file.stat()
    return _load(file.resolve(), state.st_mtime_ns, state.st_size)


@cache
def _load(file: Path, changed: int, size: int) -> tuple[QNetwork, dict[str, Any]]:
    again = f"get the file again, or train one: {TRAIN}"
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"assignment.policy: {file} cannot be read ({error}); {again}") from None
    if "hflray_policy" not in header:
        raise ConfigError(f"assignment.policy: {file} is not a policy of hflray; {again}")
    head = header["hflray_policy"]
    if _digest(head, tensors) != header.get("sha256"):
        raise ConfigError(f"assignment.policy: {file} has been changed or damaged (its checksum differs); {again}")
    saved = json.loads(head)
    try:
        network = build_network(NetworkSpec(**saved["spec"]))
        network.load_state_dict(tensors)
    except (TypeError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"assignment.policy: {file} is of another version of hflray ({first}); {again}") from None
    return network.eval().requires_grad_(False), saved["card"]


def _digest(head: str, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(head.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
