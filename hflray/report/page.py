"""A sweep as one HTML page that opens without a server: summary, curves, costs, and the details of every round.

`page.html` is the template. `page.js` draws the charts (`hflray.report.charts`) of the groups that the reader selects,
`explorer.js` draws the details of a round, `living.js` what a living world adds to them, and `turns.js` the turns of
edges under an asynchronous cloud. All use Plotly, whose basic bundle (`vendor/`) the page contains.
"""

from __future__ import annotations

import json
import math
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from hflray import metrics
from hflray.errors import HflrayError
from hflray.fleet import Fleet
from hflray.report import charts
from hflray.report.detail import Replay, RoundDetail, allocation_texts, ended_by, joules_of
from hflray.report.labels import COLOURS, pretty
from hflray.report.ranking import ranking, unranked
from hflray.report.runs import RunRecord, SweepRecord
from hflray.report.tables import has_readings, summary
from hflray.support import pages
from hflray.support.files import write as write_file
from hflray.support.terminal.tables import TextTable

MAX_ROUNDS = 100  # rounds of a run whose details the page has
EXPLAIN = "python -m hflray.report explain shows the others"
# With many groups, the page has fewer rounds of each, so that it stays below 10 MB.
MAX_ALL_ROUNDS = 1200  # of all runs; a round takes about 10 ms to recompute
MAX_ROWS = 60_000  # scheduled devices in all of these rounds
MAX_CHARACTERS = 6_000_000  # of all details


def _living(detail: RoundDetail, fleet: Fleet) -> dict[str, Any]:
    """Return what the world changed in a round.

    These are fates, who was away or low on charge, edges that failed, the timeline, positions and charges.
    """
    outlook, happens = detail.outlook, detail.timeline
    if not detail.deviates:
        return {}
    data: dict[str, Any] = {
        "fate": detail.devices["fate"].tolist(),
        "away": np.flatnonzero(~outlook.answers).tolist(),
        "low": np.flatnonzero(outlook.answers & ~outlook.available).tolist(),
        "down": np.flatnonzero(~happens.reached).tolist(),
        "wasted": happens.wasted_j,
    }
    if happens.updates is None:  # else the page shows the plan, and the turns of the asynchronous cloud
        data |= {
            "start": [charts.rounded(row) for row in happens.start_s],
            "until": [charts.rounded(row) for row in happens.iteration_end_s],
            "computed": [charts.rounded(row) for row in happens.computed_s],
            "end": [charts.rounded(row) for row in happens.end_s],
            "counts": happens.participates.astype(int).tolist(),
        }
        if happens.received_s is not None:
            data["received"] = [charts.rounded(row) for row in happens.received_s]
    if not np.array_equal(outlook.fleet.position_m, fleet.position_m):
        for axis, name in enumerate("xy"):
            data[name] = charts.rounded(outlook.fleet.position_m[:, axis], 4)
    if np.isfinite(outlook.battery_j).all():
        data["charge"] = charts.rounded(outlook.battery_j, 3)
    return data


# What the page draws over the rounds of a run in a living world.
OVER = {
    "wasted": metrics.ROUND_WASTED_J, "discarded": metrics.ROUND_DISCARDED, "away": metrics.ROUND_AWAY,
    "low": metrics.ROUND_LOW_BATTERY, "vanished": metrics.ROUND_VANISHED, "least": metrics.CHARGE_LEAST_J,
    "p10": metrics.CHARGE_LOW_J, "median": metrics.CHARGE_MEDIAN_J, "p90": metrics.CHARGE_HIGH_J,
    "idle": metrics.ROUND_EDGE_IDLE_S,
}  # fmt: skip


def _over(run: RunRecord) -> dict[str, list[Any]] | None:
    """Return what the page draws over the rounds of a run, with a value for each round; None if its world is off."""
    rounds = run.rounds
    if metrics.ROUND_WASTED_J not in rounds:
        return None
    drawn = {key: charts.rounded(rounds[name]) for key, name in OVER.items() if name in rounds}
    if metrics.ROUND_EDGES_DOWN in rounds:
        drawn["edges"] = charts.rounded(rounds[metrics.ROUND_EDGES_DOWN] + rounds[metrics.ROUND_EDGES_FAILED])
    return {"n": [int(number) for number in rounds["round"]], **drawn}


