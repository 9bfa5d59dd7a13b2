"""The arrays of a round with candidate lists, on which the kernels of `hflray.assignment.transfers` work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hflray.assignment.objective import Hop
from hflray.support.arrays import FloatArray, IntArray


class Links(NamedTuple):
    """The K candidate edges of each of H devices, `edge`, (H, K), and Y of the link to each, `snr`, (H, K), Hz."""

    edge: IntArray
    snr: FloatArray


class Candidates(NamedTuple):
    """A round of H devices, K candidate edges of each, and M edges, as arrays for Numba. The kernels only read it.

    | field | meaning |
    |---|---|
    | ``links`` | see `Links` |
    | other fields | as in `hflray.assignment.objective.RoundProblem` |
    """

    links: Links
    cycles: FloatArray
    power: FloatArray
    cap: FloatArray
    bandwidth: FloatArray
    hop: Hop
    iterations: float
    weight: float
    bits: float
    alpha: float
    mean: bool = False


class Lists(NamedTuple):
    """The devices of each edge as linked lists, in which -1 marks the end.

    | field | meaning | shape |
    |---|---|---|
    | ``head`` | first device of each edge | (M,) |
    | ``after``, ``before`` | next and previous device of each device | (H,), (H,) |
    | ``size`` | number of devices of each edge | (M,) |
    """

    head: IntArray
    after: IntArray
    before: IntArray
    size: IntArray


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


class Place(NamedTuple):
    """The assignment of H devices and the solution of each of M edges. The kernels write it.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``slot`` | index of each device's edge among its candidates | | (H,) |
    | ``lists`` | see `Lists` | | |
    | ``x`` | ln b | of Hz | (H,) |
    | ``y`` | ln π | of J/s | (H,) |
    | ``price`` | ln μ | of J/Hz | (M,) |
    | ``deadline`` | ln τ | of s | (M,) |
    | ``energy`` | E_m, cloud hop included | J | (M,) |
    | ``delay`` | T_m, cloud hop included | s | (M,) |
    | ``visits`` | see `Visits` | | |
    """

    slot: IntArray
    lists: Lists
    x: FloatArray
    y: FloatArray
    price: FloatArray
    deadline: FloatArray
    energy: FloatArray
    delay: FloatArray
    visits: Visits


def blank_place(slot: IntArray, num_edges: int) -> Place:
    """Return a `Place` for the candidates `slot`, (H,), with empty lists and no solutions; `settle_all` fills it."""
    h, m = len(slot), num_edges
    lists = Lists(
        head=np.full(m, -1, dtype=np.intp),
        after=np.full(h, -1, dtype=np.intp),
        before=np.full(h, -1, dtype=np.intp),
        size=np.zeros(m, dtype=np.intp),
    )
    visits = Visits(np.zeros(m, dtype=np.intp), np.full(h, -1, dtype=np.intp), np.zeros(1, dtype=np.intp))
    return Place(
        slot=slot,
        lists=lists,
        x=np.zeros(h),
        y=np.zeros(h),
        price=np.zeros(m),
        deadline=np.zeros(m),
        energy=np.zeros(m),
        delay=np.zeros(m),
        visits=visits,
    )
