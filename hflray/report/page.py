"""A sweep as one HTML page that opens without a server: summary, curves, costs, and every round to look into.

Charts are plotly's, whose library is inside the page; `page.js` draws what depends on the chosen run and round.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from hflray import metrics
from hflray.errors import HflrayError
from hflray.report import charts
from hflray.report.detail import Replay
from hflray.report.labels import COLOURS, pretty
from hflray.report.runs import Run, Sweep
from hflray.report.tables import against, summary

RUNS = 12  # runs whose rounds can be looked into: one of each group, as many as keep the page a few MB
ROUNDS = 100  # of each
TABLES: dict[str, metrics.Table] = {"experiment": "training", "clustering": "clustering", "assignment": "assignment"}


def _rounded(values: Any, digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _explored(run: Run, label: str) -> dict[str, Any]:
    """What `page.js` needs to show any round of a run."""
    replay = Replay(run)
    fleet = replay.fleet
    numbers = replay.numbers
    if len(numbers) > ROUNDS:
        numbers = [numbers[i] for i in np.unique(np.linspace(0, len(numbers) - 1, ROUNDS).astype(int))]
    rounds = []
    for number in numbers:
        taken = replay.round(number)
        table, row = taken.devices, run.rounds[run.rounds["round"] == number].iloc[0]
        rounds.append(
            {
                "n": number,
                metrics.ACCURACY: float(row[metrics.ACCURACY])
                if np.isfinite(row.get(metrics.ACCURACY, np.nan))
                else None,
                "T": taken.cost.delay_s,
                "E": taken.cost.energy_j,
                "objective": taken.cost.objective,
                **{key: table[key].tolist() for key in ("device", "edge", "nearest", "strongest", "times")},
                "mhz": _rounded(table["bandwidth_hz"] / 1e6),
                "ghz": _rounded(table["cpu_hz"] / 1e9),
                "compute": _rounded(table["compute_s"]),
                "upload": _rounded(table["upload_s"]),
                "joules": _rounded(table["joules"] * taken.edge_iterations),
                "late": table["device"][table["straggler"]].tolist(),
                "edgeT": _rounded(taken.edges["delay_s"]),
                "edgeE": _rounded(taken.edges["energy_j"]),
                "cloud": _rounded(taken.edges["cloud_s"]),
            }
        )
    assert run.devices is not None
    counts = replay.class_counts.to_numpy()
    config = run.config
    return {
        "name": run.name,
        "label": label or run.name,
        "Q": config.training.edge_iterations,
        "scheduler": pretty(config.scheduling.name),
        "assigner": pretty(config.assignment.name),
        "side": config.fleet.area_km * 1e3,
        "x": _rounded(fleet.position_m[:, 0]),
        "y": _rounded(fleet.position_m[:, 1]),
        "edgeX": _rounded(fleet.edge_position_m[:, 0]),
        "edgeY": _rounded(fleet.edge_position_m[:, 1]),
        "edgeMhz": _rounded(fleet.edge_bandwidth_hz / 1e6, 3),
        "samples": run.devices["samples"].tolist(),
        "cluster": run.devices["cluster"].tolist() if "cluster" in run.devices else None,
        "majority": counts.argmax(axis=1).tolist(),
        "counts": counts.T.tolist(),
        "rounds": rounds,
    }


def _table(table: pd.DataFrame, kind: str = "") -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in table.itertuples(index=False)
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    shown = " open" if len(notes) <= 4 else ""
    return f'<details class="notes"{shown}><summary>What is missing ({len(notes)})</summary><ul>{items}</ul></details>'


def _about(sweep: Sweep) -> str:
    first = sweep.runs[0].history
    times = [(run.history.started_ms, run.history.ended_ms) for run in sweep.runs]
    begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(start for start, _ in times) / 1000))
    seeds = sorted({run.seed for run in sweep.runs})
    commits = sorted({run.commit for run in sweep.runs})
    facts = [
        f"{len(sweep.runs)} runs, {'seeds ' + ', '.join(map(str, seeds)) if len(seeds) > 1 else f'seed {seeds[0]}'}",
        f"begun {begun}",
        first.environment.get("cpu", ""),
        f"hflray {first.environment.get('hflray', '?')}, commit {', '.join(commits)}",
        "some of it from a modified checkout" if any(run.modified for run in sweep.runs) else "",
        *(f"{part}: {text}" if part else text for part, text in sweep.parts.items()),
    ]
    return " · ".join(html.escape(fact) for fact in facts if fact)


def _charts(sweep: Sweep) -> list[tuple[str, str, list[go.Figure]]]:
    """The sections of charts: heading, a sentence, and the charts, of which there is one at least."""
    curves = [] if sweep.task in ("assignment", "clustering") else [
        charts.curve(sweep, row.name) for row in metrics.curves()
    ]  # fmt: skip
    bars = [charts.bars(sweep, row.name) for row in metrics.bars(TABLES[sweep.task])] if sweep.task in TABLES else []
    front = [charts.pareto(sweep)] if sweep.task in ("experiment", "assignment") else []
    until = "Up to the target accuracy, or the last round." if sweep.task == "experiment" else ""
    found = [
        ("Curves", "Means over the seeds; the standard deviation is shaded.", curves),
        ("Costs", f"{until} Simulated seconds and joules, not this machine's.", bars),
        ("Energy against delay", "Down and to the left is better.", front),
    ]
    sections = [(title, text, [one for one in drawn if one is not None]) for title, text, drawn in found]
    return [section for section in sections if section[2]]


def render(sweep: Sweep, claims: pd.DataFrame | None = None) -> tuple[str, list[str]]:
    """The page, and what it could not show.

    Args:
        sweep: the runs.
        claims: what the paper claims of it, as `hflray.report.paper.verdicts` has it; None: it is not of the paper.
    """
    missing = list(sweep.notes)
    explored = _explorable(sweep, missing) if sweep.task == "experiment" else []

    sections, payload, number = [], [], 0
    for title, text, drawn in _charts(sweep):
        wide = " wide" if len(drawn) == 1 else ""
        places = "".join(f'<div class="chart" id="chart-{number + i}"></div>' for i in range(len(drawn)))
        sections.append(
            f'<section><h2>{title}</h2><p class="hint">{text}</p><div class="grid{wide}">{places}</div></section>'
        )
        payload += [json.loads(figure.to_json()) for figure in drawn]
        number += len(drawn)
    paper = f"<section><h2>What the paper claims</h2>{_table(claims, 'text')}</section>" if claims is not None else ""
    fleets, over = against(sweep), "deployments" if sweep.task == "assignment" else "seeds"
    here = files("hflray.report")
    explorer = (here / "explorer.html").read_text(encoding="utf-8") if explored else ""
    data = json.dumps({"charts": payload, "runs": explored, "colours": COLOURS}, ensure_ascii=False, allow_nan=False)
    data = data.replace("</", "<\\/")  # which would end the script
    text = (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(sweep.title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">\n'
        f"<style>{(here / 'page.css').read_text(encoding='utf-8')}</style>\n"
        f"<script>{get_plotlyjs()}</script></head>\n"
        f"<body><header><h1>{html.escape(sweep.title)}</h1><p>{html.escape(sweep.description)}</p>"
        f'<p class="hint">{_about(sweep)}</p></header>\n{_notes(missing)}\n'
        f"<section><h2>Summary</h2>{_table(summary(sweep))}"
        f'<p class="hint">Means over the {over} ± standard deviation; “…”: a run that has not ended.</p>'
        f"{_table(fleets) if fleets is not None else ''}</section>\n"
        f"{paper}\n{''.join(sections)}\n{explorer}\n"
        f'<script type="application/json" id="data">{data}</script>\n'
        f"<script>{(here / 'page.js').read_text(encoding='utf-8')}</script></body></html>\n"
    )
    return text, missing


def _explorable(sweep: Sweep, missing: list[str]) -> list[dict[str, Any]]:
    """One run of each group, its first seed; what cannot be shown is added to `missing`."""
    found: list[dict[str, Any]] = []
    groups = sweep.groups()
    for label, runs in groups.items():
        if len(found) == RUNS:
            missing.append(f"rounds of {RUNS} of {len(groups)} groups can be looked into here; the rest with: explain")
            break
        run = min(runs, key=lambda run: run.seed)
        try:
            found.append(_explored(run, f"{label}, seed {run.seed}" if label else run.name))
        except HflrayError as error:
            missing.append(str(error))
    return found


def write(sweep: Sweep, folder: Path, claims: pd.DataFrame | None = None) -> tuple[Path, list[str]]:
    """Write ``index.html``; return its path and what it could not show."""
    folder.mkdir(parents=True, exist_ok=True)
    text, missing = render(sweep, claims)
    (folder / "index.html").write_text(text, encoding="utf-8")
    return folder / "index.html", missing
