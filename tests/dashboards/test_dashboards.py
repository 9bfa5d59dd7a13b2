"""dashboards/: the files match the metrics that hflray exports, and Prometheus accepts its configuration."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hflray.support import live_metrics

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "dashboards"
RAYS_OWN = {"ray_object_store_used_memory", "ray_object_store_available_memory", "ray_object_store_memory"}


def load() -> dict[str, Any]:
    return json.loads((DASHBOARDS / "grafana" / "hflray.json").read_text(encoding="utf-8"))


def queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the panel's title and the PromQL of every query, with the variables' values for "All"."""
    filled = []
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$window", "1m")
            for name in ("sweep", "trial"):
                expression = expression.replace(f"${name}", ".*")
            assert "$" not in expression, expression
            filled.append((panel["title"], expression))
    return filled


def metric_names(dashboard: dict[str, Any]) -> set[str]:
    texts = [expression for _, expression in queries(dashboard)]
    texts += [v["definition"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    return set(re.findall(r"\bray_\w+", " ".join(texts)))


def test_the_json_file_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make", DASHBOARDS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert make.TARGET.read_text(encoding="utf-8") == make.text(), "run: python dashboards/make.py"


def test_exactly_the_live_metrics_are_shown() -> None:
    assert metric_names(load()) == {metric.exported for metric in live_metrics.LIVE} | RAYS_OWN


def test_labels_in_queries_and_legends_are_exported() -> None:
    exported = {label for metric in live_metrics.LIVE for label in metric.labels} | {"NodeAddress"}
    for panel in load()["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            (by,) = re.findall(r"^(?:sum|max) by \(([\w, ]+)\)", target["expr"])
            assert shown <= set(by.split(", ")) <= exported


def test_panels_do_not_overlap_and_have_descriptions() -> None:
    panels = load()["panels"]
    cells = [
        (x, y)
        for box in (panel["gridPos"] for panel in panels)
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert all(panel["description"] for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_provisioning_leads_to_the_dashboard_and_prometheus() -> None:
    provisioning = DASHBOARDS / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "hflray.yml").read_text())["providers"]
    folder = Path(provider["options"]["path"].replace("$PWD", str(ROOT)))
    assert [path.name for path in folder.rglob("*.json")] == ["hflray.json"]


def test_every_panel_is_explained_in_the_readme() -> None:
    readme = (DASHBOARDS / "README.md").read_text(encoding="utf-8")
    assert [panel["title"] for panel in load()["panels"] if f"| {panel['title']} |" not in readme] == []


needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus on PATH (Debian: apt-get install prometheus)"
)


@needs_prometheus
def test_the_shipped_prometheus_configuration_is_valid() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool beside prometheus")
    done = subprocess.run([tool, "check", "config", DASHBOARDS / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
