"""What devices do with their gradients (kind ``local_rule``): the contract, and the rules."""

from __future__ import annotations

from hflray.training.rules.base import SGD, CloudReport, EdgeReport, LocalRule, Memory, Received, State, Vector

__all__ = ["SGD", "CloudReport", "EdgeReport", "LocalRule", "Memory", "Received", "State", "Vector"]
