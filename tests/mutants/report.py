"""docs/mutants.md: the counts by module and every survivor that is a gap of the tests.

A judgement is written by hand in ``survivors.yaml``, for the line that the mutant changes and what it becomes. It says
either that the mutant changes nothing that anyone could notice, and why, or that the tests have a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
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
runs zero times. The tests of the module's folder are run on each mutant, without those that start Ray or are slow. They
kill it if one of them fails, and a mutant that none of them notices survives. The sample is seeded
(`tests/mutants/sample.py`). Judgements of survivors are written by hand in `tests/mutants/survivors.yaml`: "the same"
changes nothing that anyone could notice, and a "gap" is what a test should notice.

`{command}`, {date}, {machine}: {killed} of {count} mutants killed, {share:.1%}; {left} not run yet.
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
    return judgements.get((result.module, result.was, result.becomes), UNJUDGED)


def page(session: Session, command: str, date: str, machine: str) -> str:
    """Return the whole page: the counts by module, and every survivor."""
    results, judgements = session.results(), read_judgements()
    kinds = {
        result.name: judge(result, judgements)[0] if result.outcome == "survived" else NOTED[result.outcome]
        for result in results
    }
    lines = ["| module | places | mutants | killed | the same | gap |", "|---|--:|--:|--:|--:|--:|"]
    for module in [*session.places, "sum"]:
        of_module = [kinds[result.name] for result in results if module in (result.module, "sum")]
        places = sum(session.places.values()) if module == "sum" else session.places[module]
        cells = [places, len(of_module), *(of_module.count(kind) for kind in ("killed", *KINDS))]
        lines.append(f"| `{module}` | {' | '.join(map(str, cells))} |")
    lines += ["", "Survivors that are gaps of the tests:", ""]
    lines += [
        f"* `{result.module}`: `{result.was}` → `{result.becomes}`\n  {judge(result, judgements)[1]}"
        for result in results
        if kinds[result.name] == "gap"
    ] or ["None."]
    killed, count = list(kinds.values()).count("killed"), len(results)
    head = INTRODUCTION.format(command=command, date=date, machine=machine, killed=killed, count=count,
                               share=killed / max(1, count), left=len(session.pending()))  # fmt: skip
    return head + "\n" + "\n".join(lines) + "\n"
