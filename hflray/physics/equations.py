"""Equations (4) to (8) of the paper, a function each over arrays."""

from __future__ import annotations

import numpy as np

from hflray.support.arrays import FloatArray


def compute_delay_s(
    local_iterations: float, cycles_per_sample: FloatArray, samples: FloatArray, cpu_hz: FloatArray
) -> FloatArray:
    """Return the compute delay T^cmp = L u D / f, s (equation 4)."""
    return local_iterations * cycles_per_sample * samples / cpu_hz


def compute_energy_j(
    capacitance: float | FloatArray,
    local_iterations: float,
    cycles_per_sample: FloatArray,
    samples: FloatArray,
    cpu_hz: FloatArray,
) -> FloatArray:
    """Return the compute energy E^cmp = α/2 · L f² u D, J (equation 5)."""
    return capacitance / 2 * local_iterations * cpu_hz**2 * cycles_per_sample * samples


def rate_bps(bandwidth_hz: FloatArray, gain: FloatArray, power_w: FloatArray, noise_w_per_hz: float) -> FloatArray:
    """Return the rate η = b log2(1 + ḡ p / (N_0 b)), bit/s (equation 6)."""
    # log1p keeps the digits of a link whose signal-to-noise ratio is far below 1.
    nats = np.log1p(gain * power_w / (noise_w_per_hz * bandwidth_hz))
    return np.asarray(bandwidth_hz * nats / np.log(2.0), dtype=np.float64)


def upload_delay_s(model_bits: float, rate: FloatArray) -> FloatArray:
    """Return the upload delay T^com = z / η, s (equation 7)."""
    return model_bits / rate


def upload_energy_j(power_w: FloatArray, delay_s: FloatArray) -> FloatArray:
    """Return the upload energy E^com = p T^com, J (equation 8)."""
    return power_w * delay_s
