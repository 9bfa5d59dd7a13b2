"""Turn the logarithms that the kernels compute into a feasible allocation and a lower bound on the objective."""

from __future__ import annotations

import math

from hflray.allocation.kernels.blocks import bounds, iteration_cost
from hflray.allocation.kernels.bundles import Setting
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import BLOCK, LANES, PI, X_0, X_M, Y_M, blocks_of
from hflray.allocation.kernels.terms import LN2
from hflray.support.arrays import FloatArray


@kernel
def certify(
    n: int,
    work: FloatArray,
    setting: Setting,
    price: float,
    b_out: FloatArray,
    f_out: FloatArray,
) -> tuple[float, float, float]:
    """Make one edge's feasible allocation from B, F and PI in `work`, and a lower bound on any allocation's objective.

    Bandwidth is written to `b_out`, (n,) Hz, and frequency to `f_out`, (n,) Hz; `price` is ln μ. The bound is
    Lagrange's: for any μ ≥ 0 and π ≥ 0 with Σ π = λ,
    ``Σ min_{b ≤ B} [(p + π) s(b) + μ b] + Σ min_{f ≤ f_max} [α/2 c f² + π c/f] - μ B`` is at most the optimum. The
    first bracket, φ(b), is convex, so that for any b' in [0, B] it is at least ``φ(b') - |φ'(b')| B`` in [0, B]. b' is
    one Newton step from the computed b, where φ' is ``μ (1 - e^R1)``, which is almost 0.

    Returns:
        The energy, J, and slowest delay, s, of one edge iteration, and the bound, J, on ``energy + λ·delay``.
    """
    bandwidth, weight = setting.bandwidth, setting.weight
    sum_pi = 0.0
    for i in range(n):
        sum_pi += work[i // LANES * BLOCK + i % LANES + PI]
    energy, delay = iteration_cost(n, work, setting, (weight / sum_pi) ** (1.0 / 3.0))
    mu, kappa = math.exp(price), setting.bits * LN2
    bound = -mu * bandwidth
    for k in range(blocks_of(n)):
        block = work[k * BLOCK : (k + 1) * BLOCK]
        bounds(block, price, mu, weight / sum_pi, bandwidth, kappa, math.log(kappa))
        for i in range(min(LANES, n - k * LANES)):
            bound += block[Y_M + i]
            b_out[k * LANES + i], f_out[k * LANES + i] = block[X_0 + i], block[X_M + i]
    return energy, delay, bound
