"""The contracts of an access, a computing and a download, and the arrays that they get.

An entry of every array, (n,), is one device at its node; entries of several nodes, and of one device at several, may
lie side by side. A part therefore computes entry by entry, with NumPy, and neither draws nor remembers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from hflray.physics.equations import rate_bps
from hflray.support.arrays import FloatArray, IntArray

# The columns of a fleet's table that a part may need; the others are drawn where they are not given.
COLUMNS = ("mbps", "latency_s", "upload_w", "compute_w", "seconds_per_sample", "step_s", "fixed_s")


def own_form(part: Any, name: str, values: str) -> Any:
    """Return a part's optional method, or None; one that a subclass inherits does not tell of its own values."""
    for owner in type(part).__mro__:
        if name in vars(owner):
            return getattr(part, name)
        if values in vars(owner):
            break
    return None


@dataclass(frozen=True, eq=False)
class Columns:
    """Arrays of one length, some of which may be missing, and numbers."""

    def take(self, index: Any) -> Self:
        """Return these entries."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{name: v[index] if isinstance(v, np.ndarray) else v for name, v in values.items()})


@dataclass(frozen=True, eq=False)
class Link(Columns):
    """The link of each device to its node, or of each node to a device.

    Attributes:
        gain: linear power gain, (n,).
        power_w: the sender's transmit power, (n,), W.
        bandwidth_hz: all of the node's bandwidth, (n,), Hz.
        noise_w_per_hz: N_0, W/Hz.
        latency_s: what each upload takes besides its bits, (n,), s; 0 unless the fleet's table says it.
        upload_w: what a device draws while it sends, (n,), W; NaN unless the fleet's table says it.
    """

    gain: FloatArray
    power_w: FloatArray
    bandwidth_hz: FloatArray
    noise_w_per_hz: float
    latency_s: FloatArray
    upload_w: FloatArray

    def rate_bps(self, bandwidth_hz: FloatArray | None = None) -> FloatArray:
        """Return the rate, (n,), bit/s, with so much bandwidth, (n,), Hz; None: all of the node's (equation 6)."""
        width = self.bandwidth_hz if bandwidth_hz is None else bandwidth_hz
        return rate_bps(width, self.gain, self.power_w, self.noise_w_per_hz)


@dataclass(frozen=True, eq=False)
class Device(Columns):
    """What computes.

    Attributes:
        cycles_per_sample: u_n, (n,), cycles.
        max_cpu_hz: f_n^max, (n,), Hz.
        capacitance: α, (n,), J·s²/cycles³.
        fixed_s: what an edge iteration takes besides its steps, (n,), s.
        step_s: what a step takes besides its samples, (n,), s.
        seconds_per_sample: what a sample takes, (n,), s; u_n / f_n^max unless the fleet's table says it,
            and 0 if that says `fixed_s` or `step_s` and no cycles.
        compute_w: what a device draws while it computes, (n,), W; NaN unless the fleet's table says it.
    """

    cycles_per_sample: FloatArray
    max_cpu_hz: FloatArray
    capacitance: FloatArray
    fixed_s: FloatArray
    step_s: FloatArray
    seconds_per_sample: FloatArray
    compute_w: FloatArray


@dataclass(frozen=True, eq=False)
class Work(Columns):
    """What each device computes in an edge iteration.

    Attributes:
        passes: L·D_n, the samples of equations (4) and (5), (n,).
        steps: gradient steps, (n,).
        samples: samples processed in these steps, (n,).
        local_iterations, data: the two factors of `passes`, L and D_n, (n,); None: 1 and `passes`.
    """

    passes: FloatArray
    steps: FloatArray
    samples: FloatArray
    local_iterations: float = 1.0
    data: FloatArray | None = None


