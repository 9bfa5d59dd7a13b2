"""The scalar formulas of one device, with the symbols of `kernels.edge`, which several kernels use."""

from __future__ import annotations

import math

from hflray.allocation.kernels.bundles import DeviceNumbers
from hflray.allocation.kernels.jit import kernel

LN2 = math.log(2.0)


@kernel
def log_1p(ratio: float) -> float:
    """Return ln(1 + X). log1p takes three times as long as log, and gains nothing where 1 + X keeps X's digits."""
    return math.log(1.0 + ratio) if ratio > 0.5 else math.log1p(ratio)


@kernel
def slack(ratio: float, lg: float, q: float) -> float:
    """Return d = ln(1 + X) - X/(1 + X) at X = `ratio`. For small X the series X²/2 - 2X³/3 + … avoids cancellation."""
    if ratio > 1e-2:
        return lg - q
    x = ratio
    # The series is Σ_{k≥2} (-1)^k X^k (k-1)/k; the first omitted term is below 1e-15 of the first term.
    return (
        x * x * (1 / 2 - x * (2 / 3 - x * (3 / 4 - x * (4 / 5 - x * (5 / 6 - x * (6 / 7 - x * (7 / 8 - x * 8 / 9)))))))
    )


@kernel
def invert_slope(target: float) -> float:
    """Return ``w = ln X`` with ``ln[X² d / l²] = target``: b = Y/X is where ``-s'(b) Y²/κ`` is e^target.

    The left side has slope between 1.7 and 2 in w everywhere, so Newton's method converges from any start.
    """
    w = target / 2.0 if target < 0.0 else target / 1.9
    for _ in range(60):
        ratio = math.exp(w)
        lg = math.log1p(ratio)
        q = ratio / (1.0 + ratio)
        d = slack(ratio, lg, q)
        move = (2.0 * w + math.log(d / (lg * lg)) - target) / (2.0 + q * q / d - 2.0 * q / lg)
        w -= move
        if abs(move) <= 1e-15 * max(1.0, abs(w)):
            break
    return w


@kernel
def delay_at(y: float, price: float, device: DeviceNumbers, bits: float, alpha: float) -> tuple[float, float, float]:
    """Evaluate one device's best response to ln π = `y` and ln μ = `price`; z and α are `bits` and `alpha`.

    Returns:
        ln b, ln(s + c/f), and the derivative of ln(s + c/f) in ln π, which is negative.
    """
    kappa = bits * LN2
    pi = math.exp(y)
    w = invert_slope(price + 2.0 * math.log(device.snr) - math.log(kappa) - math.log(device.power + pi))
    ratio = math.exp(w)
    b = device.snr / ratio
    lg = math.log1p(ratio)
    q = ratio / (1.0 + ratio)
    d = slack(ratio, lg, q)
    s = kappa / (b * lg)
    f = (pi / alpha) ** (1.0 / 3.0)
    fall = -1.0 / 3.0
    if f >= device.cap:
        f = device.cap
        fall = 0.0
    v = device.cycles / f
    a1 = 2.0 * q / lg - 2.0 - q * q / d
    slope = fall * v / (s + v) + (pi / (device.power + pi)) * (s / (s + v)) * (d / lg) / a1
    return math.log(device.snr) - w, math.log(s + v), slope
