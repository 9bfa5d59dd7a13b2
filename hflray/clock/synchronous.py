"""The synchronous cloud: a round is one turn of every edge, and all turns are merged at one moment (equation 3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hflray.support.arrays import BoolArray, IntArray


class EdgeTurn(NamedTuple):
    """The edge iterations of one edge between two exchanges with the cloud.

    Attributes:
        edge: the edge.
        last: the last edge iteration in which it has devices; the cloud receives the model of this one.
    """

    edge: int
    last: int


def turns(edges: IntArray, participates: BoolArray) -> list[EdgeTurn]:
    """Return the turns of a round, by edge. An edge without devices in any iteration has none.

    Args:
        edges: the edge of each scheduled device, (H,).
        participates: whether a device takes part in an edge iteration, (Q, H).
    """
    last: dict[int, int] = {}
    for iteration, present in enumerate(participates):
        last |= dict.fromkeys(np.unique(edges[present]).tolist(), iteration)
    return [EdgeTurn(edge, last[edge]) for edge in sorted(last)]
