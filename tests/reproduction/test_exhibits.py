"""hflray.reproduction.exhibits: every figure and table has its sweep file, its drawings and its verdicts."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.reproduction.evidence import Claim, Finding, Needs, NotTested, Part
from hflray.reproduction.exhibits import EXHIBITS, Exhibit, exhibit, exhibit_of, verdicts
from hflray.sweep import expand, load_sweep, smoke
from tests.report.fabricated import judged, sweep

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", list(EXHIBITS))
def test_every_exhibit_has_its_sweep_file(name) -> None:
    shown = EXHIBITS[name]
    path = ROOT / "tune_configs" / f"{shown.config}.yaml"
    file = load_sweep(path)
    assert file.name == shown.config
    assert expand(file)
    assert len(expand(smoke(file))) == 1
    assert exhibit_of(sweep(f"{file.name}-smoke", [])) == name
    assert shown.drawings


@pytest.mark.parametrize("name", [name for name, shown in EXHIBITS.items() if shown.claims])
def test_without_runs_every_claim_is_not_tested_and_says_its_needs(name) -> None:
    table = judged(name, [])
    assert list(table[EXHIBITS[name].claimant]) == [claim.text for claim in EXHIBITS[name].claims]
    assert all(answer.startswith("not tested: needs ") for answer in table["agree"]), list(table["agree"])
    assert not any(table["ours"])


def test_every_claim_states_its_least_and_whole_evidence() -> None:
    for shown in EXHIBITS.values():
        for claim in shown.claims:
            needs = claim.needs
            assert 1 <= needs.least_seeds <= needs.seeds
            assert 0 <= needs.least_steps <= needs.steps or needs.steps == 0
            assert needs.contestants or needs.data or needs.steps
            # The paper draws means over five runs, but one run in Figure 5 and one set of 100 fleets in Figure 6.
            assert needs.seeds == 5 or shown.label.startswith(("Figure 5", "Figure 6"))


def test_an_unknown_figure_is_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError, match="unknown figure 'fig33'; did you mean 'fig3'") as caught:
        exhibit("fig33")
    assert len(str(caught.value).splitlines()) == 1
    assert exhibit_of(sweep("mine", [])) is None


@pytest.mark.parametrize("name, rounds, least", [("fig3", 60, 20), ("fig4", 100, 33)])
def test_figures_3_and_4_need_the_rounds_that_the_paper_draws(name: str, rounds: int, least: int) -> None:
    """Figure 3 has 60 rounds and Figure 4 has 100; a third of them is the least evidence."""
    assert {(claim.needs.steps, claim.needs.least_steps) for claim in EXHIBITS[name].claims} == {(rounds, least)}


def test_every_figure_of_the_paper_with_results_has_claims_and_the_ones_beyond_it_have_none() -> None:
    assert {name: len(shown.claims) for name, shown in EXHIBITS.items()} == {
        "fig3": 5, "fig4": 5, "table2": 3, "fig5": 16, "fig5_transitions": 2, "fig5_more": 0, "fig6": 8,
        "fig7": len(EXHIBITS["fig7"].claims), "lambda": 0, "noniid": 0, "fig3_unlike": 2, "fig7_unlike": 3,
        "fig7_plateau": 5, "fig7_decay": 10, "joint": 0,
        "benchmark": 0, "equal": 0, "agent": 0, "agent_trained": 0,
    }  # fmt: skip
    assert EXHIBITS["fig7"].claims


def claim_of(parts: list[Part], choices: bool = False) -> Claim:
    finding = Finding("ours", parts, "seed 0", [], choices=choices)
    return Claim("words", Needs(), lambda sweep, needs: finding, "a guess")


def test_a_guess_stands_only_beside_a_no() -> None:
    whole_no, part_no = Part(agrees=False, whole=True), Part(agrees=False, whole=False)
    whole_yes, part_yes = Part(agrees=True, whole=True), Part(agrees=True, whole=False)
    shown = Exhibit("Figure 0", "none", "nothing", {}, (
        claim_of([whole_no]), claim_of([part_no]), claim_of([whole_yes]), claim_of([part_yes]),
        claim_of([whole_yes, whole_no], choices=True),
    ))  # fmt: skip
    table = verdicts(shown, sweep("none", []))
    assert list(table["agree"]) == [
        "no", "so far no", "yes", "so far yes", "yes with 1 of 2 choices that the paper leaves open",
    ]  # fmt: skip
    assert list(table["if not, our guess why"]) == ["a guess", "a guess", "", "", ""]
    assert set(table["ours"]) == {"ours"}
    assert set(table["evidence"]) == {"seed 0"}


def test_a_claim_that_is_not_tested_keeps_the_others_in_the_table() -> None:
    def untested(runs: object, needs: Needs) -> Finding:
        raise NotTested("needs runs")

    claims = (Claim("one", Needs(), untested, "a guess"), claim_of([Part(agrees=True, whole=True)]))
    table = verdicts(Exhibit("Figure 0", "none", "nothing", {}, claims), sweep("none", []))
    assert table.to_numpy().tolist() == [
        ["one", "", "not tested: needs runs", "", ""],
        ["words", "ours", "yes", "seed 0", ""],
    ]


def test_an_exhibit_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        EXHIBITS["fig3"].label = "Figure 4"
    assert Exhibit("Figure 0", "none", "nothing", {}).claims == ()
