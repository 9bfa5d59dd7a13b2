"""What a calibration writes: tables of a fleet, all constants as JSON, a sweep file, and a page of residuals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hflray import __version__
from hflray.calibration.fit import Fit
from hflray.calibration.log import Log
from hflray.calibration.model import COMPUTING, SENDING, WATTS, Model, Routes, fit_model
from hflray.calibration.verdict import LEAST_ROWS, Verdict, judge, overall
from hflray.errors import ConfigError
from hflray.support import pages
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.files import write
from hflray.support.terminal.tables import MISSING, TextTable
from hflray.support.text import one_line

LINK = ("mbps", "latency_s")
NO_EDGE = "edge"  # the name of the only edge of a log without edges
LEAST_SAMPLE_S = 1e-12
LEAST_BYTE_S = 8e-12  # of a link whose seconds do not grow with its bytes: 1 Tbit/s
BITS_PER_HZ = 4.0  # of the fastest link: any bandwidth is right that reaches the rates, as measured access takes these
MOST_W, MOST_LATENCY_S = 1e6, 1e6  # that the tables of a fleet accept
MOST_LINKS = 1_000_000  # rows of links.csv
SHOWN_ROWS, SHOWN_POINTS = 200, 1500  # of a table, and of a chart of the page
WIDTH, HEIGHT, LEFT, BELOW, RIGHT = 560, 300, 64, 44, 24  # of a chart, px


@dataclass(frozen=True, eq=False)
class Calibration:
    """A log, its constants, verdicts and notes; `given_w` has the watts that the user gives, by column."""

    log: Log
    model: Model
    verdicts: list[Verdict]
    notes: list[str]
    given_w: dict[str, float]

    @property
    def answer(self) -> str:
        """The worst answer of all verdicts."""
        return overall(self.verdicts)

    @property
    def size(self) -> str:
        """How many rows and devices the log has, in words."""
        return f"{_counted(len(self.log), 'row')} of {_counted(len(self.log.devices), 'device')}"

    @property
    def lacking(self) -> list[str]:
        """The columns of watts that neither the log nor the user says."""
        return [column for name, (column, _) in WATTS.items()
                if name not in self.model.watts and column not in self.given_w]  # fmt: skip


def calibrate(log: Log, given_w: dict[str, float] | None = None) -> Calibration:
    """Return the constants of a log, with verdicts.

    Args:
        log: the log.
        given_w: ``compute_w`` and ``upload_w`` of all devices, W, where the log has no joules.

    Raises:
        ConfigError: no row has seconds of computing, or of sending; or watts are given beside joules.
    """
    for name in ("train_s", "send_s"):
        if not log.has(name):
            raise ConfigError(f"LOG, column {name}: no row has a number above 0; accepted: seconds; give them")
    model = fit_model(log, Routes.of(log))
    if not model.alone.rows.any():
        raise ConfigError("LOG, column bytes: no row has it beside send_s; accepted: what was sent; give it")
    for name in model.watts:
        if WATTS[name][0] in (given_w or {}):
            raise ConfigError(f"--{WATTS[name][0].replace('_', '-')}: got it with a log that has {name}; leave it out")
    made = Calibration(log, model, judge(log, model), [], given_w or {})
    return Calibration(log, model, made.verdicts, [*log.notes, *_notes(made)], made.given_w)


def _notes(made: Calibration) -> list[str]:
    log, model, notes = made.log, made.model, list[str]()
    few = np.bincount(log.device, minlength=len(log.devices)) < LEAST_ROWS
    named = [one_line(log.devices[n]) for n in np.flatnonzero(few)[:3]]
    if named:
        whose = f"{few.sum():,} of {_counted(len(few), 'device')}, such as {', '.join(named)},"
        notes.append(f"{whose} {'has' if few.sum() == 1 else 'have'} under {LEAST_ROWS} rows: untested")
    reasons = {
        "step_s": "its batch is constant, so that steps and samples are collinear",
        "fixed_s": "its work is constant", "seconds_per_sample": "it has no samples",
        "latency_s": "its bytes are constant",
    }  # fmt: skip
    for fitted, names in ((model.train, COMPUTING), (model.send, SENDING)):
        for k, name in enumerate(names):
            blind = (fitted.rows > 0) & ~fitted.apart[:, k]
            if name == "step_s" and not log.has("steps"):
                notes.append("step_s is 0 and not tested: the log's steps are all 0")
            elif name in reasons and blind.any():
                whose = "device" if fitted is model.train else "device and edge"
                text = f"{name} is 0 and not tested for {blind.sum():,} of {len(blind):,} ({whose})"
                notes.append(f"{text}: {reasons[name]}, or it has too few rows")
    steady = int(((model.send.values[:, 0] <= LEAST_BYTE_S) & (model.send.rows > 0)).sum())
    if steady:
        notes.append(
            f"send_s of {_counted(steady, 'link')} does not grow with bytes; the mbps is 1 Tbit/s, all else is latency"
        )
    whole = made.log.numbers["train_s"]
    whole = whole[np.isfinite(whole)]
    if (whole == np.round(whole)).all() and np.median(whole) >= 100:
        notes.append("train_s are whole numbers of 100 and more: check that they are seconds, not milliseconds")
    links = len(log.devices) * max(len(log.edges), 1) - len(model.links.device)
    if links:
        leaves_out = len(log.devices) * len(log.edges) > MOST_LINKS
        says = "leaves them out" if leaves_out else "says what their devices and edges take beside others"
        notes.append(f"{_counted(links, 'link')} without a row; links.csv {says}")
    fits = {"train_s": model.train, "send_s": model.alone, **model.watts}
    for name, fitted in fits.items():
        if empty := int((fitted.rows == 0).sum()):
            of = f"{empty:,} of {_counted(len(few), 'device')} {'has' if empty == 1 else 'have'}"
            notes.append(f"{of} no {name}: the tables say the median of the others")
    for column in made.lacking:
        joules = next(name for name, (watts, _) in WATTS.items() if watts == column)
        notes.append(
            f"the log has no {joules}, so that devices.csv lacks {column}, which measured physics needs; give --"
            f"{column.replace('_', '-')} or add the column"
        )
    return notes


def save(made: Calibration, folder: Path, source: str) -> list[Path]:
    """Write all files into a folder and return their paths; `source` is the name of the log."""
    log, model = made.log, made.model
    watts = {
        WATTS[name][0]: np.minimum(_filled(fitted.values[:, 0], fitted.rows), MOST_W)
        for name, fitted in model.watts.items()
    }
    watts |= {column: np.full(len(log.devices), value) for column, value in made.given_w.items()}
    order = [COMPUTING.index(name) for name in ("fixed_s", "step_s", "seconds_per_sample")]
    computing = {COMPUTING[k]: _filled(model.train.values[:, k], model.train.rows) for k in order}
    # The table's reader takes no 0 in this column.
    computing["seconds_per_sample"] = np.maximum(computing["seconds_per_sample"], LEAST_SAMPLE_S)
    edges = log.edges or (NO_EDGE,)
    device, edge = model.links.device, model.links.edge
    if len(log.devices) * len(edges) <= MOST_LINKS:
        device, edge = (index.ravel() for index in np.indices((len(log.devices), len(edges))))
    byte_s, latency_s = (_filled(values, np.isfinite(values)) for values in model.sending(device, edge))
    mbps = 8e-6 / np.maximum(byte_s, LEAST_BYTE_S)
    links: dict[str, Any] = {"device": [log.devices[n] for n in device], "edge": [edges[m] for m in edge], "mbps": mbps}
    texts = {
        "devices.csv": _csv({"device": log.devices, **computing, **watts}),
        "edges.csv": _csv({"edge": edges, "bandwidth_mhz": np.full(len(edges), mbps.max() / BITS_PER_HZ)}),
        "links.csv": _csv(links | {"latency_s": np.minimum(latency_s, MOST_LATENCY_S)}),
        "calibration.json": json.dumps(_content(made, source), ensure_ascii=False, allow_nan=False, indent=1) + "\n",
        "sweep.yaml": _sweep(made),
        "index.html": _page(made, source),
    }
    return [write(folder / name, text) for name, text in texts.items()]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _filled(values: FloatArray, rows: IntArray | BoolArray) -> FloatArray:
    """Return the values, with the median of the others where there are no rows."""
    return np.where(rows > 0, values, np.median(values[rows > 0]))


def _csv(columns: Mapping[str, Sequence[str] | FloatArray]) -> str:
    return pd.DataFrame(columns).to_csv(index=False, float_format="%.6g", lineterminator="\n")


def _constants(fitted: Fit, names: Sequence[str], n: int) -> dict[str, Any]:
    return {
        name: {
            "value": float(fitted.values[n, k]), "told_apart": bool(fitted.apart[n, k]),
            "interval_95": None if np.isnan(fitted.low[n, k]) else [fitted.low[n, k], _number(fitted.high[n, k])],
        }
        for k, name in enumerate(names)
    } | {"rows": int(fitted.rows[n]), "spread": _number(fitted.spread[n])}  # fmt: skip


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _content(made: Calibration, source: str) -> dict[str, Any]:
    log, model = made.log, made.model
    watts = [
        {WATTS[name][0]: _constants(fitted, ["value"], n)["value"] for name, fitted in model.watts.items()}
        for n in range(len(log.devices))
    ]
    edges = log.edges or (NO_EDGE,)
    sending = _as_rates(model.send)
    verdicts = [
        (verdict._asdict() | {"devices": [log.devices[n] for n in verdict.devices]}).items()
        for verdict in made.verdicts
    ]
    return {
        "hflray": __version__, "log": source, "rows": len(log), "answer": made.answer,
        "verdicts": [{k: _number(v) if isinstance(v, float) else v for k, v in items} for items in verdicts],
        "notes": made.notes, "given_w": made.given_w,
        "devices": [{"device": name, **_constants(model.train, COMPUTING, n), **watts[n]}
                    for n, name in enumerate(log.devices)],
        "links": [{"device": log.devices[n], "edge": edges[m], **_constants(sending, LINK, at)}
                  for at, (n, m) in enumerate(zip(model.links.device, model.links.edge, strict=True))],
    }  # fmt: skip


def _sweep(made: Calibration) -> str:
    log = made.log
    steps, batch, size = (
        float(np.nanmedian(np.where(np.isfinite(values), values, np.nan))) if np.isfinite(values).any() else 1.0
        for values in (log.numbers[name] for name in ("steps", "batch", "bytes"))
    )
    lacks = [f"# devices.csv lacks {column}: add this column (watts of each device) before you run this file.\n"
             for column in made.lacking]  # fmt: skip
    return f"""# A sweep on the devices and links of a log, written by hflray calibrate; docs/howto/real.md explains it.
