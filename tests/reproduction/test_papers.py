"""hflray.reproduction.papers: every paper has its sweep files, its claims and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.report.exports import exports
from hflray.reproduction import papers
from hflray.reproduction.exhibits import verdicts
from hflray.reproduction.papers import PAPERS, Paper, paper, tally
from hflray.sweep import expand, load_sweep
from tests.report.fabricated import sweep
from tests.reproduction import page

PACKAGE = Path(papers.__file__).parent
FORMS = [(name, quick) for name in PAPERS for quick in (False, True)]


def test_every_package_with_a_paper_is_listed() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/paper.py")} == set(PAPERS)
    assert [paper(name).name for name in PAPERS] == list(PAPERS)


@pytest.mark.parametrize("name, quick", FORMS)
def test_every_sweep_file_is_whole(name: str, quick: bool) -> None:
    one = paper(name)
    for shown in one.exhibits(quick).values():
        file = load_sweep(one.sweep_file(shown))
        assert file.name == shown.config
        assert expand(file)
        assert shown.drawings
    files = {path.stem for path in (PACKAGE / name).glob("*.yaml")}
    assert files <= {shown.config for form in (True, False) for shown in one.exhibits(form).values()}


@pytest.mark.parametrize("name, quick", FORMS)
def test_without_runs_no_claim_is_tested(name: str, quick: bool) -> None:
    one = paper(name)
    claims = 0
    for shown in one.exhibits(quick).values():
        table = verdicts(shown, sweep(shown.config, []))
        assert [answer for answer in table["agree"] if not answer.startswith("not tested: ")] == []
        claims += len(table)
    assert claims > 0
    assert tally(one, quick, {}) == f"{claims} not tested"


@pytest.mark.parametrize("name", PAPERS)
def test_the_quick_form_has_the_claims_of_the_full_one(name: str) -> None:
    one = paper(name)

    def texts(form: bool) -> set[str]:
        return {claim.text for shown in one.exhibits(form).values() for claim in shown.claims}

    assert texts(True) <= texts(False)
    assert name == "zhang" or texts(True) == texts(False)


def test_an_unknown_paper_is_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError, match="NAME: unknown paper 'mtgcc'; did you mean 'mtgc'") as caught:
        paper("mtgcc")
    assert len(str(caught.value).splitlines()) == 1


def test_every_paper_has_a_page() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for name in PAPERS:
        one: Paper = paper(name)
        assert f"hflray reproduce {name}" in text
        assert one.source.removeprefix("arXiv ") in text


def test_the_page_has_the_answers_of_the_exports() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.renewed(text) == text, "python -m tests.reproduction.page renews it"


def test_every_export_of_a_paper_is_on_the_page() -> None:
    found = [name for names in page.ANSWERS.findall(page.PAGE.read_text(encoding="utf-8")) for name in names.split()]
    ours = {shown.config for shown in paper("zhang").full.values()}  # RESULTS.md has these
    exported = {place.name for place in exports(page.RESULTS)}
    assert sorted(found) == sorted((page.exhibits().keys() & exported) - ours)
