"""Single transfers in Numba: the estimate of a transfer's gain, and the transfer itself.

A `CandidateState` holds the lists, the solutions and the stamps of the edges. The estimates use the prices of the two
edges' solutions (`own_cost`, `added_cost`; see `hflray.assignment.candidates`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hflray.allocation.kernels.bundles import DeviceNumbers, Devices, EdgeSetting, Guess
from hflray.allocation.kernels.device import LN2, delay_at, log_1p
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import listed, scratch_with_list
from hflray.assignment.objective import Edge, EdgeCost, RoundProblem, Totals, delay_after, edge_cost, weighed_delay
from hflray.support.arrays import FloatArray, IntArray

TOL = 1e-7  # largest KKT residual of an edge's solution
STEP, LEAST, MOST = 1 / 8, -16.0, 72.0  # the grid of ln q in `TABLE`


class Candidates(NamedTuple):
    """A round of H devices, K candidate edges of each, and M edges, as arrays for Numba. The kernels only read it.

    | field | meaning | shape |
    |---|---|---|
    | ``edge`` | the candidate edges of each device | (H, K) |
    | ``snr`` | Y of the link to each, Hz | (H, K) |
    | ``round`` | the `RoundProblem`, whose own ``snr`` is empty | |
    """

    edge: IntArray
    snr: FloatArray
    round: RoundProblem


class Visits(NamedTuple):
    """The times of the last change of each edge and of the last check of each device; time counts the changes.

    | field | meaning | shape |
    |---|---|---|
    | ``stamp`` | time of each edge's last change | (M,) |
    | ``checked`` | time of each device's last check | (H,) |
    | ``clock`` | number of changes | (1,) |
    """

    stamp: IntArray
    checked: IntArray
    clock: IntArray


class CandidateState(NamedTuple):
    """The assignment of H devices and the solution of each of M edges. The kernels write it.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``slot`` | index of each device's edge among its candidates | | (H,) |
    | ``members`` | devices of each edge; the first `size` of a row are in use | | (M, H) |
    | ``size`` | number of devices of each edge | | (M,) |
    | ``x`` | ln b | of Hz | (H,) |
    | ``y`` | ln π | of J/s | (H,) |
    | ``price`` | ln μ | of J/Hz | (M,) |
    | ``deadline`` | ln τ | of s | (M,) |
    | ``energy`` | E_m, cloud hop included | J | (M,) |
    | ``delay`` | T_m, cloud hop included | s | (M,) |
    | ``visits`` | see `Visits` | | |
    """

    slot: IntArray
    members: IntArray
    size: IntArray
    x: FloatArray
    y: FloatArray
    price: FloatArray
    deadline: FloatArray
    energy: FloatArray
    delay: FloatArray
    visits: Visits


def blank_place(slot: IntArray, num_edges: int) -> CandidateState:
    """Return the state of the candidates `slot`, (H,), with empty lists and no solutions; `settle_all` fills it."""
    h, m = len(slot), num_edges
    visits = Visits(np.zeros(m, dtype=np.intp), np.full(h, -1), np.zeros(1, dtype=np.intp))
    members = np.empty((m, h), dtype=np.intp)  # most of it is never touched, and so takes no memory
    (x, y), (price, deadline, energy, delay) = np.zeros((2, h)), np.zeros((4, m))
    return CandidateState(slot, members, np.zeros(m, dtype=np.intp), x, y, price, deadline, energy, delay, visits)


class Guest(NamedTuple):
    """A device that joins an edge.

    Attributes:
        device, slot: the device, and the edge's index among its candidates; -1 and -1 for no device.
        x, y: ln b and ln π at the start of the solution.
    """

    device: int
    slot: int
    x: float
    y: float


class Joining(NamedTuple):
    """A device that may join another edge, at its present π.

    Attributes:
        pi: π, J/s.
        upload: (p + π) κ, with κ = z ln 2; divided by Hz it is in J.
        work: the energy of its computation and π times its duration, J.
    """

    pi: float
    upload: float
    work: float


@kernel
def solve_with(
    problem: Candidates, place: CandidateState, m: int, without: int, extra: Guest, warm: bool, scratch: FloatArray
) -> EdgeCost:
    """Return the cost of edge m without its device `without` (-1: none) and with `extra` (device -1: none).

    `scratch` is a `lanes.scratch_with_list` with room for the edge's devices and one more. Its list is filled with ln b
    and ln π in the order of the edge's list, with the extra device last. `warm` starts from the edge's last solution.
    """
    n = 0
    devices, x, y = listed(scratch)
    for h in place.members[m, : place.size[m]]:
        if h != without:
            put_candidate(problem, h, place.slot[h], devices, n)
            x[n], y[n] = place.x[h], place.y[h]
            n += 1
    if extra.device >= 0:
        put_candidate(problem, extra.device, extra.slot, devices, n)
        x[n], y[n] = extra.x, extra.y
        n += 1
    round_ = problem.round
    setting = EdgeSetting(round_.bandwidth[m], round_.weight, round_.bits, round_.alpha)
    edge = Edge(setting, round_.iterations, round_.hop.energy[m], round_.hop.delay[m])
    return edge_cost(n, edge, Guess(place.price[m], place.deadline[m], warm and n > 1), TOL, scratch)


@kernel
def put_candidate(problem: Candidates, h: int, slot: int, devices: Devices, n: int) -> None:
    """Write device h at its candidate `slot` to place n of `devices`."""
    devices.snr[n], devices.cycles[n] = problem.snr[h, slot], problem.round.cycles[h]
    devices.power[n], devices.cap[n] = problem.round.power[h], problem.round.cap[h]


@kernel
def store_solution(place: CandidateState, m: int, cost: EdgeCost, scratch: FloatArray) -> None:
    """Store the solution of edge m from `solve_with`; the edge's list must have the devices that were solved."""
    _, x, y = listed(scratch)
    for n in range(place.size[m]):
        h = place.members[m, n]
        place.x[h], place.y[h] = x[n], y[n]
    place.price[m], place.deadline[m] = cost.price, cost.deadline
    place.energy[m], place.delay[m] = cost.energy, cost.delay
    place.visits.clock[0] += 1
    place.visits.stamp[m] = place.visits.clock[0]


