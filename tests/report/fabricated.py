"""Fabricated runs for the tests of claims, with curves, costs and configurations that the tests choose."""

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
    """Return a run of the default configuration with `overrides`; `settings` replaces entries of `Run.settings`."""
    config = load_config(None, list(overrides))
    count = len(next(iter(rounds.values())))
    table = pd.DataFrame({"round": steps or range(1, count + 1), **rounds})
    values = {name: column[-1] for name, column in rounds.items()}
    name = "-".join(text.rpartition("=")[2] for text in overrides)
    history = History(name, status, None, "", {"git_commit": commit, "cpu": cpu}, values, Tables(table), 0, 1)
    fabricated = Run(history, config)
    if settings:
        fabricated.__dict__["settings"] = fabricated.settings | dict(settings)  # a cached property
    return fabricated


def accuracy(h: int, scheduler: str, curve: Sequence[float], seed: int = 0, *overrides: str, **kinds: Any) -> Run:
    """Return a run of Figure 3."""
    names = (f"scheduling.num_scheduled={h}", f"scheduling.name={scheduler}", f"seed={seed}")
    return run({metrics.ACCURACY: curve}, *names, "data.name=fashion_mnist", *overrides, **kinds)


def sweep(name: str, runs: list[Run], task: str = DEFAULT) -> Sweep:
    return Sweep(name, name, task, "", runs)


def judged(name: str, runs: list[Run], task: str = DEFAULT) -> pd.DataFrame:
    """Return the verdicts on an exhibit's claims from these runs."""
    shown = EXHIBITS[name]
    return verdicts(shown, sweep(shown.config, runs, task))


def answers(name: str, runs: list[Run], task: str = DEFAULT) -> list[str]:
    return list(judged(name, runs, task)["agree"])
