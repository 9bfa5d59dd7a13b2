"""Runs with another physics, downloads, limits or a tree: details follow again from the journal, and from an export."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hflray import metrics
from hflray.experiment.record import RoundRecord
from hflray.report import page
from hflray.report.detail import Replay, explain
from hflray.report.exports import export, read_export
from tests.report.kept import swept
from tests.support.terminal.rendering import render

FEW = ("max_rounds=2", "fleet.num_edges=3", "scheduling.name=fedavg", "assignment.name=load_balanced")
REGION = "tree.region={count: 2, iterations: 2, bandwidth_mhz: 5}"
SMALLER = "tree.region={count: 2, iterations: 2, compression: {name: sign}}"


def objectives(records: dict[str, list[RoundRecord]]) -> list[float]:
    """Return the objectives of the rounds of the only run."""
    (rounds,) = records.values()
    return [record.cost.objective for record in rounds]


UNICAST = "cost.download.name=unicast"
TABLE = "fleet={name: table, num_devices: 12, num_edges: 3, options: {devices: DIR/devices.csv, links: DIR/links.csv}}"


def tables(folder: Path) -> str:
    """Write tables of measured devices and links; return the setting that names them."""
    devices = ["device,step_s,compute_w,upload_w", *(f"d{i},{0.01 + i / 100},2,1.5" for i in range(12))]
    links = ["device,edge,mbps,latency_s", *(f"d{i},e{m},{1 + (i + m) % 4},0.1" for i in range(12) for m in range(3))]
    (folder / "devices.csv").write_text("\n".join(devices))
    (folder / "links.csv").write_text("\n".join(links))
    return TABLE.replace("DIR", str(folder))


@pytest.mark.parametrize(
    "overrides",
    [
        ("cost.access.name=tdma",), ("cost.access.name=tdma", "world.fading.name=rayleigh"),
        (UNICAST, "cost.model_kb=100"),
        ("cost.download.name=broadcast", "world.dropout.rate_per_s=0.05", "clock.edge.deadline_s=20"),
        (UNICAST, "clock.cloud={asynchronous: {}}"), (UNICAST, "clock.edge={asynchronous: {}}"),
        (UNICAST, "training.rule.name=scaffold"), ("allocation.limits={device_delay_s: 1, drop: true}",),
        ("cost.access.name=measured", "cost.compute.name=measured", "tables"),
        (REGION,), (SMALLER, "compression.edge={name: top_k, options: {share: 0.2}}"),
        (SMALLER, "world.compute_jitter.sigma=0.4"), ("tree.gossip={graph: complete}",),
        ("tree.gossip={graph: path}", "world.edge_failure={mtbf_s: 6, mttr_s: 3}", "cost.model_kb=100"),
    ],
)  # fmt: skip
def test_rounds_follow_again_from_the_journal(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    chosen = [tables(tmp_path) if override == "tables" else override for override in overrides]
    sweep, records = swept(tmp_path, *FEW, *chosen)
    expected = objectives(records)
    for again in (sweep, read_export(export(sweep, tmp_path / "export"))):
        replay = Replay(again.runs[0])
        details = [replay.round(number) for number in replay.numbers]
        np.testing.assert_allclose([detail.cost.objective for detail in details], expected, rtol=1e-9)
    table = details[0].devices
    assert (table["download_s"] > 0).any() == any("download" in override for override in overrides)
    assert page.render(sweep)[1] == []
    text = render(explain(sweep.runs[0], 1), 200)
    assert ("download s" in text) == any("download" in override for override in overrides)
    downloads = re.search(r"downloads: ([\d.]+) s, ([\d.]+) J of the edges", text)
    assert (downloads is not None) == ("download s" in text)
    if downloads is not None:
        row = sweep.runs[0].rounds.iloc[0]
        logged = row[metrics.ROUND_DOWNLOAD_S], row[metrics.ROUND_DOWNLOAD_J]
        assert [float(value) for value in downloads.groups()] == pytest.approx(logged, abs=0.006)
    shown = page._run_data(sweep.runs[0], "", 1)  # nobody has a bandwidth where nothing is shared
    assert (None in shown["rounds"][0]["mhz"]) == (None in shown["edgeMhz"]) == ("tables" in overrides)
    assert ("finish together" in text) == ("tables" not in overrides)
    if "tables" in overrides:
        assert "take nothing from one another, and nothing of the computing is chosen" in " ".join(text.split())


def test_devices_that_limits_leave_out_are_counted(tmp_path: Path) -> None:
    sweep, records = swept(tmp_path, *FEW, "allocation.limits={device_delay_s: 0.001, drop: true}")
    rounds = sweep.runs[0].rounds
    assert rounds[metrics.ROUND_DROPPED].tolist() == [6, 6]
    assert [len(devices) for devices in rounds["devices"]] == [0, 0]
    assert objectives(records) == [60.0, 60.0]  # the cloud waits for world.wait_s
    text = render(explain(sweep.runs[0], 1), 200)
    assert "6 devices were left out, which could not stay within 0.001 s in a round" in text
    assert "nobody was left, and the cloud waited for 60.00 s" in text


def test_runs_of_two_trees_are_two_groups(tmp_path: Path) -> None:
    sweep, _ = swept(tmp_path, *FEW, "sweep={tree.region: {grid: [null, {count: 2}, {count: 2, iterations: 2}]}}")
    labels = list(sweep.groups())
    assert len(labels) == len(set(labels)) == 3
    assert any("2 regions, iterations 2" in label for label in labels)
    assert len({run.identity for run in sweep.runs}) == 3
