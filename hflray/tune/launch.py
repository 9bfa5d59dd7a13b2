"""What a trial is started with: the parameters that Ray Tune hands to its function.

They are ``{"trial": {"name", "values", "last", "adopted"}}``. Tune is started anew at each start of a sweep, so that
they say all that a trial needs to go on: it continues from its newest whole checkpoint that is not after ``last`` and,
if it has ``adopted`` a state, after that one's round. Without such a checkpoint it continues from the adopted state, or
begins with round 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TRIAL = "trial"  # the only key of Tune's parameters, whose value has the following keys
NAME = "name"
VALUES = "values"  # the swept values by dotted key
LAST = "last"  # the last round in the trial's journal, 0 if there is none
ADOPTED = "adopted"  # [trial, round] of the state that a member of a population adopted last, or None

Write = Callable[[str, Mapping[str, Any]], None]  # writes a line into the journal of a trial; raises OSError


def parameters(
    name: str, values: Mapping[str, Any], last: int = 0, adopted: tuple[str, int] | None = None
) -> dict[str, Any]:
    """Return Tune's parameters of a trial."""
    return {TRIAL: {NAME: name, VALUES: dict(values), LAST: last, ADOPTED: None if adopted is None else list(adopted)}}


def name_of(trial: Any) -> str:
    """Return the name of one of Tune's trials."""
    return str(trial.config[TRIAL][NAME])


class Unsaved:
    """A part of Tune of which Tune's files get nothing but an empty text.

    Tune pickles its searcher and its scheduler when it starts. Nothing reads these pickles, and a journal with its
    connections could not be pickled.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ()
