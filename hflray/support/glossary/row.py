"""What a row of the glossary says of a logged number, and the table of all rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Logged = Literal[
    "round", "clock", "cloud", "asynchronous", "arrivals", "world", "battery", "poll", "few", "private", "inside",
    "kind", "validation", "end", "fleet", "learning", "reference", "agent",
]  # fmt: skip
Table = Literal["training", "clustering", "assignment", "learning"]


@dataclass(frozen=True)
class Metric:
    """A row of the glossary: what a logged number means, and how and where it is shown.

    Attributes:
        name: name under which the number is logged.
        label: words that describe the number, for an axis.
        unit: unit of the logged number; ``1`` if it has none.
        meaning: what the number is and how it is computed, with the paper's symbols, as the glossary prints it.
        logged: when the number is logged: with each ``round``; with each round if a setting of ``clock`` or ``world``
            is on (``clock``) or one of ``world`` (``world``), if devices have batteries (``battery``), of a scheduler
            that polls (``poll``), if edges need several models (``few``), with the section privacy (``private``), if a
            part inside the round is not the default (``inside``), of other data than classes (``kind``), or with a
            validation part (``validation``); at the ``end`` of a run; with each ``fleet`` of an assignment study; with
            each point of an assigner's ``learning``, once or for each ``reference``; with each point of an ``agent``
            that learns to schedule.
        shown: unit in which the number is shown; empty if no unit is written.
        scale: factor from the logged number to the shown number.
        format: format of the shown number.
        mean: format of a mean over several runs; empty: `format`.
        table: kind of task whose tables and bars contain the number.
        short: heading of the number's column in the table that closes a sweep; empty: no column.
        heading: heading of its column in a report's table, without the unit; empty: no column.
        bar: position among the bars on a report's page, from 1; 0: no bar.
        curve: whether a report's page draws the number over the rounds.
        printed: label in the paper's figures, with TeX between dollar signs; empty: `label`.
    """

    name: str
    label: str
    unit: str
    logged: Logged
    meaning: str = ""
    shown: str = ""
    scale: float = 1.0
    format: str = "{:,.1f}"
    mean: str = ""
    table: Table = "training"
    short: str = ""
    heading: str = ""
    bar: int = 0
    curve: bool = False
    printed: str = ""

    def axis_of(self, words: str) -> str:
        """Return `words` with the shown unit, as the title of an axis."""
        return f"{words} ({self.shown})" if self.shown else words

    @property
    def axis(self) -> str:
        """The title of an axis: the label with the shown unit."""
        return self.axis_of(self.label)

    @property
    def printed_axis(self) -> str:
        """The title of an axis as in the paper's figures."""
        return self.axis_of(self.printed or self.label)

    @property
    def column(self) -> str:
        """The heading of the column in a report's table, with the shown unit."""
        return f"{self.heading}, {self.shown}" if self.shown else self.heading

    def text(self, value: float, beside: Iterable[float] = ()) -> str:
        """Return a logged number as it is shown, such as ``91.2%``; only headings show other units than %.

        Args:
            value: the number.
            beside: the logged numbers of its column, see `enough_digits`.
        """
        if self.shown == "%":
            return self.format.format(value * self.scale) + "%"
        return enough_digits(self.format, [each * self.scale for each in (value, *beside)]).format(value * self.scale)


def enough_digits(form: str, values: Iterable[float]) -> str:
    """Return a format such as ``{:,.1f}`` with so many decimals that the least of the numbers has two digits.

    Numbers below a thousandth of the largest do not count. A format without decimals stays.
    """
    fixed = re.fullmatch(r"(\{:,?\.)([1-9])f\}", form)
    sizes = [abs(value) for value in values if math.isfinite(value)]
    least = min((size for size in sizes if size > max(sizes) / 1000), default=0.0)
    if fixed is None or least == 0.0:
        return form
    return f"{fixed[1]}{max(int(fixed[2]), 1 - math.floor(math.log10(least)))}f}}"


METRICS: dict[str, Metric] = {}  # in the order in which tables show them


def metric(name: str, label: str, unit: str, logged: Logged, **display: Any) -> str:
    """Add a row to the glossary and return its name."""
    METRICS[name] = Metric(name, label, unit, logged, **display)
    return name


PERCENT: dict[str, Any] = {"shown": "%", "scale": 100.0, "format": "{:.1f}"}
STUDY: dict[str, Any] = {"table": "assignment", "format": "{:.1f}"}
