"""A round in words for a terminal: who was scheduled from where, who went to which edge, with what, at what cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hflray import metrics
from hflray.report.detail import Replay, Round
from hflray.report.labels import pretty
from hflray.report.runs import Run


def ordinal(rank: int, what: str) -> str:
    """``nearest``, ``2nd nearest``, ``3rd nearest``, ``4th nearest``."""
    return what if rank == 1 else f"{rank}{ {2: 'nd', 3: 'rd'}.get(rank, 'th') } {what}"


def _table(title: str, heads: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def sentences(run: Run, taken: Round) -> list[str]:
    """What happened and why, a line each."""
    config, table, edges = run.config, taken.devices, taken.edges
    row = run.rounds[run.rounds["round"] == taken.number].iloc[0]
    lines = [
        f"{run.name}, round {taken.number}: {len(table)} of {config.fleet.num_devices} devices at {len(edges)} edges"
    ]
    if metrics.ACCURACY in row and np.isfinite(row[metrics.ACCURACY]):
        accuracy, balance = (metrics.describe(name) for name in (metrics.ACCURACY, metrics.CLASS_BALANCE))
        even = balance.text(row.get(balance.name, np.nan))
        lines.append(f"accuracy {accuracy.text(row[accuracy.name])}, class balance {even}")
    weight = config.cost.delay_weight
    lines.append(
        f"T = {taken.cost.delay_s:,.2f} s, E = {taken.cost.energy_j:,.2f} J, "
        f"E + λT = {taken.cost.objective:,.2f} J with λ = {weight:g} J/s"
    )
    if (table["cluster"] >= 0).any():
        share = Counter(table["cluster"].tolist())
        text = ", ".join(f"{count} of cluster {cluster}" for cluster, count in sorted(share.items()))
        lines.append(f"scheduled by {pretty(config.scheduling.name)}: {text}")
    else:
        lines.append(f"scheduled by {pretty(config.scheduling.name)}, which knows no clusters")
    best = int((table["strongest"] == 1).sum())
    lines.append(
        f"assigned by {pretty(config.assignment.name)}: {best} of {len(table)} to the edge of their strongest link"
    )
    slow = edges.loc[edges["slowest"]].iloc[0]
    waited = f"device {slow['straggler']:.0f}" if slow["straggler"] >= 0 else "no device, only its hop to the cloud"
    lines.append(f"the round waited for edge {slow['edge']:.0f} ({slow['delay_s']:,.2f} s), and that edge for {waited}")
    return lines


def explain(run: Run, number: int) -> Group:
    """A round of a run for a terminal. Raises ConfigError: see `hflray.report.detail.Replay`."""
    taken = Replay(run).round(number)
    edges = _table("edges", ["edge", "devices", "delay s", "energy J", "cloud hop s", "straggler"])
    rows: Any = taken.edges
    for row in rows.itertuples():
        late = f"{row.straggler}" if row.straggler >= 0 else "–"
        edges.add_row(f"{row.edge}{' (slowest)' if row.slowest else ''}", f"{row.devices}", f"{row.delay_s:,.2f}",
                      f"{row.energy_j:,.3f}", f"{row.cloud_s:,.3f}", late)  # fmt: skip
    heads = ["device", "edge", "its", "cluster", "class", "times", "D", "MHz", "GHz", "compute s", "upload s", "J"]
    devices = _table(f"devices (seconds of one of {taken.edge_iterations} edge iterations, joules of all)", heads)
    rows = taken.devices.sort_values(["edge", "device"])
    for row in rows.itertuples():
        devices.add_row(
            f"{row.device}{' ⚑' if row.straggler else ''}", f"{row.edge}", ordinal(row.nearest, "nearest"),
            f"{row.cluster}" if row.cluster >= 0 else "–", f"{row.majority}", f"{row.times}", f"{row.samples}",
            f"{row.bandwidth_hz / 1e6:.3f}", f"{row.cpu_hz / 1e9:.3f}", f"{row.compute_s:.3f}", f"{row.upload_s:.3f}",
            f"{row.joules * taken.edge_iterations:.3f}", style="bold" if row.straggler else None,
        )  # fmt: skip
    legend = (
        "⚑ straggler: an edge's devices finish together; a second less would cost the most at this one. "
        "class: the majority class; times: how often it was scheduled so far."
    )
    return Group(*map(Text, sentences(run, taken)), edges, devices, Text(legend, style="dim"))
