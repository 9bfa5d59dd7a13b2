"""Schedulers without options.

They schedule devices at random, in turn, of the best links, of the fastest round, and of the widest classes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hflray.scheduling.base import Scheduler, highest, rng_and_available
from hflray.scheduling.context import RoundContext, best_edges, nominal_iteration
from hflray.support.arrays import IntArray


class FedAvg(Scheduler):
    """Draws H of N devices uniformly without replacement in each round: the first benchmark of the paper's section VI.

    Source: H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: "Communication-efficient learning of deep
    networks from decentralized data", AISTATS 2017.
    """

    looks_back: ClassVar[bool] = False

    def schedule(self, context: RoundContext | np.random.Generator) -> IntArray:
        """Return the next round's devices: sorted, unique indices, min(H, number of available devices) of them."""
        rng, available = rng_and_available(context, self.num_devices)
        candidates = np.flatnonzero(available)
        drawn = rng.choice(candidates, min(self.num_scheduled, len(candidates)), replace=False)
        return np.sort(drawn).astype(np.intp)


class RoundRobin(Scheduler):
    """Schedules the next H devices that answer, from the device after the last one that was scheduled.

    It is the fairest choice, and the baseline of H. H. Yang, Z. Liu, T. Q. S. Quek, H. V. Poor: "Scheduling policies
    for federated learning in wireless networks", IEEE Transactions on Communications 68 (2020).
    """

    looks_back: ClassVar[bool] = False
    state_names = ("position",)
    position = 0

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        turn = (self.position + np.arange(self.num_devices)) % self.num_devices
        chosen = turn[context.available[turn]][: self.num_scheduled]
        if len(chosen):
            self.position = int(chosen[-1] + 1) % self.num_devices
        return np.sort(chosen)


class BestChannel(Scheduler):
    """Schedules the available devices of the strongest links (`Fleet.strength`), without fading always the same.

    Source: the policy "best channel" of M. M. Amiri, D. Gündüz, S. R. Kulkarni, H. V. Poor: "Convergence of update
    aware device scheduling for federated learning at the wireless edge", IEEE Transactions on Wireless Communications
    20 (2021).
    """

    looks_back: ClassVar[bool] = False

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        strength = np.asarray(context.fleet.strength[candidates, best_edges(context)[candidates]])
        return np.sort(highest(strength, candidates, self.num_scheduled, context.rng))


class Fastest(Scheduler):
    """Schedules the available devices of the shortest nominal edge iteration (`nominal_iteration`).

    Source: the greedy choice behind FedCS, T. Nishio, R. Yonetani: "Client selection for federated learning with
    heterogeneous resources in mobile edge", IEEE ICC 2019, with H devices in place of a deadline.
    """

    looks_back: ClassVar[bool] = False

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        delay_s, _ = nominal_iteration(context, self.num_scheduled)
        return np.sort(highest(-delay_s[candidates], candidates, self.num_scheduled, context.rng))


class Coverage(Scheduler):
    """Schedules the set of devices whose samples cover the classes best, chosen greedily.

    The value of a set S is ``Σ_c √(Σ_{n∈S} d_{n,c})``, with the d_{n,c} samples of class c at device n divided by
    1 + (the rounds in which it has counted). It is submodular, so the greedy set has at least 1 - 1/e of the best value
    (Nemhauser, Wolsey, Fisher, 1978).

    Source: the concave-over-modular functions of H. Lin, J. Bilmes: "A class of submodular functions for document
    summarization", ACL 2011; R. Balakrishnan et al.: "Diverse client selection for federated learning via submodular
    maximization", ICLR 2022, choose clients by another submodular function, of their gradients.
    """

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = context.rng.permutation(np.flatnonzero(context.available))  # so that chance decides ties
        counts = context.class_counts[candidates] / (1.0 + context.participation[candidates, None])
        covered = np.zeros(counts.shape[1])
        chosen = np.zeros(len(candidates), dtype=bool)
        for _ in range(min(self.num_scheduled, len(candidates))):
            value = np.sqrt(covered + counts).sum(axis=1)
            best = int(np.where(chosen, -np.inf, value).argmax())
            chosen[best] = True
            covered += counts[best]
        return np.sort(candidates[chosen]).astype(np.intp)
