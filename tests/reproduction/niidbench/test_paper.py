"""hflray.reproduction.niidbench: Flower's table gives the answers that it was published with."""

from __future__ import annotations

import numpy as np

from hflray import metrics
from hflray.report.runs import Run
from hflray.reproduction.exhibits import verdicts
from hflray.reproduction.niidbench.paper import PAPER
from tests.report.fabricated import run, sweep

CASES = {
    "IID": ("iid", "{}"), "Dirichlet": ("dirichlet", "{}"), "1": ("shards", "{labels_per_device: 1}"),
    "2": ("shards", "{labels_per_device: 2}"), "3": ("shards", "{labels_per_device: 3}"),
}  # fmt: skip
RULES = ("sgd", "scaffold", "fedprox", "fednova")
# The means of its table for Fashion-MNIST.
FLOWER = {
    "IID": (0.8923, 0.8933, 0.8942, 0.8936), "Dirichlet": (0.8809, 0.8844, 0.8815, 0.8822),
    "1": (0.2839, 0.10, 0.3265, 0.1686), "2": (0.7810, 0.3380, 0.7805, 0.7167), "3": (0.8243, 0.8032, 0.8299, 0.8197),
}  # fmt: skip


def one(case: str, rule: str, seed: int, best: float) -> Run:
    partition, options = CASES[case]
    # The best accuracy comes before the last one.
    curve = [*np.linspace(0.1, best, 49), best - 0.05]
    return run(
        {metrics.ACCURACY: [value + 0.0005 * seed for value in curve]}, f"data.partition={partition}",
        f"data.partition_options={options}", f"training.rule.name={rule}", f"seed={seed}",
    )  # fmt: skip


def answers(table: dict[str, tuple[float, ...]]) -> list[str]:
    runs = [
        one(case, rule, seed, best)
        for case, row in table.items() for rule, best in zip(RULES, row, strict=True) for seed in range(3)
    ]  # fmt: skip
    return list(verdicts(PAPER.full["niidbench"], sweep("niidbench", runs))["agree"])


def test_flowers_table_agrees_with_itself() -> None:
    assert answers(FLOWER) == ["yes"] * 5


def test_a_scaffold_that_holds_contradicts_one_claim() -> None:
    assert answers(FLOWER | {"2": (0.78, 0.79, 0.78, 0.71)}) == ["yes", "yes", "yes", "no", "yes"]


def test_a_partition_without_runs_is_so_far() -> None:
    table = {case: row for case, row in FLOWER.items() if case != "1"}
    assert answers(table) == ["yes", "yes", "so far yes", "so far yes", "so far yes"]
