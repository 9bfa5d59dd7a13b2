"""hflray.reproduction.mtgc: the claims get the answers that made-up curves call for."""

from __future__ import annotations

import numpy as np

from hflray import metrics
from hflray.report.runs import Run
from hflray.reproduction.exhibits import verdicts
from hflray.reproduction.mtgc.paper import PAPER
from tests.report.fabricated import run, sweep

QUICK = PAPER.quick["mtgc_quick"]
CASES = ("{edge_alpha: 0.1, device_alpha: 0.1}", "{edge_alpha: 0.1, device_alpha: null}",
         "{edge_alpha: null, device_alpha: 0.1}")  # fmt: skip
METHODS = {
    "plain": ("sgd", "{}"), "devices": ("mtgc", "{corrections: devices}"), "edges": ("mtgc", "{corrections: edges}"),
    "both": ("mtgc", "{}"),
}  # fmt: skip


def one(case: str, method: str, seed: int, level: float) -> Run:
    name, options = METHODS[method]
    curve = level * (1 - np.exp(-np.arange(1, 21) / 5)) + 0.0005 * seed
    return run(
        {metrics.ACCURACY: list(curve)}, "data.partition=edge_dirichlet", f"data.partition_options={case}",
        f"training.rule.name={name}", f"training.rule.options={options}", f"seed={seed}",
    )  # fmt: skip


def answers(levels: dict[str, float], cases: tuple[str, ...] = CASES) -> list[str]:
    runs = [one(case, method, seed, level) for case in cases for method, level in levels.items() for seed in range(5)]
    return list(verdicts(QUICK, sweep("mtgc_quick", runs))["agree"])


def test_runs_as_in_the_paper_agree() -> None:
    assert answers({"plain": 0.7, "devices": 0.8, "edges": 0.82, "both": 0.9}) == ["yes", "yes", "yes"]


def test_a_half_that_is_as_good_as_both_contradicts_the_first_claim_alone() -> None:
    assert answers({"plain": 0.7, "devices": 0.9, "edges": 0.82, "both": 0.9}) == ["no", "yes", "yes"]


def test_plain_averages_ahead_contradict_the_others() -> None:
    assert answers({"plain": 0.9, "devices": 0.7, "edges": 0.72, "both": 0.8}) == ["yes", "no", "no"]


def test_one_case_of_three_is_so_far() -> None:
    part = answers({"plain": 0.7, "devices": 0.8, "edges": 0.82, "both": 0.9}, CASES[1:2])
    assert part == ["so far yes"] * 3