@kernel
def insert(place: CandidateState, h: int, m: int) -> None:
    """Append device h to edge m's list."""
    place.members[m, place.size[m]] = h
    place.size[m] += 1


@kernel
def remove(place: CandidateState, h: int, m: int) -> None:
    """Remove device h from edge m's list; the others keep their order."""
    place.size[m] -= 1
    is_behind = False
    for i in range(place.size[m]):
        is_behind |= place.members[m, i] == h
        if is_behind:
            place.members[m, i] = place.members[m, i + 1]


@kernel
def settle_all(problem: Candidates, place: CandidateState) -> None:
    """Build the lists from `slot` and solve every edge from scratch."""
    for h in range(len(place.slot)):
        insert(place, h, problem.edge[h, place.slot[h]])
    scratch = scratch_with_list(place.size.max() + 3)
    for m in range(len(place.size)):
        store_solution(place, m, solve_with(problem, place, m, -1, Guest(-1, -1, 0.0, 0.0), False, scratch), scratch)


@kernel
def place_objective(problem: Candidates, place: CandidateState) -> float:
    """Return Σ E_m + λT, J."""
    delay = weighed_delay(problem.round.mean, place.delay, place.size)
    return float(place.energy.sum() + problem.round.weight * delay)


@kernel
def own_cost(problem: Candidates, place: CandidateState, h: int) -> float:
    """Return the largest fall of its edge's V without device h, at an unchanged deadline, of one edge iteration, J."""
    m = problem.edge[h, place.slot[h]]
    b, pi = math.exp(place.x[h]), math.exp(place.y[h])
    s = problem.round.bits * LN2 / (b * log_1p(problem.snr[h, place.slot[h]] / b))
    f = min(problem.round.cap[h], (pi / problem.round.alpha) ** (1.0 / 3.0))
    lateness = s + problem.round.cycles[h] / f - math.exp(place.deadline[m])
    spent = problem.round.power[h] * s + problem.round.alpha / 2.0 * problem.round.cycles[h] * f * f
    return float(spent + math.exp(place.price[m]) * b + pi * lateness)


def _table() -> FloatArray:
    """Return q and ``g(q) = min_u 1/(u ln(1 + 1/u)) + q u`` on the grid of ln q, (2, G)."""
    log_q = np.arange(LEAST, MOST + STEP / 2, STEP)
    w = log_q / 1.9  # w = -ln u; the slope of ln q in w is between 1.7 and 2 (`invert_slope`)
    for _ in range(20):
        ratio = np.exp(w)
        lg = np.log1p(ratio)
        w -= (2.0 * w + np.log((lg - ratio / (1.0 + ratio)) / lg**2) - log_q) / 2.0
    return np.array([np.exp(log_q), np.exp(w) / np.log1p(np.exp(w)) + np.exp(log_q - w)])


TABLE = _table()


@kernel
def joining(problem: Candidates, place: CandidateState, h: int) -> Joining:
    """Return what `least_added_cost` needs of device h, with π of its present edge."""
    pi = math.exp(min(place.y[h], math.log(problem.round.weight)))
    cycles = problem.round.cycles[h]
    f = min(problem.round.cap[h], (pi / problem.round.alpha) ** (1.0 / 3.0))
    work = problem.round.alpha / 2.0 * cycles * f * f + pi * cycles / f
    return Joining(pi, (problem.round.power[h] + pi) * problem.round.bits * LN2, work)


