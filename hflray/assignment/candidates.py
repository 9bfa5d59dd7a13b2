"""Greedy and local search over a few candidate edges of each device, for schedules of thousands of devices.

This search is not in the paper. `hflray.assignment.local_search` computes the exact cost of every move, which takes
tables of H × M entries; this search solves only moves that an estimate selects.

**Greedy.** If only upload energy counts, and at a fair share's spectral efficiency ``η``, the best split of an edge's
bandwidth costs ``A²/B`` with ``A = Σ a``, ``a = sqrt(p z / η)``. In each of a few passes, each device in turn moves to
the candidate edge where it adds least to ``Σ A²/B``.

**Local search.** Let V be an edge's ``E + λT``, solved with prices μ, π and deadline τ. At an unchanged deadline, one
more device raises V by at least ``min [p s + α/2 c f² + μ b + π (s + c/f - τ)]`` for any π (weak duality), and one
device less lowers V by at most its own ``p s + α/2 c f² + μ b``. Both are correct to first order even if the deadline
changes. With a second order from ``A²/B`` they estimate in a microsecond whether a transfer is worth solving, so a
transfer that would help can be missed. For each selected transfer both edges are solved from a warm start, and it is
made if the round's ``Σ E_m + λ max T_m`` falls. After each pass, transfers from the slowest edge are made while they
help.
"""

from __future__ import annotations

import math
import time

import numpy as np

from hflray.allocation.instance import checked_gain, received_snr_of_links_hz
from hflray.allocation.kernels.device import LN2
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment.objective import problem_of, starting_assignment, totals_of
from hflray.assignment.transfers import (
    Candidates,
    CandidateState,
    Guest,
    added_cost,
    blank_place,
    joining,
    least_added_cost,
    own_cost,
    place_objective,
    settle_all,
    try_transfer,
    value_of,
)
from hflray.cost import Workload
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray

WIN = 1e-7  # a move must lower the objective by this fraction of the energy of its two edges
PASS = 3e-4  # the search ends with a pass that lowers the objective by less than this fraction
RELIEF = 1e-5  # the same for a transfer from the slowest edge
GREEDY_PASSES = 5
RELIEVE = 100  # largest number of transfers from the slowest edge that are solved to find one that helps
AT_ONCE = 2000  # devices checked between two checks of the clock


def search_candidates(
    fleet: Fleet, work: Workload, devices: IntArray, start: str, count: int, rng: np.random.Generator, stop: float
) -> IntArray:
    """Return an assignment, (H,) edge indices, of checked `devices`.

    Args:
        fleet, work: the round.
        start: the assignment before the greedy passes.
        count: number of each device's strongest edges that are candidates, besides the starting edge.
        rng: generator of the order of the devices.
        stop: value of `time.perf_counter` at which to stop.

    Raises:
        ConfigError: a value is not finite and above 0.
    """
    strongest = fleet.strongest_edges(devices, min(count, fleet.num_edges))
    # Reading all links takes much of the time, and the strongest edges are already known.
    begin = strongest[:, 0] if start == "best_gain" else starting_assignment(start, fleet, devices, rng)
    problem = candidates(fleet, work, devices, np.column_stack([strongest, begin]))
    h = len(devices)
    slot = np.full(h, problem.edge.shape[1] - 1, dtype=np.intp)
    greedy(problem, slot, GREEDY_PASSES)
    place = blank_place(slot, fleet.num_edges)
    settle_all(problem, place)
    value = place_objective(problem, place)
    while time.perf_counter() < stop:
        order = rng.permutation(h)
        for i in range(0, h, AT_ONCE):
            improve(problem, place, order[i : i + AT_ONCE])
            if time.perf_counter() >= stop:
                break
        while time.perf_counter() < stop and relieve(problem, place) > RELIEF * value:
            pass
        before, value = value, place_objective(problem, place)
        if value >= before * (1.0 - PASS):
            break
    return np.asarray(problem.edge[np.arange(h), place.slot], dtype=np.intp)


def candidates(fleet: Fleet, work: Workload, devices: IntArray, edge: IntArray) -> Candidates:
    """Return the round with candidate edges, (H, K). Raises ConfigError as `search_candidates` does."""
    gain = checked_gain(fleet, devices[:, None], edge)
    snr = received_snr_of_links_hz(gain, fleet.power_w[devices], fleet.noise_w_per_hz)
    return Candidates(edge, snr, problem_of(fleet, work, devices, np.empty((0, 0))))


