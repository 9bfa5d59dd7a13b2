"""The study of Table II's choices as text: a table of the ranking, what it says, and the section of RESULTS.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hflray.report.choices import DELAYS, ENERGIES, NEAR, PAPER, ROWS, Study, rank
from hflray.report.tables import to_markdown

_CPU = {"allocated": "the frequency as allocated", "max": "the highest frequency"}
COMMAND = "python -m hflray.report choices"


def _said(row: Any) -> str:
    """A choice in words."""
    way = "least delay" if row["allocation"] == "least delay" else f"λ allocation billed at {_CPU[row['cpu']]}"
    count = "Q edge iterations" if row["iterations"] == "Q" else "one edge iteration"
    edge = "the nearest edge" if row["edge"] == "nearest" else "a random edge"
    return f"powers uniform in {_law(row)}, N_0 = −174 {row['noise']}, {edge}, {way}, {count}"


def _least(ranked: pd.DataFrame, column: str) -> Any:
    """The row with the smallest value of a column."""
    return ranked.iloc[int(np.argmin(ranked[column]))]


def _law(row: Any) -> str:
    return "dBm" if row["power"] == "dbm" else "watts"


def _three(row: Any, statistic: str, numbers: Sequence[str]) -> str:
    values = [row[f"{statistic}/{number}"] for number in numbers]
    return "–" if np.isnan(values).any() else " / ".join(f"{x:,.1f}" if x < 10 else f"{x:,.0f}" for x in values)


def _numbers(row: Any, statistic: str) -> str:
    return f"{_three(row, statistic, DELAYS)} s, {_three(row, statistic, ENERGIES)} J"


def table(ranked: pd.DataFrame) -> pd.DataFrame:
    """The ranking, ready to be read: a cell of three is IKC / VKC on Fashion-MNIST / VKC on CIFAR-10."""
    rows = [
        {
            "p_n uniform in": _law(row),
            "N_0 = −174": row["noise"],
            "edge": row["edge"],
            "allocation": row["allocation"],
            "f billed": row["cpu"],
            "iterations": row["iterations"],
            "delay, s: means": _three(row, "mean", DELAYS),
            "medians": _three(row, "median", DELAYS),
            "energy, J: means": _three(row, "mean", ENERGIES),
            "medians ": _three(row, "median", ENERGIES),
            "worst of the means": f"{row['mean/worst']:.0%}",
            "of the medians": f"{row['median/worst']:.0%}",
            "fleets with all six": f"{row['fleets/six']:.1%}",
            "with the delays": f"{row['fleets/delays']:.1%}",
            "their energies, J": _three(row, "matching", ENERGIES),
        }
        for _, row in ranked.iterrows()
    ]
    return pd.DataFrame(rows)


def findings(study: Study, ranked: pd.DataFrame) -> list[str]:
    """What the ranking says, in sentences."""
    near = ranked[ranked["edge"] == "nearest"]
    lines = []
    for statistic in ("mean", "median"):
        best = _least(ranked, f"{statistic}/worst")
        if best[f"{statistic}/worst"] <= NEAR:
            lead = f"All six {statistic}s are within {NEAR:.0%} of the paper's by"
        else:
            lead = (
                f"No choice brings all six {statistic}s within {NEAR:.0%} of the paper's. "
                f"The nearest is off by up to {best[f'{statistic}/worst']:.0%}:"
            )
        lines.append(f"{lead} {_said(best)} ({_numbers(best, statistic)}).")
        if best["edge"] != "nearest":
            local = _least(near, f"{statistic}/worst")
            lines.append(
                f"With every device at its nearest edge, the nearest by {statistic}s is off by up to "
                f"{local[f'{statistic}/worst']:.0%}: {_said(local)} ({_numbers(local, statistic)})."
            )
        timely = _least(ranked, f"{statistic}/worst_delay")
        lines.append(
            f"The {statistic}s of the three delays alone come within {timely[f'{statistic}/worst_delay']:.0%}: "
            f"{_said(timely)} ({_numbers(timely, statistic)})."
        )
    most = ranked.iloc[int(np.argmax(ranked["fleets/six"]))]
    share = most["fleets/six"]
    if share:
        lines.append(f"Single fleets: all six are within {NEAR:.0%} on {share:.1%} of them at most: {_said(most)}.")
    else:
        lines.append(f"Single fleets: by no choice are all six within {NEAR:.0%} on any of them.")
    fleet, count = study.config.fleet, study.config.fleet.num_devices
    low, high = fleet.power_w_range
    if low < high:
        in_dbm, in_watt = (high - low) / np.log(high / low), (low + high) / 2  # means of the two laws, W
        spent = " and ".join(f"{row.energy_j / row.delay_s:.1f}" for row in ROWS[1:])
        lines.append(
            f"The paper's VKC spends {spent} J for each second of delay. {count} devices that send all the time "
            f"spend {count * in_dbm:.1f} J a second on average with powers uniform in dBm, and {count * in_watt:.1f} J "
            f"with powers uniform in watts. Computing at f^max adds {_computing_j(study):.1f} J an edge iteration."
        )
    return lines


def _computing_j(study: Study) -> float:
    """Expected energy of all devices' computing at f^max, one edge iteration, Fashion-MNIST's D_n, equation (5), J."""
    fleet, local = study.config.fleet, study.config.training.local_iterations
    cycles, samples = np.mean(fleet.cycles_per_sample), np.mean(ROWS[1].samples)
    low, high = fleet.max_cpu_hz_range
    square = (low**2 + low * high + high**2) / 3  # mean of f² where f is uniform
    return float(fleet.num_devices * fleet.capacitance / 2 * local * square * cycles * samples)


def section(study: Study, source: str) -> str:
    """The section of RESULTS.md; `source` is where the export is, as the page calls it."""
    ranked = rank(study.bills)
    command = " ".join([COMMAND, *(f"--set '{text}'" for text in study.overrides), f"--fleets {study.fleets}"])
    around = study.environment
    lines = [
        "## Table II by the choices that the paper leaves open", "",
        "```bash", f"{command} --export {source}", "```", "",
        f"* {len(ranked)} choices, each on the same {study.fleets} fleets; "
        f"on {around.get('cpu', 'an unknown machine')}, {study.date}; commit {study.commit}",
        f"* the paper: {_paper(DELAYS)} s; {_paper(ENERGIES)} J (IKC / VKC on Fashion-MNIST / VKC on CIFAR-10)",
        "* billed is Algorithm 2 on all devices, without a cloud hop and without training anything; z and D_n are "
        "Table I's (IKC: 10 KB and Fashion-MNIST's D_n)",
        "* least delay: problem (27) with λ = 10⁹ J/s, where every device runs at f^max; nearest edge: the "
        "geographic assignment, as we bill clustering; random edge: the paper says "
        "only that each device \"is assigned to an edge server\"",
        "* worst: the largest of the six distances |ours / paper − 1|; the choices are ranked by that of their means",
        f"* fleets with the delays: the share on which all three are within {NEAR:.0%}; the last column has the mean "
        "energies of those fleets", "",
        *(f"* {line}" for line in findings(study, ranked)), "",
        to_markdown(table(ranked)).rstrip(),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _paper(numbers: Sequence[str]) -> str:
    return " / ".join(f"{PAPER[number]:,g}" for number in numbers)
