"""Allocate bandwidth and CPU frequency to each scheduled device: problem (27) of the paper, for each edge.

Call `allocate_round`. Its method ``newton`` is exact and fast; the tests compare it with the reference ``cvxpy``. The
methods ``equal`` and ``fixed_cpu`` are the baselines of other papers. Another physics than the paper's, a download and
limits are allocated by `hflray.allocation.general`.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from filelock import FileLock
from numpy.typing import ArrayLike

from hflray.allocation.baselines import allocate_equal, allocate_fixed_cpu
from hflray.allocation.general import allocate as allocate_any
from hflray.allocation.general import kept_by_limits
from hflray.allocation.instance import Allocation, EdgeProblem, edge_problems
from hflray.config import AllocationConfig
from hflray.config.options import one_of
from hflray.cost import Workload, check_assignment
from hflray.errors import ConfigError, InfeasibleError
from hflray.fleet import Fleet
from hflray.support.private import cache_folder

__all__ = [
    "Allocation",
    "EdgeProblem",
    "allocate_round",
    "compile_kernels",
    "compile_soon",
    "edge_problems",
    "is_general",
    "kept_by_limits",
]

log = logging.getLogger(__name__)

COMPILE = (
    "import numpy; from hflray import FleetConfig, Workload, sample_fleet; "
    "from hflray.allocation import AllocationConfig, compile_kernels; "
    "fleet = sample_fleet(FleetConfig(num_devices=1, num_edges=1), numpy.random.default_rng(0)); "
    "compile_kernels(fleet, Workload(model_bits=1e6), AllocationConfig())"
)
Method = Literal["newton", "cvxpy", "equal", "fixed_cpu"]
Coupling = Literal["per_edge", "joint"]


def allocate_round(
    fleet: Fleet,
    work: Workload,
    devices: ArrayLike,
    assignment: ArrayLike,
    method: Method = "newton",
    coupling: Coupling = "per_edge",
) -> Allocation:
    """Return the bandwidth and CPU frequency of every scheduled device, by default at the lowest ``E + λT``.

    Args:
        fleet: N devices and M edges.
        work: model size, iterations and λ of the round.
        devices: the scheduled devices, (H,) indices.
        assignment: the edge of each scheduled device, (H,) indices.
        method: ``newton`` (exact and fast) or ``cvxpy`` (the reference); ``equal`` (B_m/n and f_max) or ``fixed_cpu``
            (f_max with the optimal bandwidths), which are baselines.
        coupling: with ``per_edge`` each edge weighs its own delay with λ (problem (27) of the paper); with ``joint``
            all edges share one deadline, which is the exact optimum of problem (17).

    Raises:
        ConfigError: the method or coupling is unknown, or indices are wrong.
        InfeasibleError: no solver found a solution; the message names the edge.

    Examples:
        >>> import numpy as np
        >>> from hflray import FleetConfig, Workload, allocate_round, sample_fleet
        >>> fleet = sample_fleet(FleetConfig(num_devices=4, num_edges=1), np.random.default_rng(0))
        >>> allocation = allocate_round(fleet, Workload(model_bits=1e6), devices=[0, 3], assignment=[0, 0])
        >>> (allocation.bandwidth_hz / fleet.edge_bandwidth_hz[0]).round(2).tolist()
        [0.92, 0.08]
    """
    general = is_general(fleet, work)
    if np.ndim(fleet.capacitance) and not general:
        alike, scale = fleet.of_one_capacitance()
        solved = allocate_round(alike, work, devices, assignment, method, coupling)
        return replace(solved, cpu_hz=solved.cpu_hz / np.asarray(scale)[np.asarray(devices)])
    # Some imports take time, so a run without CVXPY (or Numba) must not load it.
    if method == "newton" and coupling == "per_edge" and not general:
        from hflray.allocation.newton import allocate_small

        allocation = allocate_small(fleet, work, devices, assignment)
        if allocation is not None:
            return allocation
    scheduled, edges = check_assignment(fleet, devices, assignment)
    one_of("allocation.method", method, get_args(Method))
    one_of("allocation.coupling", coupling, get_args(Coupling))
    if general:
        return allocate_any(fleet, work, scheduled, edges, method, coupling)
    if coupling == "joint" and method in ("equal", "cvxpy"):
        raise ConfigError(
            f"allocation.coupling: 'joint' with allocation.method '{method}'; accepted: per_edge; or set "
            "allocation.method to newton or fixed_cpu"
        )
    if method == "equal":
        return allocate_equal(fleet, scheduled, edges)
    if method == "fixed_cpu":
        return allocate_fixed_cpu(fleet, work, scheduled, edges, coupling)
    if method == "cvxpy":
        from hflray.allocation import cvxpy

        return cvxpy.allocate(fleet, work, scheduled, edges)
    from hflray.allocation.newton import allocate

    try:
        return allocate(fleet, work, scheduled, edges, coupling)
    except InfeasibleError:
        # Newton's method does not converge at one of 15,000 edges whose devices differ by nine orders of magnitude.
        with suppress(ConfigError, InfeasibleError):  # nothing is found here either
            return allocate_any(fleet, work, scheduled, edges, method, coupling)
        raise


def is_general(fleet: Fleet, work: Workload) -> bool:
    """Return whether the paper's kernels do not price the work: for another physics, a download or limits."""
    return work.limits.are_set or not fleet.is_papers


def compile_kernels(fleet: Fleet, work: Workload, setting: AllocationConfig) -> None:
    """Compile the kernels of `allocate_round`, unless they are on the disk, by allocating one device to one edge.

    Of several trials that start on a machine, one compiles, and the others wait and load what it has made.
    """
    if setting.method in ("newton", "fixed_cpu") and not is_general(fleet, work):
        # The device need not be one that a round schedules.
        with FileLock(cache_folder("kernels") / "compiling.lock"), suppress(InfeasibleError):
            allocate_round(fleet, work, [0], [0], setting.method, setting.coupling)


def compile_soon(setting: AllocationConfig) -> None:
    """Begin to compile the default kernels in a process of its own, if `setting` needs them and the disk has none.

    They take some ten seconds of a CPU, in which a command checks its trials and Ray starts.
    """
    if setting.method == "newton" and setting.coupling == "per_edge":
        from hflray.allocation.kernels.jit import is_kept
        from hflray.allocation.newton import allocate_in_one_call

        if not is_kept(allocate_in_one_call):
            log.warning("compiling hflray's kernels in the background, once on this machine")
            # With -P, no file of the folder in which the command runs is imported as a module.
            quiet = subprocess.DEVNULL  # a trial compiles what this process could not, and says why
            subprocess.Popen([sys.executable, "-P", "-c", COMPILE], stdin=quiet, stdout=quiet, stderr=quiet)
