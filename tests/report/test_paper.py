"""hflray.report.paper: every figure and table has its sweep file, its drawings and its verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.report.paper import EXHIBITS, exhibit, exhibit_of
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
    assert list(table["the paper"]) == [claim.text for claim in EXHIBITS[name].claims]
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
            assert needs.seeds == 5 or shown.label in ("Figure 5", "Figure 6")


def test_an_unknown_figure_is_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError, match="unknown figure 'fig33'; did you mean 'fig3'") as caught:
        exhibit("fig33")
    assert len(str(caught.value).splitlines()) == 1
    assert exhibit_of(sweep("mine", [])) is None
