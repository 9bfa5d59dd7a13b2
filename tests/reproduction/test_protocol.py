"""hflray.reproduction.protocol: every claims.yaml is whole, names what its sweeps have, and mistakes are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray import registry
from hflray.errors import ConfigError
from hflray.report.exports import exports as exports_in
from hflray.report.runs import every_setting
from hflray.reproduction.judge import holds, tally, verdicts
from hflray.reproduction.protocol import PAPERS, Exhibit, Paper, exhibit_of, exhibits, expanded, paper, read
from hflray.support.shipped import CLAIMS, CONFIGS
from hflray.sweep import expand, load_sweep
from tests.conftest import refusals
from tests.report.fabricated import sweep
from tests.reproduction import page
from tests.reproduction.test_judge import HEAD, LEADS

SHOWN = [(name, key) for name in PAPERS for key in paper(name).exhibits]
LACKING = {"D3QN (best reading)"}  # the quick form of Figure 6 has not every policy of the full one


def shown_as(name: str, key: str) -> tuple[Paper, Exhibit]:
    return paper(name), paper(name).exhibits[key]


def test_every_folder_with_claims_is_a_paper() -> None:
    folders = {path.parent for path in (CONFIGS.parent / "hflray" / "reproduction").rglob(CLAIMS)} | {CONFIGS}
    assert {folder.resolve() for folder in folders} == {folder.resolve() for folder in PAPERS.values()}


@pytest.mark.parametrize("name, key", SHOWN)
def test_every_exhibit_has_its_sweep_file_and_its_drawings(name: str, key: str) -> None:
    one, shown = shown_as(name, key)
    file = load_sweep(one.sweep_file(shown))
    assert file.name == shown.config
    assert all(registry.is_registered("figure", drawing) for drawing in shown.drawings.values())
    assert shown.drawings


@pytest.mark.parametrize("name, key", SHOWN)
def test_every_compared_selection_has_trials_in_the_sweep_file(name: str, key: str) -> None:
    """A selection that no trial has would stay without runs for ever."""
    one, shown = shown_as(name, key)
    trials = [trial.config for trial in expand(load_sweep(one.sweep_file(shown)))]
    values = [every_setting(config) for config in trials]
    names = {each for claim in shown.claims for group in claim.compare for each in group} - LACKING
    for selection in names | {
        each for claim in shown.claims for each in (*claim.at, *(one for pair in claim.change for one in pair))
    }:
        settings = shown.where | shown.select[selection]
        settings.pop("learning.hidden", None)  # the exports have the paper's 256 units
        assert any(holds(each, settings) for each in values), selection


@pytest.mark.parametrize("name, key", SHOWN)
def test_every_plan_can_be_made_by_its_sweep_file(name: str, key: str) -> None:
    one, shown = shown_as(name, key)
    if not shown.claims or shown.config.startswith("fig5"):  # its 300,000 steps are set beside the file
        return
    configs = [trial.config for trial in expand(load_sweep(one.sweep_file(shown)))]
    most = shown.plan.fleets or max([shown.plan.rounds or 0, *(claim.rounds or 0 for claim in shown.claims)])
    if shown.plan.fleets or shown.plan.rounds:
        assert max(config.max_rounds for config in configs) >= most
    if shown.plan.seeds:
        seeds = max([shown.plan.seeds, *(claim.seeds or 0 for claim in shown.claims)])
        assert {config.seed for config in configs} >= set(range(seeds))


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("quick", [False, True])
def test_without_runs_there_is_no_answer(name: str, quick: bool) -> None:
    claims = untested = 0
    for shown in paper(name).of_form(quick).values():
        table = verdicts(shown, sweep(shown.config, []))
        assert set(table["answer"]) <= {"", "not tested"}
        claims += len(table.rows)
        untested += list(table["answer"]).count("not tested")
    assert claims > untested
    without = f"{untested} not tested, " * bool(untested) + f"{claims - untested} with too few runs"
    assert tally(paper(name), quick, {}) == without


@pytest.mark.parametrize("name", PAPERS)
def test_the_quick_form_has_the_claims_of_the_full_one(name: str) -> None:
    def texts(quick: bool) -> set[str]:
        return {claim.text for shown in paper(name).of_form(quick).values() for claim in shown.claims}

    assert texts(True) <= texts(False)
    assert name == "zhang" or texts(True) == texts(False)


@pytest.mark.parametrize("name, key", SHOWN)
def test_each_claim_has_a_text_of_its_own(name: str, key: str) -> None:
    _, shown = shown_as(name, key)
    texts = [claim.text for claim, _ in expanded(shown)]
    assert len(texts) == len(set(texts))
    assert not [text for text in texts if "{" in text]


def test_a_placeholder_makes_a_claim_for_each_of_its_values() -> None:
    texts = [claim.text for claim, _ in expanded(paper("zhang").exhibits["fig3_unlike"])]
    assert texts[:2] == [f"IKC's learning curve lies above {other}'s at H = 10" for other in ("VKC", "FedAvg")]
    first = next(contrasts for _, contrasts in expanded(paper("mtgc").exhibits["mtgc"]))
    assert [contrast.label for contrast in first] == [
        "MTGC and its half of the devices",
        "MTGC and its half of the edges",
    ]


@pytest.mark.parametrize("part, other, plan, message", refusals("reproduction/protocol"))
def test_a_mistake_is_one_line_that_names_the_key(
    tmp_path: Path, part: str, other: str, plan: str, message: str
) -> None:
    claims = other if part == "ALL" else LEADS.replace(part, other) if part else LEADS
    path = tmp_path / CLAIMS
    path.write_text(HEAD.replace("PLAN", plan).replace("CLAIMS", claims), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"a: [", b"\xff", b"exhibits: 3", b"exhibits: {a: 3}", b"select: 3",
                                     b"exhibits: null", b"exhibits: [1]", b"exhibits: {a: null}"])  # fmt: skip
def test_a_file_that_holds_no_protocol_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / CLAIMS
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert len(str(caught.value).splitlines()) == 1
    assert "attribute" not in str(caught.value)


def test_a_folder_of_ones_own_is_a_paper(tmp_path: Path) -> None:
    (tmp_path / CLAIMS).write_text(HEAD.replace("PLAN", "{seeds: 5}").replace("CLAIMS", LEADS), encoding="utf-8")
    assert paper(str(tmp_path)).exhibits["x"].claims[0].text == "a"
    assert paper(str(tmp_path)).sweep_file(paper(str(tmp_path)).exhibits["x"]) == tmp_path / "x.yaml"


def test_an_unknown_paper_is_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError, match="NAME: unknown paper 'mtgcc'; did you mean 'mtgc'") as caught:
        paper("mtgcc")
    assert len(str(caught.value).splitlines()) == 1


def test_an_exhibit_is_found_by_its_sweep() -> None:
    assert exhibit_of(sweep("fig3_fashion_scheduling-smoke", [])) == exhibits()["fig3"]
    assert exhibit_of(sweep("mtgc_quick", [])) == paper("mtgc").exhibits["mtgc_quick"]
    assert exhibit_of(sweep("mine", [])) is None


def test_the_pages_have_the_answers_of_the_exports() -> None:
    claims = page.CLAIMS.read_text(encoding="utf-8")
    assert page.renewed(claims) == claims, "python -m tests.reproduction.page renews it"
    for place, source in page.SUMMARIES.items():
        summary = place.read_text(encoding="utf-8")
        assert page.summarised(summary, source.read_text(encoding="utf-8")) == summary, place


def test_the_answers_of_a_section_are_counted() -> None:
    head = "Figure 1: shows\n\n| the paper | p | answer |\n|---|---|---|\n"
    rows = "| a | 0.01 | yes |\n| b | 0.01 | yes in sign, smaller than 1 points |\n| c | 1 | not settled |\n"
    assert page.tally(f"{head}{rows}\n3 claims have fewer runs than planned.\n") == {
        "yes": 1, "yes in sign": 1, "not settled": 1, "fewer runs than planned": 3,
    }  # fmt: skip
    below = "Figure 2: shows\n\n| | seeds |\n|---|--:|\n| x | 5 |\n\nIn all rows: n 5 of 5 seeds.\n\n"
    rows = "| official | a | no |\n| stratified | a | yes |\n| stratified | b | yes |\n"
    assert page.tally(f"{below}| split | the paper | answer |\n|---|---|---|\n{rows}") == {"no": 1, "yes": 1}


def test_every_export_of_a_paper_is_on_the_page() -> None:
    listed = [name for names in page.ANSWERS.findall(page.CLAIMS.read_text(encoding="utf-8")) for name in names.split()]
    ours = {shown.config for shown in paper("zhang").exhibits.values()}  # RESULTS.md has these, but their quick forms
    exported = {place.name for place in exports_in(page.RESULTS)}
    assert sorted(listed) == sorted((page.exhibits().keys() & exported) - ours)


def test_the_file_on_the_page_about_own_claims_is_read(tmp_path: Path) -> None:
    text = (page.ROOT / "docs" / "howto" / "claims.md").read_text(encoding="utf-8")
    file = text.partition("<!-- a claims file -->\n```yaml\n")[2].partition("```")[0]
    (tmp_path / CLAIMS).write_text(file, encoding="utf-8")
    one = paper(str(tmp_path))
    assert len(verdicts(one.exhibits["digits"], sweep("digits", [])).rows) == 2
    assert list(one.of_form(quick=True)) == list(one.of_form(quick=False)) == ["digits"]
