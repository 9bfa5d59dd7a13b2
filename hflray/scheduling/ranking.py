"""What several schedulers share: the devices of the highest scores, and what a round would cost each device alone."""

from __future__ import annotations

import numpy as np

from hflray.cost import compute_delay_s, compute_energy_j, rate_bps, upload_delay_s
from hflray.scheduling.context import RoundContext
from hflray.support.arrays import FloatArray, IntArray


def highest(scores: FloatArray, candidates: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Return the `count` candidates of the highest scores, (n,); chance decides between equal ones.

    Args:
        scores: score of each candidate, (c,).
        candidates: devices, (c,).
        count: number of devices to return; all candidates if they are fewer.
        rng: source of the ties' order.
    """
    order = np.lexsort((rng.random(len(candidates)), -np.asarray(scores)))
    return np.asarray(candidates[order[:count]], dtype=np.intp)


def weighted_draw(weights: FloatArray, candidates: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw `count` of the candidates without replacement, with probabilities in proportion to `weights`, (c,).

    Candidates of weight 0 are drawn only if the others do not suffice, and then uniformly.
    """
    with np.errstate(divide="ignore"):
        # The largest of these keys are such a draw (Efraimidis and Spirakis, 2006).
        keys = np.log(rng.random(len(candidates))) / np.asarray(weights, dtype=np.float64)
    return highest(keys, candidates, count, rng)


def best_edges(context: RoundContext) -> IntArray:
    """Return the edge of the largest gain, among those that work, of each device, (N,)."""
    everyone = np.arange(context.fleet.num_devices)
    if context.edges_up.all():
        return np.asarray(context.fleet.strongest_edges(everyone)[:, 0], dtype=np.intp)
    up = np.flatnonzero(context.edges_up)
    return np.asarray(up[np.asarray(context.fleet.gain[:, up]).argmax(axis=1)], dtype=np.intp)


def nominal_iteration(context: RoundContext, num_scheduled: int) -> tuple[FloatArray, FloatArray]:
    """Return what an edge iteration would cost each device, (N,) seconds and (N,) joules, before anything is allocated.

    A device computes at its largest frequency, and sends over its best link with the bandwidth of that edge, of which
    every scheduled device gets an equal share: B_m·M / H.
    """
    fleet, work, edges = context.fleet, context.work, best_edges(context)
    everyone = np.arange(fleet.num_devices)
    share_hz = fleet.edge_bandwidth_hz[edges] * max(1, int(context.edges_up.sum())) / num_scheduled
    compute_s = compute_delay_s(work.local_iterations, fleet.cycles_per_sample, fleet.samples, fleet.max_cpu_hz)
    compute_j = compute_energy_j(
        fleet.capacitance_of(everyone), work.local_iterations, fleet.cycles_per_sample, fleet.samples, fleet.max_cpu_hz
    )
    gain = fleet.gain_of(everyone, edges)
    upload_s = upload_delay_s(work.device_bits, rate_bps(share_hz, gain, fleet.power_w, fleet.noise_w_per_hz))
    return compute_s + upload_s, compute_j + fleet.power_w * upload_s
