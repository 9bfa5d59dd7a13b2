"""hflray.reproduction.zhang.assignment: Figure 6 is judged for each start of HFEL, on one D3QN and the same fleets."""

from __future__ import annotations

import pandas as pd
import pytest

from hflray import metrics
from hflray.report.labels import DEPLOYMENT
from hflray.report.runs import Run
from tests.conftest import says
from tests.report.fabricated import answers, run
from tests.report.fabricated import judged as all_judged

NAMES = {"D3QN": ("d3qn", 0, "paper_literal"), "HFEL-100": ("hfel", 100, None), "HFEL-300": ("hfel", 300, None),
         "geographic": ("geographic", 0, None)}  # fmt: skip
PAPER = {
    "D3QN": (1.0, 5.0, 0.01),
    "HFEL-300": (3.0, 4.0, 1.0),
    "HFEL-100": (4.0, 4.5, 0.5),
    "geographic": (9.0, 9.0, 0.001),
}


def assigner(name: str, values: tuple[float, float, float], fleets: int = 100, deployment: int | None = 0,
             *overrides: str, policy: str | None = None, **kinds: str) -> Run:  # fmt: skip
    delay, energy, latency = values
    kind, exchanges, own = NAMES[name]
    wave = [0.1 * (number % 5) for number in range(fleets)]
    rounds = {metrics.ROUND_DELAY_S: [delay + w for w in wave], metrics.ROUND_ENERGY_J: [energy + w for w in wave],
              metrics.ROUND_OBJECTIVE: [delay + energy + w for w in wave],
              metrics.WALL_ASSIGN_S: [latency] * fleets}  # fmt: skip
    chosen = policy or own
    names = (f"assignment.name={kind}", f"assignment.exchanges={exchanges}")
    names += (f"assignment.policy={chosen}",) if chosen else ()
    return run(rounds, *names, *overrides, settings={DEPLOYMENT: deployment}, **kinds)


def study(fleets: int = 100, **instead: tuple[float, float, float]) -> list[Run]:
    return [assigner(name, instead.get(name, values), fleets) for name, values in PAPER.items()]


def verdict(runs: list[Run]) -> list[str]:
    """Return the answers to the claims on HFEL from the geographic start."""
    return answers("fig6", runs, "assignment")[:4]


def judged(name: str, runs: list[Run], task: str) -> pd.DataFrame:
    """Return the verdicts on the claims on HFEL from the geographic start."""
    return all_judged(name, runs, task)[:4]


def test_each_start_of_hfel_is_judged_by_itself() -> None:
    better = [
        assigner(name, values, 100, 0, "assignment.start=best_gain")
        for name, values in (("HFEL-100", (0.9, 0.5, 1.0)), ("HFEL-300", (0.8, 0.4, 2.0)))
    ]
    table = all_judged("fig6", [*study(), *better], "assignment")
    assert list(table["agree"]) == ["yes"] * 4 + ["no", "yes", "no", "yes"]
    assert table["the paper"][2] == "D3QN has the lowest objective (HFEL from the geographic start)"
    assert table["the paper"][6] == "D3QN has the lowest objective (HFEL from the best gain start)"
    assert table["evidence"][6].startswith("D3QN by Algorithm 5 with linear gains, the geographic start, a buffer of")
    assert "2 runs (HFEL from another start)" in table["evidence"][2]
    alone = all_judged("fig6", study(), "assignment")["agree"]
    assert all(answer.startswith("not tested: needs HFEL-100; HFEL-300") for answer in alone[4:])


def test_the_papers_figure_agrees_and_its_opposite_does_not() -> None:
    assert verdict(study()) == ["yes"] * 4
    assert verdict(study(D3QN=(8.0, 3.0, 2.0))) == ["no"] * 4
    assert verdict(study(50)) == ["so far yes"] * 4
    assert verdict(study(50, D3QN=(8.0, 3.0, 2.0))) == ["so far no"] * 4
    assert all(answer.startswith("not tested: needs 30 fleets") for answer in verdict(study(3)))


