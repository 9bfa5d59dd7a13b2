"""Schedulers that choose the edges as well, so that they differ in the association of devices with edges alone.

All give equally many devices to each edge, or one more, and keep a device at its edge as long as the same devices are
there. They ignore links.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hflray.scheduling import RoundContext, Scheduler
from hflray.scheduling.base import draw
from hflray.support.arrays import IntArray


class Association(Scheduler):
    """Draws H of the available devices, and names their edges by `deal`. All edges have to work."""

    looks_back = False

    @abstractmethod
    def deal(self, counts: IntArray, num_edges: int) -> IntArray:
        """Return the edge of each device, (n,), from its samples of each class, (n, C)."""

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        return self.schedule_and_assign(context)[0]

    def schedule_and_assign(self, context: RoundContext) -> tuple[IntArray, IntArray]:
        """Return the round's devices, sorted, and the edge of each."""
        devices = draw(np.flatnonzero(context.available), self.num_scheduled, context.rng)
        return devices, self.deal(np.asarray(context.class_counts)[devices], context.fleet.num_edges)


class Balanced(Association):
    """Makes the classes of each edge as even as those of all devices."""

    def deal(self, counts: IntArray, num_edges: int) -> IntArray:
        """Return the edge of each device.

        Devices come in order of their rarest main class. Each goes to the edge with room where the squared distance of
        the edge's classes from an even share of all falls most.
        """
        share = counts.sum(axis=0) / num_edges
        room = np.bincount(np.arange(len(counts)) % num_edges, minlength=num_edges)
        held, edges = np.zeros((num_edges, counts.shape[1])), np.zeros(len(counts), dtype=np.intp)
        for device in _by_main_class(counts):
            after = ((held + counts[device] - share) ** 2).sum(axis=1) - ((held - share) ** 2).sum(axis=1)
            edge = int(np.where(room > 0, after, np.inf).argmin())
            edges[device] = edge
            held[edge] += counts[device]
            room[edge] -= 1
        return edges


class Alike(Association):
    """Puts devices of the same main class at the same edge, so that edges differ as much as they can."""

    def deal(self, counts: IntArray, num_edges: int) -> IntArray:
        """Return the edge of each device."""
        edges = np.zeros(len(counts), dtype=np.intp)
        edges[_by_main_class(counts)] = np.arange(len(counts)) * num_edges // max(1, len(counts))
        return edges


class Dealt(Association):
    """Deals devices in the order of their numbers, which say nothing about their classes."""

    def deal(self, counts: IntArray, num_edges: int) -> IntArray:
        """Return the edge of each device."""
        return np.arange(len(counts)) % num_edges


def _by_main_class(counts: IntArray) -> IntArray:
    """Return the devices in order of their largest class, (n,)."""
    return np.argsort(counts.argmax(axis=1), kind="stable")
