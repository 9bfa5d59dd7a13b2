"""How devices use their links, upwards and downwards.

They share an uplink by frequency division (the paper's), OFDMA's blocks, or time division, or have measured links. A
node sends the model to its devices without a bill (the paper's), to all at once, or to each.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hflray.config.options import whole
from hflray.physics.base import Access, Download, Link
from hflray.physics.equations import upload_delay_s, upload_energy_j
from hflray.support.arrays import FloatArray, IntArray

MOST_BLOCKS = 10_000


class Fdma(Access):
    """Each device has a part of the bandwidth, of any width (equations 6 to 8); the default."""

    def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return z / η(xB) s, and p times as many joules."""
        delay_s = upload_delay_s(bits, link.rate_bps(share * link.bandwidth_hz))
        return delay_s, upload_energy_j(link.power_w, delay_s)

    def pace(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return η(xB) and p."""
        return link.rate_bps(share * link.bandwidth_hz), link.power_w


class Ofdma(Fdma):
    """Each device has some of K blocks of the bandwidth, over which it spreads its power.

    With k blocks its rate is that of frequency division with kB/K Hz.

    Args:
        blocks: K, of each node; at least as many as the devices of a node.
    """

    def __init__(self, blocks: int = 50) -> None:
        self.blocks = whole("cost.access.options.blocks", blocks, 1, MOST_BLOCKS)


class Tdma(Access):
    """Each device has all of the bandwidth for a part of the time."""

    def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return z / (xR) s, and p z / R joules, of a device that sends at R for a part x of the time."""
        alone_s = upload_delay_s(bits, link.rate_bps())
        return alone_s / share, upload_energy_j(link.power_w, alone_s)

    def bandwidth_hz(self, share: FloatArray, link: Link) -> FloatArray:
        """Return all of the bandwidth."""
        return link.bandwidth_hz + 0.0 * share


class MeasuredAccess(Access):
    """Each link has its own latency and rate, whatever others send, as the fleet's table says.

    The table needs ``mbps`` of each link and ``upload_w`` of each device; ``latency_s`` is 0 without a column.
    """

    shared = False
    needs: ClassVar[tuple[tuple[str, ...], ...]] = (("mbps",), ("upload_w",))

    def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return the latency and z over the rate, s, and ``upload_w`` times as many joules."""
        delay_s = link.latency_s + bits / link.rate_bps()
        return delay_s, link.upload_w * delay_s

    def bandwidth_hz(self, share: FloatArray, link: Link) -> FloatArray:
        """Return all of the bandwidth."""
        return link.bandwidth_hz + 0.0 * share


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
