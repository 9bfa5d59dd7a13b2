"""The turns of an asynchronous cloud's edges over the rounds of a run, as the page draws them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hflray.timeline import Timeline

MOST = 3000  # turns that a page has of a run
DIGITS = 6


def turns_of(rounds: Iterable[tuple[Timeline, float]]) -> dict[str, list[Any]] | None:
    """Return the turns whose models reached the cloud, in the order of the updates, and the ends of the rounds.

    All times are in s since the beginning of the first round. The keys are those of an update: its ``edge``, the
    ``start`` of its turn, when the edge began to send (``sent``) and when its model arrived (``end``), the ``version``
    of the global model from which the turn began, its staleness (``stale``) and its ``share`` in the step. ``rounds``
    are the ends of the rounds. The turns end with the round in which they become more than `MOST`.

    Args:
        rounds: the timelines of consecutive rounds from the first, and how long each round lasted, s.

    Returns:
        The columns; None if the rounds have no turns, as under another cloud.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("edge", "start", "sent", "end", "version", "stale", "share", "rounds")
    }
    begin_s, has_turns = 0.0, False
    last_s: dict[int, float] = {}  # when an edge's last model arrived
    first_s: dict[tuple[int, int], float] = {}  # when a turn of an edge began; its rows may end in several rounds
    for timeline, delay_s in rounds:
        runs = timeline.runs
        if runs is None:
            break
        has_turns = True
        for edge, turn, start_s in zip(timeline.edges, runs.turn, np.fmin.reduce(timeline.start_s), strict=True):
            if np.isfinite(start_s):
                key = int(edge), int(turn)
                first_s[key] = min(first_s.get(key, np.inf), float(start_s) + begin_s)
        for edge, turn, version, sent_s, end_s, stale, share in runs.updates:
            # At an asynchronous edge a turn may have no pass of its own; then it begins when the last model arrived.
            start_s = first_s.pop((int(edge), int(turn)), last_s.get(int(edge), 0.0))
            last_s[int(edge)] = end_s + begin_s
            times_s = {"start": start_s, "sent": sent_s + begin_s, "end": end_s + begin_s}
            for name, value in times_s.items():
                columns[name].append(round(float(value), DIGITS))
            for name, value in (("edge", edge), ("version", version), ("stale", stale)):
                columns[name].append(int(value))
            columns["share"].append(round(float(share), DIGITS))
        begin_s += delay_s
        columns["rounds"].append(round(begin_s, DIGITS))
        if len(columns["edge"]) > MOST:
            break
    return columns if has_turns else None
