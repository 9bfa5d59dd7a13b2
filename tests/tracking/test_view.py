"""hflray.tracking.view: the view that MLflow's page of runs opens for a sweep."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

from hflray import metrics
from hflray.tracking.view import TAG, chart_metrics, tag_value, varying, view_key, view_state, view_url

KEYS = ("scheduling.name", "scheduling.num_scheduled", "seed")
LOGGED = {*metrics.PER_ROUND, metrics.CLUSTERING_ARI, "edge/0/delay_s", "edge/10/delay_s"}


def runs(seeds: tuple[int, ...] = (0,), names: tuple[str, ...] = ("ikc", "fedavg")) -> list[dict[str, str]]:
    return [
        {"scheduling.name": name, "scheduling.num_scheduled": str(count), "seed": str(seed), "max_rounds": "5"}
        for name in names
        for count in (5, 10)
        for seed in seeds
    ]


def charts(state: dict) -> dict[str, list[str]]:
    """Return the keys of each chart by its type, in the charts' order."""
    drawn: dict[str, list[str]] = {}
    for chart in state["compareRunCharts"]:
        axes = [chart[axis]["key"] for axis in ("xaxis", "yaxis") if axis in chart]
        settings = [*chart.get("selectedParams", []), *chart.get("selectedMetrics", [])]
        drawn.setdefault(chart["type"], []).extend(settings or axes or [chart["metricKey"]])
    return drawn


def test_a_sweep_has_six_charts_in_one_open_section() -> None:
    state = view_state("s-1", KEYS, "training", runs(), LOGGED)
    assert charts(state) == {
        "LINE": ["accuracy", "total/objective", "total/delay_s", "total/energy_j"],
        "SCATTER": ["total/delay_s", "total/energy_j"],
        "PARALLEL": ["scheduling.name", "scheduling.num_scheduled", "accuracy", "total/objective"],
    }
    (section,) = (section for section in state["compareRunSections"] if section["display"])
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {section["uuid"]}
    assert len({chart["uuid"] for chart in state["compareRunCharts"]}) == 6
    assert state["searchFilter"] == "tags.`hflray.sweep` = 's-1'"
    assert state["selectedColumns"][:3] == [
        "params.`scheduling.name`",
        "params.`scheduling.num_scheduled`",
        "metrics.`accuracy`",
    ]


def test_the_sections_that_the_page_would_generate_are_listed_and_closed() -> None:
    sections = view_state("s-1", KEYS, "training", runs(), LOGGED)["compareRunSections"]
    closed = [section["name"] for section in sections if not section["display"]]
    prefixes = ["clustering", "edge/0", "edge/10", "round", "schedule", "total", "wall"]
    assert closed == [*prefixes, "Model metrics", "System metrics"]
    assert all(section["isGenerated"] for section in sections[1:])
    assert len({section["uuid"] for section in sections}) == len(sections)


def test_runs_that_differ_only_in_the_seed_are_grouped_by_what_differs() -> None:
    assert view_state("s-1", KEYS, "training", runs(), LOGGED)["groupBy"] is None
    state = view_state("s-1", KEYS, "training", runs(seeds=(0, 1)), LOGGED)
    assert [key["groupByData"] for key in state["groupBy"]["groupByKeys"]] == list(KEYS[:2])
    # MLflow draws no parallel coordinates of groups over words.
    assert charts(state)["PARALLEL"] == ["scheduling.num_scheduled", "accuracy", "total/objective"]
    words = view_state("s-1", KEYS[::2], "training", runs(seeds=(0, 1)), LOGGED)
    assert charts(words)["PARALLEL"] == charts(state)["LINE"]
    seeds = view_state("s-1", ["seed"], "training", runs(seeds=(0, 1), names=("ikc",))[:2], LOGGED)
    assert seeds["groupBy"] is None
    assert charts(seeds)["PARALLEL"][0] == "seed"


def test_a_setting_that_some_runs_lack_or_that_is_not_finite_is_no_number() -> None:
    params = [{"a": "1", "seed": "0"}, {"a": "None", "seed": "0"}, {"a": "1", "seed": "1"}, {"seed": "1"}]
    state = view_state("s-1", ["a", "seed"], "training", params, LOGGED)
    assert "a" not in charts(state)["PARALLEL"]
    nan = [run | {"a": run.get("a", "nan")} for run in params]
    assert "a" not in charts(view_state("s-1", ["a", "seed"], "training", nan, LOGGED))["PARALLEL"]
    assert varying(["a", "b"], params) == ["a"]


@pytest.mark.parametrize(
    "table, logged, names, kinds",
    [
        (
            "assignment",
            metrics.PER_ROUND,
            [metrics.ROUND_OBJECTIVE, metrics.ROUND_DELAY_S, metrics.ROUND_ENERGY_J, metrics.WALL_ASSIGN_S],
            ["LINE"] * 4 + ["SCATTER", "PARALLEL"],
        ),
        (
            "clustering",
            metrics.AT_THE_END,
            [metrics.CLUSTERING_ARI, metrics.CLUSTERING_DELAY_S, metrics.CLUSTERING_ENERGY_J],
            ["BAR"] * 3 + ["SCATTER", "PARALLEL"],
        ),
        (
            "learning",
            metrics.LEARNING,
            [
                metrics.ASSIGNER_RETURN,
                metrics.ASSIGNER_GREEDY_RETURN,
                metrics.ASSIGNER_AGREEMENT,
            ],
            ["LINE"] * 3 + ["PARALLEL"],
        ),
        ("training", [], [], ["PARALLEL"]),
    ],
)
def test_each_task_has_the_charts_of_its_table(table, logged, names, kinds) -> None:
    assert chart_metrics(table, set(logged)) == names
    state = view_state("s-1", KEYS, table, runs(), set(logged))
    assert [chart["type"] for chart in state["compareRunCharts"]] == kinds


def test_a_metric_of_the_users_own_has_the_first_chart() -> None:
    assert chart_metrics("training", {*LOGGED, "macro_f1"})[:2] == ["macro_f1", metrics.ACCURACY]


def test_the_tag_holds_the_state_and_fits_into_a_tag() -> None:
    logged = {*LOGGED, *(metrics.edge_metric(edge, "delay_s") for edge in range(40))}
    state = view_state("s-1", KEYS, "training", runs(seeds=tuple(range(15))), logged)
    value = tag_value("s-1", state, 7)
    assert len(value) < 5000
    view = json.loads(value)
    assert (view["name"], view["createdAt"], view["updatedAt"]) == ("s-1", 7, 7)
    kind, _, packed = view["state"].partition(";")
    assert kind == "deflate"
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == state


def test_the_address_names_the_view_or_filters_the_runs() -> None:
    page = "http://there:1/#/experiments/7/runs?compareRunsMode=CHART&workflowType=machine_learning"
    assert view_url("7", "s-1", "http://there:1") == f"{page}&viewStateShareKey=hflray-s-1"
    assert view_key("s-1") in view_url("7", "s-1", "http://there:1")
    plain = view_url("7", "s-1", "http://there:1", shared=False)
    assert plain == f"{page}&searchFilter=tags.%60hflray.sweep%60%20%3D%20%27s-1%27"
    assert TAG == "mlflow.sharedViewState."
