"""`hflray.tune.plan`: the sweep file of a plan, and what is recommended of runs that have ended."""

from __future__ import annotations

from typing import Any

import pytest

from hflray import metrics
from hflray.errors import ConfigError
from hflray.support import pinned
from hflray.sweep import SweepFile, expand, load_sweep
from hflray.tracking.sink import Ending, Round
from hflray.tune.plan import SEARCHED, SEEDS, answer, plan_file, settings_of, table_of, write_plan
from hflray.tune.search import SEED, DrawnTrial
from tests.conftest import SMALL, refusal, refusals, says
from tests.tune import replay

H = "scheduling.num_scheduled"
INFINITE = float("inf")


def planned(
    *overrides: str, accuracy: float = 0.8, seconds: float | None = None, joules: float | None = None
) -> SweepFile:
    return plan_file(load_sweep(None, [*SMALL, *overrides]), [], accuracy, seconds, joules)[0]


def tried(file: SweepFile, *settings: tuple[int, list[tuple[float, float, float]]]) -> Any:
    """Return the settings of runs that take two rounds: of each H, the accuracy, seconds and joules of its seeds."""
    trials = []
    for scheduled, runs in settings:
        for seed, (accuracy, delay_s, energy_j) in enumerate(runs):
            last = {metrics.ACCURACY: accuracy, metrics.TOTAL_DELAY_S: delay_s, metrics.TOTAL_ENERGY_J: energy_j}
            first = {name: value / 2 for name, value in last.items()}
            if accuracy >= 0.8:
                last |= {
                    metrics.DELAY_TO_TARGET_S: delay_s,
                    metrics.ENERGY_TO_TARGET_J: energy_j,
                    metrics.ROUNDS_TO_TARGET: 2,
                }
            rounds = [Round(1, 0, first), Round(2, 0, last)]
            values = {H: scheduled, "clock.cloud": "synchronous", SEED: seed}
            trials.append(DrawnTrial(len(trials), f"t{len(trials)}", values, rounds, Ending("FINISHED"), None))
    trials.append(DrawnTrial(99, "begun", {H: 99, SEED: 0}, [Round(1, 0, {})], None, None))
    return settings_of(file, trials)


FAST, FRUGAL, MIDDLE = (
    (12, [(0.85, 10, 40), (0.9, 11, 50), (0.82, 9, 45)]),
    (2, [(0.85, 40, 5), (0.9, 44, 6), (0.82, 36, 4)]),
    (6, [(0.85, 20, 15), (0.9, 22, 16), (0.82, 18, 14)]),
)


@pytest.mark.parametrize(
    "limits, best",
    [
        ({"joules": 20}, 6), ({"joules": 60}, 12), ({"seconds": 25}, 6), ({"seconds": 60}, 2), ({}, 6),
        ({"seconds": 25, "joules": 20}, 6), ({"joules": 16}, 6), ({"joules": 15.9}, 2),
    ],
)  # fmt: skip
def test_the_recommended_setting_has_the_least_cost_of_those_whose_seeds_all_keep_to_the_limits(limits, best) -> None:
    order = tried(planned(**limits), FAST, FRUGAL, MIDDLE)
    assert (order[0].meets, order[0].values[H]) == (True, best)
    assert str(best) in table_of(order, "t").rows[0][0]


def test_what_was_given_up_is_told_beside_the_fastest_and_the_most_frugal() -> None:
    text = answer(tried(planned(joules=20), FAST, FRUGAL, MIDDLE))
    assert says(text, "H = 6", "20 s and 15 J", "100.0% more seconds than the fastest (H = 12", "66.7% fewer joules")
    assert says(text, "200.0% more joules than the most frugal (H = 2", "50.0% fewer seconds")
    assert says(answer(tried(planned(), FRUGAL)), "None that was tried is faster")


def test_nothing_meets_it_where_a_seed_misses_and_the_nearest_has_the_highest_accuracy_within_the_limits(
    tmp_path,
) -> None:
    file = planned(seconds=30)
    missed = (12, [(0.85, 10, 40), (0.79, 11, 50), (0.82, 9, 45)])
    order = tried(file, (2, [(0.9, 31, 5)] * 3), missed, (6, [(0.7, 20, 5)]))
    assert [one.values[H] for one in order] == [12, 6, 2]  # half of 0.9 is what H = 2 has within 30 s
    assert not any(one.meets for one in order)
    assert says(answer(order), "Nothing meets this", "within 30 s", "H = 12", "0.820", "2 of 3 seeds")
    (tmp_path / "recommended.yaml").write_text("of an earlier plan")
    assert [path.suffix for path in write_plan(file, order, tmp_path)] == [".png", ".svg"]
    assert not (tmp_path / "recommended.yaml").exists()


