"""What the round would cost if one device alone had gone to another edge: the whole table of single transfers.

The learned assigner's fine-tuning follows it (`hflray.rl.finetune`); it also tells how much each choice matters.
"""

from __future__ import annotations

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.arrays import FloatArray, IntArray
from hflray.assignment.objective import RoundProblem, others_delay, slowest_three
from hflray.assignment.state import State, changed_edge_cost, new_state

TOL = 1e-4  # KKT residual of a transfer: a table for learning and looking, not for deciding between near ties


def transfer_objectives(problem: RoundProblem, assignment: IntArray) -> tuple[float, FloatArray]:
    """Return the objective of `assignment` (H,), J, and with each device moved to each edge, (H, M), J.

    A device's own edge has the objective itself. The per-edge allocation of the two edges that change is solved again.
    """
    state = new_state(problem, np.asarray(assignment, dtype=np.intp), exchanges=False)
    table = np.empty((len(assignment), len(problem.bandwidth)))
    return _fill(problem, state, table), table


@kernel
def _fill(problem: RoundProblem, state: State, table: FloatArray) -> float:
    scratch = scratch_with_list(state.solved.size.max() + 2)
    slowest = slowest_three(state.delay)
    base = state.energy.sum()
    now = base + problem.weight * state.delay.max()
    for h in range(len(state.assignment)):
        m = state.assignment[h]
        less = changed_edge_cost(problem, state.solved, m, h, -1, True, TOL, scratch)
        for k in range(len(state.solved.size)):
            if k == m:
                table[h, k] = now
                continue
            more = changed_edge_cost(problem, state.solved, k, -1, h, True, TOL, scratch)
            energy = base - state.energy[m] - state.energy[k] + less.energy + more.energy
            delay = max(less.delay, more.delay, others_delay(slowest, m, k))
            table[h, k] = energy + problem.weight * delay
    return float(now)