def test_a_tie_does_not_agree() -> None:
    table = judged("fig6", study(D3QN=(3.0, 4.0, 0.01)), "assignment")
    assert list(table["agree"][:3]) == ["no"] * 3
    assert "(D3QN and HFEL-300: a tie)" in table["ours"][0]


@pytest.mark.parametrize("name", list(PAPER))
def test_without_one_of_the_assigners_no_claim_is_tested(name) -> None:
    verdicts = verdict([run for run, one in zip(study(), PAPER, strict=True) if one != name])
    assert all(answer.startswith("not tested: needs") and name in answer for answer in verdicts)


def test_other_policies_are_named_and_never_judged() -> None:
    best = (0.1, 0.1, 0.0001)
    other_policies = [assigner("D3QN", best, policy=policy) for policy in ("any_deployment", "paper_db")]
    verdicts = verdict([*other_policies, *study()[1:]])
    assert all("not the paper's" in answer for answer in verdicts)
    assert "D3QN, shipped (any deployment)" in verdicts[0]
    table = judged("fig6", [*other_policies, *study(D3QN=(8.0, 3.0, 2.0))], "assignment")
    assert list(table["agree"]) == ["no"] * 4
    assert "1 run (D3QN, the paper's network with dB features)" in table["evidence"][0]
    polished = assigner("D3QN", best, 100, 0, "assignment.polish_ms=5")
    assert verdict([polished, *study(D3QN=(8.0, 3.0, 2.0))]) == ["no"] * 4


def test_one_reading_of_algorithm_5_that_agrees_is_enough() -> None:
    """The evidence names both readings, and the run of the other one is not called unused."""
    best = assigner("D3QN", (1.0, 5.0, 0.01), policy="paper_best")
    table = judged("fig6", [best, *study(D3QN=(8.0, 3.0, 2.0))], "assignment")
    assert list(table["agree"]) == ["yes with 1 of 2 choices that the paper leaves open"] * 4
    assert "literal (deployment 0): HFEL-300 3.2 s" in table["ours"][0]
    assert "best reading (deployment 0): D3QN 1.2 s" in table["ours"][0]
    assert "a buffer of 1,000 and single transitions" in table["evidence"][0]
    assert "a buffer of 50,000 and three whole episodes" in table["evidence"][0]
    assert "Not used" not in table["evidence"][0]
    assert verdict([best, *study()[1:]]) == ["yes"] * 4
    both = [assigner("D3QN", (8.0, 3.0, 2.0), policy="paper_best"), *study(D3QN=(8.0, 3.0, 2.0))]
    assert verdict(both) == ["no"] * 4


def test_other_deployments_and_couplings_are_not_compared() -> None:
    far = [
        assigner(name, (0.5, 0.5, 0.1), deployment=one) for name in ("HFEL-300", "geographic") for one in (1, 2, None)
    ]
    table = judged("fig6", [*far, *study()], "assignment")
    assert list(table["agree"]) == ["yes"] * 4
    assert "6 runs (its edges are not those of deployment 0)" in table["evidence"][0]
    assert "deployment 0, each edge's own deadline, seed 0, the first 100 fleets" in table["evidence"][0]
    joint = assigner("HFEL-300", (0.5, 0.5, 0.1), 100, 0, "allocation.coupling=joint")
    assert verdict([joint, *study()]) == ["yes"] * 4
    assert all(answer.startswith("not tested") for answer in verdict([*far, *study()[2:]]))


def test_only_common_fleets_are_compared() -> None:
    runs = study(60)
    runs[1] = assigner("HFEL-300", PAPER["HFEL-300"], 100)
    assert "the first 60 of 100 fleets" in judged("fig6", runs, "assignment")["evidence"][0]
    other = assigner("HFEL-300", PAPER["HFEL-300"], 100, 0, "cost.delay_weight=3")
    assert verdict([runs[0], other, *runs[2:]])[0].startswith("not tested: needs runs of HFEL-300")


def test_latencies_of_two_machines_are_not_compared() -> None:
    mixed = [*study()[:3], assigner("geographic", PAPER["geographic"], cpu="another")]
    verdicts = verdict(mixed)
    assert verdicts[:3] == ["yes"] * 3
    assert says(verdicts[3], "not tested", "latencies of one machine", "another, one")
