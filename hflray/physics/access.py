"""How devices share an uplink: frequency division (the paper's), OFDMA's blocks, time division, and measured links."""

from __future__ import annotations

from typing import ClassVar

from hflray.config.options import whole
from hflray.physics.base import Access, Link
from hflray.physics.equations import upload_delay_s, upload_energy_j
from hflray.support.arrays import FloatArray

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
