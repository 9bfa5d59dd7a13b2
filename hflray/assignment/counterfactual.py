"""The table of single transfers: a round's objective if one device alone were at another edge.

The learned assigner is fine-tuned by this table (`hflray.rl.fine_tuning`). It also shows how much each choice matters.
"""

from __future__ import annotations

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment.objective import Changed, RoundProblem, delay_after, totals_of, weighed_delay
from hflray.assignment.state import State, changed_edge_cost, new_state
from hflray.support.arrays import FloatArray, IntArray

TOL = 1e-4  # KKT residual of a transfer; the table need not decide between near ties


def transfer_objectives(problem: RoundProblem, assignment: IntArray) -> tuple[float, FloatArray]:
    """Return the objective of `assignment`, (H,), in J, and the objectives with each device at each edge, (H, M), in J.

    The entry of a device's own edge is the objective of `assignment`. The per-edge allocation of the two edges that
    change is solved again.
    """
    state = new_state(problem, np.asarray(assignment, dtype=np.intp), exchanges=False)
    table = np.empty((len(assignment), len(problem.bandwidth)))
    return _fill(problem, state, table), table


@kernel
def _fill(problem: RoundProblem, state: State, table: FloatArray) -> float:
    """Fill `table` for a solved state, and return its objective, J."""
    scratch = scratch_with_list(state.solved.size.max() + 2)
    totals = totals_of(state.energy, state.delay, state.solved.size)
    base = totals.energy
    objective = base + problem.weight * weighed_delay(problem.mean, state.delay, state.solved.size)
    for h in range(len(state.assignment)):
        m = state.assignment[h]
        without = changed_edge_cost(problem, state.solved, m, h, -1, True, TOL, scratch)
        for k in range(len(state.solved.size)):
            if k == m:
                table[h, k] = objective
                continue
            extra = changed_edge_cost(problem, state.solved, k, -1, h, True, TOL, scratch)
            energy = base - state.energy[m] - state.energy[k] + without.energy + extra.energy
            changed = Changed(m, k, without.delay, extra.delay, 1)
            delay = delay_after(problem.mean, totals, state.delay, state.solved.size, changed)
            table[h, k] = energy + problem.weight * delay
    return float(objective)
