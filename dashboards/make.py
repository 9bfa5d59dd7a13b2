"""Write grafana/hflray.json: ``python dashboards/make.py``. A test checks that the file is current.

The names of the metrics come from `hflray.support.live_metrics.LIVE`. Only those of the object store are Ray's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hflray.support import live_metrics
from hflray.support.live_metrics import LiveMetric

TARGET = Path(__file__).parent / "grafana" / "hflray.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = '{sweep=~"$sweep", trial=~"$trial"}'
WIDTH, HEIGHT = 12, 8  # the size of a panel in cells of Grafana's grid, which is 24 cells wide


def last_value(metric: LiveMetric, *by: str) -> str:
    """Return the query of a gauge's last value within $window.

    Ray forgets a gauge after 20 s, and rounds may be further apart.
    """
    return f"max by (sweep, trial{''.join(f', {label}' for label in by)}) (last_over_time({metric.exported}{CHOSEN}[$window]))"  # noqa: E501


def rate(metric: LiveMetric, *by: str) -> str:
    """Return the query of a counter's increase per second over $window."""
    return f"sum by (sweep, trial{''.join(f', {label}' for label in by)}) (rate({metric.exported}{CHOSEN}[$window]))"


def store(selector: str) -> str:
    """Return the query of a gauge of Ray's object store, in the Ray sessions of the chosen sweeps."""
    return f"sum by (NodeAddress) ({selector} and on (SessionName) {live_metrics.ROUNDS.exported}{CHOSEN})"


def panel(
    title: str,
    description: str,
    unit: str,
    *queries: tuple[str, str],
    lowest: float | None = 0,
    highest: float | None = None,
    no_data: str | None = None,
) -> dict[str, Any]:
    """Return a time-series panel. `queries` are pairs of PromQL and legend; `nothing` is shown if there are no data."""
    defaults: dict[str, Any] = {
        "unit": unit,
        "custom": {"drawStyle": "line", "lineWidth": 2, "fillOpacity": 5, "showPoints": "never", "spanNulls": False},
    }
    limits = {"min": lowest, "max": highest, "noValue": no_data}
    defaults |= {key: value for key, value in limits.items() if value is not None}
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend, "range": True}
            for i, (expr, legend) in enumerate(queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


PANELS = (
    panel(
        "Rounds per second",
        "Global iterations finished per second of wall clock, over the chosen window.",
        "suffix: /s",
        (rate(live_metrics.ROUNDS), "{{trial}}"),
    ),
    panel(
        "Accuracy",
        "Accuracy of the global model on the test set after the last round.",
        "percentunit",
        (last_value(live_metrics.ACCURACY), "{{trial}}"),
        highest=1,
    ),
    panel(
        "Objective of a round",
        "Simulated E + λT of the last round, which scheduler and assigner minimise.",
        "none",
        (last_value(live_metrics.OBJECTIVE), "{{trial}}"),
        lowest=None,
    ),
    panel(
        "Samples per second and actor",
        "Samples through local training per second of wall clock. If actors differ much, the work is dealt unevenly "
        "or a machine is slower. The serial backend has only actor 0.",
        "suffix: /s",
        (rate(live_metrics.SAMPLES, "actor"), "{{trial}} actor {{actor}}"),
    ),
    panel(
        "Delay of each edge",
        "Simulated seconds of the last round; the highest line is the round's straggler. Only the first 100 edges "
        "are shown.",
        "s",
        (last_value(live_metrics.EDGE_DELAY, "edge"), "{{trial}} edge {{edge}}"),
    ),
    panel(
        "Energy of each edge",
        "Simulated joules of the last round. Only the first 100 edges are shown.",
        "joule",
        (last_value(live_metrics.EDGE_ENERGY, "edge"), "{{trial}} edge {{edge}}"),
    ),
    panel(
        "Device actors replaced",
        "Number since the start of the sweep. If an actor is lost, all actors of its trial are replaced and the round "
        "is repeated.",
        "none",
        (f"sum by (sweep, trial) ({live_metrics.RESTARTS.exported}{CHOSEN})", "{{trial}}"),
        no_data="none",
    ),
    panel(
        "Devices available",
        "Devices that a scheduler could choose when the last round was planned. A trial whose world is off has none.",
        "none",
        (last_value(live_metrics.AVAILABLE), "{{trial}}"),
        no_data="the world is off",
    ),
    panel(
        "Edges up",
        "Edges that worked when the last round was planned.",
        "none",
        (last_value(live_metrics.EDGES_UP), "{{trial}}"),
        no_data="the world is off",
    ),
    panel(
        "Discarded uploads",
        "Share of the last round's uploads that were begun and not combined, because they came too late or because the "
        "device or its edge vanished.",
        "percentunit",
        (last_value(live_metrics.DISCARDED), "{{trial}}"),
        highest=1,
        no_data="world and clock are off",
    ),
    panel(
        "Energy of discarded uploads",
        "Simulated joules that the last round's discarded uploads have cost.",
        "joule",
        (last_value(live_metrics.WASTED), "{{trial}}"),
        no_data="world and clock are off",
    ),
    panel(
        "Charge of the devices",
        "Least charge, 10th percentile, median and 90th percentile when the last round was planned.",
        "joule",
        (last_value(live_metrics.CHARGE, "quantile"), "{{trial}} quantile {{quantile}}"),
        no_data="no batteries",
    ),
    panel(
        "Devices low on charge",
        "Devices below their reserve of charge when the last round was planned.",
        "none",
        (last_value(live_metrics.LOW_BATTERY), "{{trial}}"),
        no_data="no batteries",
    ),
    panel(
        "Object store",
        "Ray's shared memory on each node: in use, free, and spilled to disk because the memory was full.",
        "bytes",
        (store("ray_object_store_used_memory"), "{{NodeAddress}} in use"),
        (store("ray_object_store_available_memory"), "{{NodeAddress}} free"),
        (store('ray_object_store_memory{Location="SPILLED"}'), "{{NodeAddress}} spilled"),
    ),
)


def selection_variable(name: str, selector: str) -> dict[str, Any]:
    """Return a variable that offers the values of a label."""
    query = f"label_values({selector}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": name,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def variables() -> list[dict[str, Any]]:
    """Return the variables that are chosen above the panels."""
    rounds = live_metrics.ROUNDS.exported
    windows = ("1m", "5m", "15m", "1h")
    return [
        {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "refresh": 1},
        selection_variable("sweep", rounds),
        selection_variable("trial", f'{rounds}{{sweep=~"$sweep"}}'),
        {
            "type": "custom",
            "name": "window",
            "label": "window (longer than a round)",
            "query": ",".join(windows),
            "options": [{"text": w, "value": w, "selected": w == "5m"} for w in windows],
            "current": {"text": "5m", "value": "5m", "selected": True},
        },
    ]


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's format."""
    panels = [
        {"id": i + 1, "gridPos": {"x": i % 2 * WIDTH, "y": i // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT}} | definition
        for i, definition in enumerate(PANELS)
    ]
    return {
        "uid": "hflray",
        "title": "hflray: a running sweep",
        "tags": ["hflray", "ray"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables()},
        "annotations": {"list": []},
        "panels": panels,
    }


def text() -> str:
    """Return the contents of grafana/hflray.json."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(TARGET)
