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
from hflray.report.detail import Replay
from hflray.report.figures import COLOURS, colour, over_seeds, panels, points, tints
from hflray.report.runs import Run, Sweep, pretty
from hflray.report.tables import against, summary

RUNS = 12  # runs whose rounds can be looked into: one of each group, as many as keep the page a few MB
ROUNDS = 100  # of each
LINES = ("solid", "dash", "dashdot", "dot")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "star", "cross", "x")
ACROSS = (
    ("round", "Round", 1.0),
    (metrics.TOTAL_DELAY_S, "Simulated time (s)", 1.0),
    (metrics.TOTAL_ENERGY_J, "Simulated energy (J)", 1.0),
    (metrics.TOTAL_MESSAGE_BITS, "Messages (MB)", 1 / 8e6),
)
CURVES = (
    (metrics.ACCURACY, "Test accuracy (%)", 100.0),
    (metrics.TEST_LOSS, "Test loss (nats)", 1.0),
    (metrics.ROUND_OBJECTIVE, "Objective of a round (J)", 1.0),
    (metrics.CLASS_BALANCE, "Class balance of the schedule", 1.0),
    (metrics.ASSIGNER_RETURN, "Return of an episode", 1.0),
    (metrics.ASSIGNER_GREEDY_RETURN, "Return of the greedy policy", 1.0),
    (metrics.ASSIGNER_LOSS, "Loss", 1.0),
)
BARS = {
    "experiment": (
        (metrics.TOTAL_OBJECTIVE, "Objective E + λT (J)", 1.0),
        (metrics.TOTAL_DELAY_S, "Time delay T (s)", 1.0),
        (metrics.TOTAL_ENERGY_J, "Energy E (J)", 1.0),
        (metrics.TOTAL_MESSAGE_BITS, "Messages (MB)", 1 / 8e6),
    ),
    "clustering": (
        (metrics.CLUSTERING_DELAY_S, "Delay of the clustering (s)", 1.0),
        (metrics.CLUSTERING_ENERGY_J, "Energy of the clustering (J)", 1.0),
        (metrics.CLUSTERING_ARI, "Adjusted Rand index", 1.0),
    ),
    "assignment": (
        (metrics.ROUND_OBJECTIVE, "Objective of a round (J)", 1.0),
        (metrics.ROUND_DELAY_S, "Time delay of a round (s)", 1.0),
        (metrics.ROUND_ENERGY_J, "Energy of a round (J)", 1.0),
        (metrics.WALL_ASSIGN_S, "Latency (ms)", 1e3),
    ),
}


