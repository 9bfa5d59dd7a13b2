"""hflray.reproduction.tsdp: the claims get the answers that made-up delays call for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hflray import metrics
from hflray.report.runs import Run
from hflray.reproduction.exhibits import verdicts
from hflray.reproduction.tsdp.paper import PAPER
from tests.report.fabricated import run, sweep

PLACE = "hflray.reproduction.tsdp.assigners:"


def one(assigner: str, delays_s: Sequence[float], edges: int) -> Run:
    name = f"{PLACE}{assigner}" if assigner[0].isupper() else assigner
    return run(
        {metrics.ROUND_DELAY_S: delays_s}, f"assignment.name={name}", f"fleet.num_edges={edges}",
        "fleet.num_devices=100", "allocation.method=equal",
    )  # fmt: skip


def judged(exhibit: str, runs: list[Run]) -> list[tuple[str, str]]:
    table = verdicts(PAPER.full[exhibit], sweep(exhibit, runs, "assignment"))
    return list(zip(table["agree"], table["ours"], strict=True))


def both(ours: Sequence[float], best: Sequence[float], edges: int) -> list[Run]:
    return [one("TwinSorting", ours, edges), one("Exhaustive", best, edges)]


def test_the_optimum_on_all_fleets_is_yes_and_one_miss_is_no() -> None:
    best = list(np.linspace(5, 9, 1000))
    missed = [*best[:-1], 9.9]
    answers = judged("tsdp", both(best, best, 2) + both(missed, best, 3))
    assert answers[0] == ("yes", "the best of all assignments on 1,000 of 1,000 fleets")
    assert answers[1] == ("no", "the best of all assignments on 999 of 1,000 fleets; 10.00 % above it at worst")


def test_a_delay_below_that_of_all_assignments_is_a_mistake_of_ours() -> None:
    best = [5.0] * 1000
    answer, ours = judged("tsdp", both([4.0, *best[1:]], best, 2))[0]
    assert answer == "no"
    assert "below it on 1" in ours


def test_fewer_fleets_are_so_far() -> None:
    best = [5.0] * 200
    assert judged("tsdp", both(best, best, 2))[0][0] == "so far yes"
    assert judged("tsdp", both(best[:50], best[:50], 2))[0][0].startswith("not tested: needs 100 fleets")


def test_the_shortest_rounds_need_the_least_mean() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(10, 20, 100)
    values: Mapping[str, np.ndarray] = {"TwinSorting": base, "best_gain": base + 5, "random": base * 9}
    runs = [one(name, list(each), 5) for name, each in values.items()]
    answer, ours = judged("tsdp_large", runs)[0]
    assert answer == "yes"
    assert ours.startswith("TwinSorting 1")
    quicker = [*runs, one("geographic", list(base - 1), 5)]
    assert judged("tsdp_large", quicker)[0][0] == "no"
