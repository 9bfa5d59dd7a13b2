"""Where the devices of a round with candidate lists are: what the kernels of `hflray.assignment.transfers` work on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hflray.arrays import FloatArray, IntArray
from hflray.assignment.objective import Hop


class Links(NamedTuple):
    """K candidate edges of each of H devices: `edge`, (H, K), and `snr`, Y of the link to each, (H, K), Hz."""

    edge: IntArray
    snr: FloatArray


class Candidates(NamedTuple):
    """A round as arrays that Numba takes: H devices, K candidate edges of each, M edges. Nobody writes it.

    | field | what |
    |---|---|
    | ``links`` | see `Links` |
    | the others | as in `hflray.assignment.objective.RoundProblem` |
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


class Lists(NamedTuple):
    """The devices of each edge as linked lists; -1 is the end.

    | field | what | shape |
    |---|---|---|
    | ``head`` | first device of each edge | (M,) |
    | ``after``, ``before`` | the next device and the one before | (H,), (H,) |
    | ``size`` | devices of each edge | (M,) |
    """

    head: IntArray
    after: IntArray
    before: IntArray
    size: IntArray


class Visits(NamedTuple):
    """When each edge changed last (`stamp`, (M,)), when each device was looked at last (`seen`, (H,)), and the time.

    Time is the number of changes so far; `clock`, (1,), holds it.
    """

    stamp: IntArray
    seen: IntArray
    clock: IntArray


class Place(NamedTuple):
    """Where each device is, and the solution of each edge. H devices, M edges.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``slot`` | which of its candidates each device is at | | (H,) |
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
    """Devices at their candidates `slot`, (H,), with empty lists and nothing solved; `settle_all` fills it."""
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
