"""Each example of docs/seams.md runs in the place that the page names for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hflray import metrics, registry
from hflray.config import FleetConfig, load_config
from hflray.cost import Workload
from hflray.experiment import Experiment
from hflray.fleet import sample_fleet
from hflray.scheduling import choose_devices_and_edges
from hflray.sweep import tasks
from hflray.sweep.compare import Outcome, closing_table
from hflray.sweep.tasks import Job
from hflray.tracking.sink import Ending, Place, Round, Run
from tests.conftest import small_config
from tests.report import fabricated
from tests.scheduling import toy

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "seams.md").read_text(encoding="utf-8")


def block(title: str, language: str = "python") -> str:
    """Return the one block of code of the section `title`."""
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", section, flags=re.M | re.S)
    return code


def example(title: str) -> dict[str, Any]:
    """Run the Python block of the section `title` and return the names that it defines."""
    names: dict[str, Any] = {"__name__": "seams"}
    exec(block(title), names)
    return names


def test_every_section_has_an_example() -> None:
    titles = re.findall(r"^## (.*)$", TEXT, flags=re.M)
    assert titles == [
        *("A scheduler", "A scheduler that assigns", "An assigner", "A local rule", "An aggregator", "A compressor"),
        *("An observer", "An access, a computing, a download", "A task", "A sink", "A metric", "A figure"),
        "Larger changes",
    ]


def test_every_named_file_exists() -> None:
    new = {"carousel", "widest_edge", "leash", "midrange", "half", "nearest_edge", "line", "round_delays"}
    paths = re.findall(r"`((?:hflray|tests)/[\w/]+\.py)`", TEXT)
    assert len(paths) > 15
    for path in paths:
        assert (ROOT / path).exists() or Path(path).stem.removeprefix("test_") in new, path


def test_the_scheduler_takes_turns_and_keeps_its_state(monkeypatch) -> None:
    names = example("A scheduler")
    monkeypatch.setattr(registry, "resolve", lambda kind, name: names["Carousel"])
    scheduler = registry.build("scheduler", "carousel", num_devices=5, num_scheduled=3, clusters=None)
    rng = np.random.default_rng(0)
    assert [scheduler.schedule(rng).tolist() for _ in range(2)] == [[0, 1, 2], [0, 3, 4]]
    restored = registry.build("scheduler", "carousel", num_devices=5, num_scheduled=3, clusters=None)
    restored.load_state_dict(scheduler.state_dict())
    assert restored.schedule(rng).tolist() == [1, 2, 3]


def test_the_scheduler_that_assigns_takes_the_strongest_links() -> None:
    scheduler = example("A scheduler that assigns")["StrongestLinks"](num_devices=4, num_scheduled=2)
    context = toy.context(toy.fleet([[1e-9, 3e-9], [5e-9, 1e-9], [2e-9, 1e-9], [1e-9, 4e-9]]))
    devices, edges = choose_devices_and_edges(scheduler, context)
    assert (devices.tolist(), edges.tolist()) == ([1, 3], [0, 1])


def test_the_assigner_takes_the_widest_edge() -> None:
    fleet = sample_fleet(
        FleetConfig(num_devices=6, num_edges=3, edge_bandwidths_mhz=(1.0, 3.0, 2.0)), np.random.default_rng(0)
    )
    work = Workload(model_bits=1e6, local_iterations=1, edge_iterations=1, delay_weight=1.0)
    assigner = example("An assigner")["WidestEdge"]()
    assert assigner.assign(fleet, work, [0, 4, 5], np.random.default_rng(0)).tolist() == [1, 1, 1]


def test_the_rule_the_aggregator_and_the_compressor_train_and_are_billed(monkeypatch) -> None:
    parts = {
        ("local_rule", "leash"): example("A local rule")["Leash"],
        ("aggregator", "midrange"): example("An aggregator")["Midrange"],
        ("compressor", "half"): example("A compressor")["Half"],
    }
    for key, part in parts.items():
        monkeypatch.setitem(registry._ADDED, key, part)
    settings = {
        "": [],
        "leash": ["training.rule={name: leash, options: {mu: 0.5}}"],
        "midrange": ["aggregation.edge.name=midrange"],
        "half": ["compression.device.name=half"],
    }
    records = {
        name: Experiment(small_config("scheduling.name=round_robin", "max_rounds=1", *more)).run_round()
        for name, more in settings.items()
    }
    assert len({record.model_hash for record in records.values()}) == 4
    devices, edges = 6 * 2, 3
    half, whole = (records[name].cost.message_bits for name in ("half", ""))
    assert half / whole == pytest.approx((devices / 2 + edges) / (devices + edges))
    assert np.array_equal(parts["aggregator", "midrange"]().of_models(np.array([[0.0], [1.0], [5.0]]), None), [2.5])


def test_the_observer_ends_a_run_that_makes_no_progress(monkeypatch) -> None:
    monkeypatch.setitem(registry._ADDED, ("observer", "patience"), example("An observer")["Patience"])
    still = ("training.learning_rate=1e-12", "scheduling.name=round_robin", "max_rounds=9")
    records = list(Experiment(small_config("observers=[{name: patience, options: {rounds: 2}}]", *still)))
    assert [record.conditions["rounds_without_progress"] for record in records] == [0, 1, 2]


def test_the_tasks_bills_are_those_of_the_nearest_edges() -> None:
    task, study = example("A task")["NearestEdgeTask"](), tasks.find_task("assignment")
    size = ["max_rounds=2", "fleet.num_devices=12", "scheduling.num_scheduled=4"]
    config, geographic = load_config(None, size), load_config(None, [*size, "assignment.name=geographic"])
    bills = [
        [result.metrics[metrics.ROUND_OBJECTIVE] for result in kind.run(Job(kind.complete(settings)))]
        for kind, settings in ((task, config), (study, geographic))
    ]
    assert bills[0] == bills[1]
    assert len(bills[0]) == 2


def test_the_sink_has_each_round_once(tmp_path) -> None:
    sink = example("A sink")["LineSink"](Place("", "hflray", "mine", tmp_path))
    run = Run("trial", "trial")
    assert sink.open(run) == -1
    sink.rounds(run, [Round(1, 0, {metrics.ACCURACY: 0.5}), Round(2, 0, {metrics.ACCURACY: 0.6})])
    sink.end(run, Ending("FINISHED"))
    assert sink.open(run) == 2
    assert len((tmp_path / "lines.txt").read_text().splitlines()) == 2


def test_the_metric_gets_its_column(monkeypatch) -> None:
    (row,) = metrics.glossary(block("A metric", "toml")).values()
    monkeypatch.setitem(metrics.METRICS, name := row.name, row)
    outcome = Outcome("trial", round=1, values={metrics.ACCURACY: 0.5, name: 3.0}, ended=True)
    assert "edges" in closing_table("mine", [outcome]).headings


def test_the_figure_draws_the_runs() -> None:
    draw = example("A figure")["round_delays"]
    run = fabricated.run({metrics.ROUND_DELAY_S: [3.0, 2.0, 1.0]}, "max_rounds=3")
    (axes,) = draw(fabricated.sweep("mine", [run])).axes
    assert axes.lines[0].get_ydata().tolist() == [3.0, 2.0, 1.0]