def test_the_recommended_file_runs_the_setting_with_the_seeds_of_the_plan(tmp_path) -> None:
    file = planned("seed=5")
    write_plan(file, tried(file, MIDDLE), tmp_path)
    trials = expand(load_sweep(tmp_path / "recommended.yaml"))
    assert [trial.config.seed for trial in trials] == [5, 6, 7]
    assert {trial.config.scheduling.num_scheduled for trial in trials} == {6}
    assert {trial.config.target_accuracy for trial in trials} == {0.8}
    assert len(trials) == SEEDS


def test_a_plan_searches_what_is_not_fixed_from_the_files_own_values_on() -> None:
    file = planned("clock.cloud={semi_synchronous: {period_s: 3}}", "cost.delay_weight=2", joules=9)
    assert [*file.sweep] == [*SEARCHED]
    first = expand(file)[0].config
    assert (first.scheduling.num_scheduled, first.cost.delay_weight) == (6, 2)
    assert first.clock.cloud.kind == "semi_synchronous"
    assert file.sweep["cost.delay_weight"].choice == [2, 0.2, 20]
    search, halving = file.tune.search, file.tune.early_stopping
    assert search is not None
    assert halving is not None
    assert (search.metric, search.seeds, halving.per) == (metrics.DELAY_TO_TARGET_S, 3, "cost")
    assert file.tune.stop == {metrics.TOTAL_ENERGY_J: 9}
    both = planned("cost.delay_weight=2", joules=9, seconds=8)
    assert both.tune.search is not None
    assert (both.tune.search.metric, both.tune.search.delay_weight) == (metrics.OBJECTIVE_TO_TARGET, 2)
    narrowed = load_sweep(None, [*SMALL, "sweep.assignment.name={grid: [random]}", "tune.samples=7"])
    file, ours = plan_file(narrowed, [H, "seed"], 0.8, None, None)
    assert file.sweep["assignment.name"].choice == ["random"]
    assert H not in file.sweep
    assert ours == {*SEARCHED} - {H, "assignment.name"}
    assert file.tune.samples == 7


@pytest.mark.parametrize("overrides, fixed, facts", refusals("tune/plan"))
def test_each_mistake_in_a_file_is_one_line(overrides, fixed, facts) -> None:
    with refusal(ConfigError, *facts):
        plan_file(load_sweep(None, [*SMALL, *overrides]), fixed, 0.8, None, None)
    with pytest.raises(ConfigError, match="no plan"):
        settings_of(load_sweep(None, SMALL), [])


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_without_a_limit_is_within_5_percent_of_the_grids_best_for_a_third_of_its_runs(seed) -> None:
    chosen, runs = replay.plan({}, seed)
    best = replay.best_of_grid({})
    assert chosen.meets
    assert 1 <= chosen.cost / best.cost <= 1.05
    assert runs < 0.4 * len(replay.grid()) == 0.4 * 144


@pytest.mark.slow
def test_the_page_has_the_measured_table() -> None:
    page = (replay.ROOT / "docs" / "howto" / "plan.md").read_text(encoding="utf-8")
    assert replay.table() in page


def test_a_scheduler_that_clusters_is_searched_only_if_the_file_names_it() -> None:
    settings = [text for text in SMALL if not text.startswith("scheduling.name")]
    file, _ = plan_file(load_sweep(None, settings), [], 0.8, None, None)
    assert file.sweep["scheduling.name"].choice == ["fedavg", "fastest", "energy_aware", "oort"]
    assert planned("scheduling.name=ikc").sweep["scheduling.name"].choice[0] == "ikc"


def test_what_is_set_within_a_setting_is_not_searched() -> None:
    name = "clock.cloud.asynchronous.buffer"
    file, _ = plan_file(load_sweep(None, [*SMALL, f"{name}=3"]), [name], 0.8, None, None)
    assert "clock.cloud" not in file.sweep


def test_the_recommended_file_has_the_files_that_it_names_beside_it(tmp_path, monkeypatch) -> None:
    (tmp_path / "own.py").write_text("def f1(outputs, targets):\n    return 0.5\n")
    (tmp_path / "devices.csv").write_text("device,max_cpu_ghz\n" + "".join(f"d{n},1\n" for n in range(12)))
    monkeypatch.chdir(tmp_path)
    file = planned("target.metric=own.py:f1", "fleet={name: table, num_edges: 2, options: {devices: devices.csv}}")
    monkeypatch.setattr(pinned, "_held", dict(pinned._held))
    (tmp_path / "plan").mkdir()
    paths = write_plan(file, tried(file, MIDDLE), tmp_path / "plan")
    assert {path.name for path in paths} >= {"recommended.yaml", "own.py", "devices.csv"}
    pinned._held.clear()  # as in another process
    monkeypatch.chdir(tmp_path.parent)
    (tmp_path / "devices.csv").unlink()
    assert {trial.config.fleet.num_devices for trial in expand(load_sweep(paths[0]))} == {12}
