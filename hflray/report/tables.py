"""The tables of a report: one row per group of runs that differ in the seed only; as markdown and as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.report.assignment import summary as assignment_summary
from hflray.report.runs import Run, Sweep


@dataclass(frozen=True)
class Column:
    """A column: heading with its unit, the glossary's name, how a number is written, and what it is multiplied by."""

    heading: str
    metric: str
    form: str = "{:,.1f}"
    scale: float = 1.0


TRAINING = (
    Column("accuracy, %", metrics.ACCURACY, "{:.1f}", 100.0),
    Column("rounds to target", metrics.ROUNDS_TO_TARGET, "{:.1f}"),
    Column("objective, J", metrics.TOTAL_OBJECTIVE),
    Column("delay T, s", metrics.TOTAL_DELAY_S),
    Column("energy E, J", metrics.TOTAL_ENERGY_J),
    Column("messages, MB", metrics.TOTAL_MESSAGE_BITS, "{:,.0f}", 1 / 8e6),
)
CLUSTERING = (
    Column("ARI", metrics.CLUSTERING_ARI, "{:.3f}"),
    Column("delay, s", metrics.CLUSTERING_DELAY_S, "{:,.2f}"),
    Column("energy, J", metrics.CLUSTERING_ENERGY_J, "{:,.2f}"),
)
LEARNING = (
    Column("return of 50 devices", metrics.ASSIGNER_RETURN, "{:.1f}"),
    Column("greedy return", metrics.ASSIGNER_GREEDY_RETURN, "{:.1f}"),
    Column("agreement, %", metrics.ASSIGNER_AGREEMENT, "{:.1f}", 100.0),
    Column("episodes", metrics.ASSIGNER_EPISODES, "{:,.0f}"),
)


def spread(values: Sequence[float], form: str) -> str:
    """Mean and, of several values, standard deviation; a dash where there is none."""
    known = np.asarray([value for value in values if np.isfinite(value)])
    if not len(known):
        return "–"
    if len(known) == 1:
        return form.format(known[0])
    return f"{form.format(known.mean())} ± {form.format(known.std(ddof=1))}"


def _rows(sweep: Sweep, columns: Sequence[Column], length: str) -> pd.DataFrame:
    shown = [column for column in columns if any(np.isfinite(run.last(column.metric)) for run in sweep.runs)]
    rows = []
    for label, runs in sweep.groups().items():
        row = {"": label or sweep.name, "seeds": str(len(runs))}
        if length:
            row[length] = spread([float(run.rounds["round"].iloc[-1]) for run in runs], "{:,.0f}").split(" ")[0]
            row[length] += "" if all(run.ended for run in runs) else " …"
        for column in shown:
            row[column.heading] = spread([run.last(column.metric) * column.scale for run in runs], column.form)
        rows.append(row)
    return pd.DataFrame(rows)


def _assignment(sweep: Sweep) -> pd.DataFrame:
    rows = assignment_summary({label: _fleets(runs) for label, runs in sweep.groups().items()})
    return pd.DataFrame(
        {
            "": rows.index,
            "fleets": [f"{count:.0f}" for count in rows["fleets"]],
            "T, s": rows["delay_s"].map("{:.1f}".format),
            "E, J": rows["energy_j"].map("{:.1f}".format),
            "objective, J": rows["objective"].map("{:.1f}".format),
            "median": rows["objective_median"].map("{:.1f}".format),
            "gap to bound, %": (100 * rows["gap_median"]).map("{:.1f}".format),
            "latency, ms": rows["latency_ms_median"].map("{:.2f}".format),
            "p95": rows["latency_ms_p95"].map("{:.2f}".format),
        }
    ).reset_index(drop=True)


def _fleets(runs: Sequence[Run]) -> pd.DataFrame:
    frame = pd.concat([run.rounds for run in runs], ignore_index=True)
    return frame if metrics.ASSIGNMENT_GAP in frame else frame.assign(**{metrics.ASSIGNMENT_GAP: np.nan})


BY_TASK: dict[str, Callable[[Sweep], pd.DataFrame]] = {
    "experiment": lambda sweep: _rows(sweep, TRAINING, "rounds"),
    "clustering": lambda sweep: _rows(sweep, CLUSTERING, ""),
    "assignment": _assignment,
    "train_assigner": lambda sweep: _rows(sweep, LEARNING, "steps"),
}


def summary(sweep: Sweep) -> pd.DataFrame:
    """One row per group of runs, cells ready to be read: means over seeds ± standard deviation, "…": not ended."""
    return BY_TASK[sweep.task](sweep)


def to_markdown(table: pd.DataFrame) -> str:
    """The table as markdown, numbers to the right."""
    lines = ["| " + " | ".join(table.columns) + " |", "|---" + "|--:" * (len(table.columns) - 1) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in table.itertuples(index=False)]
    return "\n".join(lines) + "\n"


ESCAPES = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "±": r"$\pm$", "λ": r"$\lambda$", "α": r"$\alpha$",
           "–": "--", "…": r"\dots"}  # fmt: skip


def to_latex(table: pd.DataFrame, caption: str) -> str:
    """The table as LaTeX with the package booktabs."""

    def tex(text: object) -> str:
        return "".join(ESCAPES.get(letter, letter) for letter in str(text))

    rows = [" & ".join(tex(cell) for cell in row) + r" \\" for row in table.itertuples(index=False)]
    head = " & ".join(tex(name) for name in table.columns) + r" \\"
    lines = [
        r"\begin{table}", r"\centering", rf"\caption{{{tex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"\toprule", head, r"\midrule", *rows,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def write(sweep: Sweep, folder: Path) -> list[Path]:
    """Write the summary as ``summary.md`` and ``summary.tex``."""
    folder.mkdir(parents=True, exist_ok=True)
    table = summary(sweep)
    texts = {"summary.md": to_markdown(table), "summary.tex": to_latex(table, sweep.description or sweep.name)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
