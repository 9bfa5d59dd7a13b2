"""What a device keeps between edge iterations: what its rule keeps, and what its compressor has not sent yet."""

from __future__ import annotations

from hflray.training.rules.base import LocalRule, Memory

RESIDUAL = "residual"  # the name of what a compressor keeps
TURN = "turn"  # the name of the turn in which a device trained last, if its rule forgets something at a turn's end
Turn = tuple[int, int]  # a round, or a turn of an edge in it where the cloud is asynchronous


def after_turn(rule: LocalRule, memory: Memory) -> dict[str, object]:
    """Return what of a device's memory lasts beyond a turn."""
    forgotten = (*(memory if rule.forgets is True else rule.forgets or ()), TURN)
    return {name: value for name, value in memory.items() if name == RESIDUAL or name not in forgotten}


def recalled(rule: LocalRule, memory: Memory, turn: Turn) -> Memory:
    """Return what the rule has of a device's memory at a reception in a turn."""
    now = memory if memory.get(TURN, turn) == turn else after_turn(rule, memory)
    return {name: value for name, value in now.items() if name not in (RESIDUAL, TURN)}


def remembered(rule: LocalRule, memory: Memory, turn: Turn) -> Memory:
    """Return what a device keeps after an edge iteration of a turn."""
    return {**memory, TURN: turn} if rule.forgets else memory
