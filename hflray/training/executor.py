"""Where the steps of a round are done: by objects of this process, or by Ray's actors.

A `Ref` is a value in the former, and a reference to an object of Ray in the latter. A method that is called returns a
tuple if it has several results. Nothing is waited for but by `Executor.get`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hflray.training.actor_pool import ActorPool
from hflray.training.exchange import Ref
from hflray.training.job import DeviceData, LocalJob
from hflray.training.local import DeviceHost
from hflray.training.method import Spec
from hflray.training.nodes import EdgeWorker


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


Executor = LocalPool | ActorPool
