"""Where the steps of a round are done: by objects of this process, or by Ray's actors.

A `Ref` is a value in the former, and a reference to an object of Ray in the latter. A method that is called returns a
tuple if it has several results. Nothing is waited for but by `Executor.get`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hflray.aggregation import Frame
from hflray.training.actor_pool import ActorPool
from hflray.training.cloud import Gather, Merge
from hflray.training.edge import EdgeWorker
from hflray.training.exchange import EdgeTask, Ref, Trained
from hflray.training.job import DeviceData, LocalJob
from hflray.training.local import DeviceHost
from hflray.training.method import Method, Spec


class LocalPool:
    """One host of all devices and one worker for all edges in this process; a reference is the value itself."""

    def __init__(self, job: LocalJob, data: DeviceData) -> None:
        self.devices: list[Any] = [DeviceHost(job, data)]
        self.edges: list[Any] = [EdgeWorker()]

    def put(self, value: Any) -> Ref:
        """Return a reference to a value."""
        return value

    def get(self, refs: Sequence[Ref]) -> list[Any]:
        """Return the values of references."""
        return list(refs)

    def call(self, worker: Any, method: str, *arguments: Any, results: int = 1) -> list[Ref]:
        """Call a method of a host or an edge; return its results."""
        made = getattr(worker, method)(*arguments)
        return [made] if results == 1 else list(made)

    def gather(self, edge: int, parts: Sequence[tuple[int, Ref]], aggregator: Spec) -> list[Ref]:
        """Return what the edge of this index combines of what hosts, by their index, hand up."""
        return [ref for _, ref in parts]

    def close(self) -> None:
        """Do nothing, because there is nothing to end."""


Pool = LocalPool | ActorPool


class Executor:
    """Does the steps of a round in a pool."""

    def __init__(self, pool: Pool, method: Method) -> None:
        self._pool, self._edge = pool, method.edge
        self._tells = bool(method.parts().rule.extra) or method.measures
        self.put, self.get = pool.put, pool.get

    @property
    def hosts(self) -> int:
        """The number of hosts that train devices."""
        return len(self._pool.devices)

    def train(self, host: int, task: EdgeTask, versions: Sequence[Ref], memories: Ref | None) -> Trained:
        """Train the devices of a task; see `DeviceHost.train`. There is one object for each edge."""
        keeps = memories is not None
        refs = self._pool.call(
            self._pool.devices[host], "train", task, memories, *versions, results=len(versions) + keeps
        )
        return Trained(refs[: len(versions)], refs[-1] if keeps else None)

    def losses(self, host: int, devices: Sequence[Sequence[int]], versions: Sequence[Ref]) -> Ref:
        """Return the losses of devices under the versions that they receive, see `DeviceHost.losses`."""
        return self._pool.call(self._pool.devices[host], "losses", list(devices), *versions)[0]

    def close(self, edge: int, frame: Frame, parts: Sequence[tuple[int, Ref]]) -> Ref:
        """Return the `Lifted` of all devices of an edge, given that of each host; see `EdgeWorker.close`."""
        return self._pool.call(self._worker(edge), "close", self._edge, frame, *self._gathered(edge, parts))[0]

    def finish(self, edge: int, frame: Frame, parts: Sequence[tuple[int, Ref]], before: Ref) -> tuple[Ref, list[Ref]]:
        """Return the next `Version` of an edge, and in a list what hosts handed up beside models, if anything."""
        version, *beside = self._pool.call(
            self._worker(edge), "finish", self._edge, frame, self._tells, before, *self._gathered(edge, parts),
            results=1 + self._tells,
        )  # fmt: skip
        return version, beside

    def mix(self, edge: int, frame: Frame, share: float, before: Ref, arrival: Ref) -> tuple[Ref, list[Ref]]:
        """Return the next `Version` of an asynchronous edge, and in a list what is beside it; see `EdgeWorker.mix`.

        All arrivals at an edge go to one worker, because they follow each other.
        """
        version, *beside = self._pool.call(
            self._worker(edge), "mix", self._edge, frame, self._tells, share, before, arrival, results=1 + self._tells
        )
        return version, beside

    def merge(self, merge: Merge, cloud: Ref, trained: Ref, fetched: Ref, beside: Sequence[Ref]) -> tuple[Ref, Ref]:
        """Return what an edge fetches after its update, and the cloud (`hflray.training.cloud.merged`).

        Updates follow each other, so that one worker makes all of them.
        """
        arguments = merge, cloud, trained, fetched, *beside
        version, after = self._pool.call(self._pool.edges[0], "merge", *arguments, results=2)
        return version, after

    def gather(self, gather: Gather, before: Ref, versions: Sequence[Ref], residuals: Ref) -> tuple[Ref, Ref]:
        """Return a region's next version, and what its edges keep (`hflray.training.cloud.gathered`)."""
        arguments = gather, before, residuals, *versions
        version, after = self._pool.call(self._worker(gather.frame.index), "gather", *arguments, results=2)
        return version, after

    def _worker(self, edge: int) -> Any:
        return self._pool.edges[edge % len(self._pool.edges)]

    def _gathered(self, edge: int, parts: Sequence[tuple[int, Ref]]) -> list[Ref]:
        return self._pool.gather(edge % len(self._pool.edges), parts, self._edge)
