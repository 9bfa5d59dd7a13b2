"""The answers on docs/results/papers.md, renewed from the committed exports.

    python -m tests.reproduction.page

The tables of some exports stand between ``<!-- answers mtgc_quick -->``, which names them, and ``<!-- end -->``. Only
these tables are written; the text around them is not.
"""

from __future__ import annotations

import re
from pathlib import Path

from hflray.report.exports import read_exhibit
from hflray.reproduction.protocol import PAPERS, Exhibit, paper
from hflray.reproduction.results_page import answers

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "data" / "results"
PAGE = ROOT / "docs" / "results" / "papers.md"
ANSWERS = re.compile(r"<!-- answers ([\w ]+) -->\n.*?<!-- end -->", re.DOTALL)


def exhibits() -> dict[str, Exhibit]:
    """Return the exhibits of all papers with claims by the name of their sweep file."""
    return {shown.config: shown for name in PAPERS for shown in paper(name).exhibits.values() if shown.claims}


def renewed(text: str) -> str:
    """Return the page with the tables that the exports give."""
    by_name = exhibits()

    def tables(found: re.Match[str]) -> str:
        names = found[1].split()
        parts = [answers(by_name[name], read_exhibit(RESULTS / name)) for name in names]
        return "\n".join([f"<!-- answers {found[1]} -->\n", *parts, "<!-- end -->"])

    return ANSWERS.sub(tables, text)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
