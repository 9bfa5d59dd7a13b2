"""What the kernels hand to each other by name: NamedTuples, which Numba passes as their fields.

Numba is not imported here, so that code which only lays arrays out (`hflray.allocation.problem`) does without it.
"""

from __future__ import annotations

from typing import NamedTuple

from hflray.arrays import FloatArray, IntArray


class Devices(NamedTuple):
    """What is known of n devices at the edge that each is assigned to. The kernels read it and never write it.

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


class Device(NamedTuple):
    """The same of one device: numbers instead of arrays."""

    snr: float
    cycles: float
    power: float
    cap: float


class Setting(NamedTuple):
    """The four numbers of an edge's problem (27) beside its devices. The kernels read it and never write it.

    | field | symbol | unit |
    |---|---|---|
    | ``bandwidth`` | B | Hz |
    | ``weight`` | λ | J/s |
    | ``bits`` | z | bits |
    | ``alpha`` | α, the capacitance | F·s² style coefficient |
    """

    bandwidth: float
    weight: float
    bits: float
    alpha: float


class Guess(NamedTuple):
    """Where Newton's method begins at an edge, beside the ln b and ln π of its devices.

    | field | symbol | meaning |
    |---|---|---|
    | ``price`` | ln μ | of J/Hz |
    | ``deadline`` | ln τ | of s |
    | ``warm`` | | False: the two numbers and the devices' unknowns are not read; the start is equal shares |
    """

    price: float
    deadline: float
    warm: bool


class Solved(NamedTuple):
    """What Newton's method found at an edge, beside the ln b and ln π of its devices.

    | field | symbol | meaning |
    |---|---|---|
    | ``price`` | ln μ | of J/Hz |
    | ``deadline`` | ln τ | of s |
    | ``residual`` | | the largest violation of the optimality conditions, relative |
    | ``evaluations`` | | how often the conditions were evaluated |
    | ``slope`` | d ln τ / d ln λ | elasticity of the deadline in the weight, at most 0 |
    """

    price: float
    deadline: float
    residual: float
    evaluations: int
    slope: float


class Edges(NamedTuple):
    """The problems of e edges with n devices in all. The kernels read it and never write it.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``offsets`` | | devices of edge i are ``offsets[i]:offsets[i + 1]`` | (e + 1,) |
    | ``devices`` | | see `Devices` | (n,) each |
    | ``bandwidth`` | B | Hz | (e,) |
    | ``bits`` | z | bits | number |
    | ``alpha`` | α | F·s² style coefficient | number |
    """

    offsets: IntArray
    devices: Devices
    bandwidth: FloatArray
    bits: float
    alpha: float


class Unknowns(NamedTuple):
    """What the optimality conditions of e edges with n devices are solved for, as logarithms.

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
    """A feasible allocation of e edges with n devices, what one edge iteration costs with it, and a bound.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``bandwidth_hz`` | b | Hz | (n,) |
    | ``cpu_hz`` | f | Hz | (n,) |
    | ``energy_j`` | E | J | (e,) |
    | ``delay_s`` | the slowest device's | s | (e,) |
    | ``bound_j`` | no allocation has a lower ``energy + weight·delay`` | J | (e,) |
    """

    bandwidth_hz: FloatArray
    cpu_hz: FloatArray
    energy_j: FloatArray
    delay_s: FloatArray
    bound_j: FloatArray


class Solution(NamedTuple):
    """The solution of e edges, written by `edges.solve_edges`; edges without devices keep what was there.

    | field | meaning | shape |
    |---|---|---|
    | ``unknowns`` | see `Unknowns`; with them another solution can start warm | |
    | ``residual`` | the largest violation of each edge's optimality conditions, relative | (e,) |
    | ``evaluations`` | how often the conditions were evaluated | (e,) |
    | ``feasible`` | see `Feasible` | |
    """

    unknowns: Unknowns
    residual: FloatArray
    evaluations: IntArray
    feasible: Feasible


class Priced(NamedTuple):
    """The solution of an edge at a weight of its own, beside the ln b and ln π of its devices.

    | field | symbol | meaning |
    |---|---|---|
    | ``log_weight`` | ln λ_m | of J/s |
    | ``price``, ``deadline``, ``slope``, ``residual``, ``evaluations`` | | as in `Solved` |
    """

    log_weight: float
    price: float
    deadline: float
    slope: float
    residual: float
    evaluations: int


class JointSolution(NamedTuple):
    """The solution of e edges at weights of their own, written by `joint.solve_joint` and `joint.find_weight`.

    | field | symbol | meaning | shape |
    |---|---|---|---|
    | ``unknowns`` | | see `Unknowns` | |
    | ``log_weight`` | ln λ_m | of J/s: what a second of the edge's delay costs | (e,) |
    | ``slope`` | d ln τ / d ln λ_m | elasticity of the deadline in the weight, at most 0 | (e,) |
    | ``residual`` | | the largest violation of each edge's optimality conditions, relative | (e,) |
    | ``evaluations`` | | how often the conditions were evaluated | (e,) |
    """

    unknowns: Unknowns
    log_weight: FloatArray
    slope: FloatArray
    residual: FloatArray
    evaluations: IntArray
