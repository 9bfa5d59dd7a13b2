"""The errors that a user may see. Each message names the setting, the value, what is accepted and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HflrayError(Exception):
    """Base class of every error that hflray raises on purpose. The command prints its message and exits with code 2."""


class ConfigError(HflrayError):
    """A setting is unknown, of the wrong type, or outside what it accepts."""


class DamagedError(ConfigError):
    """A file that hflray wrote is missing, cut off or changed, so that it is not used."""


class DataError(HflrayError):
    """A data set is missing or malformed, or a partition of it cannot be made."""


class InfeasibleError(HflrayError):
    """An allocation problem has no solution, or no solver found one; the message names the edge."""


class NoRoomError(HflrayError):
    """A disk has less room than a sweep needs; the message names the folder, both sizes and the fix."""


class WriteError(HflrayError):
    """A file could not be written, because its disk is full, read-only or failing. The command exits with code 1."""


class DivergedError(HflrayError):
    """Training produced weights that are not finite, or too large to aggregate; the message says where."""


class WorkerLostError(HflrayError):
    """Ray actors kept dying, so that a round could not be finished in several attempts."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the name in `choices` that is closest to `name`, or an empty string."""
    # The cutoff is 0.5 instead of difflib's 0.6, so that short keys such as "lamda" or "edges" still match.
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
