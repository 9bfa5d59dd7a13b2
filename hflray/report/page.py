"""A sweep as one HTML page that opens without a server: summary, curves, costs, and every round to look into.

`page.html` is its template. The charts are plotly's (`hflray.report.charts`), whose library is inside the page;
`page.js` draws what depends on the chosen run and round.
"""

from __future__ import annotations

import json
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
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


def _about(sweep: Sweep) -> list[str]:
    """What was run, when and from which commit, a phrase each."""
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
    return [fact for fact in facts if fact]


def _charts(sweep: Sweep) -> list[tuple[str, str, list[go.Figure]]]:
    """The sections of charts: heading, a sentence, and the charts, of which there is one at least."""
    shown = sweep.shown
    curves = [charts.curve(sweep, row.name) for row in metrics.curves()] if shown.curves else []
    bars = [charts.bars(sweep, row.name) for row in metrics.bars(shown.table)]
    front = [charts.pareto(sweep)] if shown.front else []
    found = [
        ("Curves", "Means over the seeds; the standard deviation is shaded.", curves),
        ("Costs", f"{shown.until} Simulated seconds and joules, not this machine's.", bars),
        ("Energy against delay", "Down and to the left is better.", front),
    ]
    sections = [(title, text, [one for one in drawn if one is not None]) for title, text, drawn in found]
    return [section for section in sections if section[2]]


def _template() -> Environment:
    """Jinja2 over the files of this package; all that a template does not call safe is escaped."""
    made = Environment(
        loader=PackageLoader("hflray.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    return made


def render(sweep: Sweep, claims: pd.DataFrame | None = None) -> tuple[str, list[str]]:
    """The page, and what it could not show.

    Args:
        sweep: the runs.
        claims: what the paper claims of it, as `hflray.report.paper.verdicts` has it; None: it is not of the paper.
    """
    missing = list(sweep.notes)
    sections = _charts(sweep)
    explored = _explorable(sweep, missing) if sweep.shown.explorable else []
    payload = [json.loads(figure.to_json()) for _, _, drawn in sections for figure in drawn]
    here = files("hflray.report")
    text = (
        _template()
        .get_template("page.html")
        .render(
            sweep=sweep,
            about=_about(sweep),
            missing=missing,
            summary=summary(sweep),
            fleets=against(sweep),
            over=sweep.shown.repetitions,
            claims=claims,
            sections=sections,
            explored=explored,
            data={"charts": payload, "runs": explored, "colours": COLOURS},
            style=(here / "page.css").read_text(encoding="utf-8"),
            script=(here / "page.js").read_text(encoding="utf-8"),
            plotly=get_plotlyjs(),
        )
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