class Access(ABC):
    """How the devices of a node share its uplink.

    Seconds fall in the share, without bound as it falls to 0, and joules do not rise; both are convex in it. The
    allocator relies on this, and ``hflray check`` tries it.

    Attributes:
        shared: whether the shares of a node's devices add up to 1 at most; otherwise what one sends takes nothing from
            the others, and each has the share 1.
        blocks: shares are whole multiples of 1/blocks; None: any.
        needs: columns of the fleet's table without which it cannot be, of `COLUMNS`, each with what may stand in its
            place.

    Examples:
        A file of one's own needs one class, and is used by ``cost.access: {name: mine.py:Half}``:

        >>> import numpy as np
        >>> from hflray.physics import Access
        >>> class Half(Access):
        ...     def upload(self, share, link, bits):
        ...         delay_s = bits / (0.5 * link.rate_bps(share * link.bandwidth_hz))
        ...         return delay_s, link.power_w * delay_s
    """

    shared: bool = True
    blocks: int | None = None
    needs: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @abstractmethod
    def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return seconds, (n,), and joules, (n,), of an upload of so many bits with these shares of each node, (n,)."""

    def pace(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return bits per second, (n,), and watts, (n,), while devices upload, for links that change on the way."""
        delay_s, energy_j = self.upload(share, link, bits)
        return bits / delay_s, energy_j / delay_s

    def bandwidth_hz(self, share: FloatArray, link: Link) -> FloatArray:
        """Return the bandwidth that a device has while it sends, (n,), Hz, for reports."""
        return share * link.bandwidth_hz


class Compute(ABC):
    """How devices compute.

    Optional methods make the allocator faster: ``least_j(seconds, device, work)`` returns the least joules within some
    seconds, (n,), infinite where none suffice; ``derivatives(setting, device, work)`` returns ``(s, s1, s2), (e, e1,
    e2)``, the seconds, the joules and their first and second derivatives by the logarithm of the setting.

    Attributes:
        has_setting: whether a setting is chosen for each device, from above 0 to `most`. Seconds fall in it, joules do
            not fall, and the least joules within some seconds are convex in these.
        needs: see `Access`.

    Examples:
        A file of one's own needs one class, and is used by ``cost.compute: {name: mine.py:Steady}``:

        >>> import numpy as np
        >>> from hflray.physics import Compute
        >>> class Steady(Compute):
        ...     has_setting = False
        ...
        ...     def run(self, setting, device, work):
        ...         delay_s = device.cycles_per_sample * work.passes / device.max_cpu_hz
        ...         return delay_s, 4.0 * delay_s
    """

    has_setting: bool = True
    needs: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @abstractmethod
    def run(self, setting: FloatArray, device: Device, work: Work) -> tuple[FloatArray, FloatArray]:
        """Return seconds, (n,), and joules, (n,), of an edge iteration with these settings, (n,)."""

    def most(self, device: Device) -> FloatArray:
        """Return the largest setting of each device, (n,): by default its largest frequency, Hz."""
        return device.max_cpu_hz


class Download(ABC):
    """How a node sends the model to its devices before an edge iteration.

    Attributes:
        together: whether the devices of a node receive at once, so that all of them must be ready.
        needs: see `Access`.

    Examples:
        A file of one's own needs one class, and is used by ``cost.download: {name: mine.py:InTurn}``:

        >>> import numpy as np
        >>> from hflray.physics import Download
        >>> class InTurn(Download):
        ...     def receive(self, link, node, bits):
        ...         alone_s = bits / link.rate_bps()
        ...         return np.bincount(node, alone_s)[node], link.power_w * alone_s
    """

    together: bool = False
    needs: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @abstractmethod
    def receive(self, link: Link, node: IntArray, bits: float) -> tuple[FloatArray, FloatArray]:
        """Return what it takes until each device has so many bits, (n,), s, and its part of its node's joules, (n,), J.

        Args:
            link: the links from the nodes to their devices; the power is the node's.
            node: the node of each entry, (n,), from 0; those of one number share its bandwidth.
            bits: what each device receives.
        """
