"""Traces: what happened elsewhere, from a CSV file with named columns, checked as a whole when it is read.

The first line names the columns; the unit is part of the name. The other lines are in the order of their times.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.reader import MOST_BYTES, read_bytes
from hflray.support.text import one_line
from hflray.world.part import Part

TRUTHS = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}


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
    def read(cls, setting: str, path: object, member: str, count: int, columns: Mapping[str, bool]) -> Self:
        """Read a trace.

        Args:
            setting: the setting that gives the path, for messages.
            path: the path of the file.
            member: name of the column of members, ``device`` or ``edge``.
            count: the number of members.
            columns: the other columns; of those that are True the values are 0 and 1, of the others any numbers.

        Raises:
            ConfigError: the file cannot be read, or a line is wrong; the message names the line.
        """
        if not isinstance(path, str) or not path:
            raise ConfigError(f"{setting}: got {path!r}; accepted: the path of a CSV file; correct it")

        def refuse(line: int, reason: str) -> ConfigError:
            return ConfigError(f"{setting}: {path}, line {line}: {reason}; correct the line")

        try:
            content = read_bytes(path, MOST_BYTES)
            lines = content.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            line = 1 + error.object.count(b"\n", 0, error.start)
            raise refuse(line, f"a byte is no text of UTF-8 ({error.reason})") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"{setting}: {path} cannot be read ({error}); give the path of a CSV file") from error

        names = ["time_s", member, *columns]

        def cells_of(line: int) -> list[str]:
            # Each line is read alone, because an open quote would join it with those that follow.
            try:
                return [cell.strip() for cell in next(csv.reader([lines[line - 1]], strict=True), [])]
            except csv.Error as error:
                raise refuse(line, f"it cannot be split into cells ({error})") from error

        head = cells_of(1) if lines else []
        if sorted(head) != sorted(names):
            columns_found = _shown(",".join(head)) if head else "missing"
            raise refuse(1, f"the columns are {columns_found}; accepted: {','.join(names)}")
        readers: dict[str, Callable[[str], float]] = {"time_s": _time, member: _index(member, count)}
        readers |= {name: _truth if truth else _finite for name, truth in columns.items()}
        rows, numbers = list[list[float]](), list[int]()
        for line in range(2, len(lines) + 1):
            cells = cells_of(line)
            if not cells:
                continue
            if len(cells) != len(head):
                raise refuse(line, f"got {len(cells)} cells; accepted: {len(head)}")
            try:
                by_name = {name: readers[name](cell) for name, cell in zip(head, cells, strict=True)}
            except ValueError as error:
                raise refuse(line, str(error)) from None
            if rows and by_name["time_s"] < rows[-1][0]:
                raise refuse(line, f"time_s is {by_name['time_s']:.15g} after {rows[-1][0]:.15g}; times run backwards")
            rows.append([by_name[name] for name in names])
            numbers.append(line)
        if not rows:
            raise ConfigError(f"{setting}: {path} has no lines below its first; accepted: at least one")
        table = np.array(rows, dtype=np.float64).T
        return cls(
            time_s=table[0],
            member=table[1].astype(np.intp),
            values={name: table[2 + i] for i, name in enumerate(columns)},
            line=np.array(numbers),
            digest=np.frombuffer(hashlib.sha256(content).digest(), dtype=np.uint8),
        )

    def __deepcopy__(self, memo: object) -> Self:
        """Return this trace, which does not change."""
        return self


class Switches(Part):
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
        self._trace, self._repeat_s = trace, repeat_s
        # Of several lines of a member at the same time the last one counts.
        order = np.lexsort((trace.member, trace.time_s))  # it keeps the order of such lines
        later = (np.diff(trace.time_s[order]) > 0) | (np.diff(trace.member[order]) != 0)
        last = np.sort(order[np.append(later, True)])
        self._time_s, self._member = trace.time_s[last], trace.member[last]
        self._values: BoolArray = trace.values[column][last] > 0
        self._next = 0  # lines until now, over all repetitions
        self.up: BoolArray = np.ones(count, dtype=bool)
        self.advance(0.0)

    def advance(self, clock_s: float) -> None:
        """Take the lines until `clock_s`."""
        lines = len(self._values)
        while True:
            repetition, position = divmod(self._next, lines)
            if repetition and self._repeat_s is None:
                return
            at_s = clock_s - repetition * (self._repeat_s or 0.0)
            last = int(np.searchsorted(self._time_s, at_s, side="right"))
            if last <= position:
                return
            members = self._member[position:last]
            self.up[members] = self._values[position:last]  # the last line of a member counts
            self._next += last - position
            if last < lines:
                return

    def next_off_s(self, clock_s: float) -> FloatArray:
        """Return when each member is next turned off, after `clock_s`, (count,), s; infinity for never."""
        off_s = np.full(len(self.up), math.inf)
        repetition, position = divmod(self._next, len(self._values))
        for lap in (repetition, repetition + 1):
            if lap and self._repeat_s is None:
                break
            start = position if lap == repetition else 0
            chosen = start + np.flatnonzero(~self._values[start:])
            times_s = self._time_s[chosen] + lap * (self._repeat_s or 0.0)
            np.minimum.at(off_s, self._member[chosen], times_s)
        return off_s

    def ends_off(self) -> BoolArray:
        """Return whether each member is off after the last line, (count,)."""
        on = np.ones(len(self.up), dtype=bool)
        on[self._member] = self._values
        return ~on

    def state_dict(self) -> dict[str, Any]:
        """Return the checksum of the trace, because the state follows from the trace and the clock."""
        return {"digest": np.array(self._trace.digest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that a state was made with the same trace. Raises ConfigError if it was not."""
        check_digest(self._trace.digest, state)


def check_digest(digest: NDArray[np.uint8], state: Mapping[str, Any]) -> None:
    """Raise ConfigError if a state was made with another trace than the one of this digest."""
    if not np.array_equal(state.get("digest", ()), digest):
        raise ConfigError(
            "state: it was made with another trace than the world has now; resume with the trace of the run's start, "
            "or start anew"
        )


def _shown(cell: str) -> str:
    """Return a cell as messages show it: one line of at most 80 characters."""
    return one_line(cell if len(cell) <= 80 else f"{cell[:77]}...")


def _finite(cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"got '{_shown(cell)}'; accepted: a number")
    return number


def _time(cell: str) -> float:
    number = _finite(cell)
    if number < 0:
        raise ValueError(f"time_s is {_shown(cell)}; accepted: at least 0")
    return number


def _truth(cell: str) -> float:
    if cell.lower() not in TRUTHS:
        raise ValueError(f"got '{_shown(cell)}'; accepted: 0 or 1")
    return TRUTHS[cell.lower()]


def _index(name: str, count: int) -> Callable[[str], float]:
    def read(cell: str) -> float:
        # The number of digits is compared first, because Python refuses to read thousands of them.
        if not cell.isdecimal() or len(cell.lstrip("0")) > len(str(count)) or int(cell) >= count:
            raise ValueError(f"{name} {_shown(cell)} does not exist; accepted: 0 to {count - 1}")
        return float(cell)

    return read
