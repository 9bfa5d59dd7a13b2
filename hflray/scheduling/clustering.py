"""Clustering of devices by their data (Algorithm 2 of the paper), and its cost.

The experiment trains the auxiliary model on every device, by ordinary local training (equation 1). This module has the
K-means step on the trained vectors, and the bill. K-means uses scikit-learn's k-means++ initialisation and 10 restarts;
the paper specifies neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hflray.allocation import Allocation
from hflray.cost import LocalSteps, RoundCost, Workload, round_cost
from hflray.errors import ConfigError, DivergedError
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray

Allocate = Callable[[Fleet, Workload, IntArray, IntArray], Allocation]


def cluster_devices(vectors: NDArray[np.float32], num_clusters: int, seed: int) -> IntArray:
    """Group the devices by their trained auxiliary models (Algorithm 2, Lines 10-14).

    Args:
        vectors: each device's auxiliary model after local training, (N, P).
        num_clusters: K, from 1 to N; the paper takes the number of classes.
        seed: seed of K-means, 0 or more; scikit-learn gets it modulo 2^32.

    Returns:
        A label for each device, (N,), numbered from 0 in order of first appearance: device 0 has label 0. There may
        be fewer than K labels if there are fewer distinct vectors.

    Raises:
        ConfigError: K is not from 1 to N, or `vectors` is not 2-D.
        DivergedError: a device's vector is not finite; the message names the device.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # a dependency of scikit-learn

    if vectors.ndim != 2:
        raise ConfigError(
            f"vectors: got shape {vectors.shape}; accepted: (N, P), one row per device; stack the vectors"
        )
    if not 1 <= operator.index(num_clusters) <= len(vectors):
        raise ConfigError(
            f"num_clusters: got {num_clusters} for {len(vectors)} devices; accepted: 1 to {len(vectors)}; lower it"
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        device = int(np.flatnonzero(~finite)[0])
        raise DivergedError(
            f"clustering: the auxiliary model of device {device} has weights that are not finite after its training "
            f"({int((~finite).sum())} of {len(vectors)} devices); lower training.learning_rate"
        )
    # Use one thread, because with more the partial sums of the centres are added in a random order.
    with threadpool_limits(limits=1):
        kmeans = KMeans(num_clusters, init="k-means++", n_init=10, random_state=seed % 2**32)
        labels = kmeans.fit(_coordinates(vectors)).labels_
    # Renumber the clusters: scikit-learn's own numbers depend on its version, and quotas and results must not.
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _coordinates(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return points in at most N dimensions that have the same distances as `vectors`.

    K-means depends on distances only. With N = 100 devices and the 225,690 weights of the CIFAR-10 model, this reduces
    its time from 21 s to 0.3 s. Double precision keeps the small changes of training beside the common initial weights.
    """
    n, p = vectors.shape
    if p <= n:
        return vectors.astype(np.float64)
    gram = np.zeros((n, n))
    for start in range(0, p, 8192):  # in blocks: a double-precision copy of all the weights could be large
        block = vectors[:, start : start + 8192].astype(np.float64)
        block -= block.mean(axis=0)
        gram += block @ block.T
    values, axes = np.linalg.eigh(gram)
    return np.asarray(axes * np.sqrt(np.maximum(values, 0.0)), dtype=np.float64)


def clustering_cost(
    fleet: Fleet,
    model_bits: float,
    local_iterations: int,
    delay_weight: float,
    allocate: Allocate,
    *,
    edge_iterations: int = 1,
    max_cpu: bool = False,
    steps: LocalSteps = LocalSteps(),  # noqa: B008
) -> RoundCost:
    """Compute Algorithm 2's delay and energy: (4) to (10), (13) and (14) over all N devices, without a cloud hop.

    The paper does not say how it bills Algorithm 2. The defaults are those of docs/design.md, D10: the geographic
    assignment, one edge iteration, and the allocated frequencies. The bill stays outside the totals.

    Args:
        fleet: N devices and M edges.
        model_bits: size of the auxiliary model, bits.
        local_iterations: L.
        delay_weight: λ, J/s.
        allocate: called as ``allocate(fleet, work, devices, assignment)``, such as `hflray.allocation.allocate_round`.
        edge_iterations: number of billed edge iterations; 1 or Q.
        max_cpu: bill f_n^max instead of the allocated frequencies; the bandwidths stay as allocated.
        steps: see `Workload`.

    Raises:
        ConfigError: a size or count is not above 0, or more devices are nearest to an edge than it has blocks.
        InfeasibleError: raised by `allocate`.
    """
    work = Workload(model_bits, local_iterations, edge_iterations, delay_weight, cloud_hop=False, steps=steps)
    devices = np.arange(fleet.num_devices, dtype=np.intp)
    edges = fleet.nearest_edges(devices)[:, 0]
    blocks, most = fleet.access.blocks, int(np.bincount(edges).max())
    if blocks is not None and most > blocks:
        raise ConfigError(
            f"cost.access.options.blocks: got {blocks}, and the scheduler's clustering is billed for all "
            f"{fleet.num_devices} devices at their nearest edges, of which one has {most}; accepted: {most} or more; "
            "raise it, or take a scheduler that clusters nothing, such as fedavg"
        )
    allocation = allocate(fleet, work, devices, edges)
    if max_cpu:
        allocation = replace(allocation, cpu_hz=fleet.compute.most(fleet.computers(devices)))
    return round_cost(fleet, work, devices, edges, allocation)
