"""The errors a user can cause or meet. Each message names the setting, the value, what is accepted and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HflrayError(Exception):
    """Base of every error hflray raises on purpose; the command line prints it as one line and exits with 2."""


class ConfigError(HflrayError):
    """A setting is unknown, of the wrong type, or outside what it accepts."""


class DataError(HflrayError):
    """A data set is missing or malformed, or a partition of it cannot be made."""


class InfeasibleError(HflrayError):
    """An allocation problem has no solution, or no solver found one; the message names the edge."""


class DivergedError(HflrayError):
    """Training produced weights that are not finite, or too large to aggregate; the message says where."""


class WorkerLostError(HflrayError):
    """Ray actors kept dying: a round could not be finished after several attempts."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name closest to `name`, or an empty string."""
    # 0.5 rather than difflib's 0.6: short keys such as "lamda" or "edges" should still find their neighbour.
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
