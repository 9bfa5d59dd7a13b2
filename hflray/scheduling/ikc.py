"""Improved K-Center scheduling, IKC: Algorithm 4 of the paper.

As VKC, but devices that have not trained yet go first: each cluster is split into C_k, still to be scheduled, and
G_k, the record of those that were. The clusters come from Algorithm 2 with the mini model as the auxiliary model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from hflray.errors import ConfigError
from hflray.scheduling.base import ClusterScheduler, IntArray, draw


class IKC(ClusterScheduler):
    """Algorithm 4. Arguments, and exactly H devices a round for any H from 1 to N: see `ClusterScheduler`.

    In short, for H not a multiple of K, H % K clusters give one device more than the others, in turn.

    Attributes:
        fresh: C_k, the devices of each cluster still to be scheduled in this pass, sorted.
        record: G_k, those already scheduled; C_k and G_k together are always the whole cluster.

    No device is repeated before its cluster is exhausted as long as every cluster has at least its quota. Otherwise
    the fill-up may repeat one; as in the paper (Lines 21-24), devices that fill up do not enter the record, so they
    keep their turn.

    Where C_k + G_k < h_k the whole cluster is scheduled. The paper's Line 18 adds C_k alone, because with a fixed h
    its G_k is empty there; with quotas that vary by one, a cluster of exactly H // K devices may come here with a full
    G_k, so both are taken. The record stays as it is (Line 18 adds, it does not transfer): nothing depends on it,
    since such a cluster is scheduled whole in every round.
    """

    auxiliary: ClassVar[Literal["mini", "global"] | None] = "mini"

    def __init__(
        self, *, num_devices: int, num_scheduled: int, clusters: ArrayLike | Sequence[ArrayLike] | None = None
    ):
        super().__init__(num_devices=num_devices, num_scheduled=num_scheduled, clusters=clusters)
        self.fresh = [members.copy() for members in self.clusters]
        self.record = [members[:0] for members in self.clusters]

    def pick(self, cluster: int, quota: int, rng: np.random.Generator) -> IntArray:
        """Return a cluster's share of the round, H_i^k, and move devices between C_k and G_k (Lines 7-19)."""
        fresh, record = self.fresh[cluster], self.record[cluster]
        if len(fresh) + len(record) < quota:  # Line 18
            return self.clusters[cluster]
        if len(fresh) >= quota:  # Line 9
            picked = draw(fresh, quota, rng)
            self.fresh[cluster] = np.setdiff1d(fresh, picked, assume_unique=True)
            self.record[cluster] = np.sort(np.concatenate([record, picked]))
        else:  # Lines 11-14: the pass ends within this round, and the next one begins
            again = draw(record, quota - len(fresh), rng)
            picked = np.concatenate([fresh, again])
            self.fresh[cluster] = np.setdiff1d(record, again, assume_unique=True)
            self.record[cluster] = np.sort(picked)
        return picked

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `ClusterScheduler` and every G_k; C_k is the rest of the cluster."""
        return super().state_dict() | {"record": [devices.tolist() for devices in self.record]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `state_dict`; refuse (ConfigError) one of another scheduler, N, H or clusters."""
        saved = state.get("record")
        before = self.offset
        super().load_state_dict(state)
        if not _is_record(saved, self.clusters):
            self.offset = before
            raise ConfigError(
                "scheduler state: record does not hold devices of each cluster, each once; "
                "the state is damaged, use an earlier checkpoint"
            )
        assert isinstance(saved, list)
        self.record = [np.sort(np.asarray(devices, dtype=np.intp)) for devices in saved]
        self.fresh = [np.setdiff1d(c, g, assume_unique=True) for c, g in zip(self.clusters, self.record, strict=True)]


def _is_record(saved: object, clusters: Sequence[IntArray]) -> bool:
    if not isinstance(saved, list) or len(saved) != len(clusters):
        return False
    return all(
        isinstance(devices, list)
        and len(set(map(repr, devices))) == len(devices)
        and set(map(repr, devices)) <= set(map(repr, members.tolist()))
        for devices, members in zip(saved, clusters, strict=True)
    )
