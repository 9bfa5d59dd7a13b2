"""A round explained on a terminal: the scheduled devices, their clusters and edges, their resources and their costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.report.detail import Replay, Round, allocation_texts
from hflray.report.labels import pretty
from hflray.report.runs import Run
from hflray.support.terminal.tables import Table


def ordinal(rank: int, superlative: str) -> str:
    """Return ``nearest``, ``2nd nearest``, ``3rd nearest``, ``4th nearest`` for the ranks 1 to 4."""
    return superlative if rank == 1 else f"{rank}{ {2: 'nd', 3: 'rd'}.get(rank, 'th') } {superlative}"


def sentences(run: Run, detail: Round, names: tuple[list[str], list[str], list[str]]) -> list[str]:
    """Return lines that say what happened in the round and why; `names` are those of `Replay.names`."""
    config, table, edges = run.config, detail.devices, detail.edges
    row = run.rounds[run.rounds["round"] == detail.number].iloc[0]
    lines = [
        f"{run.name}, round {detail.number}: {len(table)} of {config.fleet.num_devices} devices at {len(edges)} edges"
    ]
    main, balance = (metrics.describe(name) for name in (run.main_metric, metrics.CLASS_BALANCE))
    if main.name in row and np.isfinite(row[main.name]):
        classes = balance.text(row.get(balance.name, np.nan))
        judged = row.get(metrics.on_validation(main.name), np.nan)
        judges = f" (on the validation part, which decides, {main.text(judged)})" if np.isfinite(judged) else ""
        lines.append(f"{main.short} {main.text(row[main.name])}{judges}, class balance {classes}")
    weight = config.cost.delay_weight
    lines.append(
        f"T = {detail.cost.delay_s:,.2f} s, E = {detail.cost.energy_j:,.2f} J, "
        f"E + λT = {detail.cost.objective:,.2f} J with λ = {weight:g} J/s"
    )
    if (table["cluster"] >= 0).any():
        counts = Counter(table["cluster"].tolist())
        text = ", ".join(f"{count} of cluster {cluster}" for cluster, count in sorted(counts.items()))
        lines.append(f"scheduled by {pretty(config.scheduling.name, run.labels)}: {text}")
    else:
        lines.append(f"scheduled by {pretty(config.scheduling.name, run.labels)}, which knows no clusters")
    best = int((table["strongest"] == 1).sum())
    lines.append(
        f"assigned by {pretty(config.assignment.name, run.labels)}: {best} of {len(table)} to the edge of their "
        "strongest link"
    )
    lines += inside(config, row, run.labels)
    if not len(table):
        lines.append(f"nobody was available, and the cloud waited for {detail.cost.delay_s:,.2f} s")
        return lines
    slow = edges.loc[edges["slowest"]].iloc[0]
    device_names, edge_names, _ = names
    late = int(slow["straggler"])
    waited = f"device {device_names[late]}" if late >= 0 else "no device, only its hop to the cloud"
    edge = edge_names[int(slow["edge"])]
    lines.append(f"the round waited for edge {edge} ({slow['delay_s']:,.2f} s), and that edge for {waited}")
    outlook = detail.outlook
    for count, words in (
        ((~outlook.answers).sum(), "devices did not answer"),
        ((outlook.answers & ~outlook.available).sum(), "devices were below their reserve of charge"),
        ((~outlook.edges_up).sum(), "edges did not work"),
    ):
        lines += [f"when the round was planned, {count} {words}"] if count else []
    rows: Any = table[table["fate"] != ""]
    lines += [f"device {device_names[row.device]} {row.fate}" for row in rows.itertuples()]
    return lines


def inside(config: ExperimentConfig, row: Any, labels: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return lines that name rule, aggregators and compressors, and what is sent; none where all are the defaults.

    Args:
        config: the run's configuration.
        row: the round's row of the table of rounds.
        labels: the user's own labels (`hflray.report.runs.Run`).
    """
    lines, aggregation, compression = [], config.aggregation, config.compression
    names = (config.training.rule, aggregation.edge, aggregation.cloud, compression.device, compression.edge)
    rule, edge, cloud, device, hop = (pretty(section.name, labels) for section in names)
    if [section.name for section in names] != ["sgd", "mean", "mean", "none", "none"]:
        lines.append(f"trained by {rule}, combined by {edge} at edges and by {cloud} at the cloud")
    if metrics.SENT[0] in row and np.isfinite(row[metrics.SENT[0]]):
        up, hop_up = (f"{row[name] / 1e3:,.1f} kbit" for name in metrics.SENT)
        lines.append(
            f"a device sends {up} in an edge iteration (compressor {device}), an edge {hop_up} (compressor {hop})"
        )
    if config.privacy.clip is not None and metrics.PRIVACY_EPSILON in row:
        epsilon = metrics.describe(metrics.PRIVACY_EPSILON).text(row[metrics.PRIVACY_EPSILON])
        lines.append(
            f"uploads have cost at most ε = {epsilon} for δ = {config.privacy.delta:g}; clustering and loss queries "
            "lie outside ε"
        )
    return lines


def explain(run: Run, number: int) -> Group:
    """Return the explanation of a round of a run. Raises ConfigError: see `hflray.report.detail.Replay`."""
    replay = Replay(run)
    detail, (device_names, edge_names, class_names) = replay.round(number), replay.names
    edges = Table("edges", ["edge", "devices", "delay s", "energy J", "cloud hop s", "straggler"])
    rows: Any = detail.edges
    for row in rows.itertuples():
        straggler = device_names[row.straggler] if row.straggler >= 0 else "–"
        name = f"{edge_names[row.edge]}{' (slowest)' if row.slowest else ''}"
        edges.add_row(
            name, f"{row.devices}", f"{row.delay_s:,.2f}", f"{row.energy_j:,.3f}", f"{row.cloud_s:,.3f}", straggler
        )
    heads = ["device", "edge", "nearest", "cluster", "class", "times", "D", "MHz", "GHz", "compute s", "upload s", "J"]
    numbers = f"seconds in one of {detail.edge_iterations} edge iterations, joules in all"
    if run.config.clock.edge.asynchronous is not None:
        numbers = "seconds and joules of a pass as planned"
    devices = Table(f"devices ({numbers})", heads)
    rows = detail.devices.sort_values(["edge", "device"])
    for row in rows.itertuples():
        devices.add_row(
            f"{device_names[row.device]}{' ⚑' if row.straggler else ''}", edge_names[row.edge],
            ordinal(row.nearest, "").strip() or "1st",
            f"{row.cluster}" if row.cluster >= 0 else "–", class_names[row.majority], f"{row.times}", f"{row.samples}",
            f"{row.bandwidth_hz / 1e6:.3f}", f"{row.cpu_hz / 1e9:.3f}", f"{row.compute_s:.3f}", f"{row.upload_s:.3f}",
            f"{row.joules * detail.edge_iterations:.3f}", bold=bool(row.straggler),
        )  # fmt: skip
    legend = (
        f"{' '.join(allocation_texts(run.config.allocation))} nearest says how near the edge is among all edges; class "
        "is the majority class; times is how often the device was scheduled so far."
    )
    return Group(*map(Text, sentences(run, detail, replay.names)), edges, devices, Text(legend, style="dim"))