@kernel
def least_added_cost(guest: Joining, snr: float, price: float, deadline: float) -> float:
    """Return a lower bound of what `added_cost` finds for the first π that it tries, J, in much less time.

    With ``b = Y u`` and ``q = μ Y²/((p + π) κ)``, upload and bandwidth cost ``(p + π) κ / Y [1/(u ln(1 + 1/u)) + q u]``
    for the best u. As a minimum of lines, g(q) is concave, so the chords of its table are below it.

    Args:
        guest: see `joining`.
        snr: Y of the link, Hz.
        price, deadline: ln μ and ln τ of the edge.
    """
    mu = math.exp(price)
    q = mu * snr * snr / guest.upload
    place = (math.log(q) - LEAST) / STEP
    if place < 0.0:
        least = 1.0  # g(0)
    elif place < TABLE.shape[1] - 1:
        i = int(place)
        left, right = TABLE[0, i], TABLE[0, i + 1]
        least = TABLE[1, i] + (TABLE[1, i + 1] - TABLE[1, i]) * (q - left) / (right - left)
    else:
        least = TABLE[1, -1]  # g rises with q
    return (1.0 - 1e-9) * guest.upload / snr * least + guest.work - guest.pi * math.exp(deadline)


@kernel
def added_cost(problem: Candidates, place: CandidateState, h: int, j: int, enough: float) -> tuple[float, float, float]:
    """Return the least rise of candidate j's V with device h, at an unchanged deadline, J, and its ln b and ln π.

    Any π gives a bound. The best π meets the deadline; the search for it ends once the bound is at least `enough`.
    """
    m = problem.edge[h, j]
    top = math.log(problem.round.weight)
    price, deadline = place.price[m], math.exp(place.deadline[m])
    cycles, power, cap = problem.round.cycles[h], problem.round.power[h], problem.round.cap[h]
    device = DeviceNumbers(problem.snr[h, j], cycles, power, cap)
    mu, y = math.exp(price), min(place.y[h], top)
    value = x = 0.0
    for _ in range(5):
        x, log_delay, slope = delay_at(y, price, device, problem.round.bits, problem.round.alpha)
        delay, pi = math.exp(log_delay), math.exp(y)
        f = min(cap, (pi / problem.round.alpha) ** (1.0 / 3.0))
        s = delay - cycles / f
        value = power * s + problem.round.alpha / 2.0 * cycles * f * f + mu * math.exp(x) + pi * (delay - deadline)
        move = max(-3.0, min(3.0, (place.deadline[m] - log_delay) / slope))
        if value >= enough or abs(delay - deadline) < 1e-3 * deadline or (y == top and move > 0.0):
            break
        y = min(top, y + move)
    return value, x, y


@kernel
def try_transfer(
    problem: Candidates,
    place: CandidateState,
    guest: Guest,
    totals: Totals,
    least: float,
    first: FloatArray,
    second: FloatArray,
) -> float:
    """Make the transfer of `guest` if that lowers the objective by more than `least`, J.

    `first` and `second` are scratch for the edge that the device leaves and the edge that it joins; see `solve_with`.

    Returns:
        The fall of the objective, J; 0 if the transfer was not made.
    """
    h, j = guest.device, guest.slot
    m, k = problem.edge[h, place.slot[h]], problem.edge[h, j]
    joined = solve_with(problem, place, k, -1, guest, place.size[k] > 0, second)
    left_edge = solve_with(problem, place, m, h, Guest(-1, -1, 0.0, 0.0), True, first)
    before = totals.delay / max(totals.used, 1) if problem.round.mean else place.delay[totals.slowest[0]]
    old = place.energy[m] + place.energy[k] + problem.round.weight * before
    delay = delay_after(problem.round.mean, totals, place.delay, place.size, m, k, left_edge.delay, joined.delay, 1)
    gain = old - left_edge.energy - joined.energy - problem.round.weight * delay
    if not gain > least:
        return 0.0
    remove(place, h, m)
    place.slot[h] = j
    insert(place, h, k)
    store_solution(place, m, left_edge, first)
    store_solution(place, k, joined, second)
    return float(gain)


@kernel
def value_of(problem: Candidates, place: CandidateState, m: int) -> float:
    """Return V = E + λT of edge m, of one edge iteration, J."""
    energy = (place.energy[m] - problem.round.hop.energy[m]) / problem.round.iterations
    return float(energy + problem.round.weight * math.exp(place.deadline[m]))
