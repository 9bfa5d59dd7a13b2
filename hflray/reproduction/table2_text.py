"""The study of Table II's choices as text: the table of the ranking, its findings, and the section of RESULTS.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hflray.report.tables import to_markdown
from hflray.reproduction.table2_choices import DELAYS, ENERGIES, NEAR, PAPER, ROWS, Study, rank

_CPU = {"allocated": "the frequency as allocated", "max": "the highest frequency"}
COMMAND = "python -m hflray.report choices"


def _describe(row: Any) -> str:
    """Return a choice in words."""
    allocation = "least delay" if row["allocation"] == "least delay" else f"λ allocation billed at {_CPU[row['cpu']]}"
    iterations = "Q edge iterations" if row["iterations"] == "Q" else "one edge iteration"
    edge = "the nearest edge" if row["edge"] == "nearest" else "a random edge"
    return f"powers uniform in {_law(row)}, N_0 = −174 {row['noise']}, {edge}, {allocation}, {iterations}"


def _minimum(ranked: pd.DataFrame, column: str) -> Any:
    """Return the row with the smallest value of a column."""
    return ranked.iloc[int(np.argmin(ranked[column]))]


def _law(row: Any) -> str:
    return "dBm" if row["power"] == "dbm" else "watts"


def _triple(row: Any, statistic: str, numbers: Sequence[str]) -> str:
    values = [row[f"{statistic}/{number}"] for number in numbers]
    return "–" if np.isnan(values).any() else " / ".join(f"{x:,.1f}" if x < 10 else f"{x:,.0f}" for x in values)


def _numbers(row: Any, statistic: str) -> str:
    return f"{_triple(row, statistic, DELAYS)} s, {_triple(row, statistic, ENERGIES)} J"


def table(ranked: pd.DataFrame) -> pd.DataFrame:
    """Format the ranking; a cell with three numbers is IKC / VKC on Fashion-MNIST / VKC on CIFAR-10."""
    rows = [
        {
            "p_n uniform in": _law(row),
            "N_0 = −174": row["noise"],
            "edge": row["edge"],
            "allocation": row["allocation"],
            "f billed": row["cpu"],
            "iterations": row["iterations"],
            "delay, s: means": _triple(row, "mean", DELAYS),
            "medians": _triple(row, "median", DELAYS),
            "energy, J: means": _triple(row, "mean", ENERGIES),
            "medians ": _triple(row, "median", ENERGIES),
            "worst of the means": f"{row['mean/worst']:.0%}",
            "of the medians": f"{row['median/worst']:.0%}",
            "fleets with all six": f"{row['fleets/six']:.1%}",
            "with the delays": f"{row['fleets/delays']:.1%}",
            "their energies, J": _triple(row, "matching", ENERGIES),
        }
        for _, row in ranked.iterrows()
    ]
    return pd.DataFrame(rows)


def findings(study: Study, ranked: pd.DataFrame) -> list[str]:
    """Return the findings of the ranking, one or more sentences each."""
    nearest_edge = ranked[ranked["edge"] == "nearest"]
    lines = []
    for statistic in ("mean", "median"):
        best = _minimum(ranked, f"{statistic}/worst")
        if best[f"{statistic}/worst"] <= NEAR:
            lead = f"All six {statistic}s are within {NEAR:.0%} of the paper's by"
        else:
            lead = (
                f"No choice brings all six {statistic}s within {NEAR:.0%} of the paper's. "
                f"The closest is off by up to {best[f'{statistic}/worst']:.0%}:"
            )
        lines.append(f"{lead} {_describe(best)} ({_numbers(best, statistic)}).")
        if best["edge"] != "nearest":
            local = _minimum(nearest_edge, f"{statistic}/worst")
            lines.append(
                f"With every device at its nearest edge, the closest by {statistic}s is off by up to "
                f"{local[f'{statistic}/worst']:.0%}: {_describe(local)} ({_numbers(local, statistic)})."
            )
        delays = _minimum(ranked, f"{statistic}/worst_delay")
        lines.append(
            f"The {statistic}s of the three delays alone come within {delays[f'{statistic}/worst_delay']:.0%}: "
            f"{_describe(delays)} ({_numbers(delays, statistic)})."
        )
    commonest = ranked.iloc[int(np.argmax(ranked["fleets/six"]))]
    share = commonest["fleets/six"]
    if share:
        lines.append(
            f"On single fleets, all six numbers are within {NEAR:.0%} on at most {share:.1%} of the fleets: "
            f"{_describe(commonest)}."
        )
    else:
        lines.append(f"On single fleets, no choice brings all six numbers within {NEAR:.0%} on any fleet.")
    fleet, count = study.config.fleet, study.config.fleet.num_devices
    low, high = fleet.power_w_range
    if low < high:
        in_dbm, in_watt = (high - low) / np.log(high / low), (low + high) / 2  # means of the two laws, W
        power_w = " and ".join(f"{row.energy_j / row.delay_s:.1f}" for row in ROWS[1:])
        lines.append(
            f"The paper's VKC spends {power_w} J for each second of delay. {count} devices that send all the time "
            f"spend {count * in_dbm:.1f} J a second on average with powers uniform in dBm, and {count * in_watt:.1f} J "
            f"with powers uniform in watts. Computing at f^max adds {_computing_j(study):.1f} J an edge iteration."
        )
    return lines


def _computing_j(study: Study) -> float:
    """Return the expected energy (J) of all devices' computing in one edge iteration, by equation (5).

    Every device runs at f^max and has Fashion-MNIST's D_n.
    """
    fleet, local = study.config.fleet, study.config.training.local_iterations
    cycles, samples = np.mean(fleet.cycles_per_sample), np.mean(ROWS[1].samples)
    low, high = fleet.max_cpu_hz_range
    square = (low**2 + low * high + high**2) / 3  # the mean of f² for uniform f
    return float(fleet.num_devices * fleet.capacitance / 2 * local * square * cycles * samples)


def section(study: Study, source: str) -> str:
    """Return the section of RESULTS.md; `source` is the folder of the export, as the page names it."""
    ranked = rank(study.bills)
    command = " ".join([COMMAND, *(f"--set '{text}'" for text in study.overrides), f"--fleets {study.fleets}"])
    machine = study.environment.get("cpu", "an unknown machine")
    lines = [
        "## Table II by the choices that the paper leaves open", "",
        "```bash", f"{command} --export {source}", "```", "",
        f"* {len(ranked)} choices, each on the same {study.fleets} fleets; "
        f"on {machine}, {study.date}; commit {study.commit}",
        f"* the paper: {_paper(DELAYS)} s; {_paper(ENERGIES)} J (IKC / VKC on Fashion-MNIST / VKC on CIFAR-10)",
        "* the bill is that of Algorithm 2 on all devices, without a cloud hop and without any training; z and D_n are "
        "Table I's (IKC: 10 KB and Fashion-MNIST's D_n)",
        "* \"least delay\" is problem (27) with λ = 10⁹ J/s, where every device runs at f^max; \"nearest\" is the "
        "geographic assignment, by which we bill clustering; \"random\" is a random edge, because the paper says "
        "only that each device \"is assigned to an edge server\"",
        "* \"worst of the means\" is the largest of the six distances |ours / paper − 1|, by which the choices are "
        "ranked; \"of the medians\" is the same with medians",
        f"* \"fleets with all six\" and \"with the delays\" are the shares of the fleets on which all six numbers, or "
        f"the three delays, are within {NEAR:.0%}; the last column has the mean energies over the latter", "",
        *(f"* {line}" for line in findings(study, ranked)), "",
        to_markdown(table(ranked)).rstrip(),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _paper(numbers: Sequence[str]) -> str:
    return " / ".join(f"{PAPER[number]:,g}" for number in numbers)
