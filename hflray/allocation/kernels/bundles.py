"""The NamedTuples that are arguments and results of the kernels; Numba passes each as its fields.

This file does not import Numba, so that code which only makes arrays (`hflray.allocation.instance`) does not load it.
"""

from __future__ import annotations

from typing import NamedTuple

from hflray.support.arrays import FloatArray, IntArray


class Devices(NamedTuple):
    """The n devices of a problem, each at its assigned edge. The kernels only read it.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``snr`` | Y = gain·power/noise | Hz | (n,) |
    | ``cycles`` | c = L·u·D | cycles | (n,) |
    | ``power`` | p | W | (n,) |
    | ``cap`` | f_max | Hz | (n,) |
    """

    snr: FloatArray
    cycles: FloatArray
    power: FloatArray
    cap: FloatArray


class DeviceNumbers(NamedTuple):
    """One device, with the fields of `Devices` as numbers."""

    snr: float
    cycles: float
    power: float
    cap: float


class EdgeSetting(NamedTuple):
    """The four numbers of an edge's problem (27) besides its devices. The kernels only read it.

    | field | symbol | unit |
    |---|---|---|
    | ``bandwidth`` | B | Hz |
    | ``weight`` | λ | J/s |
    | ``bits`` | z | bits |
    | ``alpha`` | α, the capacitance | J·s²/cycles³ |
    """

    bandwidth: float
    weight: float
    bits: float
    alpha: float


class Guess(NamedTuple):
    """The start of Newton's method at an edge, besides the ln b and ln π of its devices.

    | field | symbol | meaning |
    |---|---|---|
    | ``price`` | ln μ | of J/Hz |
    | ``deadline`` | ln τ | of s |
    | ``warm`` | | if False, these numbers and the devices' unknowns are not read; a cold start replaces them |
    """

    price: float
    deadline: float
    warm: bool


class Solved(NamedTuple):
    """The result of Newton's method at an edge, besides the ln b and ln π of its devices.

    | field | symbol | meaning |
    |---|---|---|
    | ``price`` | ln μ | of J/Hz |
    | ``deadline`` | ln τ | of s |
    | ``residual`` | | the largest relative violation of the optimality conditions |
    | ``evaluations`` | | number of evaluations of the conditions |
    | ``slope`` | d ln τ / d ln λ | elasticity of the deadline in the weight, at most 0 |
    """

    price: float
    deadline: float
    residual: float
    evaluations: int
    slope: float


class Edges(NamedTuple):
    """The problems of e edges with n devices in total. The kernels only read it.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``offsets`` | | devices of edge i are ``offsets[i]:offsets[i + 1]`` | (e + 1,) |
    | ``devices`` | | see `Devices` | (n,) each |
    | ``bandwidth`` | B | Hz | (e,) |
    | ``bits`` | z | bits | number |
    | ``alpha`` | α | J·s²/cycles³ | number |
    """

    offsets: IntArray
    devices: Devices
    bandwidth: FloatArray
    bits: float
    alpha: float


class Unknowns(NamedTuple):
    """The unknowns of the optimality conditions of e edges with n devices, as logarithms.

    | field | symbol | unit of the number whose logarithm it is | shape |
    |---|---|---|---|
    | ``log_bandwidth`` | x = ln b | Hz | (n,) |
    | ``log_delay_price`` | y = ln π | J/s | (n,) |
    | ``log_bandwidth_price`` | ln μ | J/Hz | (e,) |
    | ``log_deadline`` | ln τ | s | (e,) |
    """

    log_bandwidth: FloatArray
    log_delay_price: FloatArray
    log_bandwidth_price: FloatArray
    log_deadline: FloatArray


class Feasible(NamedTuple):
    """A feasible allocation of e edges with n devices, its cost for one edge iteration, and a lower bound.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``bandwidth_hz`` | b | Hz | (n,) |
    | ``cpu_hz`` | f | Hz | (n,) |
    | ``energy_j`` | E | J | (e,) |
    | ``delay_s`` | delay of the slowest device | s | (e,) |
    | ``bound_j`` | lower bound on ``energy + weight·delay`` of any allocation | J | (e,) |
    """

    bandwidth_hz: FloatArray
    cpu_hz: FloatArray
    energy_j: FloatArray
    delay_s: FloatArray
    bound_j: FloatArray


class Solution(NamedTuple):
    """The solution of e edges, which `edge.solve_edges` writes; the entries of edges without devices stay unchanged.

    | field | meaning | shape |
    |---|---|---|
    | ``unknowns`` | see `Unknowns`; another solution can start from them | |
    | ``residual`` | the largest relative violation of each edge's optimality conditions | (e,) |
    | ``evaluations`` | number of evaluations of the conditions | (e,) |
    | ``feasible`` | see `Feasible` | |
    """

    unknowns: Unknowns
    residual: FloatArray
    evaluations: IntArray
    feasible: Feasible


class JointSolution(NamedTuple):
    """The solution of e edges at their own weights λ_m, which `joint.solve_joint` writes.

    | field | symbol | meaning | shape |
    |---|---|---|---|
    | ``unknowns`` | | see `Unknowns` | |
    | ``log_weight`` | ln λ_m | of J/s: the price of one second of the edge's delay | (e,) |
    | ``slope`` | d ln τ / d ln λ_m | elasticity of the deadline in the weight, at most 0 | (e,) |
    | ``residual`` | | the largest relative violation of each edge's optimality conditions | (e,) |
    """

    unknowns: Unknowns
    log_weight: FloatArray
    slope: FloatArray
    residual: FloatArray
