"""hflray.reproduction.asynchfl: the claims get the answers that made-up runs call for."""

from __future__ import annotations

import numpy as np

from hflray import metrics
from hflray.report.runs import Run
from hflray.reproduction.asynchfl.paper import PAPER
from hflray.reproduction.exhibits import verdicts
from tests.report.fabricated import run, sweep

ARMS = {
    "synchronous": ("fedavg", "random", "synchronous", "all"),
    "semi": ("fedavg", "random", "{semi_synchronous: {period_s: 3}}", "all"),
    "neither": ("fedavg", "random", "asynchronous", "asynchronous"),
    "selection": ("oort", "random", "asynchronous", "asynchronous"),
    "association": ("fedavg", "local_search", "asynchronous", "asynchronous"),
    "both": ("oort", "local_search", "asynchronous", "asynchronous"),
}


def one(arm: str, seed: int, round_s: float, round_bits: float) -> Run:
    scheduler, assigner, cloud, edge = ARMS[arm]
    numbers = np.arange(1, 61)
    return run(
        {
            metrics.ACCURACY: list(0.95 * (1 - np.exp(-numbers / 8)) + 0.0005 * seed),
            metrics.TOTAL_DELAY_S: list(numbers * round_s * (1 + 0.01 * seed)),
            metrics.TOTAL_MESSAGE_BITS: list(numbers * round_bits),
        },
        f"scheduling.name={scheduler}", f"assignment.name={assigner}", f"clock.cloud={cloud}", f"clock.edge={edge}",
        f"seed={seed}",
    )  # fmt: skip


def answers(round_s: dict[str, float], round_bits: dict[str, float] | None = None) -> list[str]:
    runs = [
        one(arm, seed, round_s[arm], (round_bits or dict.fromkeys(ARMS, 10.0) | {"both": 8.0})[arm])
        for arm in round_s for seed in range(5)
    ]  # fmt: skip
    return list(verdicts(PAPER.quick["asynchfl_quick"], sweep("asynchfl_quick", runs))["agree"])


PAPERS = {"synchronous": 10.0, "semi": 9.0, "neither": 8.0, "selection": 7.5, "association": 7.6, "both": 7.0}


def test_runs_as_in_the_abstract_agree() -> None:
    assert answers(PAPERS) == ["yes"] * 4


def test_an_association_that_costs_time_contradicts_one_claim() -> None:
    assert answers(PAPERS | {"association": 8.5}) == ["yes", "yes", "yes", "no"]


def test_a_clock_without_runs_is_so_far() -> None:
    part = {arm: seconds for arm, seconds in PAPERS.items() if arm != "semi"}
    assert answers(part) == ["so far yes", "so far yes", "yes", "yes"]


def test_more_traffic_contradicts_the_claim_on_traffic_alone() -> None:
    assert answers(PAPERS, dict.fromkeys(ARMS, 5.0) | {"both": 20.0}) == ["yes", "no", "yes", "yes"]
