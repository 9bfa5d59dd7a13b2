"""The view of a sweep that MLflow's page of runs opens: the sweep's runs only, and the charts that compare them.

MLflow 3.17 keeps a view as an experiment tag. The page lists it under "Views", and opens it for an address that names
its key. This file builds the key and the value of the tag without MLflow, and `hflray.tracking.mlflow.share_view`
stores them. The names inside the value are those of MLflow's page. They were read from its code and tried in a browser,
because MLflow does not document them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any
from urllib.parse import quote

from hflray import metrics

TAG = "mlflow.sharedViewState."  # the key of a view follows
LINES = 4  # charts of one metric
OURS = "hflray"  # the section that holds the charts
SEED = "seed"


def view_key(sweep: str) -> str:
    """Return the key of a sweep's view, which the tag and the address contain."""
    return f"hflray-{sweep}"


def view_url(experiment_id: str, sweep: str, base: str, shared: bool = True) -> str:
    """Return the address of MLflow's page of charts, with the sweep's runs only.

    If the view is not `shared`, the address has the filter itself, and the page chooses the charts. MLflow ignores a
    view for an address that has a filter as well.
    """
    page = f"{base}/#/experiments/{experiment_id}/runs?compareRunsMode=CHART&workflowType=machine_learning"
    if shared:
        return f"{page}&viewStateShareKey={quote(view_key(sweep), safe='')}"
    return f"{page}&searchFilter={quote(_filter(sweep), safe='')}"


def _filter(sweep: str) -> str:
    return f"tags.`hflray.sweep` = '{sweep}'"


def chart_metrics(table: metrics.Table, logged: Set[str]) -> list[str]:
    """Return the metrics that have a chart of their own: the first columns of the closing table that were logged.

    Where the task's closing table has no columns of its own, the bars of its report's page replace them.
    """
    columns = [row for row in metrics.rows(table, sorted(logged)) if row.short] or metrics.bars(table)
    names = [row.name for row in columns if row.name in logged]
    curves = [name for name in names if not _one_value(name)]
    return (curves or names)[:LINES]


def _one_value(name: str) -> bool:
    """Return whether a run logs the metric once, so that a line would be one point."""
    return metrics.describe(name).logged == "end"


def varying(keys: Sequence[str], params: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys among `keys` in which the runs with these `params` differ."""
    return [key for key in keys if len({run.get(key) for run in params}) > 1]


def view_state(
    sweep: str,
    keys: Sequence[str],
    table: metrics.Table,
    params: Sequence[Mapping[str, str]],
    logged: Set[str],
) -> dict[str, Any]:
    """Return the state of MLflow's page of runs for a sweep.

    Runs that differ in the seed only are grouped, so that the charts show their mean. MLflow draws no parallel
    coordinates of groups over settings that are words, so those settings are then left out of that chart.

    Args:
        sweep: the tag ``hflray.sweep`` of the runs.
        keys: the swept settings, as dotted keys.
        table: the table of `hflray.metrics` of the sweep's task.
        params: the parameters that each run logged.
        logged: the metrics that any run logged.
    """
    names = chart_metrics(table, logged)
    axes = varying(keys, params)
    groups = [key for key in axes if key != SEED]
    repeated = Counter(tuple(run.get(key) for key in groups) for run in params).most_common(1)
    grouped = bool(groups and repeated and repeated[0][1] > 1)
    if grouped:
        axes = [key for key in groups if all(_is_number(run.get(key)) for run in params)]
    charts = [_bar(name) if _one_value(name) else _line(name) for name in names]
    delays, energies = ([name for name in names if name.endswith(unit)] for unit in ("delay_s", "energy_j"))
    if delays and energies:
        charts.append(_scatter(delays[0], energies[0]))
    if len(axes) + len(names) > 1:
        charts.append(_parallel(axes, names[:2] if axes else names))
    return {
        "searchFilter": _filter(sweep),
        "orderByKey": "attributes.start_time",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [*(f"params.`{key}`" for key in axes), *(f"metrics.`{name}`" for name in names)],
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": charts,
        "compareRunSections": [_section(OURS, "This sweep", True), *_generated_sections(logged)],
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": _grouping(groups) if grouped else None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }


def tag_value(name: str, state: Mapping[str, Any], now_ms: int) -> str:
    """Return the value of a view's tag. MLflow lists the view under `name`."""
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()
    return json.dumps({"name": name, "createdAt": now_ms, "updatedAt": now_ms, "state": f"deflate;{packed}"})


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and float(text) == float(text)
    except ValueError:
        return False


def _grouping(keys: Sequence[str]) -> dict[str, Any]:
    return {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": key} for key in keys]}


def _generated_sections(logged: Set[str]) -> list[dict[str, Any]]:
    """Return the sections that the page would generate, closed; it discards ours if one of these is missing."""
    prefixes = sorted({name.rpartition("/")[0] for name in logged if "/" in name})
    names = [*prefixes, "Model metrics", "System metrics"]
    return [_section(f"section-{number}", name, False) for number, name in enumerate(names)]


def _section(key: str, name: str, ours: bool) -> dict[str, Any]:
    return {
        "uuid": key,
        "name": name,
        "display": ours,  # whether the section is open
        "isReordered": False,
        "deleted": False,
        "isGenerated": not ours,
    }


def _chart(kind: str, key: str, title: str, **settings: Any) -> dict[str, Any]:
    return {
        "uuid": f"{OURS}-{kind}-{key}".lower(),
        "type": kind,
        "runsCountToCompare": 100,
        "metricSectionId": OURS,
        "deleted": False,
        "isGenerated": False,
        "displayName": title,
        **settings,
    }


def _line(name: str) -> dict[str, Any]:
    """Return the chart of a metric over the rounds. MLflow 3.17 shows the metric's name as its title."""
    return _chart(
        "LINE", name, metrics.describe(name).axis,
        metricKey=name, selectedMetricKeys=[name], lineSmoothness=0, xAxisScaleType="linear", scaleType="linear",
        range={}, xAxisKey="step", selectedXAxisMetricKey="", yAxisKey="metric", yAxisExpressions=[],
        ignoreOutliers=False, useGlobalXaxisKey=True, useGlobalLineSmoothing=True,
    )  # fmt: skip


def _bar(name: str) -> dict[str, Any]:
    return _chart("BAR", name, metrics.describe(name).axis, metricKey=name, selectedMetricKeys=[name])


def _scatter(delay: str, energy: str) -> dict[str, Any]:
    x, y = ({"key": name, "type": "METRIC"} for name in (delay, energy))
    return _chart("SCATTER", "front", "Energy against delay", xaxis=x, yaxis=y)


def _parallel(params: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    chosen = {"selectedParams": list(params), "selectedMetrics": list(names)}
    return _chart("PARALLEL", "settings", "Settings and results", showAllRuns=True, **chosen)
