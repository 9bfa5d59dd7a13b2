"""How a node sends the model to its devices: not billed (the paper's), to all at once, or to each."""

from __future__ import annotations

import numpy as np

from hflray.physics.base import Download, Link
from hflray.support.arrays import FloatArray, IntArray


class NoDownload(Download):
    """Downloads take nothing, as in the paper; the default."""

    def receive(self, link: Link, node: IntArray, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return zeros."""
        return np.zeros(len(node)), np.zeros(len(node))


class Broadcast(Download):
    """A node sends once to all of its devices, with all of its bandwidth, at the rate of its weakest link."""

    together = True

    def receive(self, link: Link, node: IntArray, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return z over the rate of the node's weakest link, and equal parts of the node's joules."""
        weakest_bps = np.full(int(node.max(initial=-1)) + 1, np.inf)
        np.minimum.at(weakest_bps, node, link.rate_bps())
        delay_s = bits / weakest_bps[node]
        return delay_s, link.power_w * delay_s / np.bincount(node)[node]


class Unicast(Download):
    """A node sends to each of its devices, with equal shares of its bandwidth and of its power."""

    def receive(self, link: Link, node: IntArray, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return n z / R of a node with n devices, where R is the link's rate with all of the node, and p z / R J."""
        alone_s = bits / link.rate_bps()
        return alone_s * np.bincount(node)[node], link.power_w * alone_s
