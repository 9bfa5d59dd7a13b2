"""Save and load policies of the learned assigner, and name the shipped ones.

A policy is one safetensors file with the network's tensors. Its header has a checksum and the model card, which tells
on what the policy was trained, by which commit, and with which results. Four policies are shipped:

``any_deployment``
    The default: a network for any number of edges, with the ``db`` features, which learned from local search and then
    from the objective itself. The paper has no such network.
``paper_db``
    The paper's network (a BiLSTM of 256 units) with the ``db`` features, for M = 5 edges at any positions.
``paper_literal``
    The paper's network and features, trained by Algorithm 5 as printed, for one deployment of M = 5 edges
    (`fleet.deployment_seed` 0).
``paper_best``
    The paper's network for the same deployment, by the one of eight readings of Algorithm 5 that returned most with one
    seed (fig5_readings.yaml).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import torch
from pydantic import BaseModel, Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_safetensors

from hflray.assignment.network import NetworkSpec, QNetwork, build_network
from hflray.errors import ConfigError, nearest
from hflray.support import pinned
from hflray.support.files import write
from hflray.support.reader import UnfitError, fit, parse_json

POLICIES = Path(__file__).with_name("policies")
SHIPPED = POLICIES / "any_deployment.safetensors"
MOST_UNITS = 100_000  # of a layer, and of layers
Span = Annotated[list[int], Field(min_length=2, max_length=2)]
Net = TypeVar("Net", bound=torch.nn.Module)
TRAIN = "python -m hflray.tune tune_configs/fig5_assigner_learning.yaml"


def shipped() -> list[str]:
    """Return the names of the shipped policies."""
    return sorted(path.stem for path in POLICIES.glob("*.safetensors"))


def policy_path(policy: str | Path) -> Path:
    """Return the path of a policy, which is given by a shipped policy's name or by its path, pinned or not.

    Raises:
        ConfigError: a bare name is neither a shipped policy nor a file, or see `hflray.support.pinned.locate`.
    """
    name = str(policy)
    if name in shipped():
        return POLICIES / f"{name}.safetensors"
    path = pinned.locate(name, "assignment.policy")
    if path.name == name and not path.suffix and not path.exists():
        raise ConfigError(
            f"assignment.policy: got '{name}'; accepted: a shipped policy ({', '.join(shipped())}) or the path of a "
            f"policy file{nearest(name, shipped())}; correct it, or train one: {TRAIN}"
        )
    return path


class _Fleet(BaseModel):
    deployment_seed: int | None = None


class _Specification(BaseModel):
    fleet: _Fleet = _Fleet()


class _TrainedOn(BaseModel):
    num_scheduled: int | Span | None = None
    num_edges: int | Span | None = None
    target: float | None = Field(default=None, gt=0)
    specification: _Specification = _Specification()


class _Card(BaseModel):
    trained_on: _TrainedOn = _TrainedOn()
    fine_tuned: list[dict[str, Any]] = []


class _Head(BaseModel):
    """What the header of a policy holds as far as it is used when devices are assigned or scheduled."""

    spec: dict[str, str | Annotated[int, Field(lt=MOST_UNITS)]]
    card: _Card


class PolicyNetwork(Protocol):
    """A network that `save_policy` writes: its ``spec``, a dataclass, says how to build it."""

    spec: Any

    def state_dict(self) -> Any:
        """Return the tensors by name."""


def save_policy(path: str | Path, network: PolicyNetwork, card: dict[str, Any]) -> None:
    """Write a policy: the network's tensors, its specification, the card and a checksum, in one safetensors file.

    Args:
        path: path of the file, whose folder is made.
        network: a network of `hflray.assignment.network`, or of `hflray.scheduling.learned`.
        card: values that JSON can hold: ``trained_on`` with ``num_scheduled`` and ``num_edges`` as [low, high], and any
            further information for the reader.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    head = json.dumps({"spec": asdict(network.spec), "card": card}, sort_keys=True)
    metadata = {"hflray_policy": head, "sha256": _digest(head, tensors)}
    write(path, as_safetensors(tensors, metadata), durable=True)


def load_policy(path: str | Path) -> tuple[QNetwork, dict[str, Any]]:
    """Return a policy's network, ready for inference, and its card. A file is read once.

    Raises:
        ConfigError: the file is missing, damaged, changed since it was written, or not a policy.
    """
    file = Path(path)
    if not os.path.isfile(file):  # unlike Path.is_file, it raises no error for a path that cannot exist
        raise ConfigError(
            f"assignment.policy: {file} does not exist; leave it out for the shipped policy, or train one: {TRAIN}"
        )
    state = file.stat()
    return _load(file.resolve(), state.st_mtime_ns, state.st_size)


@cache
def _load(file: Path, modified_ns: int, size: int) -> tuple[QNetwork, dict[str, Any]]:
    """Read the policy of this path, modification time and size; these are the cache's key."""
    fix = f"get the file again, or train one: {TRAIN}"
    return read_policy(file, "assignment.policy", fix, lambda spec: build_network(NetworkSpec(**spec)))


def read_policy(
    path: str | Path, setting: str, fix: str, build: Callable[[dict[str, Any]], Net]
) -> tuple[Net, dict[str, Any]]:
    """Return the network of a policy's file, ready for inference, and its card.

    Args:
        path: path of the file.
        setting: dotted key of the setting that names it, for messages.
        fix: what to do about a file that is not whole, for messages.
        build: makes the network of the ``spec`` in the policy's header.

    Raises:
        ConfigError: the file is missing, damaged, changed since it was written, or no policy of such a network.
    """
    file = Path(path)
    if not os.path.isfile(file):
        raise ConfigError(f"{setting}: {file} does not exist; {fix}")
    try:
        with safe_open(file, framework="pt") as reader:
            header = reader.metadata() or {}
            tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118 (it is not a mapping)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{setting}: {file} cannot be read ({error}); {fix}") from None
    if "hflray_policy" not in header:
        raise ConfigError(f"{setting}: {file} is not a policy of hflray; {fix}")
    head = header["hflray_policy"]
    if _digest(head, tensors) != header.get("sha256"):
        raise ConfigError(f"{setting}: {file} has been changed or damaged (its checksum differs); {fix}")
    try:
        saved: dict[str, Any] = parse_json(head)
        fit(_Head, saved)
    except ValueError as error:
        raise ConfigError(f"{setting}: {file} cannot be read ({error}); {fix}") from None
    try:
        network = filled(lambda: build(saved["spec"]), tensors)
    except (TypeError, ValueError, RuntimeError, ConfigError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"{setting}: {file} is of another kind or version of policy ({first}); {fix}") from None
    return network.eval().requires_grad_(False), saved["card"]


def filled(build: Callable[[], Net], tensors: dict[str, torch.Tensor]) -> Net:
    """Return a network with these weights. A specification that does not fit to them is refused before it takes memory.

    Raises:
        RuntimeError, UnfitError: the network has other weights, or more layers than there are weights.
    """
    if any(not tensor.is_floating_point() for tensor in tensors.values()):
        raise UnfitError("its weights are no floating-point numbers")
    with torch.device("meta"):
        network = build()
    # They are copied, because the file may be replaced while the network is in use.
    network.load_state_dict({name: tensor.float().clone() for name, tensor in tensors.items()}, assign=True)
    return network


def _digest(head: str, tensors: dict[str, torch.Tensor]) -> str:
    """Return the checksum of a policy's header and tensors."""
    digest = hashlib.sha256(head.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
