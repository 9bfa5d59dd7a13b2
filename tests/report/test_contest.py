"""hflray.report.contest: ratios, intervals and tests by hand, what makes a case, and what is never pooled."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from scipy.stats import t as student

from hflray import metrics
from hflray.errors import ConfigError
from hflray.report import contest as module
from hflray.report import figures
from hflray.report.contest import Comparison, Contest, contest, read, write
from hflray.report.exports import export, read_exhibit
from hflray.report.ranking import compare, fields
from hflray.report.runs import RunRecord
from hflray.support.pairs import signed_rank_p
from hflray.support.text import as_chart_text
from tests.conftest import refusal, says
from tests.hostile import NAMES
from tests.report import fabricated
from tests.report.test_ranking import to_target

RESULTS = Path("tests/data/results")
ACCURATE = {"ikc": (0.90, 0.91, 0.92), "fedavg": (0.89, 0.91, 0.89)}


def of(
    runs: list[RunRecord], against: str | None = None, metric: str | None = None, **more: list[RunRecord]
) -> Contest:
    """Return the contest of a sweep called ``first``, and of `more` sweeps."""
    sweeps = {name: fabricated.sweep(name, each) for name, each in {"first": runs, **more}.items()}
    return contest(sweeps, against, metric)


def only(result: Contest) -> Comparison:
    (row,) = result.rows
    return row


def accurate(name: str, seed: int, value: float, *more: str) -> RunRecord:
    return fabricated.run({metrics.ACCURACY: [0.1, value]}, f"scheduling.name={name}", f"seed={seed}", *more)


def refused(*words: str, **case: object) -> None:
    with refusal(ConfigError, *words):
        of(**case)


def test_a_ratio_is_the_geometric_mean_with_students_interval() -> None:
    """Of the ratios 2, 4 and 8 the logarithms are 1, 2 and 3 times ln 2, and t of two degrees of freedom is 4.3027."""
    runs = [to_target("ikc", 3, seed) for seed in range(3)] + [to_target("oort", 3 * 2 ** (1 + s), s) for s in range(3)]
    row = only(of(runs, "ikc", "joules"))
    half = 4.302653 * np.log(2) / np.sqrt(3)
    assert row.numbers == pytest.approx((4, 4 * np.exp(-half), 4 * np.exp(half)), rel=1e-6)
    assert (row.tidy["scale"], row.tidy["seeds"], row.tidy["n"]) == ("ratio", "0 1 2", 3)
    assert (row.tidy["p"], row.tidy["least_p"]) == (pytest.approx(2 / 8), 2 / 8)
    assert np.isnan(row.p_holm)
    assert row.test == "3 seeds cannot give p < 0.05"
    assert row.texts["estimate"] == "× 4.00"
    assert only(of(runs, "oort", "joules")).numbers[0] == pytest.approx(1 / 4)
    assert only(of(runs[1:], "ikc", "joules")).seeds == [1, 2]


def test_accuracies_are_compared_in_points_and_one_seed_has_no_interval() -> None:
    runs = [accurate(name, seed, value) for name, values in ACCURATE.items() for seed, value in enumerate(values)]
    row = only(of(runs, "ikc", metrics.ACCURACY))
    half = student.ppf(0.975, 2) * np.std([-1, 0, -3], ddof=1) / np.sqrt(3)
    assert row.numbers == pytest.approx((-4 / 3, -4 / 3 - half, -4 / 3 + half))
    assert row.texts["estimate"] == "-1.33 points"
    alone = only(of([runs[0], runs[3]], metric=metrics.ACCURACY))
    assert (alone.numbers[0], alone.texts["95 % interval"]) == (pytest.approx(-1), "–")
    assert alone.test == "1 seed cannot give p < 0.05"


def test_holms_family_is_all_that_is_shown() -> None:
    """With ten seeds of one sign p is 2/1024, and the smaller of two counts twice; of 26 none can be below 0.05."""
    runs = [to_target("ikc", 4, seed) for seed in range(10)]
    runs += [to_target("oort", 2 + seed / 10, seed) for seed in range(10)]
    runs += [to_target("vkc", 4 + (1 if seed < 8 else -2), seed) for seed in range(10)]
    rows = {row.contestant: row for row in of(runs, "ikc", "joules").rows}
    assert rows["Oort"].tidy["p"] == pytest.approx(2 / 1024)
    assert rows["Oort"].p_holm == pytest.approx(4 / 1024)
    assert rows["VKC"].p_holm == pytest.approx(rows["VKC"].tidy["p"])
    many = runs[:10] + [to_target("oort", 2, seed, "hfel", f"scheduling.options={{exploration: 0.{n + 10}}}")
             for n, seed in product(range(1, 27), range(10))]  # fmt: skip
    result = of(many, "ikc", "joules")
    assert len(result.rows) == 26
    assert {row.test for row in result.rows} == {"10 seeds cannot give p < 0.05 in 26 comparisons"}
    assert says(result.caption, "Beside IKC", "over 26 comparisons")


def test_a_run_that_missed_its_target_gives_a_bound_and_the_median() -> None:
    """Ratios 2/4, above 9/4 and 8/4: the median is 2. With 3 spent in place of 9 the second is open from 3/4 on."""
    runs = [to_target("ikc", 4, seed) for seed in range(3)] + [to_target("oort", 2, 0), to_target("oort", 8, 2)]
    row = only(of([*runs, to_target("oort", None, 1)], "ikc", "joules"))
    assert row.numbers == pytest.approx((2, 2, 2))
    assert (row.tidy["scale"], row.tidy["uncertain"]) == ("median ratio", 0)
    assert (row.texts["estimate"], row.texts["95 % interval"]) == ("× 2.00 (median)", "–")
    row = only(of([*runs, to_target("oort", None, 1, spent=3.0)], "ikc", "joules"))
    assert np.isnan(row.numbers[0])
    assert row.numbers[1:] == pytest.approx((0.75, 2))
    assert row.tidy["uncertain"] == 1
    assert row.test == "3 seeds cannot give p < 0.05, 1 uncertain"
    assert row.texts["estimate"] == "× 0.75 to 2.00 (median)"
    both = only(of([to_target("ikc", None), to_target("oort", None), *runs[1:3]], "ikc", "joules"))
    assert both.texts["estimate"] == "open"


def test_the_default_is_what_was_needed_to_the_target_and_the_last_accuracy() -> None:
    runs = [to_target("ikc", 4), to_target("oort", 2), to_target("ikc", 4, 1), to_target("oort", None, 1)]
    names = [row.endpoint.metric for row in of(runs).rows]
    to_targets = ["rounds_to_target", "delay_s_to_target", "energy_j_to_target", "objective_to_target"]
    assert names == ["reached", *to_targets, "accuracy"]
    assert of(runs, metric="reached").rows[0].numbers[0] == pytest.approx(-50)
    assert [row.endpoint.metric for row in of(runs[:2]).rows] == names[1:]  # where all reached it, nothing differs
    missed = of([to_target("ikc", None), to_target("oort", None)])
    totals = [metrics.TOTAL_OBJECTIVE, metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J]
    assert [row.endpoint.metric for row in missed.rows] == [*totals, "accuracy"]


def test_a_value_of_a_setting_makes_the_contestants_and_all_else_the_cases() -> None:
    runs = [to_target(name, 4 if name == "ikc" else 2, 0, assigner, f"scheduling.num_scheduled={h}")
            for name, assigner, h in product(("ikc", "oort"), ("geographic", "local_search"), (10, 30))]  # fmt: skip
    result = of(runs, "ikc", "joules")
    cases = {"H = 10, geographic", "H = 30, geographic", "H = 10, local search", "H = 30, local search"}
    assert {row.case for row in result.rows} == cases
    assert {(row.contestant, row.reference) for row in result.rows} == {("Oort", "IKC")}
    assert {row.reference for row in of(runs, "local search", "joules").rows} == {"local search"}
    whole = of(runs, "Oort, geographic", "joules")
    assert {row.contestant for row in whole.rows} == {"IKC, geographic", "IKC, local search", "Oort, local search"}
    assert {row.case for row in whole.rows} == {"H = 10", "H = 30"}
    assert {row.contestant for row in of(runs, "H = 30", "joules").rows} == {"H = 10"}


@pytest.mark.parametrize("other", ["max_rounds=7", "data.partition=iid", "target_accuracy=0.5", "fleet.num_devices=99"])
def test_runs_that_differ_in_another_setting_are_never_pooled(other) -> None:
    runs = [
        accurate(name, seed, 0.5 + seed / 10, *([other] if seed else [])) for name in ("ikc", "oort") for seed in (0, 1)
    ]
    rows = of(runs, "ikc", "accuracy").rows
    assert [row.seeds for row in rows] == [[0], [1]]
    key = other.partition("=")[0]
    refused("no contestant has a case and a seed in common with IKC", key, runs=[runs[0], runs[3]], against="ikc")


def test_a_run_that_ended_after_the_rounds_of_another_is_not_compared_with_it() -> None:
    own = [to_target("ikc", 4, seed, "hfel", "max_rounds=9") for seed in (0, 1)]  # in round 2
    other = [to_target("oort", None, seed, "hfel", "max_rounds=1") for seed in (0, 1)]
    refused("no contestant has a case and a seed in common with IKC", "max_rounds", runs=[*own, *other], against="ikc")


def test_sweeps_are_pooled_where_their_trials_are_alike_and_a_trial_counts_once() -> None:
    first = [accurate(name, seed, 0.5) for name in ("ikc", "oort") for seed in (0, 1)]
    newer = accurate("oort", 1, 0.75)
    newer = replace(newer, history=replace(newer.history, started_ms=10))
    result = of(first, "ikc", "accuracy", second=[newer, accurate("ikc", 2, 0.5), accurate("oort", 2, 0.5)])
    assert only(result).seeds == [0, 1, 2]
    assert only(result).numbers[0] == pytest.approx(25 / 3)
    assert any(note == "left out: 1 of 7 runs, whose trials newer runs repeat" for note in result.notes)


def test_sweeps_are_the_contestants_only_if_no_setting_differs() -> None:
    first, second = ([accurate("ikc", seed, value) for seed in (0, 1)] for value in (0.5, 0.75))
    row = only(of(first, metric="accuracy", second=second))
    assert (row.contestant, row.reference, row.numbers[0]) == ("second", "first", pytest.approx(25))
    other = [accurate("oort", seed, 0.75) for seed in (0, 1)]
    row = only(of(first, "second", "accuracy", second=other))
    assert (row.contestant, row.reference) == ("IKC", "Oort")  # a sweep of one contestant names it
    parts = [accurate(name, 0, 0.5, "data.partition=iid") for name in ("ikc", "oort")]
    assert len(of([*first, *other], "ikc", "accuracy", second=parts).rows) == 2


def test_assignment_studies_compare_the_fleets_that_both_have() -> None:
    def study(name: str, values: list[float]) -> RunRecord:
        return fabricated.run({metrics.ROUND_OBJECTIVE: values}, f"assignment.name={name}")

    runs = [study("geographic", [1.0, 2.0, 30.0]), study("local_search", [2.0, 4.0])]
    result = contest({"mine": fabricated.sweep("mine", runs, "assignment")}, "geographic", metrics.ROUND_OBJECTIVE)
    assert only(result).numbers[0] == pytest.approx(2)


def test_a_metric_of_ones_own_is_compared_by_differences() -> None:
    runs = [fabricated.run({metrics.ACCURACY: [0.5], "margin": [value]}, f"scheduling.name={name}")
            for name, value in (("ikc", 1.5), ("oort", 1.0))]  # fmt: skip
    row = only(of(runs, "IKC", "margin"))
    assert (row.endpoint.scale, row.numbers[0], row.texts["estimate"]) == ("difference", -0.5, "-0.5")
    refused("--metric: got margn, which no run logged; did you mean 'margin'?", "logged: reached, rounds",
            "accuracy, margin", runs=runs, metric="margn")  # fmt: skip


def test_a_count_of_joules_that_is_0_is_compared_by_differences() -> None:
    runs = [fabricated.run({metrics.ROUND_WASTED_J: [value]}, f"scheduling.name={name}")
            for name, value in (("ikc", 0.0), ("oort", 3.0))]  # fmt: skip
    assert only(of(runs, "ikc", metrics.ROUND_WASTED_J)).numbers[0] == 3


def test_mistakes_are_told_in_one_line() -> None:
    runs = [accurate(name, seed, 0.5) for name in ("ikc", "oort") for seed in (0, 1)]
    refused("--against: got ikk, which is no contestant; did you mean 'ikc'?", "accepted: IKC; Oort", runs=runs,
            against="ikk")  # fmt: skip
    refused("compare: got one contestant (first)", "name another sweep too", runs=runs[:2])
    refused("in common with IKC; the runs differ in scheduling.name", runs=[runs[0], runs[3]])
    both = [accurate(name, 0, 0.5, "aggregation.edge.name=median", f"aggregation.cloud.name={cloud}")
            for name, cloud in (("ikc", "mean"), ("oort", "median"))]  # fmt: skip
    both += [accurate("ikc", 0, 0.5)]
    refused("--against: got mean, which is a value of aggregation.edge.name and of aggregation.cloud.name", runs=both,
            against="mean")  # fmt: skip
    unfinished = [fabricated.run({metrics.ACCURACY: [0.5]}, status="RUNNING")]
    refused("compare: got one contestant (no run has ended)", runs=unfinished)
    result = of([*runs, *unfinished], "ikc", "accuracy")
    assert "left out: 1 of 5 runs, which have not ended" in result.notes


@pytest.mark.parametrize("label", [*NAMES, "a\x1b[31mb"])
def test_a_hostile_label_is_shown_as_it_is(label, tmp_path) -> None:
    own = {"ikc": label, "oort": "50 % & <b>"}
    runs = [replace(accurate(name, seed, 0.5 + seed / 10), labels=own) for name in ("ikc", "oort") for seed in (0, 1)]
    export(fabricated.sweep("mine", runs), tmp_path / "mine")
    result = contest(read([str(tmp_path / "mine.zip")], tmp_path), metric="accuracy")
    written = {path.suffix: path for path in write(result, tmp_path / "out")}
    table = pd.read_csv(written[".csv"], keep_default_na=False)
    assert list(table) == [
        "case", "contestant", "reference", "metric", "n", "seeds", "estimate", "low", "high", "scale", "p", "p_holm",
        "least_p", "uncertain",
    ]  # fmt: skip
    shown = label.replace("\x1b", "\\x1b")
    assert (table["reference"][0], table["contestant"][0]) == (shown, "50 % & <b>")
    assert r"50 \% \& $<$b$>$ & Test accuracy" in written[".tex"].read_text()
    assert "\x1b" not in written[".tex"].read_text()
    axis = figures.forest(result).axes[0].get_xlabel()
    assert as_chart_text(f"minus that of {shown}").split() == axis.split("\n", 1)[1].split()[:-1]
    assert "50 % & <b>" in [text.get_text() for text in figures.forest(result).findobj(Text)]


def test_a_figure_has_a_panel_per_metric_and_hollow_medians() -> None:
    runs = [to_target("ikc", 4, seed) for seed in range(3)] + [to_target("oort", 2, 0), to_target("oort", 8, 2)]
    figure = figures.forest(of([*runs, to_target("oort", None, 1, spent=3.0)], "ikc"))
    assert [axes.get_xscale() for axes in figure.axes] == ["linear", "log", "log", "log", "log", "linear"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["Oort"]


def test_times_that_were_measured_on_two_machines_are_told() -> None:
    for other, notes in (
        ("one", []),
        ("two", ["Training, on this machine: measured on 2 machines, whose speeds differ: one, two"]),
    ):
        values = {metrics.WALL_TRAIN_S: [1.0], metrics.ACCURACY: [0.5]}
        runs = [
            fabricated.run(values, f"scheduling.name={name}", cpu=cpu)
            for name, cpu in (("ikc", "one"), ("oort", other))
        ]
        assert of(runs, metric=metrics.WALL_TRAIN_S).notes == notes
        assert of(runs, metric=metrics.ACCURACY).notes == []


def test_ratios_and_differences_of_a_metric_have_axes_of_their_own() -> None:
    """Nothing is wasted by one run of IKC, so that the case of this run has differences."""
    runs = [fabricated.run({metrics.ROUND_WASTED_J: [0.0 if h == 30 and name == "ikc" and not seed else joules]},
                           f"scheduling.name={name}", f"seed={seed}", f"scheduling.num_scheduled={h}")
            for name, joules in (("ikc", 1.0), ("oort", 2.0)) for h in (10, 30) for seed in (0, 1)]  # fmt: skip
    figure = figures.forest(of(runs, "ikc", metrics.ROUND_WASTED_J))
    ratio, difference = figure.axes
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear"]
    assert [axes.get_xlabel().split("\n", 1)[1] for axes in figure.axes] == ["relative to IKC", "minus that of IKC"]
    assert [list(axes.lines[-1].get_xdata()) for axes in figure.axes] == [[pytest.approx(2.0)], [1.5]]
    assert [list(axes.lines[-1].get_ydata()) for axes in figure.axes] == [[0], [1]]
    assert (ratio.lines[0].get_xdata()[0], difference.lines[0].get_xdata()[0]) == (1, 0)


def test_names_are_those_of_results_folders_and_exports(results, sweep, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    export(sweep, tmp_path / "kept" / "tiny")
    folder = next(results.glob("tiny-*"))
    for name in ("tiny", folder.name, str(folder), "kept/tiny", "kept/tiny.zip"):
        (one,) = read([name], results).values()
        assert [run.name for run in one.runs] == [run.name for run in sweep.runs]
    assert list(read(["tiny", "kept/tiny.zip", "tiny"], results)) == ["tiny", "kept/tiny.zip"]
    row = only(contest(read(["kept/tiny.zip"], results), "ikc", "test_loss"))
    assert (row.contestant, row.seeds) == ("FedAvg", [0, 1])
    with pytest.raises(ConfigError, match="no such sweep"):
        read(["tino"], results)
    monkeypatch.setattr(module, "read_sweep", lambda *_: fabricated.sweep("x", sweep.runs, "assignment"))
    with pytest.raises(ConfigError, match=r"tiny is of task assignment, kept/tiny.zip is of task experiment"):
        read(["tiny", "kept/tiny.zip"], results)


def test_a_real_export_gives_the_pairs_of_its_ranking() -> None:
    """Joules of IKC beside FedAvg on digits with whole classes: 8 of 10 seeds need less."""
    result = contest(read([str(RESULTS / "benchmark_equal")], Path("none")), "fedavg", "joules")
    rows = {(row.case, row.contestant): row for row in result.rows}
    assert len(rows) == 9
    ranked = fields(read_exhibit(RESULTS / "benchmark_equal").runs)
    for (case, name), row in rows.items():
        pairs = compare(ranked[case][name], ranked[case]["FedAvg"], "joules")
        assert sorted(row.pairs.steps) == pytest.approx(sorted(pairs.steps))
        assert row.tidy["p"] == pytest.approx(signed_rank_p(pairs.steps))
    row = rows["majority 100%", "IKC"]
    assert row.seeds == list(range(10))
    logs = row.pairs.steps
    half = student.ppf(0.975, 9) * logs.std(ddof=1) / np.sqrt(10)
    assert row.numbers == pytest.approx(tuple(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])))
    assert row.numbers == pytest.approx((0.817, 0.733, 0.912), abs=5e-4)
    assert row.p_holm == pytest.approx(9 * row.tidy["p"])


def test_runs_that_were_stopped_early_are_told() -> None:
    runs = [fabricated.run({metrics.ACCURACY: [0.5, 0.9]}, f"scheduling.name={name}", f"seed={seed}")
            for name in ("ikc", "fedavg") for seed in (0, 1)]  # fmt: skip
    runs[3] = replace(runs[3], history=replace(runs[3].history, stopped="asha after round 2"))
    assert of(runs).notes == ["stopped early: 1 of 4 runs, whose last values count"]
