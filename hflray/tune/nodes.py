"""Checks before the first trial of a sweep that the cluster's nodes fit. Every error names the node and the fix.

``hflray nodes [--address auto]`` lists the nodes, their CPUs and the versions that they run.
"""

from __future__ import annotations

import math
import os
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from hflray.errors import ConfigError
from hflray.support.provenance import differences, release
from hflray.support.reader import parse_yaml, read_bytes
from hflray.support.terminal.app import HELP, exit_code, single
from hflray.training.start import start_ray

BOOTSTRAP = Path("~/ray_bootstrap_config.yaml")  # `ray up` writes the cluster's file to this path on the head
ANSWER_S = 120.0  # the first worker process of a node that has just booted takes long to import


class Node(NamedTuple):
    """A live node.

    Attributes:
        id: Ray's id of the node.
        address: its IP address.
        cpus: the number of its CPUs.
    """

    id: str
    address: str
    cpus: float


def live_nodes() -> list[Node]:
    """Return the live nodes; the node of this process comes first."""
    import ray

    own_id = ray.get_runtime_context().get_node_id()
    nodes = [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"].get("CPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(nodes, key=lambda node: node.id != own_id)


def check_nodes(results: Path | None = None) -> None:
    """Check that every node runs the same Ray, Python, hflray and libraries as this process and sees the results.

    Args:
        results: the folder to which trials write, which all nodes must share; None if they write to a storage.

    Raises:
        ConfigError: a node runs other versions, does not answer, or does not see `results`.
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
        for node, answer in zip(nodes, _query(nodes, probe), strict=True):
            problem = answer if isinstance(answer, str) else differences(release(), answer["release"])
            if problem:
                raise ConfigError(
                    f"node {node.address}: runs {problem}; bring all nodes to one state with cluster/setup_node.sh "
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


def _query(nodes: list[Node], probe: Path | None) -> list[dict[str, Any] | str]:
    """Return each node's `release` and whether it sees `probe`, or a description of the problem if it fails."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(_describe_node)
    path = str(probe) if probe else None
    refs = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(path)
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
            reason = next((line for line in reversed(lines) if "Error: " in line), lines[0] if lines else "no reason")
            answers.append(f"no hflray that can be used ({reason.strip()[:200]})")
    return answers


def _describe_node(probe: str | None) -> dict[str, Any]:
    """Return the release of the node that runs this task, and whether the node sees the file `probe`."""
    return {"release": release(), "sees": probe is not None and os.path.exists(probe)}


def check_resources(setting: str, resource: str, needed: float, available: float) -> None:
    """Check that a trial fits into the cluster, including the machines that its autoscaler may still start.

    Args:
        setting: the setting that says what a trial needs.
        resource: ``CPU`` or ``GPU``.
        needed: how many a trial needs.
        available: how many Ray has.

    Raises:
        ConfigError: a trial needs more.
    """
    most = max(available, to_come(BOOTSTRAP.expanduser(), len(live_nodes()), resource))
    if needed > most:
        later = f" and may have {most:g} with all machines started" if most > available else ""
        fix = f"accepted: up to {most:g}; lower it" if most else "set training.device to cpu"
        raise ConfigError(
            f"{setting}: a trial needs {needed:g} {resource}s, Ray has {available:g}{later}; {fix}, or add machines "
            f"with a {resource} (max_workers in the cluster's file)"
        )


def to_come(path: Path, live: int, resource: str) -> float:
    """Return the CPUs or GPUs of all machines that the cluster file `path` allows, including the head.

    The file of an on-premise cluster does not list what its machines have. The result is then infinite while no more
    nodes are `live` than it allows workers, and 0 afterwards.
    """
    try:
        cluster = parse_yaml(read_bytes(path).decode())
        kinds = cluster["available_node_types"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0  # this machine is not a head that `ray up` started
    total = 0.0
    for name, kind in kinds.items():
        count = kind.get("max_workers", 0) + (name == cluster.get("head_node_type"))
        resources = kind.get("resources") or {}
        if count and resources.get("CPU") is None:
            return math.inf if live <= cluster.get("max_workers", 0) else 0.0
        total += count * float(resources.get(resource) or 0)
    return total


app = single()


@app.command(context_settings=HELP)
def nodes_command(
    address: Annotated[str, typer.Option(help="The cluster; auto: the one that this machine is part of.")] = "auto",
) -> None:
    """Check that all nodes of a cluster run the same versions, and list their CPUs and the versions."""
    os.environ["RAY_ADDRESS"] = address
    start_ray()
    check_nodes()
    for node in live_nodes():
        print(f"{node.address}  {node.cpus:g} CPUs")
    print("all run " + ", ".join(f"{name} {version}" for name, version in release().items()))


def main(arguments: list[str] | None = None) -> int:
    """Run the command ``python -m hflray.tune.nodes`` and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.tune.nodes")


if __name__ == "__main__":
    sys.exit(main())
