"""The allocation of any physics, with limits and downloads: the problems of the edges for `hflray.allocation.exact`."""

from __future__ import annotations

import numpy as np

from hflray.allocation import exact
from hflray.allocation.instance import Allocation
from hflray.cost import Workload, downloads, hops
from hflray.errors import ConfigError, InfeasibleError
from hflray.fleet import Fleet
from hflray.physics.access import NoDownload
from hflray.physics.own import is_built_in, name_of
from hflray.support.arrays import BoolArray, FloatArray, IntArray

SLACK = 1e-6  # relative


def edges_of(
    fleet: Fleet, work: Workload, devices: IntArray, assignment: IntArray
) -> tuple[exact.EdgeProblems, IntArray]:
    """Return the problems of the edges with devices, and the position in the schedule of each of their devices.

    Raises:
        ConfigError: an edge has more devices than the access has blocks.
    """
    order = np.argsort(assignment, kind="stable")
    chosen, at = devices[order], assignment[order]
    counts, blocks = np.bincount(at, minlength=fleet.num_edges), fleet.access.blocks
    if blocks is not None and counts.max() > blocks:
        edge = int(counts.argmax())
        setting = (
            "options.blocks: got"
            if is_built_in(fleet.access)
            else f"name: {name_of('access', fleet.access)} has blocks ="
        )
        raise ConfigError(
            f"cost.access.{setting} {blocks}, and edge {_name(fleet.edge_names, edge)} has {counts.max()} "
            f"devices, of which each needs a block; accepted: {counts.max()} or more; raise it, lower "
            "scheduling.num_scheduled, or take assignment.name: even_gain"
        )
    return problems(fleet, work, chosen, at, at, fleet.num_edges)[0], order


def problems(
    fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray, node: IntArray, count: int
) -> tuple[exact.EdgeProblems, FloatArray]:
    """Return the problems of so many sets of devices, and the joules of each entry's download, (D,), J.

    No allocation changes these joules.

    Args:
        fleet, work: the round.
        devices: the device of each entry, (D,).
        edges: the edge at which it is, (D,).
        node: the set of each entry, (D,), ascending.
        count: number of sets, of which several may be at one edge.

    Raises:
        ConfigError: the fleet lacks what a part needs.
    """
    fleet.check_needs()
    nothing, limits = np.zeros(len(devices)), work.limits
    before_s, received_j = downloads(fleet, work, devices, edges, node)
    sets = exact.EdgeProblems(
        access=fleet.access,
        compute=fleet.compute,
        link=fleet.uplinks(devices, edges),
        device=fleet.computers(devices),
        work=work.computing(fleet.samples[devices]),
        node=node,
        count=count,
        bits=work.device_bits,
        weight=np.full(count, work.delay_weight),
        before_s=nothing if before_s is None else before_s,
        most_j=nothing + _of_iteration(limits.device_energy_j, work),
        most_s=nothing + _of_iteration(limits.device_delay_s, work),
    )
    return sets, nothing if received_j is None else received_j


def _of_iteration(limit: float | None, work: Workload) -> float:
    return np.inf if limit is None else limit / work.edge_iterations


def allocate(
    fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray, method: str, coupling: str
) -> Allocation:
    """Return the share and the setting of each scheduled device; see `hflray.allocation.allocate_round`.

    Raises:
        ConfigError: the method knows frequency division alone, or an edge has too few blocks.
        InfeasibleError: a device cannot meet the limits.
    """
    if method not in ("newton", "equal"):
        raise ConfigError(
            f"allocation.method: got {method}, which allocates by frequency division with frequencies of CPUs, without "
            "downloads and limits, alone; accepted beside other settings of cost and limits: newton, equal; set it"
        )
    problem, order = edges_of(fleet, work, devices, edges)
    if method == "equal":
        share, setting = _equal_shares(problem), problem.compute.most(problem.device)
    else:
        if coupling == "joint":
            solved = exact.solve_together(problem, work.edge_iterations, hops(fleet, work)[0], work.delay_weight)
        else:
            solved = exact.solve(problem)
        if not solved.feasible.all():
            raise InfeasibleError(_unmet(fleet, work, problem, devices[order], solved.feasible))
        share, setting = solved.share, solved.setting
    if not fleet.compute.has_setting:
        setting = np.full(len(share), np.nan)
    back = np.argsort(order)
    link = problem.link.take(back)
    return Allocation(fleet.access.bandwidth_hz(share[back], link), setting[back], share=share[back])


