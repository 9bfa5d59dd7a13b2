"""Traces: what happened elsewhere, from a CSV or Parquet file with named columns, checked as a whole when it is read.

The first line names the columns; the unit is part of the name. The other lines are in the order of their times.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.tables import Table, open_table
from hflray.support.text import one_line
from hflray.world.part import Part


@dataclass(frozen=True, eq=False)
class Trace:
    """The lines of a trace.

    Attributes:
        time_s: time of each line, which does not fall, (n,), s.
        member: device or edge of each line, (n,).
        values: the other columns by name, (n,) each.
        line: number of each line in the file, from 1, (n,).
        digest: SHA-256 of the file, (32,) bytes.
    """

    time_s: FloatArray
    member: IntArray
    values: dict[str, FloatArray]
    line: IntArray
    digest: NDArray[np.uint8]

    @classmethod
    def read(
        cls, setting: str, path: object, member: str, count: int, columns: Mapping[str, bool],
        names: Sequence[str] | None = None,
    ) -> Self:  # fmt: skip
        """Read a trace.

        Args:
            setting: the setting that gives the path, for messages.
            path: the path of the file.
            member: name of the column of members, ``device`` or ``edge``.
            count: the number of members.
            columns: the other columns; of those that are True the values are 0 and 1, of the others any numbers.
            names: what the fleet calls its members; None: 0, 1 and so on.

        Raises:
            ConfigError: the file cannot be read, or a line is wrong; the message names the line.
        """
        table, content = open_table(setting, path)
        accepted = ["time_s", member, *columns]
        if sorted(table.columns) != sorted(accepted):
            raise ConfigError(
                f"{table.name}, row 1: the columns are {one_line(','.join(table.columns))[:80]}; accepted: "
                f"{','.join(accepted)}; correct the line"
            )
        return cls(
            time_s=rising_times_s(table, "time_s"),
            member=table.members(member, member, names, count),
            values={
                name: table.truths(name).astype(np.float64) if is_truth else table.filled(name)
                for name, is_truth in columns.items()
            },
            line=np.array([table.row(row) for row in range(len(table))]),
            digest=np.frombuffer(hashlib.sha256(content).digest(), dtype=np.uint8),
        )


def rising_times_s(table: Table, column: str) -> FloatArray:
    """Return the times of a table's rows, (n,), s. Raises ConfigError: they fall."""
    time_s = table.filled(column, 0.0)
    if len(back := np.flatnonzero(np.diff(time_s) < 0)):
        raise table.error(int(back[0]) + 1, column, "is before the row above it; sort the rows by time")
    return time_s


class OfTrace(Part):
    """A part whose state follows from a trace and the clock, so that it is the checksum of the trace.

    Attributes:
        digest: SHA-256 of the trace's file, (32,) bytes.
    """

    digest: NDArray[np.uint8]

    def state_dict(self) -> dict[str, Any]:
        """Return the checksum beside the state of the base class."""
        return super().state_dict() | {"digest": np.array(self.digest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises ConfigError: it was made with another trace."""
        if not np.array_equal(state.get("digest", ()), self.digest):
            raise ConfigError(
                "state: it was made with another trace than the world has now; resume with the trace of the run's "
                "start, or start anew"
            )
        super().load_state_dict(state)


class Switches(OfTrace):
    """Members of a group that a trace turns on and off. Until its first line a member is on.

    Args:
        trace: the lines; their values are in the column `column`.
        column: 1 turns a member on, 0 off.
        count: the number of members.
        repeat_s: the trace begins anew after this time, s; None: its last lines hold for ever.

    Attributes:
        up: whether each member is on, (count,).
    """

    def __init__(self, trace: Trace, column: str, count: int, repeat_s: float | None = None) -> None:
        self.digest, self._repeat_s = trace.digest, repeat_s
        # Of several lines of a member at the same time the last one counts.
        order = np.lexsort((trace.member, trace.time_s))  # it keeps the order of such lines
        later = (np.diff(trace.time_s[order]) > 0) | (np.diff(trace.member[order]) != 0)
        last = np.sort(order[np.append(later, True)])
        self._time_s, self._member = trace.time_s[last], trace.member[last]
        self._values: BoolArray = trace.values[column][last] > 0
        self._lap, self._position = 0, 0  # repetitions, and lines of this one, until now
        self.up: BoolArray = np.ones(count, dtype=bool)
        self.advance(0.0)

    def advance(self, clock_s: float) -> None:
        """Take the lines until `clock_s`."""
        lap, at_s = (0.0, clock_s) if self._repeat_s is None else divmod(clock_s, self._repeat_s)
        if self._repeat_s is not None and clock_s >= (lap + 1) * self._repeat_s:  # as 3 * 0.7 by 0.7 in binary numbers
            lap, at_s = lap + 1, 0.0
        if lap > self._lap:
            self._lap, self._position = int(lap), 0
            self.up[:] = True
        last = int(np.searchsorted(self._time_s, at_s, side="right"))
        members = self._member[self._position : last]
        self.up[members] = self._values[self._position : last]  # the last line of a member counts
        self._position = last

    def next_off_s(self, clock_s: float) -> FloatArray:
        """Return when each member is next turned off, (count,), s; infinity for never. No trace of edges repeats."""
        off_s = np.full(len(self.up), math.inf)
        chosen = self._position + np.flatnonzero(~self._values[self._position :])
        np.minimum.at(off_s, self._member[chosen], self._time_s[chosen])
        return off_s

    def ends_off(self) -> BoolArray:
        """Return whether each member is off after the last line, (count,)."""
        on = np.ones(len(self.up), dtype=bool)
        on[self._member] = self._values
        return ~on
