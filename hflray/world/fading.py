"""Fading: the power gain of a link varies about its mean, because signals arrive over several paths.

A law gives the factor on the power gain, whose mean is 1. In its place a trace, ``world.fading: {name: trace}``, gives
the gain or the rate of each link over time, from CSV or Parquet. Its columns are ``time_s,device,edge`` and ``gain_db``
or ``mbps``. A line holds until the next one of its link, and before its first line a link has the fleet's gain. A round
has the links of the moment at which it is planned.

`faded_upload` says how long an upload of z bits then takes. With frequency division the rate of device n is
b log2(1 + x Y / b) with the factor x and Y = ḡ p / N_0. The factor is drawn anew for each block of coherent time until
z bits are through. Without a coherence time there is one draw for each upload. Under Rayleigh fading the mean of such
an upload's time is infinite, so it needs a deadline (`clock.edge`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from hflray.config.options import between
from hflray.cost import Schedule, Senders
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.fleet.links import DENSE_LINKS
from hflray.fleet.random import gain_of_rate
from hflray.support.arrays import FloatArray
from hflray.support.checksum import digest
from hflray.support.contract import ABOVE_0, Contract
from hflray.support.tables import match, open_table
from hflray.world.draws import Draws
from hflray.world.trace import OfTrace, rising_times_s

TRIED = 1000  # devices whose factors are drawn in a trial
AT_ONCE = 200_000  # most factors after which bits are counted anew
STRIP = 12_000  # factors drawn at once, so few that their arrays stay in a cache
MOST_BLOCKS = 1e6  # blocks of the longest upload as planned
MOST_DB = 60.0  # a factor above it is 1 to within a thousandth
PATH = "world.fading.options.path"
OF_A_LINK = {"gain_db": (-400.0, 100.0, None), "mbps": (-np.inf, 1e9, 0.0)}  # least, most, above


class Fading(ABC):
    """The law of a link's fading. A subclass defines `factor`, which has no state.

    Args:
        seed: the experiment's root seed, for `hflray.world.draws.Draws`.

    Examples:
        >>> import numpy as np
        >>> from hflray.world.fading import Fading
        >>> class Uniform(Fading):
        ...     def factor(self, *indices):
        ...         return 0.5 + self.draws.uniform(*indices)
        >>> factors = Uniform(seed=0).factor(1, np.arange(1000), 0)  # round 1, 1000 devices, edge 0
        >>> bool(0.5 <= factors.min()), bool(factors.max() <= 1.5), round(float(factors.mean()), 1)
        (True, True, 1.0)
    """

    def __init__(self, *, seed: int) -> None:
        self.draws = Draws(seed, "fading")

    @abstractmethod
    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return factors on the power gain, of mean 1 and above 0, for indices that broadcast against each other.

        The indices name the round, the device, the edge and, within a round, the edge iteration and the block of
        coherent time. Different indices have independent factors.
        """


class NoFading(Fading):
    """Every factor is 1."""

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return ones."""
        return np.ones(np.broadcast_shapes(*(np.shape(index) for index in indices)))


class Rayleigh(Fading):
    """Many paths of equal strength and none in sight: the factor is exponential with mean 1."""

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return exponential factors."""
        return self.draws.exponential(*indices)


