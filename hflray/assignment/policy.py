"""Policies of the learned assigner as files, and the shipped ones by name.

A policy is one safetensors file: the network's tensors and, in its header, the model card (what it was trained on, by
which commit, with which results) and a checksum. Three are shipped:

``any_deployment``
    The default. A network of ours for any number of edges, with the ``db`` features, that learned from local search
    and then from the objective itself. It is not the paper's.
``paper_db``
    The paper's network (BiLSTM of 256) with the ``db`` features, for M = 5 edges wherever they are.
``paper_literal``
    The paper's network and features, learned by Algorithm 5 as printed, for one deployment of M = 5 edges
    (`fleet.deployment_seed` 0).
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hflray.assignment.network import NetworkSpec, QNetwork, build_network
from hflray.errors import ConfigError, nearest

POLICIES = Path(__file__).with_name("policies")
SHIPPED = POLICIES / "any_deployment.safetensors"
TRAIN = "python -m hflray.tune tune_configs/fig5_assigner_learning.yaml"


def shipped() -> list[str]:
    """Names of the shipped policies."""
    return sorted(path.stem for path in POLICIES.glob("*.safetensors"))


def policy_path(policy: str | Path) -> Path:
    """The file of a policy: of a shipped one by its bare name, or the path itself.

    Raises:
        ConfigError: a bare name that is neither a shipped policy nor a file.
    """
    name, path = str(policy), Path(policy)
    if name in shipped():
        return POLICIES / f"{name}.safetensors"
    if path.name == name and not path.suffix and not path.exists():
        raise ConfigError(
            f"assignment.policy: got '{name}'; accepted: a shipped policy ({', '.join(shipped())}) or the path of a "
            f"policy file{nearest(name, shipped())}; correct it, or train one: {TRAIN}"
        )
    return path


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
