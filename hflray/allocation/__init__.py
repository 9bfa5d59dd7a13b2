"""Bandwidth and CPU frequency of each scheduled device: problem (27) of the paper, edge by edge.

`allocate_round` is the entry. Method ``newton`` is exact and fast; ``cvxpy`` is the reference it is tested against.
"""

from __future__ import annotations

from typing import Literal

from numpy.typing import ArrayLike

from hflray.allocation.problem import Allocation, EdgeProblem, edge_problems
from hflray.cost import Workload, check_assignment
from hflray.errors import ConfigError
from hflray.fleet import Fleet

__all__ = ["Allocation", "EdgeProblem", "allocate_round", "edge_problems"]

Method = Literal["newton", "cvxpy"]
Coupling = Literal["per_edge", "joint"]


def allocate_round(
    fleet: Fleet,
    work: Workload,
    devices: ArrayLike,
    assignment: ArrayLike,
    method: Method = "newton",
    coupling: Coupling = "per_edge",
) -> Allocation:
    """Give every scheduled device its bandwidth and CPU frequency at the lowest ``E + λT``.

    Args:
        fleet: N devices and M edges.
        work: model size, iterations and λ of the round.
        devices: the scheduled devices, (H,) indices.
        assignment: the edge of each, (H,) indices.
        method: ``newton`` or ``cvxpy``.
        coupling: ``per_edge``, each edge weighs its own delay with λ (the paper, problem (27)); or ``joint``, one
            deadline shared by all edges (the exact optimum of problem (17)).

    Raises:
        ConfigError: an unknown method or coupling, or bad indices.
        InfeasibleError: no solver found an answer; names the edge.
    """
    if method == "newton" and coupling == "per_edge":
        from hflray.allocation.newton import allocate_small

        allocation = allocate_small(fleet, work, devices, assignment)
        if allocation is not None:
            return allocation
    chosen, edges = check_assignment(fleet, devices, assignment)
    # Imported here, so that a run which never asks for CVXPY (or for Numba) does not pay for loading it.
    if method == "cvxpy":
        from hflray.allocation import cvxpy as solver
    elif method == "newton":
        from hflray.allocation import newton as solver  # type: ignore[no-redef]
    else:
        raise ConfigError(f"allocation.method: unknown method '{method}'; known: newton, cvxpy")
    if coupling not in ("per_edge", "joint"):
        raise ConfigError(f"allocation.coupling: unknown coupling '{coupling}'; known: per_edge, joint")
    return solver.allocate(fleet, work, chosen, edges, coupling)
