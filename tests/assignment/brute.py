"""The best of all assignments of a small round, by brute force."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from hflray.assignment.objective import round_problem
from hflray.assignment.state import NOWHERE, blank_state, restart
from hflray.cost import Workload
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray


def brute_force(fleet: Fleet, work: Workload, devices: ArrayLike) -> tuple[IntArray, float]:
    """Return the best of all M^H assignments under the per-edge allocation, and its objective, J."""
    problem, scheduled = round_problem(fleet, work, devices)
    m_count, h_count = fleet.num_edges, len(scheduled)
    # An edge's cost depends only on the set of its devices: each of the 2^H sets is solved once, and then looked up.
    sets = itertools.product([False, True], repeat=h_count)
    state, energy, delay = blank_state(problem, 0, False), *np.empty((2, m_count, 2**h_count))
    for i, member in enumerate(sets):
        for m in range(m_count):
            restart(problem, state, np.where(member, m, NOWHERE))
            energy[m, i], delay[m, i] = state.energy[m], state.delay[m]
    # The first device has the largest digit of an assignment's number, and the largest bit of a set's.
    assignments = np.indices((m_count,) * h_count, dtype=np.int8).reshape(h_count, -1).T
    total, delays, used = np.zeros((3, len(assignments)))
    for m in range(m_count):
        of = (assignments == m) @ (1 << np.arange(h_count)[::-1])
        total += energy[m, of]
        t = delay[m, of]
        delays = delays + t * (of > 0) if problem.mean else np.maximum(delays, t)
        used += of > 0
    value = total + problem.weight * (delays / np.maximum(used, 1) if problem.mean else delays)
    best = int(value.argmin())
    return assignments[best].astype(np.intp), float(value[best])