class Rician(Fading):
    """A path in sight beside many others: the factor is |√(K/(K+1)) + c|², where c is complex normal of power 1/(K+1).

    Its mean is 1 and its variance (2K + 1)/(K + 1)². K = 0 is Rayleigh fading.

    Args:
        seed: see `Fading`.
        k_db: K in dB, the power of the path in sight divided by that of all others.
    """

    def __init__(self, *, seed: int, k_db: float) -> None:
        super().__init__(seed=seed)
        k = 10.0 ** (between("world.fading.options.k_db", k_db, -MOST_DB, MOST_DB) / 10.0)
        self._sight, self._spread = np.sqrt(k / (k + 1.0)), np.sqrt(0.5 / (k + 1.0))
        self._other = Draws(seed, "fading/quadrature")

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return squared magnitudes."""
        real = self._sight + self._spread * self.draws.normal(*indices)
        imaginary = self._spread * self._other.normal(*indices)
        return np.asarray(real * real + imaginary * imaginary)


class LinkTrace(OfTrace, Fading):
    """The factors by which a trace departs from the fleet's gains.

    Args:
        seed: see `Fading`; nothing is drawn.
        fleet: the devices and edges, whose names the trace has.
        path: the file. A rate ``mbps`` is that of the device alone with all of the edge's bandwidth B_m.

    Raises:
        ConfigError: the file is wrong; the message names the row and the column.
    """

    def __init__(self, *, seed: int, fleet: Fleet, path: str) -> None:
        super().__init__(seed=seed)
        self._shape = fleet.num_devices, fleet.num_edges
        if fleet.num_devices * fleet.num_edges > DENSE_LINKS:
            raise ConfigError(
                f"world.fading.name: got trace with {fleet.num_devices:,} devices and {fleet.num_edges:,} edges; "
                f"accepted: up to {DENSE_LINKS:,} links; take a smaller fleet"
            )
        table, content = open_table(PATH, path)
        columns, _ = match(table, ("time_s", "device", "edge", *OF_A_LINK), {})
        for name in ("time_s", "device", "edge"):
            if name not in columns:
                raise ConfigError(
                    f"{table.name}: has no column {name}; accepted: time_s,device,edge and gain_db or mbps"
                )
        kinds = [name for name in OF_A_LINK if name in columns]
        if len(kinds) != 1:
            raise ConfigError(
                f"{table.name}: has {' and '.join(kinds) or 'neither gain_db nor mbps'}; accepted: one of them"
            )
        time_s = rising_times_s(table, columns["time_s"])
        devices = table.members(columns["device"], "device", fleet.device_names, fleet.num_devices)
        edges = table.members(columns["edge"], "edge", fleet.edge_names, fleet.num_edges)
        least, most, above = OF_A_LINK[kinds[0]]
        values = table.filled(columns[kinds[0]], least, most, above)
        if kinds[0] == "gain_db":
            gain = 10.0 ** (values / 10.0)
        else:
            power_w, hz = fleet.power_w[devices], fleet.edge_bandwidth_hz[edges]
            try:
                gain = gain_of_rate(values * 1e6, hz, power_w, fleet.noise_w_per_hz, "mbps")
            except ConfigError as error:
                raise ConfigError(f"{table.name}: {error}") from error
        self._time_s, self._devices, self._edges = time_s, devices, edges
        self._factors = gain / fleet.gain_of(devices, edges)
        self.digest = np.frombuffer(bytes.fromhex(digest(content)), dtype=np.uint8)
        self._now = np.ones(self._shape)
        self._next = 0
        self.advance(0.0)

    def advance(self, clock_s: float) -> None:
        """Take the lines until `clock_s`."""
        last = int(np.searchsorted(self._time_s, clock_s, side="right"))
        if last > self._next:
            lines = slice(self._next, last)
            self._now = self._now.copy()
            self._now[self._devices[lines], self._edges[lines]] = self._factors[lines]  # the last line of a link counts
            self._next = last

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return the factors of this moment."""
        shape = np.broadcast_shapes(*(np.shape(index) for index in indices))
        device, edge = (np.asarray(index, dtype=np.intp) for index in indices[1:3])
        return np.broadcast_to(self._now[device, edge], shape)

    def __deepcopy__(self, memo: object) -> Self:
        """Return a copy that shares the lines."""
        return copy.copy(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to the start. Raises ConfigError: the state was made with another file."""
        super().load_state_dict(state)
        self._now, self._next = np.ones(self._shape), 0
        self.advance(0.0)


class CheckedFading(Fading):
    """A law of fading whose factors are checked.

    Args:
        law: the law.
        name: its name or reference.

    Raises:
        ConfigError: it does not return factors above 0; or, in `try_out`, other factors for the same indices.
    """

    def __init__(self, law: Fading, name: str) -> None:
        accepted = "factors on the power gain, finite and above 0 (linear and not in dB), in the shape of the indices"
        self._law, self._contract = law, Contract.of("world.fading.name", name, accepted, "mend its method factor")

    def try_out(self) -> None:
        """Draw some factors twice."""
        indices = (1, np.arange(TRIED)[:, None], 0, np.arange(2))
        if not np.array_equal(self.factor(*indices), self.factor(*indices)):
            raise self._contract.error("other factors for the same indices (they are functions of the indices alone)")

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """See `Fading.factor`."""
        shape = np.broadcast_shapes(*(np.shape(index) for index in indices))
        return self._contract.array(self._law.factor(*indices), shape, "f", ABOVE_0)


def faded_upload(
    fading: Fading,
    coherence_s: float | None,
    round_index: int,
    iterations: range,
    schedule: Schedule,
    senders: Senders,
) -> tuple[FloatArray, FloatArray]:
    """Return how long each upload of some edge iterations of a round takes, (n, H), s, and its joules, (n, H).

    Args:
        fading: the law of the factors.
        coherence_s: the time for which a factor holds, s; None: each upload has one factor.
        round_index: i, from 1.
        iterations: numbers of the n edge iterations; those of a whole round are ``range(Q)``.
        schedule: the scheduled devices and the edge of each, (H,).
        senders: the same devices with their links without fading, and what each sends.

    Raises:
        ConfigError: an upload takes more than a million blocks as planned.
    """
    devices, edges = schedule
    iteration, bits = np.array(iterations)[:, None], senders.bits
    if coherence_s is None:
        return senders.upload(fading.factor(round_index, devices, edges, iteration))
    longest_s = float(senders.upload()[0].max(initial=0.0))
    if longest_s > MOST_BLOCKS * coherence_s:
        raise ConfigError(
            f"world.fading.coherence_s: got {coherence_s:g}; an upload of {longest_s:,.0f} s in round {round_index} "
            f"would take more than a million draws; accepted: at least {longest_s / MOST_BLOCKS:g}; raise it"
        )

    planned_blocks = 8 + int(1.2 * longest_s / coherence_s)  # few uploads need more
    # Each element of these arrays is an upload that is not through yet.
    q, h = (index.ravel() for index in np.indices((len(iterations), len(devices))))
    left_bits, (upload_s, upload_j) = np.full(len(q), bits), np.zeros((2, len(iterations), len(devices)))
    done = 0  # blocks
    while len(q):
        # The bits that are left are rounded once for so many blocks. These are sent in strips, and each strip has only
        # the uploads that are not through, because most uploads need far fewer blocks than the longest one.
        end = done + max(1, min(planned_blocks, AT_ONCE // len(q)))
        sent_bits = np.zeros(len(q))
        while done < end and len(q):
            count = min(end - done, max(1, STRIP // len(q)))
            blocks = np.arange(done, done + count)
            factor = fading.factor(round_index, devices[h, None], edges[h, None], iteration[q], blocks)
            rate, power_w = senders.pace(factor, h[:, None])
            sent = rate * coherence_s
            sent[:, 0] += sent_bits
            np.cumsum(sent, axis=1, out=sent)
            last = np.minimum((sent < left_bits[:, None]).sum(axis=1), count - 1)  # the block that completes the upload
            row = np.arange(len(q))
            sent_last, rate_last = sent[row, last], rate[row, last]
            on = sent_last < left_bits
            rest_s = np.clip((left_bits - (sent_last - rate_last * coherence_s)) / rate_last, 0.0, coherence_s)
            upload_s[q, h] = np.where(on, 0.0, (done + last) * coherence_s + rest_s)
            whole_s = np.where(blocks - done < (last + on)[:, None], coherence_s, 0.0)
            upload_j[q, h] += (power_w * whole_s).sum(axis=1) + np.where(on, 0.0, power_w[row, last] * rest_s)
            q, h, left_bits, sent_bits, done = q[on], h[on], left_bits[on], sent[on, -1], done + count
        left_bits = left_bits - sent_bits
    return upload_s, upload_j
