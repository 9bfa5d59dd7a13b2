"""The uplink: how long an upload of z bits takes over a fading link.

The link's factor multiplies its power gain, so that the rate of device n is b log2(1 + x Y / b) with the factor x and
Y = ḡ p / N_0. The factor is drawn anew for each block of coherent time until z bits are through. Without a coherence
time there is one draw for each upload. Under Rayleigh fading the mean of such an upload's time is infinite, so it needs
a deadline (`clock.edge`).
"""

from __future__ import annotations

import numpy as np

from hflray.arrays import FloatArray, IntArray
from hflray.cost import rate_bps, upload_delay_s
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.world.fading import Fading

AT_ONCE = 200_000  # factors drawn at once
MOST_BLOCKS = 1e6  # blocks of the longest upload as planned


def faded_upload_s(
    fading: Fading,
    coherence_s: float | None,
    round_index: int,
    iterations: int,
    model_bits: float,
    fleet: Fleet,
    devices: IntArray,
    edges: IntArray,
    bandwidth_hz: FloatArray,
) -> FloatArray:
    """Return how long each upload of a round takes, (Q, H), s.

    Args:
        fading: the law of the factors.
        coherence_s: the time for which a factor holds, s; None: each upload has one factor.
        round_index: i, from 1.
        iterations: Q.
        model_bits: z, bits.
        fleet: the links without fading.
        devices, edges: the scheduled devices and the edge of each, (H,).
        bandwidth_hz: b_n of each, (H,), Hz.

    Raises:
        ConfigError: an upload takes more than a million blocks as planned.
    """
    gain, power_w, noise = fleet.gain_of(devices, edges), fleet.power_w[devices], fleet.noise_w_per_hz
    iteration = np.arange(iterations)[:, None]
    if coherence_s is None:
        factor = fading.factor(round_index, devices, edges, iteration)
        return upload_delay_s(model_bits, rate_bps(bandwidth_hz, gain * factor, power_w, noise))
    longest_s = float(upload_delay_s(model_bits, rate_bps(bandwidth_hz, gain, power_w, noise)).max(initial=0.0))
    if longest_s > MOST_BLOCKS * coherence_s:
        raise ConfigError(
            f"world.fading.coherence_s: got {coherence_s:g}; an upload of {longest_s:,.0f} s in round {round_index} "
            f"would take more than a million draws; accepted: at least {longest_s / MOST_BLOCKS:g}; raise it"
        )

    planned_blocks = 8 + int(1.2 * longest_s / coherence_s)  # few uploads need more
    # Each row of these arrays is an upload that is not through yet.
    q, h = (index.ravel() for index in np.meshgrid(np.arange(iterations), np.arange(len(devices)), indexing="ij"))
    left_bits, upload_s = np.full(len(q), model_bits), np.zeros((iterations, len(devices)))
    done = 0  # blocks
    while len(q):
        at_once = min(planned_blocks, AT_ONCE // len(q))
        blocks = np.arange(done, done + max(1, at_once))[:, None]
        factor = fading.factor(round_index, devices[h], edges[h], q, blocks)
        rate = rate_bps(bandwidth_hz[h], gain[h] * factor, power_w[h], noise)
        sent_bits = np.cumsum(rate * coherence_s, axis=0)
        last = np.minimum((sent_bits < left_bits).sum(axis=0), len(blocks) - 1)  # the block that completes the upload
        column = np.arange(len(q))
        through = sent_bits[last, column] >= left_bits
        before_bits = sent_bits[last, column] - rate[last, column] * coherence_s
        rest_s = np.clip((left_bits - before_bits) / rate[last, column], 0.0, coherence_s)
        upload_s[q, h] = np.where(through, (done + last) * coherence_s + rest_s, 0.0)
        left_bits = (left_bits - sent_bits[-1])[~through]
        q, h, done = q[~through], h[~through], done + len(blocks)
    return upload_s
