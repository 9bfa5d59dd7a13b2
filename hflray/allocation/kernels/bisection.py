"""Solve one edge's problem (27) by three nested root searches in brackets, which cannot fail.

For given μ and delay price π, the best bandwidth and frequency of a device are closed forms, and its delay falls with
π. At fixed μ the sum of the delay prices falls with the deadline τ. The sum of the bandwidths, which is the slope of
the concave dual, falls with μ. Each search starts from a bracket that certainly holds the root:

* π: at most λ; at least ``α (c/τ)³``, because c/f ≤ τ;
* τ: at least ``max τ_n(λ)``, because no π exceeds λ; at most ``max τ_n(λ/n)``, because some π is at least λ/n;
* μ: at least ``max p (-s'(B))``, because no b exceeds B; at most ``max (p + λ)(-s'(B/n))``, because some b
  is at least B/n.

A Newton step or a secant replaces a bisection where it stays inside the bracket. This solver is about a hundred times
slower than `kernels.edge`, which calls it only where Newton's method does not converge.

The scalar formulas of a device come first; other kernels use them too.
"""

from __future__ import annotations

import math

from hflray.allocation.kernels.bundles import DeviceNumbers, Devices, EdgeSetting
from hflray.allocation.kernels.jit import kernel
from hflray.support.arrays import FloatArray

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


@kernel
def log_price_of(y: float, b: float, snr: float, power: float, bits: float) -> float:
    """Return ln[(p + π)(-s'(b))], the bandwidth price at which a device takes b Hz; `y` is ln π."""
    ratio = snr / b
    lg = math.log1p(ratio)
    d = slack(ratio, lg, ratio / (1.0 + ratio))
    return math.log((power + math.exp(y)) * bits * LN2 * d / (b * lg) ** 2)


@kernel
def find_delay_price(
    deadline: float, price: float, device: DeviceNumbers, bits: float, alpha: float, top: float
) -> tuple[float, float, float]:
    """Find the delay price at which one device's ln delay is `deadline`, when ln μ is `price`.

    Returns:
        ln π (at most `top`), ln b and d ln τ / d ln π.
    """
    high = top
    low = min(top, math.log(alpha) + 3.0 * (math.log(device.cycles) - deadline))
    y = 0.5 * (low + high)
    x = slope = 0.0
    for _ in range(200):
        x, delay, slope = delay_at(y, price, device, bits, alpha)
        error = delay - deadline
        if error > 0.0:
            low = y
        else:
            high = y
        if error == 0.0 or high - low <= 1e-15 * max(1.0, abs(y)):
            break
        guess = y - error / slope
        if abs(guess - y) <= 1e-15 * max(1.0, abs(y)):
            break
        # Near the cap the delay is almost flat, so Newton's step may be far too long; take it only inside the bracket.
        y = guess if low < guess < high else 0.5 * (low + high)
    return y, x, slope


@kernel
def device_at(devices: Devices, i: int) -> DeviceNumbers:
    """Return device i."""
    return DeviceNumbers(devices.snr[i], devices.cycles[i], devices.power[i], devices.cap[i])


@kernel
def prices_at(
    deadline: float, price: float, devices: Devices, setting: EdgeSetting, x: FloatArray, y: FloatArray
) -> tuple[float, float]:
    """Fill x = ln b and y = ln π of all devices, (n,), at (ln τ, ln μ); return ln Σ π and its slope in ln τ."""
    top = math.log(setting.weight)
    total = rise = 0.0
    for i in range(len(devices.snr)):
        y[i], x[i], slope = find_delay_price(deadline, price, device_at(devices, i), setting.bits, setting.alpha, top)
        total += math.exp(y[i])
        rise += math.exp(y[i]) / slope
    return math.log(total), rise / total


@kernel
def find_deadline(
    price: float, devices: Devices, setting: EdgeSetting, x: FloatArray, y: FloatArray
) -> tuple[float, float]:
    """Return the ln τ at which Σ π = λ when ln μ is `price`, and ln Σ b; fill x = ln b and y = ln π, (n,)."""
    n = len(devices.snr)
    top = math.log(setting.weight)
    low = high = -math.inf
    for i in range(n):
        device = device_at(devices, i)
        low = max(low, delay_at(top, price, device, setting.bits, setting.alpha)[1])
        high = max(high, delay_at(top - math.log(n), price, device, setting.bits, setting.alpha)[1])
    deadline = 0.5 * (low + high)
    for _ in range(200):
        total, slope = prices_at(deadline, price, devices, setting, x, y)
        error = total - top
        if error > 0.0:
            low = deadline
        else:
            high = deadline
        if abs(error) <= 1e-13 or high - low <= 4e-16 * max(1.0, abs(deadline)):
            break
        guess = deadline - error / slope
        # A step that leaves the bracket is replaced by the middle of the bracket.
        deadline = guess if low < guess < high else 0.5 * (low + high)
    total = 0.0
    for i in range(n):
        total += math.exp(x[i])
    return deadline, math.log(total)


@kernel
def bisect_edge(devices: Devices, setting: EdgeSetting, x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Fill x = ln b and y = ln π, (n,), at the optimum of an edge's problem; return ln μ and ln τ."""
    n, snr, power = len(devices.snr), devices.snr, devices.power
    low = high = -math.inf
    for i in range(n):
        low = max(low, log_price_of(-math.inf, setting.bandwidth, snr[i], power[i], setting.bits))
        high = max(high, log_price_of(math.log(setting.weight), setting.bandwidth / n, snr[i], power[i], setting.bits))
    target = math.log(setting.bandwidth)
    price = deadline = 0.0
    under = over = math.nan  # ln(Σ b / B) at the ends of the bracket
    for trial in range(200):
        price = 0.5 * (low + high)
        # Every third step is a secant, which is fast where the sum is smooth. Elsewhere the other two bound the time.
        if trial % 3 == 2 and not math.isnan(under + over):
            price = low + (high - low) * over / (over - under)
        deadline, total = find_deadline(price, devices, setting, x, y)
        if total > target:
            low, over = price, total - target
        else:
            high, under = price, total - target
        if abs(total - target) <= 1e-12 or high - low <= 4e-16 * max(1.0, abs(price)):
            break
    return price, deadline
