"""The arithmetic of a device and its link, which every solver uses to set up its problem.

`hflray.cost` computes a round's cost with formulas of its own, from the paper's equations, so that it checks the
solvers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hflray.support.arrays import FloatArray


def received_snr_hz(gain: Any, power_w: Any, noise_w_per_hz: float) -> Any:
    """Return Y = ḡ p / N_0, Hz, for numbers or for arrays of one shape (equation 6)."""
    return gain * power_w / noise_w_per_hz


def received_snr_of_links_hz(gain: FloatArray, power_w: FloatArray, noise_w_per_hz: float) -> FloatArray:
    """Return Y, (H, K), Hz, of K links of each device; `gain` is (H, K) and `power_w` is (H,), W.

    The division is made once for each device, so the last bit may differ from that of `received_snr_hz`. Saved
    results have the bits of both, so both functions stay.
    """
    return np.asarray(gain * (power_w / noise_w_per_hz)[:, None])


def compute_cycles(local_iterations: Any, cycles_per_sample: Any, samples: Any) -> Any:
    """Return c = L u D, the cycles of one edge iteration, for numbers or for arrays of one shape (equation 4)."""
    return local_iterations * cycles_per_sample * samples
