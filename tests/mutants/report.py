"""docs/mutants.md: the counts by module and every survivor that is a gap of the tests.

A judgement is written by hand in ``survivors.yaml``, for the line that the mutant changes and what it becomes. It says
either that the mutant changes nothing that anyone could notice, and why, or that the tests have a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.mutants.session import Result, Session

JUDGEMENTS = Path(__file__).with_name("survivors.yaml")
KINDS = ("same", "gap")
UNJUDGED = ("gap", "not judged yet")
NOTED = {"killed": "killed", "timeout": "killed", "error": "error"}


INTRODUCTION = """\
# Do the tests notice?

A mutant is a core module with one token changed: `+` became `-`, `<` became `<=`, 5 became 6, `not` was added, a loop
runs zero times. The module's own tests are run on it, without those that start Ray or are slow. They kill it if one of
them fails; a mutant that none notices survives. The judgements of survivors are in `tests/mutants/survivors.yaml`.

* Command: `{command}`, which writes this page ({date}. {machine})
* The sample is seeded: places of each module in proportion to their number, at least five, and one mutant of each
  place, made by [cosmic-ray](https://cosmic-ray.readthedocs.io). `tests/mutants/sample.py` says which are left out.

"""
BELOW = """\
"By time" are mutants whose tests did not end within four times the usual CPU time. "The same" are survivors that change
nothing that anyone could notice, and "gap" are those that a test should notice.
"""


def read_judgements(path: Path = JUDGEMENTS) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return the kind and reason of each judgement, by module, line and mutated line."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    judgements = {}
    for entry in entries:
        if entry["kind"] not in KINDS:
            raise ValueError(f"{path.name}: kind {entry['kind']!r}; accepted: {', '.join(KINDS)}")
        judgements[entry["module"], entry["was"], entry["becomes"]] = (entry["kind"], " ".join(entry["why"].split()))
    return judgements


def judge(result: Result, judgements: Mapping[tuple[str, str, str], tuple[str, str]]) -> tuple[str, str]:
    """Return the kind and reason of a survivor's judgement."""
    return judgements.get((result.mutant.module, result.was, result.becomes), UNJUDGED)


def table(session: Session, results: Sequence[Result]) -> list[str]:
    """Return the rows of the counts by module, and their sum, as Markdown."""
    judgements = read_judgements()
    lines = [
        "| module | places | mutants | killed | of these by time | the same | gap |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    total: Counter[str] = Counter()
    for module, places in session.places.items():
        own = [one for one in results if one.mutant.module == module]
        counts = Counter(places=places, mutants=len(own))
        for one in own:
            counts[judge(one, judgements)[0] if one.outcome == "survived" else NOTED[one.outcome]] += 1
            counts["timeout"] += one.outcome == "timeout"
        total += counts
        lines.append(_row(f"`{module}`", counts))
    lines.append(_row("**sum**", total))
    return lines


def _row(name: str, counts: Counter[str]) -> str:
    cells = [counts[key] for key in ("places", "mutants", "killed", "timeout", "same", "gap")]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def survivors(results: Sequence[Result], kind: str) -> list[str]:
    """Return one entry for each survivor of a kind, as Markdown."""
    judgements, lines = read_judgements(), []
    for one in results:
        if one.outcome == "survived" and (judged := judge(one, judgements))[0] == kind:
            lines.append(f"* `{one.mutant.module}`: `{one.was}` → `{one.becomes}`")
            lines.append(f"  {judged[1]}")
    return lines or ["None."]


def page(sessions: Sequence[Session], command: str, date: str, machine: str, notes: Sequence[str] = ()) -> str:
    """Return the whole page: what it is, our notes, and each session with its survivors."""
    lines = INTRODUCTION.format(command=command, date=date, machine=machine).splitlines()
    lines[-1:] = [*(f"* {note}" for note in notes), ""]
    for session in sessions:
        results = session.results()
        killed = sum(one.outcome in ("killed", "timeout") for one in results)
        left = len(session.pending())
        rest = f", {left} not run yet" if left else ""
        lines += [
            f"## Seed {session.seed}: {killed} of {len(results)} mutants killed, "
            f"{killed / max(1, len(results)):.1%}{rest}",
            "",
            *table(session, results),
            "",
            *BELOW.splitlines(),
            "",
            "Survivors that are gaps of the tests:",
            "",
            *survivors(results, "gap"),
            "",
        ]
    return "\n".join(lines)