def _needs(problem: exact.EdgeProblems) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the least joules and the least seconds of each device alone, and the larger part of its limits, (D,)."""
    joules, seconds = exact.least_needs(problem)
    with np.errstate(invalid="ignore"):
        parts = np.stack([joules / problem.most_j, seconds / problem.most_s])
    return joules, seconds, np.nan_to_num(parts, nan=0.0).max(axis=0)


def _unmet(fleet: Fleet, work: Workload, problem: exact.EdgeProblems, devices: IntArray, feasible: BoolArray) -> str:
    """Return the message about the device of an infeasible edge that needs most; `devices` are those of the entries."""
    if not work.limits.are_set:
        return _not_found(fleet, problem, feasible)
    joules, seconds, part = _needs(problem)
    worst = int(np.where(feasible[problem.node], -1.0, part).argmax())
    device, edge = (_name(names, index[worst]) for names, index in (
        (fleet.device_names, devices), (fleet.edge_names, problem.node)
    ))  # fmt: skip
    with np.errstate(invalid="ignore"):
        is_energy = np.isfinite(problem.most_j[worst]) and not seconds[worst] / problem.most_s[worst] >= part[worst]
    limits, times = work.limits, work.edge_iterations
    name, limit, least, unit = (
        ("device_energy_j", limits.device_energy_j, times * joules[worst], "J") if is_energy
        else ("device_delay_s", limits.device_delay_s, times * seconds[worst], "s")
    )  # fmt: skip
    beside = ", however long it takes" if is_energy else ""
    if limits.device_energy_j is not None and limits.device_delay_s is not None:
        beside = " within the other limit"
    if not np.isfinite(least):
        needs = f"cannot meet it{beside} with any share"
        accepted = "a larger one, or a larger other limit"
    else:
        needs = f"needs at least {least:.4g} {unit} in a round{beside}"
        accepted = f"{least:.4g} or more"
    if part[worst] <= 1.0:
        needs = f"needs at least {least:.4g} {unit} if it has all of the edge, which the other devices there need too"
        accepted = "more, or fewer devices"
    return (
        f"allocation.limits.{name}: got {limit:g}, and device {device} at edge {edge} {needs}; accepted: {accepted}; "
        "raise it, or set allocation.limits.drop to true"
    )


def _not_found(fleet: Fleet, problem: exact.EdgeProblems, feasible: BoolArray) -> str:
    """Return the message about the first edge for which no allocation was found, although nothing limits it."""
    edge = int(feasible.argmin())
    rows = problem.node == edge
    answers = (
        (fleet.access, "access", "equal shares", problem.upload(_equal_shares(problem))),
        (fleet.compute, "compute", "the largest settings", problem.run(problem.compute.most(problem.device))),
    )
    answered = " and ".join(
        f"{name_of(kind, part)} returned {s[rows].min():.4g} to {s[rows].max():.4g} s and {j[rows].min():.4g} to "  # type: ignore[arg-type]
        f"{j[rows].max():.4g} J with {chosen}"
        for part, kind, chosen, (s, j) in answers
    )
    return (
        f"cost: found no allocation at edge {_name(fleet.edge_names, edge)} with {rows.sum()} devices, where "
        f"{answered}; accepted: finite seconds and joules, convex as docs/howto/physics.md says; correct the part, "
        "or the columns that it reads"
    )


def _name(names: tuple[str, ...] | None, index: int) -> str:
    return str(index) if names is None else names[index]


def kept_by_limits(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray) -> BoolArray:
    """Return which devices of a schedule stay, (H,), so that all of them can meet the limits.

    The one that needs most of its limits leaves its edge first, and with it all that could not meet them alone. Of
    equal needs the one with the longest download alone leaves, and of equal ones the last.
    """
    stays = np.ones(len(devices), dtype=bool)
    while stays.any():
        rows = np.flatnonzero(stays)
        problem, order = edges_of(fleet, work, devices[rows], edges[rows])
        failing = ~exact.solve(problem).feasible[problem.node]
        if not failing.any():
            break
        part = np.where(failing, _needs(problem)[2], -1.0)
        chosen = rows[order]
        alone_s = downloads(fleet, work, devices[chosen], edges[chosen], np.arange(len(chosen)))[0]
        by_need = np.lexsort((np.zeros(len(rows)) if alone_s is None else alone_s, part, problem.node))
        last = by_need[np.flatnonzero(np.diff(problem.node[by_need], append=-1))]
        leaves = np.zeros(len(rows), dtype=bool)
        leaves[last] = failing[last]
        if isinstance(fleet.download, NoDownload):  # without others a device has a shorter download
            leaves |= part > 1.0 + SLACK
        stays[chosen[leaves]] = False
    return stays


def beyond_limits(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray) -> BoolArray:
    """Return which devices cannot meet the limits alone at any of some edges, (C,)."""
    entries = np.arange(len(devices) * len(edges))
    pairs = np.repeat(devices, len(edges)), np.tile(edges, len(devices))
    part = _needs(problems(fleet, work, *pairs, entries, len(entries))[0])[2]
    return np.asarray(part.reshape(len(devices), len(edges)).min(axis=1, initial=np.inf) > 1.0 + SLACK)


def _equal_shares(problem: exact.EdgeProblems) -> FloatArray:
    """Return equal shares at each edge, or equal numbers of blocks as far as these go, the first ones one more."""
    counts = np.bincount(problem.node, minlength=problem.count)
    if not problem.access.shared:
        return np.ones(len(problem.node))
    blocks = problem.access.blocks
    if blocks is None:
        return 1.0 / counts[problem.node]
    place = np.arange(len(problem.node)) - np.searchsorted(problem.node, problem.node)
    return np.asarray((blocks // counts[problem.node] + (place < blocks % counts[problem.node])) / blocks)
