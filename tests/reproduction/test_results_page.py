"""hflray.reproduction.results_page: RESULTS.md agrees with the exports, and the committed file is up to date."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hflray import metrics
from hflray.command.report import CONFIGS
from hflray.report.exports import export, named_exports, read_exhibit
from hflray.report.runs import RunRecord
from hflray.reproduction import results_page
from hflray.reproduction.judge import with_borrowed
from hflray.reproduction.protocol import exhibits
from tests.conftest import says
from tests.report import conftest as finished
from tests.report.fabricated import accuracy, run

records, results, sweep = finished.records, finished.results, finished.sweep  # fixtures

ROOT = Path(__file__).parents[2]
EXPORTS = ROOT / "tests" / "data" / "results"


def test_the_page_has_a_section_for_every_exhibit_run_or_not(sweep, tmp_path) -> None:
    renamed = type(sweep)("fig3_fashion_scheduling", sweep.title, sweep.task, "", sweep.runs)
    export(renamed, tmp_path / "fig3_fashion_scheduling")
    text = results_page.render(results_page.read_all(tmp_path), CONFIGS, "here")
    sections = text.split("\n## ")
    assert [part.partition(":")[0] for part in sections[1:3]] == ["Figure 3", "Figure 4"]
    assert "0 of 90 runs and 4 with other settings, 4 of them ended (2 rounds); seeds 0, 1" in sections[1]
    assert "`data.name=digits`" in sections[1]  # the section names the difference from the shipped configuration
    assert "claims have fewer runs than planned." in sections[1]
    assert "Not run yet." in sections[2]
    assert len(sections) == 1 + len(exhibits())


def section_of(sweep, runs: list[RunRecord], name: str = "fig3") -> str:
    """Return the section of an exhibit with these runs."""
    shown = exhibits()[name]
    return results_page.section(name, shown, type(sweep)(shown.config, shown.config, task_of(name), "", runs), CONFIGS)


def task_of(name: str) -> str:
    return {"fig5_more": "train_assigner"}.get(name, "experiment")


def test_the_section_counts_the_runs_under_way_and_their_rounds(sweep) -> None:
    runs = [accuracy(30, "ikc", [0.1] * 60, 0), accuracy(30, "ikc", [0.1] * 7, 1, status="RUNNING"),
            accuracy(30, "vkc", [0.1] * 12, 0, status="RUNNING")]  # fmt: skip
    text = section_of(sweep, runs)
    assert says(text, "3 of 90 runs", "1 of them ended", "60 rounds", "2 not", "7 to 12 rounds", "seeds 0, 1")
    again = accuracy(30, "ikc", [0.1] * 60, 0, settings={"training.learning_rate": 0.5})
    assert says(section_of(sweep, [*runs, again]), "3 of 90 runs and 1 with other settings", "2 of them ended")
    text = section_of(sweep, [*runs, accuracy(30, "ikc", [0.1] * 60, 11)])
    assert says(text, "3 of 90 runs and 1 with other seeds", "2 of them ended")
    assert "`seed=11`" not in text


def test_a_claim_with_fewer_seeds_than_planned_is_counted_only(sweep) -> None:
    runs = [accuracy(10, name, [0.9 - 0.1 * (name == "fedavg")] * 60, seed) for name in ("ikc", "fedavg")
            for seed in range(10)]  # fmt: skip
    claim = "| IKC's learning curve lies above FedAvg's at H = 10 | "
    text = section_of(sweep, runs)
    assert claim in text
    assert "(" not in text.partition(claim)[2].partition(" |")[0]  # the means of the sides are left to the report
    assert "VKC's at H = 10" not in text
    assert "claims have fewer runs than planned." in text
    assert claim not in section_of(sweep, runs[:-1])


def test_the_runs_the_row_and_the_verdict_mention_a_modified_checkout(sweep) -> None:
    runs = [accuracy(10, name, [0.9 - 0.1 * (name == "fedavg")] * 60, seed, commit="abc-dirty")
            for name in ("ikc", "vkc", "fedavg") for seed in range(10)]  # fmt: skip
    text = section_of(sweep, runs)
    assert says(text, "30 of a modified checkout")
    assert "runs of a modified checkout" in text
    assert "| IKC (modified checkout) |" in section_of(sweep, runs, "fig4")
    clean = section_of(sweep, [accuracy(10, name, [0.9] * 60) for name in ("ikc", "vkc", "fedavg")], "fig4")
    assert "modified" not in clean


def test_cells_that_all_rows_have_alike_stand_above_the_table(sweep) -> None:
    runs = [accuracy(10, name, [0.9] * 60, seed) for name in ("ikc", "fedavg") for seed in (0, 1)]
    text = section_of(sweep, runs, "fig4")
    assert "\nIn all rows: seeds 2; rounds 60" in text
    assert "| seeds |" not in text


def test_differences_are_those_from_the_nearest_trial(sweep) -> None:
    file = exhibits()["fig5_more"].config
    settings = ["fleet.num_edges=5", "scheduling.num_scheduled=50", "cost.model_kb=448", "learning.fleets=5000",
                "cost.delay_weight=1", "learning.minutes=null", "learning.env_steps=60000"]  # fmt: skip
    curve = {metrics.ASSIGNER_RETURN: [1.0, 2.0]}
    same = run(curve, *settings, "learning.features=paper")
    other = run(curve, *settings, "learning.features=paper", "learning.gamma=0.5", "learning.cache=/somewhere")
    assert "unlike" not in section_of(sweep, [same], "fig5_more"), file
    text = section_of(sweep, [same, other], "fig5_more")
    assert "* unlike the shipped configuration: `learning.gamma=0.5` (1 of 2 runs)\n" in text
    # Each value occurs in a trial of the sweep file, but no trial has both values.
    mixed = run(curve, *settings, "learning.features=paper", "learning.teacher.name=local_search")
    assert "unlike" in section_of(sweep, [mixed], "fig5_more")


@pytest.mark.skipif(not EXPORTS.is_dir(), reason="there are no exports")
def test_the_committed_page_is_generated_from_the_committed_exports() -> None:
    shown = list(exhibits().values())
    places = named_exports(
        EXPORTS, [name for each in shown for name in (each.config, *each.borrows)]
    )  # no other is shown
    sweeps = with_borrowed({sweep.name: sweep for sweep in map(read_exhibit, places)}, shown)
    text = results_page.render(sweeps, CONFIGS, "tests/data/results")
    committed = (ROOT / "tune_configs" / "RESULTS.md").read_text(encoding="utf-8")
    assert committed == text, "write it again: python -m hflray.report results"


def test_what_is_said_about_the_choices_of_table_2_is_in_their_export() -> None:
    """IKC, VKC on Fashion-MNIST and VKC on CIFAR-10; 48 combinations on 200 fleets."""
    bills = pd.read_parquet(EXPORTS / "table2_choices" / "bills.parquet")
    numbers = [f"delay_{row}_s" for row in range(3)] + [f"energy_{row}_j" for row in range(3)]
    paper = [3.1, 128.0, 252.6, 23.5, 671.0, 1317.0]
    by = bills.groupby(["power", "noise", "edge", "allocation", "cpu", "iterations"], observed=True)[numbers]
    means, medians = by.mean(), by.median()
    off, off_by_medians = ((each / paper - 1).abs() for each in (means, medians))
    assert (len(off), set(by.size())) == (48, {200})
    assert off.max(axis=1).min() == pytest.approx(0.57, abs=0.005)
    assert off_by_medians.max(axis=1).min() > 0.25
    delays = off_by_medians[numbers[:3]].max(axis=1)
    assert delays.min() == pytest.approx(0.08, abs=0.005)
    assert medians.loc[delays.idxmin(), numbers[3:]].round().tolist() == [36, 255, 468]


def test_the_exports_are_small() -> None:
    sizes = {path: path.stat().st_size for path in EXPORTS.rglob("*") if path.is_file()}
    # The ended runs of the list need 7 MB. Those to come need some 10 more if a run keeps its size.
    assert sum(sizes.values()) < 20_000_000
    assert max(sizes.values(), default=0) < 1_000_000