def _translucent(tint: str) -> str:
    red, green, blue = (int(tint[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _figure(height: int = 380) -> go.Figure:
    layout = {
        "template": "plotly_white", "height": height, "margin": {"l": 60, "r": 20, "t": 40, "b": 50},
        "font": {"family": "system-ui, sans-serif", "size": 12}, "hovermode": "closest",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }  # fmt: skip
    return go.Figure(layout=layout)


def _curve(sweep: Sweep, metric: str, label: str, scale: float) -> go.Figure | None:
    """A metric by round, seconds, joules or megabytes, as chosen above the chart; means, deviation shaded."""
    series = [
        (", ".join(part for part in (title, name) if part), runs)
        for title, lines in panels(sweep).items()
        for name, runs in lines.items()
        if any(len(run.series(metric)) for run in runs)
    ]
    if not series:
        return None
    figure = _figure()
    across: list[list[list[float]]] = [[] for _ in ACROSS]
    for number, (name, runs) in enumerate(series):
        values = over_seeds(runs, metric) * scale
        tint = colour(name, number)
        x = [_across(runs, values, key) * factor for key, _, factor in ACROSS]
        low, high = values["mean"] - values["std"], values["mean"] + values["std"]
        shade = [np.concatenate([one, one[::-1]]).tolist() for one in x]
        shared = {"legendgroup": name, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(x=shade[0], y=[*high, *low[::-1]], fill="toself", fillcolor=_translucent(tint),
                           line={"width": 0}, **shared)  # fmt: skip
        figure.add_scatter(x=x[0].tolist(), y=values["mean"].tolist(), name=name, legendgroup=name,
                           mode="lines+markers", line={"color": tint, "dash": LINES[number // len(COLOURS) % 4]},
                           marker={"size": 5, "symbol": SYMBOLS[number % 8]})  # fmt: skip
        for place, (one, both) in enumerate(zip(x, shade, strict=True)):
            across[place] += [both, one.tolist()]
    buttons = [
        {"label": text, "method": "update", "args": [{"x": data}, {"xaxis.title.text": text}]}
        for data, (_, text, _) in zip(across, ACROSS, strict=True)
        if not any(np.isnan(one).any() for one in data)
    ]
    if len(buttons) > 1:
        figure.update_layout(
            updatemenus=[{"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}]
        )
    step = "Environment steps" if sweep.task == "train_assigner" else ACROSS[0][1]
    figure.update_layout(xaxis_title=step, yaxis_title=label)
    return figure


def _across(runs: Sequence[Run], values: pd.DataFrame, key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    if key == "round":
        return values.index.to_numpy(dtype=float)
    return over_seeds(runs, key)["mean"].reindex(values.index).to_numpy(dtype=float)


def _bars(sweep: Sweep, metric: str, label: str, scale: float) -> go.Figure | None:
    """A bar for each group: mean, deviation as a whisker."""
    groups = sweep.groups()
    study = sweep.task == "assignment"
    figure = _figure(80 + 26 * len(groups))
    names, means, spreads, colours = [], [], [], []
    tint = tints(sweep)
    for name, runs in groups.items():
        known = [run.series(metric).median() if study and metric == metrics.WALL_ASSIGN_S else
                 run.series(metric).mean() if study else run.last(metric) for run in runs]  # fmt: skip
        known = [value * scale for value in known if np.isfinite(value)]
        if known:
            names.append(name or sweep.name)
            means.append(float(np.mean(known)))
            spreads.append(float(np.std(known, ddof=1)) if len(known) > 1 else 0.0)
            colours.append(tint[name])
    if not names:
        return None
    figure.add_bar(
        x=means, y=names, orientation="h", textposition="outside", cliponaxis=False, marker={"color": colours},
        text=[f"{mean:,.4g}" for mean in means], error_x={"array": spreads} if any(spreads) else None,
        hovertemplate="%{y}: %{x:,.4g}<extra></extra>",
    )  # fmt: skip
    figure.update_layout(
        xaxis_title=label,
        showlegend=False,
        margin={"t": 10, "l": 10, "r": 60},
        yaxis={"autorange": "reversed", "automargin": True},
    )
    return figure


def _pareto(sweep: Sweep) -> go.Figure | None:
    table = points(sweep)
    if table.empty:
        return None
    figure = _figure(430)
    for number, (name, rows) in enumerate(table.groupby("series", sort=False)):
        rows = rows.sort_values(["lambda", "delay_s"])
        figure.add_scatter(
            x=rows["delay_s"].tolist(), y=rows["energy_j"].tolist(), name=str(name), text=rows["point"].tolist(),
            error_x={"array": rows["delay_std"].tolist(), "thickness": 1} if rows["delay_std"].any() else None,
            error_y={"array": rows["energy_std"].tolist(), "thickness": 1} if rows["energy_std"].any() else None,
            mode="lines+markers+text" if len(table) <= 30 else "lines+markers", textposition="top right",
            textfont={"size": 10, "color": "#666"},
            line={"color": colour(str(name), number), "width": 1, "dash": LINES[number % 4]},
            marker={"size": 9, "symbol": SYMBOLS[number % 8]},
            hovertemplate="%{text}<br>%{x:,.4g} s, %{y:,.4g} J<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    per = "a round" if sweep.task == "assignment" else "in total"
    figure.update_layout(xaxis_title=f"Simulated time delay {per} (s)", yaxis_title=f"Simulated energy {per} (J)")
    return figure


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


def render(sweep: Sweep, claims: pd.DataFrame | None = None) -> tuple[str, list[str]]:
    """The page, and what it could not show.

    Args:
        sweep: the runs.
        claims: what the paper claims of it, as `hflray.report.paper.verdicts` has it; None: it is not of the paper.
    """
    missing = list(sweep.notes)
    charts: list[tuple[str, str, list[go.Figure]]] = []
    drawn = [figure for metric in CURVES if (figure := _curve(sweep, *metric)) is not None]
    curves = [] if sweep.task in ("assignment", "clustering") else drawn
    bars = [figure for metric in BARS.get(sweep.task, ()) if (figure := _bars(sweep, *metric)) is not None]
    front = _pareto(sweep) if sweep.task in ("experiment", "assignment") else None
    charts += [("Curves", "Means over the seeds; the standard deviation is shaded.", curves)] if curves else []
    until = "Up to the target accuracy, or the last round." if sweep.task == "experiment" else ""
    charts += [("Costs", f"{until} Simulated seconds and joules, not this machine's.", bars)] if bars else []
    charts += [("Energy against delay", "Down and to the left is better.", [front])] if front is not None else []
    explored = _explorable(sweep, missing) if sweep.task == "experiment" else []

    sections, payload, number = [], [], 0
    for title, text, drawn in charts:
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
