"""The fate of each scheduled device of a round, in words."""

from __future__ import annotations

import numpy as np

from hflray.timeline import Ends, Timeline


def fates(happens: Timeline, ends: Ends) -> list[str]:
    """Return what happened to each scheduled device, (H,), such as ``left at 3.2 s while sending``.

    The text is empty for a device that counts in all edge iterations.

    Args:
        happens: the timeline of the round.
        ends: when devices vanish and edges fail, as the timeline was computed with.
    """
    return [_fate(happens, ends, row) for row in range(len(happens.devices))]


def _fate(happens: Timeline, ends: Ends, row: int) -> str:
    edge = happens.edges[row]
    if happens.participates[:, row].all():
        return ""
    leaves_s, fails_s, ended_s = ends.vanish_s[row], ends.fail_s[edge], happens.iteration_end_s[-1, edge]
    if happens.vanished[row] and leaves_s <= min(ended_s, fails_s):
        return f"left at {leaves_s:,.1f} s while {_activity(happens, row, leaves_s)}"
    if happens.vanished[row]:
        started = np.flatnonzero(np.isfinite(happens.start_s[:, row]))
        empty_s = happens.end_s[started[-1], row] if started.size else 0.0
        return f"ran out of charge at {empty_s:,.1f} s while {_activity(happens, row, empty_s)}"
    if not happens.reached[edge]:
        return f"lost its edge at {fails_s:,.1f} s while {_activity(happens, row, fails_s)}"
    late = int((~happens.arrived[:, row]).sum())
    return f"came too late in {late} of {len(happens.arrived)} edge iterations"


def _activity(happens: Timeline, row: int, moment_s: float) -> str:
    """Return what a device does at a moment: computing, sending or waiting."""
    start_s, computed_s, end_s = (getattr(happens, name)[:, row] for name in ("start_s", "computed_s", "end_s"))
    begun = np.flatnonzero(start_s <= moment_s)
    if not begun.size:
        return "waiting"
    last = begun[-1]
    if happens.arrived[last, row] and end_s[last] <= moment_s:
        return "waiting"
    return "sending" if computed_s[last] < moment_s else "computing"
