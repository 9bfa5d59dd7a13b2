"""The actors of an experiment and their nodes: actors spread over the nodes, and one adder on each node.

The partial sums of a node's actors for an edge on another node are added before they leave it. The traffic of a round
therefore grows with nodes × edges and not with actors. (Models below Ray's 100 kB limit travel inside the calls, where
adding first would not pay.) The placement of actors does not change results.

A process that runs one experiment after another, such as a sweep's trials, can keep the actors for the next experiment
of the same shape. Starting actors that import torch takes longer than a short trial.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from hflray.errors import WorkerLostError
from hflray.support.live_metrics import RESTARTS
from hflray.support.provenance import release
from hflray.training.job import LocalJob
from hflray.training.method import Spec
from hflray.training.plan import PoolSize

log = logging.getLogger(__name__)

PIN = os.environ.get("HFLRAY_PIN", "1") != "0"  # HFLRAY_PIN=0 lets actors move between CPUs
SETTLE_S = 20.0  # how long to wait for each further actor after the first; late actors join a later round
GIVE_UP_S = 900.0  # how long to wait for the first actor; a machine that an autoscaler starts takes minutes

_resting: list[ActorPool] = []  # kept for this process's next experiment; one at most


def pool_of(job: LocalJob, data_ref: Any, size: PoolSize, num_edges: int) -> ActorPool:
    """Return the pool that rests in this process if it has this shape, or else a new one; see `ActorPool`."""
    shape = _shape(job, size, num_edges)
    while _resting:
        pool = _resting.pop()
        if pool.shape == shape:
            pool.serve(job, data_ref)
            return pool
        pool.close()
    return ActorPool(job, data_ref, size, num_edges)


def _shape(job: LocalJob, size: PoolSize, num_edges: int) -> tuple[object, ...]:
    """Return what two experiments must have in common to use the same actors, their placement group included."""
    import ray

    group = ray.util.get_current_placement_group()
    return group.id if group is not None else None, job.device, job.threads, size, num_edges


class ActorPool:
    """Device and edge actors of one experiment.

    Args:
        job: how devices train.
        data_ref: the samples of all devices in the object store; each node that hosts an actor gets one copy.
        size: how many device actors to start, and what each reserves; without a part of a GPU it sees none.
        num_edges: the number of edge actors.

    Attributes:
        devices: the device actors that have started.
        edges: the edge actors; on several nodes, they start when `refresh` knows the nodes.
        nodes: the node of each of `devices`.
        shape: two experiments of the same shape may use the same actors.
    """

    def __init__(self, job: LocalJob, data_ref: Any, size: PoolSize, num_edges: int) -> None:
        self._job, self._data_ref, self._size, self._num_edges = job, data_ref, size, num_edges
        self.shape = _shape(job, size, num_edges)
        self.devices: list[Any] = []
        self.edges: list[Any] = []
        self.nodes: list[str] = []
        self._pending: dict[Any, Any] = {}  # actors that have not reported their node, by the reference to their report
        self._serving: list[Any] = []  # what `serve` has begun
        self._adders: dict[str, Any] = {}
        self._homes: list[str] = []  # the node of each edge actor
        self._labels: dict[str, str] = {}  # labels of the live metrics, after `watch`
        self._restarts: Any = None
        self.start()

    def start(self) -> None:
        """Start the actors, without waiting for them."""
        import ray

        from hflray.training.actors import DeviceActor

        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        options: dict[str, Any] = {"num_cpus": self._size.cpus, "num_gpus": self._size.gpus}
        # In a Tune trial, the trial's placement group decides the nodes.
        if len(alive) > 1 and ray.util.get_current_placement_group() is None:
            options["scheduling_strategy"] = "SPREAD"
        actor_class = DeviceActor.options(**options)
        # An actor with a share of a CPU is not pinned, and neither is one that feeds a GPU, whose driver has threads.
        pin = PIN and self._size.cpus == 1 == self._job.threads and self._job.device == "cpu"
        expected = release() if len(alive) > 1 else None
        actors = [actor_class.remote(self._job, self._data_ref, pin, expected) for _ in range(self._size.actors)]
        self._pending = {actor.node_id.remote(): actor for actor in actors}
        if len(alive) == 1:
            self._start_edges(alive)
        if self._restarts is not None:
            self._restarts.inc(len(actors))
            self._watch_actors(actors)

    def _start_edges(self, nodes: list[str]) -> None:
        self._homes = [nodes[i % len(nodes)] for i in range(self._num_edges)]
        self.edges = [_adder_on(node) for node in self._homes]

    def serve(self, job: LocalJob, data_ref: Any) -> None:
        """Serve another experiment of the same shape."""
        self._job, self._data_ref = job, data_ref
        self._labels, self._restarts = {}, None
        self._serving = [actor.serve.remote(job, data_ref) for actor in self.devices]

    def rest(self) -> None:
        """Keep the actors for this process's next experiment; on several nodes, or with GPUs, end them instead."""
        if len(set(self.nodes)) > 1 or self._pending or self._job.device != "cpu":
            self.close()
            return
        self._data_ref = None
        _resting.append(self)

    def watch(self, labels: dict[str, str]) -> None:
        """Export from now on the samples that each device actor trains, and the number of replaced actors."""
        from hflray.training.actors import instrument

        self._labels, self._restarts = labels, instrument(RESTARTS, labels)
        self._watch_actors([*self.devices, *self._pending.values()])

    def _watch_actors(self, actors: list[Any]) -> None:
        for number, actor in enumerate(actors):
            actor.watch.remote(self._labels | {"actor": str(number)})

    def refresh(self) -> None:
        """Add the actors that have started to `devices`. The first call waits for them, or for those that were kept.

        An actor whose resources are not available yet (for example because its node was lost and a new one is booting)
        stays pending, and joins the first round after its start.

        Raises:
            WorkerLostError: no device actor started within `GIVE_UP_S`.
            RayActorError: an actor could not start, or is lost.
            RayTaskError: an actor that was kept cannot serve this experiment.
        """
        import ray

        serving, self._serving = self._serving, []
        ray.get(serving)
        if not self._pending:
            return
        first = not self.devices
        waits_s = [SETTLE_S, GIVE_UP_S - SETTLE_S] if first else [0.0]
        while self._pending:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=waits_s.pop(0))
            if not ready and waits_s:
                log.warning("no device actor has started in %.0f s; waiting for CPUs or machines", SETTLE_S)
                continue
            if not ready:
                break
            node = ray.get(ready[0])
            self.devices.append(self._pending.pop(ready[0]))
            self.nodes.append(node)
            waits_s = [SETTLE_S if first else 0.0]
        if not self.devices:
            totals = ray.cluster_resources()
            raise WorkerLostError(
                f"no device actor could be started in {GIVE_UP_S:.0f} s: the cluster has {totals.get('CPU', 0):g} CPUs "
                f"and {totals.get('GPU', 0):g} GPUs, in use or not; add machines (ray status shows the demand), "
                "or lower tune.cpus_per_trial or tune.gpus_per_trial"
            )
        if first:
            if self._pending:
                log.warning("going on with %d of %d device actors; the others join later",
                            len(self.devices), self._size.actors)  # fmt: skip
            if not self.edges:
                self._start_edges(list(dict.fromkeys(self.nodes)))

    def put(self, value: Any) -> Any:
        """See `hflray.training.driver.LocalPool.put`."""
        import ray

        return ray.put(value)

    def get(self, refs: Sequence[Any]) -> list[Any]:
        """See `hflray.training.driver.LocalPool.get`."""
        import ray

        return list(ray.get(list(refs)))

    def call(self, worker: Any, method: str, *arguments: Any, results: int = 1) -> list[Any]:
        """See `hflray.training.driver.LocalPool.call`."""
        refs = getattr(worker, method).options(num_returns=results).remote(*arguments)
        return [refs] if results == 1 else list(refs)

    def gather(self, edge: int, parts: Sequence[tuple[int, Any]], aggregator: Spec) -> list[Any]:
        """Return the references that an edge actor combines: at most one from each node other than its own.

        Args:
            edge: the edge actor's index in `edges`.
            parts: pairs of a device actor's index in `devices` and the reference to what it hands up.
            aggregator: combines them on their nodes.
        """
        by_node: dict[str, list[Any]] = {}
        for host, ref in parts:
            by_node.setdefault(self.nodes[host], []).append(ref)
        gathered = []
        for node, refs in by_node.items():
            if node == self._homes[edge] or len(refs) == 1:
                gathered += refs
                continue
            if node not in self._adders:
                self._adders[node] = _adder_on(node)
            gathered.append(self._adders[node].total.remote(aggregator, *refs))
        return gathered

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in (*self.devices, *self._pending.values(), *self.edges, *self._adders.values()):
            ray.kill(actor)
        self.devices, self.edges, self.nodes, self._pending, self._adders = [], [], [], {}, {}


def _adder_on(node: str) -> Any:
    """Start an actor that adds partial sums on this node only. If the node is lost, the actor's first call fails.

    The affinity is hard because a soft one was seen to place the actor on another node of a busy cluster, and sums
    would then cross the network twice.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from hflray.training.actors import EdgeActor

    return EdgeActor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
