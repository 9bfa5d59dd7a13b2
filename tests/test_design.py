"""docs/design.md is the design that the code cites: every citation leads there, and nothing outside is cited."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
SUFFIXES = {".py", ".md", ".yaml", ".toml", ".sh", ".c"}
FOLDERS = ("hflray", "tests", "cluster", "dashboards", "tune_configs", "docs", "examples")
# A citation may be broken over two lines, of which the second may begin a comment.
GAP = r"(?:\s|#)+"
CITATION = re.compile(rf'docs/design\.md`?,{GAP}(?:decisions?{GAP})?(?:(D\d+(?:(?:,| and|/){GAP}?D\d+)*)|"([^"]+)")')
OUTSIDE = re.compile(
    rf"\bdesign,{GAP}(?:section|decision)|the design's section|decision \d+\.\d|shared/notes|rllib\.md"
)


def texts() -> dict[str, str]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    paths += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    names = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in names.items()
        if name not in ("tests/test_design.py", "docs/design.md") and not name.startswith("tests/data/")
    }


def broken(text: str) -> list[str]:
    """Return the decisions and sections that a text cites and that docs/design.md lacks."""
    decisions = set(re.findall(r"^\*\*(D\d+)\.", DESIGN, flags=re.M))
    sections = set(re.findall(r"^#+ (.*)$", DESIGN, flags=re.M))
    missing = []
    for numbers, section in CITATION.findall(text):
        missing += [number for number in re.findall(r"D\d+", numbers) if number not in decisions]
        missing += [section] if section and re.sub(GAP, " ", section) not in sections else []
    return missing


def test_every_citation_leads_to_the_design() -> None:
    found = texts()
    assert {name: missing for name, text in found.items() if (missing := broken(text))} == {}
    assert sum(len(CITATION.findall(text)) for text in found.values()) > 15


def test_nothing_outside_the_repository_is_cited() -> None:
    assert {name: match[0] for name, text in texts().items() if (match := OUTSIDE.search(text))} == {}


def test_decisions_are_numbered_in_order() -> None:
    assert re.findall(r"^\*\*D(\d+)\.", DESIGN, flags=re.M) == [str(number) for number in range(1, 13)]