def _run_data(run: RunRecord, label: str, most: int) -> dict[str, Any]:
    """Return the data from which `explorer.js` draws the rounds of a run, of which it has at most `most`."""
    replay = Replay(run)
    fleet, is_shared = replay.fleet, replay.fleet.access.shared  # else nobody has a bandwidth
    numbers = replay.numbers
    if len(numbers) > most:
        numbers = [numbers[i] for i in np.unique(np.linspace(0, len(numbers) - 1, most).astype(int))]
    rounds, main = [], metrics.describe(run.main_metric)
    for number in numbers:
        detail = replay.round(number)
        table, row = detail.devices, run.rounds[run.rounds["round"] == number].iloc[0]
        rounds.append(
            _living(detail, fleet)
            | {
                "n": number,
                "score": main.text(row[main.name]) if np.isfinite(row.get(main.name, np.nan)) else None,
                "T": detail.cost.delay_s,
                "E": detail.cost.energy_j,
                "objective": detail.cost.objective,
                **{key: table[key].tolist() for key in ("device", "edge", "nearest", "strongest", "times")},
                "mhz": charts.rounded(table["bandwidth_hz"] / 1e6 if is_shared else table["device"] * np.nan, 4),
                "ghz": charts.rounded(table["cpu_hz"] / 1e9, 4),
                **({"download": charts.rounded(table["download_s"], 4)} if (table["download_s"] > 0).any() else {}),
                "compute": charts.rounded(table["compute_s"], 4),
                "upload": charts.rounded(table["upload_s"], 4),
                "joules": charts.rounded(table["joules"], 4),
                "late": table["device"][table["straggler"]].tolist(),
                "slowest": next(iter(np.flatnonzero(detail.edges["slowest"]).tolist()), -1),
                "ended": ended_by(detail, replay.names[1]),
                "dropped": int(np.nan_to_num(row.get(metrics.ROUND_DROPPED, 0.0))),
                "edgeT": charts.rounded(detail.edges["delay_s"], 4),
                "edgeE": charts.rounded(detail.edges["energy_j"], 4),
                "cloud": charts.rounded(detail.edges["cloud_s"], 4),
            }
        )
    assert run.devices is not None
    counts, (device_names, edge_names, class_names) = replay.class_counts.to_numpy(), replay.names
    config, side_m = run.config, run.config.fleet.area_km * 1e3
    allocated, stragglers = allocation_texts(config.allocation, fleet.access, fleet.compute)
    turns = charts.turns_of(
        (played.timeline, played.cost.delay_s) for played in map(replay.round, replay.numbers[:most])
    )
    return {
        "name": run.name,
        "label": label,
        "logged": len(replay.numbers),
        "joulesOf": joules_of(config),
        "metric": main.short,
        "scheduler": pretty(config.scheduling.name, run.labels),
        "assigner": pretty(config.assignment.name, run.labels),
        "allocated": allocated,
        "stragglers": stragglers,
        "deviceNames": device_names,
        "edgeNames": edge_names,
        "classNames": class_names,
        "side": side_m,
        "x": charts.rounded(fleet.position_m[:, 0], 4),
        "y": charts.rounded(fleet.position_m[:, 1], 4),
        "edgeX": charts.rounded(fleet.edge_position_m[:, 0], 4),
        "edgeY": charts.rounded(fleet.edge_position_m[:, 1], 4),
        "above": _above(fleet, side_m),
        "edgeMhz": charts.rounded(fleet.edge_bandwidth_hz / 1e6 if is_shared else np.full(fleet.num_edges, np.nan), 3),
        "samples": run.devices["samples"].tolist(),
        "cluster": run.devices["cluster"].tolist() if "cluster" in run.devices else None,
        "majority": counts.argmax(axis=1).tolist(),
        "counts": counts.T.tolist(),
        "rounds": rounds,
        "over": _over(run),
        "turns": turns,
        "reserve": config.world.battery.reserve_j,
    }


def _above(fleet: Fleet, side_m: float) -> dict[str, Any]:
    """Return what lies above the edges as the map draws it: lines, and the places and names of regions.

    Each line has its two ends and then null. Without a tree there is nothing, because each edge sends to the cloud.
    """
    tree, edges = fleet.tree, fleet.edge_position_m
    lines: list[tuple[Any, Any]] = []
    places: list[Any] = []
    if tree.regions is not None:
        places, cloud = list(tree.regions.position_m), np.full(2, side_m / 2)
        lines = [(edges[m], places[r]) for m, r in enumerate(tree.regions.parent)] + [(r, cloud) for r in places]
    if tree.graph is not None:
        lines = [(edges[m], edges[other]) for m, other in np.argwhere(np.triu(tree.graph.linked))]
    names = tree.regions.names if tree.regions is not None else None
    return {
        "x": charts.rounded((x for a, b in lines for x in (a[0], b[0], math.nan)), 4),
        "y": charts.rounded((y for a, b in lines for y in (a[1], b[1], math.nan)), 4),
        "nodeX": charts.rounded((place[0] for place in places), 4),
        "nodeY": charts.rounded((place[1] for place in places), 4),
        "names": [f"region {name}" for name in names or range(len(places))],
        "cloud": tree.graph is None,
    }