#   hflray tune sweep.yaml --dry-run
{"".join(lacks)}name: calibrated
description: devices and links as a log measured them

experiment:
  max_rounds: 20
  fleet:
    name: table
    options: {{devices: devices.csv, edges: edges.csv, links: links.csv}}
  data: {{name: digits, partition: resampled}}   # put your own data here
  scheduling: {{name: fedavg, num_scheduled: {max(1, len(log.devices) // 2)}}}
  # The steps and the batch of an edge iteration, and the bytes of an upload, at the log's medians.
  training: {{local_iteration: step, local_iterations: {max(1, round(steps))}, batch_size: {max(1, round(batch))}}}
  cost:
    model_kb: {max(size, 1.0) / 1024:.6g}
    compute: {{name: measured}}
    access: {{name: measured}}

sweep:
  assignment.name: {{grid: [random, best_gain, local_search]}}
"""


def verdict_table(made: Calibration) -> TextTable:
    """Return the verdicts as a table."""
    table = TextTable("", ["held out", "of", "answer", "median error", "rank", "rows", "why"], align="lllrrrl")
    for verdict in made.verdicts:
        error, rank = ("–" if np.isnan(verdict.median_error) else f"{verdict.median_error:.1%}",
                       "–" if np.isnan(verdict.rank) else f"{verdict.rank:.2f}")  # fmt: skip
        table.add_row(
            verdict.kind, verdict.quantity, verdict.answer, error, rank, f"{verdict.rows:,}", one_line(verdict.reason)
        )
    return table


def constant_tables(made: Calibration, most: int) -> list[TextTable]:
    """Return the constants of devices and of links with intervals, at most so many rows of each."""
    log, model, edges = made.log, made.model, made.log.edges or (NO_EDGE,)
    tables = []
    names = [(one_line(name),) for name in log.devices]
    ends = zip(model.links.device, model.links.edge, strict=True)
    links = [(one_line(log.devices[n]), one_line(edges[m])) for n, m in ends]
    computing = [(model.train, COMPUTING), *((fitted, (WATTS[name][0],)) for name, fitted in model.watts.items())]
    for title, heads, rows, parts in (
        ("devices", ("device",), names, computing),
        ("links", ("device", "edge"), links, [(_as_rates(model.send), LINK)]),
    ):  # fmt: skip
        more = f"the first {most:,} of {len(rows):,} {title}; calibration.json has all" if len(rows) > most else ""
        headings = [*heads, "rows", *(name for _, columns in parts for name in columns)]
        table = TextTable(f"constants of {title}, with 95 % intervals", headings, align="l" * len(heads), caption=more)
        for n, cells in enumerate(rows[:most]):
            numbers = [_cell(f, n, k) for f, columns in parts for k in range(len(columns))]
            table.add_row(*cells, f"{parts[0][0].rows[n]:,}", *numbers)
        tables.append(table)
    return tables


def _as_rates(send: Fit) -> Fit:
    """Return the constants of links as `LINK`: Mbit/s in place of seconds per byte."""
    ends = (np.maximum(send.values[:, 0], LEAST_BYTE_S), np.maximum(send.high[:, 0], LEAST_BYTE_S), send.low[:, 0])
    with np.errstate(divide="ignore"):
        rates = [8e-6 / byte_s for byte_s in ends]
    seconds = (send.values[:, 1], send.low[:, 1], send.high[:, 1])
    values, low, high = (np.column_stack(pair) for pair in zip(rates, seconds, strict=True))
    return replace(send, values=values, low=low, high=high)


def _cell(fitted: Fit, n: int, k: int) -> str:
    if not fitted.apart[n, k]:
        return MISSING
    interval = "" if np.isnan(fitted.low[n, k]) else f" [{fitted.low[n, k]:.3g}, {fitted.high[n, k]:.3g}]"
    return f"{fitted.values[n, k]:.3g}{interval}"


def _page(made: Calibration, source: str) -> str:
    named = {n for verdict in made.verdicts for n in verdict.devices}
    of_rows = (range(len(made.log.devices)), made.model.links.device)
    marks = [{at for at, n in enumerate(devices) if n in named} for devices in of_rows]
    constants = list(zip(constant_tables(made, SHOWN_ROWS), marks, strict=True))
    return pages.render(
        "hflray.calibration", source=source, made=made, verdicts=verdict_table(made), constants=constants,
        charts=_charts(made), width=WIDTH, height=HEIGHT, left=LEFT, below=BELOW, right=RIGHT,
        style=(files("hflray.report") / "page.css").read_text(encoding="utf-8"),
    )  # fmt: skip


def _charts(made: Calibration) -> list[dict[str, Any]]:
    """Return two charts for each quantity: measured against predicted, and relative residuals over rounds."""
    log, drawn = made.log, []
    for name, predicted in made.model.predict(log).items():
        y, unit = log.numbers[name], f"({name[-1].upper() if name[-1] == 'j' else 's'})"
        rows = np.flatnonzero(np.isfinite(predicted) & (predicted > 0) & (y > 0))
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, SHOWN_POINTS).astype(int))]
        labels = [one_line(log.devices[log.device[n]]) for n in rows]
        x, y, rounds = np.log10(predicted[rows]), np.log10(y[rows]), log.numbers["round"][rows]
        tens = [(float(e), f"{10.0**e:g}") for e in range(int(np.floor(min(x.min(), y.min()))),
                                                         int(np.floor(max(x.max(), y.max()))) + 2)]  # fmt: skip
        at = np.unique(np.round(np.linspace(rounds.min(), max(rounds.max(), rounds.min() + 1), 5)))
        parts = [(v, f"{v:+.0%}") for v in (-1.0, -0.5, -0.1, 0.1, 0.5, 1.0)]
        diagonal, level = [(tens[n][0], tens[n][0]) for n in (0, -1)], [(at[0], 0.0), (at[-1], 0.0)]
        residual = 10 ** (y - x) - 1
        titles = [f"{label}: {part:+.0%}" for label, part in zip(labels, residual, strict=True)]
        drawn += [
            _chart(f"{name}: measured against predicted", f"predicted {unit}", f"measured {unit}",
                   (x, y), (tens, tens), diagonal, titles),
            _chart(f"{name}: residuals over rounds", "round", "measured / predicted − 1",
                   (rounds, residual), ([(v, f"{v:g}") for v in at], parts), level, titles),
        ]  # fmt: skip
    return drawn


def _chart(
    title: str, x_label: str, y_label: str, points: tuple[FloatArray, FloatArray],
    ticks: tuple[list[tuple[float, str]], list[tuple[float, str]]], line: list[tuple[float, float]], labels: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Return a chart whose places are pixels; its ends are the first and the last tick of each axis."""
    begins, sizes = (LEFT, HEIGHT - BELOW), (WIDTH - LEFT - RIGHT, 12 + BELOW - HEIGHT)

    def place(value: float, axis: int) -> float:
        first, last = ticks[axis][0][0], ticks[axis][-1][0]
        return round(begins[axis] + float((min(value, last) - first) / (last - first)) * sizes[axis], 1)

    return {
        "title": title, "x_label": x_label, "y_label": y_label,
        "points": [(place(a, 0), place(b, 1), label, b > ticks[1][-1][0])
                   for a, b, label in zip(*points, labels, strict=True)],
        "x_ticks": [(place(v, 0), text) for v, text in ticks[0]],
        "y_ticks": [(place(v, 1), text) for v, text in ticks[1]],
        "line": [place(v, axis) for point in line for axis, v in enumerate(point)],
    }  # fmt: skip
