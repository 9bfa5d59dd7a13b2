"""The papers' answers as Markdown, renewed from the committed exports.

    python -m tests.reproduction.page

docs/reference/claims.md has the tables of some exports between ``<!-- answers mtgc_quick -->``, which names them, and
``<!-- end -->``, and docs/results/papers.md their counts after ``<!-- counts -->``. Only these tables are written.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from hflray.report.exports import read_exhibit
from hflray.report.runs import SweepRecord
from hflray.reproduction.judge import verdicts
from hflray.reproduction.protocol import PAPERS, Exhibit, paper
from hflray.reproduction.results_page import answers

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "data" / "results"
CLAIMS = ROOT / "docs" / "reference" / "claims.md"
SUMMARY = ROOT / "docs" / "results" / "papers.md"
ANSWERS = re.compile(r"<!-- answers ([\w ]+) -->\n.*?<!-- end -->", re.DOTALL)
COUNTS = re.compile(r"<!-- counts -->\n.*?<!-- end -->", re.DOTALL)
COUNTED = ("yes", "no", "not settled")


def exhibits() -> dict[str, Exhibit]:
    """Return the exhibits of all papers with claims by the name of their sweep file."""
    return {shown.config: shown for name in PAPERS for shown in paper(name).exhibits.values() if shown.claims}


@cache
def runs(name: str) -> SweepRecord:
    """Return the committed runs of a sweep."""
    return read_exhibit(RESULTS / name)


def renewed(text: str) -> str:
    """Return the page of claims with the tables that the exports give."""
    by_name = exhibits()

    def tables(found: re.Match[str]) -> str:
        parts = [answers(by_name[name], runs(name)) for name in found[1].split()]
        return "\n".join([f"<!-- answers {found[1]} -->\n", *parts, "<!-- end -->"])

    return ANSWERS.sub(tables, text)


def counts(claims: str) -> str:
    """Return how many claims of each exhibit on the page of claims have which answer, if it has any."""
    by_name = exhibits()
    lines = [f"| `hflray reproduce` | figure | {' | '.join(COUNTED)} |", f"|---|---|{'--:|' * len(COUNTED)}"]
    fewer = 0
    for name in [name for names in ANSWERS.findall(claims) for name in names.split()]:
        shown = by_name[name]
        (source,) = [each for each in PAPERS if shown in paper(each).exhibits.values()]
        given = [record["answer"] for record in verdicts(shown, runs(name), brief=True).records]
        assert set(given) <= {*COUNTED, ""}, given
        fewer += given.count("")
        if any(given):
            cells = (str(given.count(each)) for each in COUNTED)
            lines.append(f"| `{source}` | {shown.label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{fewer} claims of other figures have fewer runs than planned."])


def summarised(text: str, claims: str) -> str:
    """Return the summary with the counts of the page of claims."""
    return COUNTS.sub(lambda _: f"<!-- counts -->\n\n{counts(claims)}\n\n<!-- end -->", text)


if __name__ == "__main__":
    CLAIMS.write_text(renewed(CLAIMS.read_text(encoding="utf-8")), encoding="utf-8")
    text = summarised(SUMMARY.read_text(encoding="utf-8"), CLAIMS.read_text(encoding="utf-8"))
    SUMMARY.write_text(text, encoding="utf-8")
