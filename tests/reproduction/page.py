"""The papers' answers as Markdown, renewed from the committed exports.

    python -m tests.reproduction.page

docs/reference/claims.md has the tables of some exports between ``<!-- answers mtgc_quick -->``, which names them, and
``<!-- end -->``. After ``<!-- counts -->``, docs/results/papers.md counts its answers, and docs/results/paper.md those
of tune_configs/RESULTS.md. Only these tables are written.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from hflray.report.exports import read_exhibit
from hflray.reproduction.judge import once_each
from hflray.reproduction.protocol import PAPERS, Exhibit, paper
from hflray.reproduction.results_page import answers

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "data" / "results"
CLAIMS = ROOT / "docs" / "reference" / "claims.md"
SUMMARIES = {
    ROOT / "docs" / "results" / "papers.md": CLAIMS,
    ROOT / "docs" / "results" / "paper.md": ROOT / "tune_configs" / "RESULTS.md",
}
ANSWERS = re.compile(r"<!-- answers ([\w ]+) -->\n.*?<!-- end -->", re.DOTALL)
COUNTS = re.compile(r"<!-- counts -->\n.*?<!-- end -->", re.DOTALL)
COUNTED = ("yes", "yes in sign", "no", "not settled", "not tested", "fewer runs than planned")


def exhibits() -> dict[str, Exhibit]:
    """Return the exhibits of all papers with claims by the name of their sweep file."""
    return {shown.config: shown for name in PAPERS for shown in paper(name).exhibits.values() if shown.claims}


def renewed(text: str) -> str:
    """Return the page of claims with the tables that the exports give."""
    by_name = exhibits()

    def tables(found: re.Match[str]) -> str:
        parts = [answers(by_name[name], read_exhibit(RESULTS / name)) for name in found[1].split()]
        return "\n".join([f"<!-- answers {found[1]} -->\n", *parts, "<!-- end -->"])

    return ANSWERS.sub(tables, text)


def tally(section: str) -> Counter[str]:
    """Return how many claims of a section have which answer; of several splits, that on the first, the plan's."""
    counted: Counter[str] = Counter()
    rows = [line.strip("|").split("|") for line in re.findall(r"^\|.*\|$", section, re.M)]
    start = next((number for number, cells in enumerate(rows) if " answer " in cells), len(rows))
    by_split = start < len(rows) and rows[start][0] == " split "
    below = rows[start + 2 :]  # the rule
    answered = [(row[0] * by_split, row[by_split], row[rows[start].index(" answer ")].strip()) for row in below]
    for answer in once_each(answered):
        counted[next(name for name in reversed(COUNTED) if answer.startswith(name))] += 1
    if fewer := re.search(r"^(\d+) claims have fewer runs than planned\.$", section, re.M):
        counted[COUNTED[-1]] = int(fewer[1])
    return counted


def counts(text: str) -> str:
    """Return a table of how many claims have which answer, with a row for each section that has answers."""
    rows, fewer = [], 0
    for level, section in re.findall(r"^(##+) (.*?)(?=^##|\Z)", text, re.M | re.DOTALL):
        if len(level) == 2:
            chapter = section.partition("\n")[0]
        counted = tally(section)
        if counted.keys() <= {COUNTED[-1]}:
            fewer += counted.total()
        else:
            name = section.partition(":")[0] if len(level) == 2 else f"{chapter}: {section.partition(':')[0]}"
            rows.append((name, counted))
    shown = [answer for answer in COUNTED if any(counted[answer] for _, counted in rows)]
    lines = [f"| figure | {' | '.join(shown)} |", f"|---|{'--:|' * len(shown)}"]
    lines += [f"| {name} | {' | '.join(str(counted[answer]) for answer in shown)} |" for name, counted in rows]
    return "\n".join([*lines, "", f"{fewer} claims of other figures have fewer runs than planned."])


def summarised(text: str, claims: str) -> str:
    """Return a summary with the counts of a page of claims."""
    return COUNTS.sub(lambda _: f"<!-- counts -->\n\n{counts(claims)}\n\n<!-- end -->", text)


if __name__ == "__main__":
    CLAIMS.write_text(renewed(CLAIMS.read_text(encoding="utf-8")), encoding="utf-8")
    for place, source in SUMMARIES.items():
        text = summarised(place.read_text(encoding="utf-8"), source.read_text(encoding="utf-8"))
        place.write_text(text, encoding="utf-8")
