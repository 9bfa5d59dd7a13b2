"""The arithmetic of a device and its link, in the one place that every solver lays its problem out from.

The bill (`hflray.cost`) has formulas of its own, from the paper's equations, so that it checks the solvers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hflray.arrays import FloatArray


def received_snr_hz(gain: Any, power_w: Any, noise_w_per_hz: float) -> Any:
    """Y = ḡ p / N_0, Hz, of one link of each device: numbers, or arrays of one shape (equation 6)."""
    return gain * power_w / noise_w_per_hz


def received_snr_of_links_hz(gain: FloatArray, power_w: FloatArray, noise_w_per_hz: float) -> FloatArray:
    """Y, (H, K), Hz, of K links of each device; `gain` (H, K), `power_w` (H,), W.

    The division is made once for each device. The last bit may differ from that of `received_snr_hz`; both are kept,
    since saved results have the bits of both.
    """
    return np.asarray(gain * (power_w / noise_w_per_hz)[:, None])


def compute_cycles(local_iterations: Any, cycles_per_sample: Any, samples: Any) -> Any:
    """c = L u D, cycles of one edge iteration: numbers, or arrays of one shape (equation 4)."""
    return local_iterations * cycles_per_sample * samples
