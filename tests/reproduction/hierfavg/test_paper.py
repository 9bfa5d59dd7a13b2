"""hflray.reproduction.hierfavg: the claims get the answers that made-up curves call for."""

from __future__ import annotations

import numpy as np

from hflray import metrics
from hflray.report.runs import Run
from hflray.reproduction.exhibits import verdicts
from hflray.reproduction.hierfavg.paper import KAPPA, PAPER
from tests.report.fabricated import run, sweep

QUICK = PAPER.quick["hierfavg_quick"]
BEHIND = {"iid": 0.0, "edge_iid": 0.005, "edge_noniid": 0.1}


def one(partition: str, kappa: int, seed: int, round_j: float, rounds: int = 20) -> Run:
    """Return a run as the paper has it: smaller κ₁ is faster, and edge-NIID data stay behind."""
    speed = 2 + 4.5 * kappa / KAPPA[0]
    curve = (0.95 - BEHIND[partition]) * (1 - np.exp(-np.arange(1, rounds + 1) / speed)) + 0.0005 * seed
    spent = {name: round_j * np.arange(1, rounds + 1) for name in (metrics.TOTAL_ENERGY_J, metrics.TOTAL_DELAY_S)}
    return run(
        {metrics.ACCURACY: list(curve), **{name: list(values) for name, values in spent.items()}},
        f"data.partition={partition}", f"training.local_iterations={kappa}",
        f"training.edge_iterations={KAPPA[0] // kappa}", f"seed={seed}",
    )  # fmt: skip


def answers(cost_j: dict[int, float], seeds: int = 5, rounds: int = 20) -> list[str]:
    runs = [
        one(partition, kappa, seed, cost_j[kappa], rounds)
        for partition in BEHIND
        for kappa in KAPPA
        for seed in range(seeds)
    ]
    return list(verdicts(QUICK, sweep("hierfavg_quick", runs))["agree"])


def test_runs_as_in_the_paper_agree() -> None:
    """A round costs little more with κ₁ = 30 and 15, and 1.6 times as much with κ₁ = 6."""
    assert answers({60: 1.0, 30: 1.05, 15: 1.1, 6: 1.6}) == ["yes"] * 6


def test_dear_uploads_contradict_the_claims_on_costs_alone() -> None:
    dear = answers({60: 1.0, 30: 2.0, 15: 4.0, 6: 10.0})
    assert dear[:3] == ["yes"] * 3
    assert dear[3:] == ["no"] * 3


def test_fewer_seeds_or_rounds_give_so_far() -> None:
    cost_j = {60: 1.0, 30: 1.05, 15: 1.1, 6: 1.6}
    assert answers(cost_j, seeds=3)[:3] == ["so far yes"] * 3
    assert answers(cost_j, rounds=12)[:3] == ["so far yes"] * 3
    assert all(answer.startswith("not tested") for answer in answers(cost_j, seeds=1))
