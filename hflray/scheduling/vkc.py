"""Vanilla K-Center scheduling, VKC: Algorithm 3 of the paper.

VKC draws h random devices of each cluster in every round, without regard to which devices trained before. The clusters
come from Algorithm 2 with the global model as the auxiliary model, which makes VKC's clustering expensive (Table II).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hflray.scheduling.base import ClusterScheduler, draw
from hflray.support.arrays import IntArray


class VKC(ClusterScheduler):
    """Algorithm 3; `ClusterScheduler` describes the quotas if H is not a multiple of K, and the fill-up."""

    auxiliary: ClassVar[Literal["mini", "global"] | None] = "global"
    looks_back: ClassVar[bool] = False

    def pick(self, cluster: int, quota: int, rng: np.random.Generator) -> IntArray:
        """Return `quota` random available devices of the cluster (Line 7), or all if it has fewer (Line 9)."""
        members = self.present(self.clusters[cluster])
        return draw(members, min(quota, len(members)), rng)
