"""Is the cluster fit for a sweep? Asked before its first trial; every answer names the node and the fix.

python -m hflray.tune.nodes [--address auto]     # the nodes, what they run and what they have
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hflray.errors import ConfigError, HflrayError
from hflray.provenance import differences, release
from hflray.training.start import start_ray

BOOTSTRAP = Path("~/ray_bootstrap_config.yaml")  # where `ray up` leaves the cluster's file on the head
ANSWER_S = 120.0  # a first worker process of a node that has just booted takes long to import


@dataclass(frozen=True)
class Node:
    """A live node: its id, address, and CPUs."""

    id: str
    address: str
    cpus: float


def live_nodes() -> list[Node]:
    """The nodes that are up, the one this process is on first."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    nodes = [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"].get("CPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(nodes, key=lambda node: node.id != here)


def check_nodes(results: Path | None = None) -> None:
    """Every node runs the Ray, Python, hflray and libraries that this process runs, and sees the results.

    Args:
        results: a folder that trials write to, so that all nodes must share it; None: they write to a storage.

    Raises:
        ConfigError: a node runs something else, does not answer, or does not see `results`.
    """
    nodes = live_nodes()
    if len(nodes) == 1:
        return
    probe = None
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        probe = results.resolve() / f".hflray-{uuid.uuid4().hex}"
        probe.touch()
    try:
        for node, answer in zip(nodes, _ask(nodes, probe), strict=True):
            what = answer if isinstance(answer, str) else differences(release(), answer["release"])
            if what:
                raise ConfigError(
                    f"node {node.address}: runs {what}; bring all nodes to one state with cluster/setup_node.sh "
                    "(`ray up` again does it)"
                )
            if probe is not None and isinstance(answer, dict) and not answer["sees"]:
                raise ConfigError(
                    f"--results: node {node.address} does not see {results}, and trials there could not save; give "
                    "--storage s3://bucket/folder, or a folder that all nodes share (NFS) as --results"
                )
    finally:
        if probe is not None:
            probe.unlink(missing_ok=True)


def _ask(nodes: list[Node], probe: Path | None) -> list[dict[str, Any] | str]:
    """Each node's `release` and whether it sees `probe`; what is wrong, in words, of a node that cannot tell."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(_tell)
    path = str(probe) if probe else None
    refs = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(path)
        for node in nodes
    ]
    answers: list[dict[str, Any] | str] = []
    for ref in refs:
        try:
            answers.append(ray.get(ref, timeout=ANSWER_S))
        except GetTimeoutError:
            answers.append(f"something that does not answer in {ANSWER_S:.0f} s")
        except (RayError, ImportError, AttributeError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            said = next((line for line in reversed(lines) if "Error: " in line), lines[0] if lines else "no reason")
            answers.append(f"no hflray that can be used ({said.strip()[:200]})")
    return answers


def _tell(probe: str | None) -> dict[str, Any]:
    """Run on a node."""
    return {"release": release(), "sees": probe is not None and os.path.exists(probe)}


def check_resources(cpus_per_trial: int, cpus: int) -> None:
    """One trial fits into the cluster, with the machines that its autoscaler may still start.

    Raises:
        ConfigError: it does not.
    """
    most = max(float(cpus), cpus_to_come(BOOTSTRAP.expanduser(), len(live_nodes())))
    if cpus_per_trial > most:
        raise ConfigError(
            f"tune.cpus_per_trial: a trial needs {cpus_per_trial} CPUs, Ray has {cpus}"
            + (f" and may have {most:.0f} with all machines started" if most > cpus else "")
            + f"; accepted: 1 to {most:.0f}; lower it, or add machines (max_workers in the cluster's file)"
        )


def check_gpus(gpus_per_trial: float, gpus: float) -> None:
    """As `check_resources`, of the GPUs that a trial reserves."""
    most = max(gpus, _to_come(BOOTSTRAP.expanduser(), len(live_nodes()), "GPU"))
    if gpus_per_trial > most:
        raise ConfigError(
            f"tune.gpus_per_trial: a trial needs {gpus_per_trial:g} GPUs, Ray has {gpus:g}"
            + (f" and may have {most:g} with all machines started" if most > gpus else "")
            + (f"; accepted: up to {most:g}; lower it" if most else "; set training.device to cpu")
            + ", or add machines with a GPU"
        )


def cpus_to_come(path: Path, live: int) -> float:
    """CPUs of all machines that the cluster file `path` allows, the head's included.

    Machines of one's own say what they have when they join: infinite as long as fewer than allowed are `live`, then 0.
    """
    return _to_come(path, live, "CPU")


def _to_come(path: Path, live: int, resource: str) -> float:
    try:
        cluster = yaml.safe_load(path.read_text(encoding="utf-8"))
        kinds = cluster["available_node_types"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return 0.0  # not a head that `ray up` started
    total = 0.0
    for name, kind in kinds.items():
        count = kind.get("max_workers", 0) + (name == cluster.get("head_node_type"))
        resources = kind.get("resources") or {}
        if count and resources.get("CPU") is None:
            return math.inf if live <= cluster.get("max_workers", 0) else 0.0
        total += count * float(resources.get(resource) or 0)
    return total


def main(arguments: list[str] | None = None) -> int:
    """``python -m hflray.tune.nodes``."""
    parser = argparse.ArgumentParser(prog="python -m hflray.tune.nodes", description="Check the nodes of a cluster.")
    parser.add_argument("--address", default="auto", help="the cluster; auto: the one this machine is part of")
    os.environ["RAY_ADDRESS"] = parser.parse_args(arguments).address
    try:
        start_ray()
        check_nodes()
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for node in live_nodes():
        print(f"{node.address}  {node.cpus:g} CPUs")
    print("all run " + ", ".join(f"{name} {version}" for name, version in release().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