def _about(sweep: SweepRecord) -> list[str]:
    """Return phrases about the runs: their number and seeds, the time, the machine and the commits."""
    first = sweep.runs[0].history
    times = [(run.history.started_ms, run.history.ended_ms) for run in sweep.runs]
    begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(start for start, _ in times) / 1000))
    seeds = sorted({run.seed for run in sweep.runs})
    commits = sorted({run.commit for run in sweep.runs})
    facts = [
        f"{len(sweep.runs)} runs, {'seeds ' + ', '.join(map(str, seeds)) if len(seeds) > 1 else f'seed {seeds[0]}'}",
        f"begun {begun}",
        ", ".join(sorted({run.machine for run in sweep.runs})),
        f"hflray {first.environment.get('hflray', '?')}, commit {', '.join(commits)}",
        "some of it from a modified checkout" if any(run.modified for run in sweep.runs) else "",
        *(f"{part}: {text}" if part else text for part, text in sweep.parts.items()),
    ]
    return [fact for fact in facts if fact]


def _charts(sweep: SweepRecord) -> dict[str, Any]:
    """Return the groups, the settings to choose them, and where the sweep has them ``curves``, ``bars``, ``front``."""
    shown = sweep.shown
    bars = [charts.bars(sweep, row.name) for row in metrics.bars(shown.table)]
    return {
        "groups": charts.groups(sweep),
        "choices": charts.choices(sweep),
        "curves": charts.curves(sweep) if shown.curves else None,
        "bars": [bar for bar in bars if bar is not None],
        "front": charts.pareto(sweep) if shown.front else None,
    }


def render(sweep: SweepRecord, claims: TextTable | None = None) -> tuple[str, list[str]]:
    """Return the page, and notes on what it cannot show.

    Args:
        sweep: the runs.
        claims: the claims with our verdicts (`hflray.reproduction.judge.verdicts`); None if the sweep is no
            exhibit of the paper.
    """
    missing = list(sweep.notes)
    drawn = _charts(sweep)
    runs = _runs_data(sweep, missing) if sweep.shown.explorable else []
    package = files("hflray.report")
    names = ("page.css", "vendor/plotly-basic.min.js", "page.js", "living.js", "turns.js", "explorer.js")
    style, plotly, *scripts = ((package / name).read_text(encoding="utf-8") for name in names)
    text = pages.render(
        "hflray.report", sweep=sweep, about=_about(sweep), missing=missing, summary=summary(sweep),
        grouped=not has_readings(sweep), over=sweep.shown.repetitions, ranking=ranking(sweep),
        unranked=unranked(sweep), claims=claims, charts=drawn,
        explored=runs, data=drawn | {"runs": runs, "colours": COLOURS}, style=style, scripts=scripts, plotly=plotly,
    )  # fmt: skip
    return text, missing


def _rows(run: RunRecord) -> int:
    """Return how many rows a round's details are worth: one for each device, and a third for each of a timeline."""
    iterations = run.config.round_iterations if metrics.ROUND_WASTED_J in run.rounds else 0
    return int(run.config.scheduling.num_scheduled * (1 + iterations / 3))


def _runs_data(sweep: SweepRecord, missing: list[str]) -> list[dict[str, Any]]:
    """Return the data of the first seed of each group; add a note to `missing` for what cannot be shown."""
    firsts = {label: min(runs, key=lambda run: run.seed) for label, runs in sweep.groups().items()}
    scheduled = sum(_rows(run) for run in firsts.values())
    most = max(5, min(MAX_ROUNDS, MAX_ALL_ROUNDS // len(firsts), MAX_ROWS // scheduled))
    shown: list[dict[str, Any]] = []
    characters = 0
    if brief := sum(run.brief for run in firsts.values()):
        missing.append(f"{brief} of {len(firsts)} groups are from a brief export, which has no devices and schedules")
    for place, (label, run) in enumerate(firsts.items()):
        if run.brief:
            continue
        try:
            data = _run_data(run, f"{label}, seed {run.seed}" if label else run.name, most)
        except HflrayError as error:
            missing.append(str(error))
            continue
        characters += len(json.dumps(data))
        if characters > MAX_CHARACTERS:
            missing.append(f"this page has the rounds of {len(shown)} of {len(firsts)} groups; {EXPLAIN}")
            break
        shown.append(data | {"group": place})
    if any(len(data["rounds"]) < data["logged"] for data in shown):
        missing.append(f"this page has the details of at most {most} rounds of a run; {EXPLAIN}")
    return shown


def write(sweep: SweepRecord, folder: Path, claims: TextTable | None = None) -> tuple[Path, list[str]]:
    """Write ``index.html``; return its path, and notes on what it cannot show."""
    text, missing = render(sweep, claims)
    return write_file(folder / "index.html", text), missing
