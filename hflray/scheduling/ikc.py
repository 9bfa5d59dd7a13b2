"""The paper's K-Center scheduling: vanilla, VKC (Algorithm 3), and improved, IKC (Algorithm 4).

VKC draws h random devices of each cluster in every round. Its clusters come from Algorithm 2 with the global model as
the auxiliary model, which makes VKC's clustering expensive (Table II).

IKC differs from VKC in that devices that have not trained yet go first. Each cluster is split into C_k, the devices
that are still to be scheduled, and G_k, the record of the scheduled ones. The clusters come from Algorithm 2 with the
mini model as the auxiliary model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from hflray.errors import ConfigError
from hflray.scheduling.base import ClusterScheduler, draw
from hflray.support.arrays import IntArray


class VKC(ClusterScheduler):
    """Algorithm 3: h random devices of each cluster in every round, without regard to which devices trained before.

    `ClusterScheduler` describes the quotas if H is not a multiple of K, and the fill-up.
    """

    auxiliary: ClassVar[Literal["mini", "global"] | None] = "global"
    looks_back: ClassVar[bool] = False

    def pick(self, cluster: int, quota: int, rng: np.random.Generator) -> IntArray:
        """Return `quota` random available devices of the cluster (Line 7), or all if it has fewer (Line 9)."""
        members = self.present(self.clusters[cluster])
        return draw(members, min(quota, len(members)), rng)


class IKC(ClusterScheduler):
    """Algorithm 4, with exactly H devices per round for any H from 1 to N.

    `ClusterScheduler` describes the arguments and the quotas: if H is not a multiple of K, H % K clusters in turn give
    one device more than the others.

    Attributes:
        fresh: C_k, the devices of each cluster still to be scheduled in this pass, sorted.
        record: G_k, the devices already scheduled; C_k and G_k together are always the whole cluster.

    If every cluster has at least its quota of devices, no device is repeated before its cluster is exhausted. Otherwise
    the fill-up may repeat a device. As in the paper (Lines 21-24), devices that fill up do not enter the record, so
    they keep their turn.

    If C_k + G_k < h_k, the whole cluster is scheduled. The paper's Line 18 adds C_k alone, because with a fixed h its
    G_k is then empty. Here quotas vary by one, and a cluster of exactly H // K devices may reach this line with a full
    G_k, so both are taken. The record does not change, because Line 18 adds devices and does not transfer them. Nothing
    depends on this record, since such a cluster is scheduled whole in every round.

    A device that is not available stays in C_k or G_k. While a device of C_k does not answer, the pass goes on, and
    available devices of G_k take its place in the round without losing their own.
    """

    auxiliary: ClassVar[Literal["mini", "global"] | None] = "mini"
    looks_back: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fresh = [members.copy() for members in self.clusters]
        self.record = [members[:0] for members in self.clusters]

    def pick(self, cluster: int, quota: int, rng: np.random.Generator) -> IntArray:
        """Return a cluster's share of the round, H_i^k, and move devices between C_k and G_k (Lines 7-19)."""
        fresh, record = self.fresh[cluster], self.record[cluster]
        if len(fresh) + len(record) < quota:  # Line 18
            return self.present(self.clusters[cluster])
        present = self.present(fresh)
        if len(present) >= quota:  # Line 9
            picked = draw(present, quota, rng)
            self.fresh[cluster] = np.setdiff1d(fresh, picked, assume_unique=True)
            self.record[cluster] = np.sort(np.concatenate([record, picked]))
            return picked
        candidates = self.present(record)
        repeated = draw(candidates, min(quota - len(present), len(candidates)), rng)
        picked = np.concatenate([present, repeated])
        if len(present) < len(fresh):  # the pass goes on: devices that do not answer keep their turn
            self.fresh[cluster] = np.setdiff1d(fresh, present, assume_unique=True)
            self.record[cluster] = np.sort(np.concatenate([record, present]))
        else:  # Lines 11-14: the pass ends within this round, and the next one begins
            self.fresh[cluster] = np.setdiff1d(record, repeated, assume_unique=True)
            self.record[cluster] = np.sort(picked)
        return picked

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `ClusterScheduler` and every G_k; C_k follows from them."""
        return super().state_dict() | {"record": [devices.tolist() for devices in self.record]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            ConfigError: the state is of another scheduler, N, H or clusters, or is damaged.
        """
        super().load_state_dict(state)
        try:
            record = [np.unique(np.array(devices, dtype=np.intp)) for devices in state["record"]]
            fresh = [np.setdiff1d(c, g, assume_unique=True) for c, g in zip(self.clusters, record, strict=True)]
            is_record = [len(c) for c in self.clusters] == [len(f) + len(g) for f, g in zip(fresh, record, strict=True)]
        except (KeyError, TypeError, ValueError):
            is_record = False
        if not is_record:
            raise ConfigError(
                "scheduler state: record does not hold devices of each cluster; the state is damaged, use an earlier "
                "checkpoint"
            )
        self.fresh, self.record = fresh, record