@kernel
def greedy(problem: Candidates, slot: IntArray, passes: int) -> None:
    """Move each device in turn to the candidate where it adds least to ``Σ A²/B``, and update `slot`."""
    h_count, k_count = problem.edge.shape
    fair = len(problem.round.bandwidth) / h_count
    load = np.empty((h_count, k_count))
    total = np.zeros(len(problem.round.bandwidth))
    for h in range(h_count):
        for j in range(k_count):
            share = problem.round.bandwidth[problem.edge[h, j]] * min(fair, 1.0)
            price = problem.round.power[h] + problem.round.weight * min(fair, 1.0)
            load[h, j] = math.sqrt(price * problem.round.bits * LN2 / math.log1p(problem.snr[h, j] / share))
        total[problem.edge[h, slot[h]]] += load[h, slot[h]]
    for _ in range(passes):
        for h in range(h_count):
            total[problem.edge[h, slot[h]]] -= load[h, slot[h]]
            least = math.inf
            for j in range(k_count):
                k = problem.edge[h, j]
                increase = load[h, j] * (2.0 * total[k] + load[h, j]) / problem.round.bandwidth[k]
                if increase < least:
                    least = increase
                    slot[h] = j
            total[problem.edge[h, slot[h]]] += load[h, slot[h]]


@kernel
def improve(problem: Candidates, place: CandidateState, order: IntArray) -> int:
    """Move each device of `order` to its best candidate if that helps, and return the number of moves."""
    moves = 0
    room = place.size.max() + 64
    first, second = scratch_with_list(room), scratch_with_list(room)
    totals = totals_of(place.energy, place.delay, place.size)
    for h in order:
        m = problem.edge[h, place.slot[h]]
        newest = place.visits.stamp[m]
        for j in range(problem.edge.shape[1]):
            newest = max(newest, place.visits.stamp[problem.edge[h, j]])
        if newest <= place.visits.checked[h]:
            continue
        place.visits.checked[h] = place.visits.clock[0]
        saving = own_cost(problem, place, h)
        # The second order is (A + a)² - A² - 2Aa = (2Aa)²/(4A²), where A² is the cost of the whole edge.
        saving -= saving * saving / (4.0 * value_of(problem, place, m))
        best, target, x, y = saving, -1, 0.0, 0.0
        guest = joining(problem, place, h)
        for j in range(problem.edge.shape[1]):
            k = problem.edge[h, j]
            if k == m:
                continue
            if place.size[k] == 0:
                target = j
                break
            if least_added_cost(guest, problem.snr[h, j], place.price[k], place.deadline[k]) >= best:
                continue
            increase, x_j, y_j = added_cost(problem, place, h, j, best)
            if increase < best:
                increase += increase * increase / (4.0 * value_of(problem, place, k))
                if increase < best:
                    best, target, x, y = increase, j, x_j, y_j
        if target < 0:
            continue
        k = problem.edge[h, target]
        if place.size[k] + 4 >= room:
            room = 2 * place.size[k] + 64
            first, second = scratch_with_list(room), scratch_with_list(room)
        enough = WIN * (place.energy[m] + place.energy[k])
        if try_transfer(problem, place, Guest(h, target, x, y), totals, enough, first, second) > 0.0:
            moves += 1
            totals = totals_of(place.energy, place.delay, place.size)
    return moves


@kernel
def relieve(problem: Candidates, place: CandidateState) -> float:
    """Make the first transfer from the slowest edge that lowers the objective, and return the fall, J.

    The transfers are tried by increasing estimate. Without one that helps the result is 0.
    """
    m = place.delay.argmax()
    room = place.size.max() + 64
    first, second = scratch_with_list(room), scratch_with_list(room)
    totals = totals_of(place.energy, place.delay, place.size)
    count, k_count = place.size[m], problem.edge.shape[1]
    members, guess = place.members[m, :count], np.full(count * k_count, math.inf)
    for i in range(count):
        h = members[i]
        saving = own_cost(problem, place, h)
        for j in range(k_count):
            k = problem.edge[h, j]
            if k != m:
                guess[i * k_count + j] = (
                    added_cost(problem, place, h, j, math.inf)[0] if place.size[k] > 0 else 0.0
                ) - saving
    least = WIN * place.energy[m]
    for i in np.argsort(guess)[:RELIEVE]:
        if guess[i] == math.inf:
            break
        h, j = members[i // k_count], i % k_count
        _, x, y = added_cost(problem, place, h, j, math.inf) if place.size[problem.edge[h, j]] > 0 else (0.0, 0.0, 0.0)
        gain = try_transfer(problem, place, Guest(h, j, x, y), totals, least, first, second)
        if gain > 0.0:
            return gain
    return 0.0
