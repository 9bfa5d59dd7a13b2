"""hflray.report.tables: means and deviations are those computed by hand, and markdown and LaTeX contain them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hflray import metrics
from hflray.report.labels import DEPLOYMENT
from hflray.report.runs import RunRecord
from hflray.report.tables import spread, summary, write
from hflray.support.terminal.tables import TextTable
from tests.conftest import cases
from tests.hostile import NAMES
from tests.report.fabricated import CLEAN, run
from tests.report.fabricated import sweep as fabricated


def test_spread_formats_mean_and_deviation() -> None:
    assert spread([1.0, 3.0], "{:.1f}") == "2.0 ± 1.4"
    assert spread([1.0, float("nan")], "{:.1f}") == "1.0"
    assert spread([], "{:.1f}") == "–"


@pytest.mark.parametrize("values, text", cases("report/decimals"))
def test_a_mean_and_its_deviation_have_the_same_decimals(values: list[float], text: str) -> None:
    assert spread(values, "{:,.4g}") == text


def test_the_summary_has_the_means_of_the_runs(sweep, records) -> None:
    table = summary(sweep)
    assert [label.removesuffix(" (modified checkout)") for label in table[""]] == ["IKC", "FedAvg"]
    assert list(table["seeds"]) == ["2", "2"]
    assert list(table["rounds"]) == ["2", "2"]
    last = [100 * records[run.name][-1].accuracy for run in sweep.runs if run.config.scheduling.name == "fedavg"]
    assert table["accuracy, %"][1] == f"{np.mean(last):.1f} ± {np.std(last, ddof=1):.1f}"
    assert "rounds to target" not in table  # no target is set
    assert metrics.ROUNDS_TO_TARGET not in sweep.runs[0].rounds


def assigners() -> list[RunRecord]:
    """Return runs of geographic on three deployments, one from a modified checkout, and of a joint D3QN on one."""
    runs = []
    for deployment, delay in ((0, 1.0), (1, 3.0), (2, 5.0)):
        commit = "abc-dirty" if deployment == 2 else CLEAN
        runs.append(run(fleets(delay), "assignment.name=geographic", settings={DEPLOYMENT: deployment}, commit=commit))
    literal = ("assignment.name=d3qn", "assignment.policy=paper_literal", "allocation.coupling=joint")
    return [*runs, run(fleets(2.0), *literal, settings={DEPLOYMENT: 0}, commit="abc-dirty")]


def fleets(delay: float) -> dict[str, list[float]]:
    return {
        metrics.ROUND_DELAY_S: [delay, delay],
        metrics.ROUND_ENERGY_J: [1.0, 1.0],
        metrics.ROUND_OBJECTIVE: [delay + 1, delay + 1],
        metrics.ASSIGNMENT_GAP: [0.1, delay / 10],
        metrics.WALL_ASSIGN_S: [0.001, 0.001],
    }


def test_an_assignment_study_shows_the_spread_over_deployments_and_the_coupling() -> None:
    table = summary(fabricated("fig6_assignment", assigners(), "assignment"))
    assert list(table[""]) == [
        "geographic (1 of 3 runs: modified checkout)",
        "D3QN, literal (deployment 0), joint deadline (modified checkout)",
    ]
    assert list(table["deployments"]) == ["3", "1"]
    assert list(table["coupling"]) == ["per edge", "joint"]
    assert list(table["T, s"]) == ["3.0 ± 2.0", "2.0"]
    assert list(table["worst"]) == ["50.0", "20.0"]  # the worst over all fleets of all deployments
    assert list(table["gap to bound, %: median"])[1] == "15.0"


@pytest.mark.parametrize("policy, name", cases("report/d3qn"))
def test_the_label_of_d3qn_names_its_policy(policy, name) -> None:
    overrides = [f"assignment.policy={policy}"] if policy else []
    runs = [run(fleets(1.0), "assignment.name=d3qn", *overrides), run(fleets(1.0), "assignment.name=hfel")]
    assert summary(fabricated("fig6_assignment", runs, "assignment"))[""][0] == name


def test_runs_of_unequal_length_show_the_range() -> None:
    runs = [
        run({metrics.ASSIGNER_RETURN: [1.0, 2.0]}, f"seed={n}", steps=[1000, end]) for n, end in ((0, 2000), (1, 24000))
    ]
    table = summary(fabricated("fig5_literal", runs, "train_assigner"))
    assert list(table["steps"]) == ["2,000 to 24,000"]


def test_a_reading_of_algorithm_5_is_shown_with_the_ceiling_of_its_network() -> None:
    def learned(returns: list[float], *overrides: str, **settings: Any) -> RunRecord:
        rounds = {
            metrics.ASSIGNER_RETURN: returns, metrics.ASSIGNER_GREEDY_RETURN: returns,
            metrics.ASSIGNER_AGREEMENT: [0.5] * len(returns), metrics.assigner_ratio("hfel-300"): [1.5] * len(returns),
        }  # fmt: skip
        steps = [1000 * number for number in range(1, len(returns) + 1)]
        changed = {f"learning.{key}": value for key, value in settings.items()}
        fixed = ("learning.features=paper_db", "learning.teacher.start=best_gain", *overrides)
        return run(rounds, *fixed, steps=steps, settings={"learning.buffer_capacity": 1_000} | changed)

    runs = [
        learned([float(n) for n in range(20)], hidden=64),
        learned([5.0] * 20, "learning.train_batch=150", "learning.update_every=50", hidden=256),
        learned([16.0, 17.4], hidden=64, td=0.0),
    ]
    table = summary(
        fabricated("fig5_readings", [*runs, learned([1.0] * 20, "seed=1"), learned([1.0] * 20)], "train_assigner")
    )
    assert list(table["seed"])[-2:] == ["0", "1"]
    table = summary(fabricated("fig5_readings", runs, "train_assigner"))
    assert list(table[""]) == ["gains in dB, best gain start, buffer of 1,000"] * 2
    assert list(table["units"]) == ["64", "256"]
    assert list(table["draws of a transition"]) == ["4", "3"]
    assert list(table["steps"]) == ["20,000", "20,000"]
    assert list(table["supervised ceiling"]) == ["17.4", "–"]  # the ceiling of another width is not this policy's
    assert list(table["ceiling's objective / HFEL-300's"]) == ["1.50", "–"]
    assert list(table["return"]) == ["18.5 ± 0.7", "5.0 ± 0.0"]  # the last tenth is steps 19,000 and 20,000
    assert list(table["agreement, %"]) == ["50.0"] * 2
    assert list(table["objective / HFEL-300's"]) == ["1.50"] * 2
    assert list(table["still improves"]) == ["yes", "no"]
    alone = summary(fabricated("fig5_ceilings", runs[2:], "train_assigner"))
    assert "greedy return" in alone  # ceilings without a policy have the ordinary table


def test_markdown_and_latex_contain_the_summary(sweep, tmp_path) -> None:
    lines = summary(sweep).markdown().splitlines()
    assert lines[0].startswith("|  | seeds | rounds | accuracy, % |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    text = replace(summary(sweep), caption="50 % of _it_").latex()
    assert r"\caption{50 \% of \_it\_}" in text
    assert r"accuracy, \%" in text
    assert text.count(r"\\") == 3
    assert "±" not in text
    assert text.startswith("\\begin{table}\n\\centering\n\\caption{")
    assert [path.name for path in write(sweep, tmp_path)] == ["summary.md", "summary.tex"]


def test_names_are_escaped_in_markdown_and_captions_are_one_paragraph() -> None:
    table = TextTable.of([{"": name, "x": "1"} for name in (*NAMES, "two\nlines")])
    lines = table.markdown().splitlines()
    assert len(lines) == 2 + len(table.rows)
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert "<" not in "".join(lines)
    assert r"\caption{one two}" in TextTable.of([{"": "x"}], caption="one\n\ntwo").latex()


SPECIAL = r"[a$b ^c~d {e} \f% &_#"


def test_special_characters_of_latex_are_escaped() -> None:
    text = TextTable.of([{"": SPECIAL, SPECIAL + "±": "2 ± 1"}], caption=SPECIAL).latex()
    escaped = r"{[}a\$b \textasciicircum c\textasciitilde d \{e\} \textbackslash f\% \&\_\#"
    assert rf"\caption{{{escaped}}}" in text
    assert rf" & {escaped}$\pm$ \\" in text
    assert rf"{escaped} & 2 $\pm$ 1 \\" in text


def test_equal_runs_count_as_one_seed() -> None:
    lines = ((0, [0.5]), (0, [0.4, 0.5]), (1, [0.8]))
    runs = [run({metrics.ACCURACY: accuracy}, f"seed={seed}") for seed, accuracy in lines]
    (row,) = summary(fabricated("any", runs)).records
    assert (row["seeds"], row["rounds"], row["accuracy, %"]) == ("2", "1 to 2", "65.0 ± 21.2")


def test_a_mean_over_the_runs_that_reached_their_target_says_how_many_they_are() -> None:
    runs = [run({metrics.ACCURACY: [0.5]}, f"seed={seed}") for seed in range(3)]
    runs[1].history.values[metrics.ROUNDS_TO_TARGET] = 12.0
    (row,) = summary(fabricated("s", runs)).records
    assert row["rounds to target"] == "12.0 (1 of 3)"


def test_a_row_with_a_run_that_was_stopped_early_is_marked() -> None:
    one, other = (run({metrics.ACCURACY: [0.5] * 3}, f"seed={seed}") for seed in (0, 1))
    one = replace(one, history=replace(one.history, stopped="asha after round 3"))
    (row,) = summary(fabricated("s", [one, other])).records
    assert row["rounds"] == "3 ⊣"
    assert "⊣" not in TextTable.of([row]).latex()
