"""The actors of an experiment and where they are: spread over the nodes, edges among them, one adder on each node.

On one node there is nothing to know and nothing is asked. On several, the partial sums of a node's actors for an edge
are added on that node before they leave it, so that what crosses the network in a round grows with nodes × edges and
not with actors (models below Ray's 100 kB limit travel inside the calls, and are not worth it). Which actor is where
changes nothing in a result.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from hflray.errors import WorkerLostError
from hflray.metrics import LIVE_RESTARTS
from hflray.provenance import release
from hflray.training.local import LocalJob
from hflray.training.processes import Load, useful_gpu_processes

log = logging.getLogger(__name__)

PIN = os.environ.get("HFLRAY_PIN", "1") != "0"  # HFLRAY_PIN=0: actors wander over the CPUs
SETTLE_S = 20.0  # how long the others are waited for once an actor is up; who comes later joins a later round
GIVE_UP_S = 900.0  # how long the first is waited for: a machine that an autoscaler starts takes minutes


class ActorPool:
    """Device and edge actors of one experiment.

    Args:
        job: how devices train.
        data_ref: everybody's samples in the object store; a node that hosts an actor gets one copy.
        num_actors: device actors wanted.
        cpus_per_actor: CPUs that each reserves.
        num_edges: edge actors.
        gpus_per_actor: what part of a GPU each device actor reserves; without any an actor does not see one.

    Attributes:
        devices: the device actors that are up (on one node: all, up or not).
        edges: the edge actors.
        nodes: the node of each of `devices`; empty on one node.
    """

    def __init__(
        self,
        job: LocalJob,
        data_ref: Any,
        num_actors: int,
        cpus_per_actor: float,
        num_edges: int,
        gpus_per_actor: float = 0.0,
    ) -> None:
        self._job, self._data_ref, self._gpus_per_actor = job, data_ref, gpus_per_actor
        self._num_actors, self._cpus_per_actor, self._num_edges = num_actors, cpus_per_actor, num_edges
        self.devices: list[Any] = []
        self.edges: list[Any] = []
        self.nodes: list[str] = []
        self._late: dict[Any, Any] = {}  # actors that have not said where they are, by the call that asks
        self._adders: dict[str, Any] = {}
        self._homes: list[str] = []  # the node of each edge actor
        self._labels: dict[str, str] = {}  # of the live metrics, once somebody watches
        self._restarts: Any = None
        self.start()

    def start(self) -> None:
        """Start the actors, without waiting for them."""
        import ray

        from hflray.training.actors import DeviceActor, EdgeActor

        several = sum(node["Alive"] for node in ray.nodes()) > 1
        options: dict[str, Any] = {"num_cpus": self._cpus_per_actor, "num_gpus": self._gpus_per_actor}
        if several and ray.util.get_current_placement_group() is None:  # a Tune trial's actors go where its bundles are
            options["scheduling_strategy"] = "SPREAD"
        make = DeviceActor.options(**options)
        # Shares of a CPU must be free to wander, and so must what feeds a GPU: its driver has threads of its own.
        pin = PIN and self._cpus_per_actor == 1 == self._job.threads and self._job.device == "cpu"
        expected = release() if several else None
        actors = [make.remote(self._job, self._data_ref, pin, expected) for _ in range(self._num_actors)]
        if several:
            self._late = {actor.where.remote(): actor for actor in actors}
        else:
            self.devices = actors
            self.edges = [EdgeActor.remote() for _ in range(self._num_edges)]
        if self._restarts is not None:
            self._restarts.inc(len(actors))
            self._tell(actors)

    def watch(self, labels: dict[str, str]) -> None:
        """From now on export, under these labels, the samples each device actor trains and how many are replaced."""
        from hflray.training.actors import instrument

        self._labels, self._restarts = labels, instrument(LIVE_RESTARTS, labels)
        self._tell([*self.devices, *self._late.values()])

    def _tell(self, actors: list[Any]) -> None:
        for number, actor in enumerate(actors):
            actor.watch.remote(self._labels | {"actor": str(number)})

    def refresh(self) -> None:
        """Take in the actors that have come up; the first time, wait for them. On one node: nothing.

        An actor that finds no room yet (its node was lost and the next is still booting) stays asked for, and joins
        the round that begins after it came up.

        Raises:
            WorkerLostError: no device actor came up in `GIVE_UP_S`.
            RayActorError: an actor could not start.
        """
        if not self._late:
            return
        import ray

        first = not self.devices
        patience = GIVE_UP_S if first else 0.0
        while self._late:
            up, _ = ray.wait(list(self._late), num_returns=1, timeout=patience)
            if not up:
                break
            node = ray.get(up[0])
            self.devices.append(self._late.pop(up[0]))
            self.nodes.append(node)
            patience = SETTLE_S if first else 0.0
        if not self.devices:
            there = ray.cluster_resources()
            raise WorkerLostError(
                f"no device actor could be started in {GIVE_UP_S:.0f} s: the cluster has {there.get('CPU', 0):g} CPUs "
                f"and {there.get('GPU', 0):g} GPUs, in use or not; add machines (ray status says what is asked for), "
                "or lower tune.cpus_per_trial or tune.gpus_per_trial"
            )
        if first:
            if self._late:
                log.warning("going on with %d of %d device actors; the others join later",
                            len(self.devices), self._num_actors)  # fmt: skip
            places = list(dict.fromkeys(self.nodes))
            self._homes = [places[i % len(places)] for i in range(self._num_edges)]
            self.edges = [_on(node) for node in self._homes]

    def gather(self, edge: int, parts: list[tuple[int, Any]]) -> list[Any]:
        """Return what edge actor number `edge` is to add up, at most one partial sum from each node but its own.

        Args:
            edge: index in `edges`.
            parts: (index in `devices`, reference to its partial sum).
        """
        if not self.nodes:
            return [ref for _, ref in parts]
        by_node: dict[str, list[Any]] = {}
        for host, ref in parts:
            by_node.setdefault(self.nodes[host], []).append(ref)
        gathered = []
        for node, refs in by_node.items():
            if node == self._homes[edge] or len(refs) == 1:
                gathered += refs
                continue
            if node not in self._adders:
                self._adders[node] = _on(node)
            gathered.append(self._adders[node].total.remote(*refs))
        return gathered

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in (*self.devices, *self._late.values(), *self.edges, *self._adders.values()):
            ray.kill(actor)
        self.devices, self.edges, self.nodes, self._late, self._adders = [], [], [], {}, {}


def _on(node: str) -> Any:
    """An actor that adds, on this node and no other; if the node has gone in the meantime, its first call says so.

    A soft affinity was seen to end up elsewhere on a busy cluster, and sums would then cross the network twice.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from hflray.training.actors import EdgeActor

    return EdgeActor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()


@functools.cache
def processes_per_gpu(load: Load, share: float = 1.0) -> int:
    """`useful_gpu_processes`, measured where there is a GPU, in a task that reserves `share` of one meanwhile.

    Raises:
        HflrayError: it cannot be measured.
    """
    import ray
    from ray.exceptions import RayTaskError

    task = ray.remote(num_cpus=0, num_gpus=share, max_retries=0)(useful_gpu_processes)
    try:
        return int(ray.get(task.remote(load)))
    except RayTaskError as error:
        raise error.cause from None
