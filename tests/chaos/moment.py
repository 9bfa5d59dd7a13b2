"""The moment of a fault, drawn over the wall time of the unbroken run and found again in a broken one.

A machine is not equally fast at all times, and a sweep that goes on makes only the rounds that are left. A moment of
the unbroken run is therefore kept as the number of rounds that all trials had made together, and the time since then.
Before the first round it is the time since the start. Times are stretched by how much longer the last start took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """A moment: when all trials have made `rounds` rounds together, and `delay_s` more; at 0 rounds since the start."""

    rounds: int
    delay_s: float


@dataclass(frozen=True)
class Timeline:
    """The course of the unbroken run.

    Attributes:
        reached_s: when the n-th round of all trials together had been made, s; the first is that of round 1.
        end_s: when the command ended, s.
        spans_s: when the processes of each place were first and last there, s.
    """

    reached_s: Sequence[float]
    end_s: float
    spans_s: Mapping[str, tuple[float, float]]

    def parts_s(self, place: str, made: int) -> list[tuple[float, float]]:
        """Return the parts of the unbroken run that a command which begins after `made` rounds has as well."""
        low, high = self.spans_s.get(place, (0.0, self.end_s))
        first = self.reached_s[0]
        later = self.reached_s[min(made, len(self.reached_s)) - 1] if made else first
        parts = [(low, min(first, high)), (max(low, later), high)]
        return [(begin, end) for begin, end in parts if end > begin]

    def draw(self, place: str, fraction: float, made: int = 0) -> Moment:
        """Return the moment at a fraction of the place's time, for a command that begins after `made` rounds."""
        parts = self.parts_s(place, made) or [(0.0, self.end_s)]
        left = fraction * sum(end - begin for begin, end in parts)
        for begin, end in parts:
            if left <= end - begin:
                return self.at(begin + left)
            left -= end - begin
        return self.at(parts[-1][1])

    def at(self, time_s: float) -> Moment:
        """Return the moment of a time of the unbroken run, s."""
        rounds = sum(reached <= time_s for reached in self.reached_s)
        return Moment(rounds, time_s - (self.reached_s[rounds - 1] if rounds else 0.0))
