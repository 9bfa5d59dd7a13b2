"""The tables of a report: one row per group of runs that differ in the seed only; as markdown and as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.report.labels import hfel, marked
from hflray.report.runs import Run, Sweep
from hflray.report.series import STATISTICS


def spread(values: Sequence[float], form: str) -> str:
    """Mean and, of several values, standard deviation; a dash where there is none."""
    known = np.asarray([value for value in values if np.isfinite(value)])
    if not len(known):
        return "–"
    if len(known) == 1:
        return form.format(known[0])
    return f"{form.format(known.mean())} ± {form.format(known.std(ddof=1))}"


def _rows(sweep: Sweep, table: metrics.Table, length: str) -> pd.DataFrame:
    known = [row for row in metrics.rows(table) if row.heading]
    columns = [row for row in known if any(np.isfinite(run.last(row.name)) for run in sweep.runs)]
    rows = []
    for label, runs in sweep.groups().items():
        row = {"": marked(label or sweep.name, runs), "seeds": str(len(runs))}
        if length:
            ends = sorted({int(run.rounds["round"].iloc[-1]) for run in runs})
            row[length] = " to ".join(f"{end:,}" for end in dict.fromkeys((ends[0], ends[-1])))
            row[length] += "" if all(run.ended for run in runs) else " …"
        for column in columns:
            values = [run.last(column.name) * column.scale for run in runs]
            row[column.column] = spread(values, column.mean or column.format)
        rows.append(row)
    return pd.DataFrame(rows)


# The columns of an assignment study: the metric, what sums it up over the fleets, and how that is called.
ASSIGNMENT = (
    (metrics.ROUND_DELAY_S, "mean", "{}"),
    (metrics.ROUND_ENERGY_J, "mean", "{}"),
    (metrics.ROUND_OBJECTIVE, "mean", "{}"),
    (metrics.ROUND_OBJECTIVE, "median", "its median"),
    (metrics.ASSIGNMENT_GAP, "median", "{}: median"),
    (metrics.ASSIGNMENT_GAP, "mean", "mean"),
    (metrics.ASSIGNMENT_GAP, "p95", "p95"),
    (metrics.ASSIGNMENT_GAP, "worst", "worst"),
    (metrics.WALL_ASSIGN_S, "median", "{}: median"),
    (metrics.WALL_ASSIGN_S, "p95", "its p95"),
)
COUPLINGS = {"per_edge": "per edge", "joint": "joint"}


def _assignment(sweep: Sweep) -> pd.DataFrame:
    """A row per assigner; where it ran on several seeds or deployments: means over them ± standard deviation.

    The worst gap of several is the worst of all.
    """
    groups = sweep.groups()
    several = any(len(runs) > 1 for runs in groups.values())
    rows = []
    for label, runs in groups.items():
        coupling = COUPLINGS[runs[0].config.allocation.coupling]
        row = {"": marked(label or sweep.name, runs), "coupling": coupling}
        if several:
            row["deployments"] = str(len(runs))
        row["fleets"] = spread([len(run.rounds) for run in runs], "{:.0f}").split(" ")[0]
        row["fleets"] += "" if all(run.ended for run in runs) else " …"
        for metric, statistic, called in ASSIGNMENT:
            about, take = metrics.describe(metric), STATISTICS[statistic]
            values = [take(run.series(metric)) * about.scale for run in runs]
            heading = called.format(about.column)
            row[heading] = spread([max(values)] if statistic == "worst" else values, about.format)
        rows.append(row)
    return pd.DataFrame(rows)


REFERENCE = hfel(300)


def against(sweep: Sweep) -> pd.DataFrame | None:
    """Of an assignment study: each assigner's objective above HFEL-300's in percent, fleet by fleet.

    Runs are held against HFEL-300 with each edge's own deadline and all else equal, on the fleets that both have; None
    if there is no such run, or nothing to hold against it.
    """
    known = {_else(run): run for run in sweep.runs if _is_reference(run)} if sweep.shown.averaged else {}
    rows = []
    for label, runs in sweep.groups().items():
        pairs = [
            (run.series(metrics.ROUND_OBJECTIVE), known[_else(run)].series(metrics.ROUND_OBJECTIVE))
            for run in runs
            if _else(run) in known and not _is_reference(run)
        ]
        above = pd.concat([100 * (mine / theirs - 1).dropna() for mine, theirs in pairs]) if pairs else pd.Series()
        if not above.empty:
            values = (above.median(), above.mean(), above.quantile(0.95), above.max())
            names = (f"objective above {REFERENCE}'s, %: median", "mean", "p95", "worst")
            row = dict(zip(names, map("{:+.1f}".format, values), strict=True))
            rows.append({"": marked(label or sweep.name, runs), "fleets": f"{len(above)}"} | row)
    return pd.DataFrame(rows) if rows else None


def _is_reference(run: Run) -> bool:
    assignment = run.config.assignment
    standard = assignment.start in (None, "geographic") and not assignment.options
    exchanges = assignment.name == "hfel" and (assignment.transfers, assignment.exchanges) == (100, 300)
    return exchanges and standard and run.config.allocation.coupling == "per_edge"


def _else(run: Run) -> tuple[tuple[str, str], ...]:
    """All that is not the assigner's, and not how edges wait for each other."""
    return tuple(item for item in run.telling if not item[0].startswith(("assignment.", "allocation.")))


