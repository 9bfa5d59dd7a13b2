"""The report of a campaign: its faults by kind and place, what was lost, and how long the sweeps took to recover."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.chaos import fault as kinds
from tests.chaos.campaign import Outcome

ORDER = (kinds.KILL, kinds.CUT, kinds.STOP, kinds.CLOCK, kinds.FULL, kinds.TWO)


def row(name: str, place: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return a row of the table: counts, and the seconds of recovery of the faults that came."""
    hits = [outcome for outcome in outcomes if outcome.hit]
    times_s = [outcome.recovery_s for outcome in hits if outcome.recovery_s is not None]
    return {
        "kind": name,
        "place": place,
        "faults": len(hits),
        "nothing_lost": sum(not outcome.lost for outcome in hits),
        "lost": sum(bool(outcome.lost) for outcome in hits),
        "median_s": round(statistics.median(times_s), 1) if times_s else None,
        "max_s": round(max(times_s), 1) if times_s else None,
    }


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """Return the rows by kind and place, and at the end those of all kills and of all faults."""
    table = []
    for kind in ORDER:
        places = sorted({outcome.fault.place for outcome in outcomes if outcome.fault.kind == kind})
        for place in places:
            some = [one for one in outcomes if one.fault.kind == kind and one.fault.place == place]
            table.append(row(kind, place, some))
    table.append(row("all kills", "", [outcome for outcome in outcomes if outcome.fault.kills]))
    table.append(row("all faults", "", outcomes))
    return table


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the report as Markdown."""
    lines = [
        "| fault | place | times | nothing lost | lost | recovery, median | recovery, longest |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for entry in rows(outcomes):
        if not entry["faults"]:
            continue
        times = [f"{value} s" if value is not None else "–" for value in (entry["median_s"], entry["max_s"])]
        cells = [entry["kind"], entry["place"], entry["faults"], entry["nothing_lost"], entry["lost"], *times]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    hits = [outcome for outcome in outcomes if outcome.hit]
    inside = sum(outcome.fault.kind == kinds.CUT for outcome in hits)
    kills = sum(outcome.fault.kills for outcome in hits)
    lines += [
        "",
        f"{kills} kills, {inside} of them inside a change of a file; {len(hits) - kills} other faults; "
        f"{len(outcomes) - len(hits)} drawn faults found their sweep ended and count nowhere.",
    ]
    for outcome in outcomes:
        for line in outcome.lost:
            lines.append(f"* fault {outcome.fault.number} ({outcome.fault.kind}, {outcome.fault.place}): {line}")
    notes: dict[str, list[int]] = {}
    for outcome in outcomes:
        for note in outcome.notes:
            notes.setdefault(note, []).append(outcome.fault.number)
    lines += [f"* {note}: {len(numbers)} times (faults {numbers})" for note, numbers in sorted(notes.items())]
    return "\n".join(lines) + "\n"


def write(outcomes: Sequence[Outcome], log: Path) -> list[Path]:
    """Write the report beside the log, as Markdown and as JSON; return the paths."""
    text, data = log.with_suffix(".md"), log.with_suffix(".json")
    text.write_text(markdown(outcomes), encoding="utf-8")
    content = {"rows": rows(outcomes), "outcomes": [asdict(outcome) for outcome in outcomes]}
    data.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    return [text, data]
