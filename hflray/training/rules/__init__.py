"""What devices do with their gradients (kind ``local_rule``): the contract, and a file for each rule."""

from __future__ import annotations

from hflray.training.rules.base import SGD, CloudReport, EdgeReport, LocalRule, Memory, Received, State, Vector

__all__ = ["SGD", "CloudReport", "EdgeReport", "LocalRule", "Memory", "Received", "State", "Vector"]
