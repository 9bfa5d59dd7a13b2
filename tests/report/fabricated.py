"""Runs that nobody ran, for the tests of claims: curves and costs as given, in a configuration as given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from hflray import metrics
from hflray.config import load_config
from hflray.report.paper import EXHIBITS, verdicts
from hflray.report.runs import Run, Sweep
from hflray.tasks import DEFAULT
from hflray.tracking import History, Tables

CLEAN = "0123456789abcdef0123456789abcdef01234567"


def run(
    rounds: Mapping[str, Sequence[float]],
    *overrides: str,
    steps: Sequence[int] | None = None,
    commit: str = CLEAN,
    cpu: str = "one",
    status: str = "FINISHED",
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """A run of the configuration that `overrides` makes; `settings` are keys that this version may not know."""
    config = load_config(None, list(overrides))
    count = len(next(iter(rounds.values())))
    table = pd.DataFrame({"round": steps or range(1, count + 1), **rounds})
    values = {name: column[-1] for name, column in rounds.items()}
    name = "-".join(text.rpartition("=")[2] for text in overrides)
    made = Run(History(name, status, None, "", {"git_commit": commit, "cpu": cpu}, values, Tables(table), 0, 1), config)
    if settings:
        made.__dict__["settings"] = made.settings | dict(settings)  # a cached property
    return made


def accuracy(h: int, scheduler: str, curve: Sequence[float], seed: int = 0, *more: str, **kinds: Any) -> Run:
    """A run of Figure 3."""
    names = (f"scheduling.num_scheduled={h}", f"scheduling.name={scheduler}", f"seed={seed}")
    return run({metrics.ACCURACY: curve}, *names, "data.name=fashion_mnist", *more, **kinds)


def sweep(name: str, runs: list[Run], task: str = DEFAULT) -> Sweep:
    return Sweep(name, name, task, "", runs)


def judged(name: str, runs: list[Run], task: str = DEFAULT) -> pd.DataFrame:
    """The table of verdicts of an exhibit on these runs."""
    shown = EXHIBITS[name]
    return verdicts(shown, sweep(shown.config, runs, task))


def answers(name: str, runs: list[Run], task: str = DEFAULT) -> list[str]:
    return list(judged(name, runs, task)["agree"])