TABLES: dict[metrics.Table, Callable[[Sweep], pd.DataFrame]] = {
    "training": lambda sweep: _rows(sweep, "training", "rounds"),
    "clustering": lambda sweep: _rows(sweep, "clustering", ""),
    "assignment": _assignment,
    "learning": lambda sweep: _rows(sweep, "learning", "steps"),
}


def summary(sweep: Sweep) -> pd.DataFrame:
    """One row per group of runs, cells ready to be read: means over seeds ± standard deviation, "…": not ended."""
    return TABLES[sweep.shown.table](sweep)


def to_markdown(table: pd.DataFrame) -> str:
    """The table as markdown, numbers to the right."""
    lines = ["| " + " | ".join(table.columns) + " |", "|---" + "|--:" * (len(table.columns) - 1) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in table.itertuples(index=False)]
    return "\n".join(lines) + "\n"


# What pdfLaTeX has no letter for, among what our labels use.
SYMBOLS = {"±": r"$\pm$", "λ": r"$\lambda$", "α": r"$\alpha$", "ε": r"$\varepsilon$", "–": "--", "…": r"\dots{}"}


def to_latex(table: pd.DataFrame, caption: str) -> str:
    """The table as LaTeX with the package booktabs; whatever is special in LaTeX is escaped, in the caption as well."""
    style = table.style.format(escape="latex").format_index(escape="latex", axis="columns").hide(axis="index")
    text = style.to_latex(
        caption=_escaped(caption),
        column_format="l" + "r" * (len(table.columns) - 1),
        position_float="centering",
        hrules=True,
    )
    return "".join(SYMBOLS.get(letter, letter) for letter in text)


def _escaped(text: str) -> str:
    """A text escaped as the cells are; pandas escapes no captions."""
    cell = pd.DataFrame([[text]]).style.format(escape="latex").hide(axis="index").hide(axis="columns")
    return cell.to_string().rstrip("\n")


def write(sweep: Sweep, folder: Path) -> list[Path]:
    """Write the summary as ``summary.md`` and ``summary.tex``."""
    folder.mkdir(parents=True, exist_ok=True)
    table = summary(sweep)
    fleets = against(sweep)
    more = f"\n{to_markdown(fleets)}" if fleets is not None else ""
    texts = {"summary.md": to_markdown(table) + more, "summary.tex": to_latex(table, sweep.description or sweep.name)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
