"""hflray.reproduction.association: the claims get the answers that made-up curves call for."""

from __future__ import annotations

import numpy as np

from hflray import metrics
from hflray.report.runs import Run
from hflray.reproduction.association.paper import PAPER
from hflray.reproduction.exhibits import verdicts
from tests.report.fabricated import run, sweep

PLACE = "hflray.reproduction.association.schedulers:"
SCHEDULERS = {"balanced": f"{PLACE}Balanced", "alike": f"{PLACE}Alike", "dealt": f"{PLACE}Dealt", "cost": "fedavg"}


def one(name: str, iterations: int, majority: float, seed: int, last: float) -> Run:
    rounds = {1: 40, 5: 8, 20: 2}[iterations]
    return run(
        {metrics.ACCURACY: list(np.linspace(0.1, last + 0.0005 * seed, rounds))}, f"scheduling.name={SCHEDULERS[name]}",
        f"data.majority_fraction={majority}", f"training.edge_iterations={iterations}", f"seed={seed}",
    )  # fmt: skip


def answers(last: dict[str, float], seeds: int = 10) -> list[str]:
    """Return the answers if these accuracies are reached with Q > 1, and 80 % by all with Q = 1."""
    runs = [
        one(name, iterations, majority, seed, 0.8 if iterations == 1 else last[name])
        for name in SCHEDULERS for iterations in (1, 5, 20) for majority in (0.8, 1.0) for seed in range(seeds)
    ]  # fmt: skip
    return list(verdicts(PAPER.full["association"], sweep("association", runs))["agree"])


def test_no_effect() -> None:
    assert answers(dict.fromkeys(SCHEDULERS, 0.8)) == ["yes", "yes", "no", "no", "no"]


def test_an_effect() -> None:
    assert answers({"balanced": 0.8, "dealt": 0.75, "cost": 0.74, "alike": 0.5}) == ["yes", "no", "yes", "yes", "yes"]


def test_fewer_seeds_are_so_far() -> None:
    assert answers({"balanced": 0.8, "dealt": 0.75, "cost": 0.74, "alike": 0.5}, seeds=4)[1:3] == [
        "so far no",
        "so far yes",
    ]
