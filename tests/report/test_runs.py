"""hflray.report.runs: the journal has all of the runs, and notes name what is missing."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from hflray import metrics
from hflray.config import ExperimentConfig, validate
from hflray.errors import ConfigError
from hflray.report import frame
from hflray.report.exports import read_export
from hflray.report.ranking import fields
from hflray.report.runs import RunRecord, SweepRecord, assemble, differing, read_sweep
from hflray.reproduction.judge import select_alike
from hflray.tracking import History, RunTables, Tracker
from tests.conftest import small_config
from tests.report import fabricated


def test_the_journal_has_every_round_of_every_run(sweep, records) -> None:
    assert sweep.notes == []
    assert sweep.keys == ["scheduling.name"]
    assert {label: len(runs) for label, runs in sweep.groups().items()} == {"IKC": 2, "FedAvg": 2}
    for run in sweep.runs:
        rounds = records[run.name]
        assert run.series(metrics.ACCURACY).tolist() == [record.accuracy for record in rounds]
        assert [list(row) for row in run.rounds["devices"]] == [record.devices.tolist() for record in rounds]
        assert run.last(metrics.TOTAL_ENERGY_J) == rounds[-1].totals["energy_j"]
        assert np.isnan(run.last("no/such"))


def damage(results, place, change) -> tuple[str, Path]:
    """Copy the results and apply `change` to the first journal; return its run's name and its path."""
    shutil.copytree(results, place)
    path = sorted(place.glob("tiny-*/journal/*.jsonl"))[0]
    change(path)
    return path.stem, path


def garble(path: Path) -> None:
    """Overwrite the beginning of the last round's line."""
    lines = path.read_text().splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith('{"round": '))
    lines[last] = "\0" * 40 + lines[last][40:]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda path: path.write_text(""), "no line of it says which run it is"),
        (lambda path: path.write_bytes(b"\x00\xff" * 500), "no line of it says which run it is"),
        (lambda path: path.write_text('{"start": 5}\n'), "no line of it says which run it is"),
        (lambda path: path.write_text("7\n"), "no line of it says which run it is"),
        (lambda path: (path.unlink(), path.mkdir()), "is a directory"),
    ],
)
def test_a_damaged_journal_is_named(results, sweep, tmp_path, change, why) -> None:
    name, path = damage(results, tmp_path / "r", change)
    read = read_sweep(tmp_path / "r", "tiny")
    (note,) = read.notes
    assert note.startswith(f"{name}: its journal {path} cannot be read (")
    assert why in note
    assert [run.name for run in read.runs] == [run.name for run in sweep.runs if run.name != name]


def test_a_note_counts_the_unreadable_lines_of_a_journal(results, sweep, tmp_path) -> None:
    name, path = damage(results, tmp_path / "r", garble)
    read = read_sweep(tmp_path / "r", "tiny")
    # The lines after the damaged one, which name an artifact and the end, no longer count.
    assert read.notes[0].startswith(f"{name}: 3 of the lines in its journal {path} cannot be read; ")
    assert len(read.find(name).rounds) == len(sweep.find(name).rounds) - 1
    # An incomplete last line is still being written or was truncated by a kill, so that the journal is not damaged.
    damage(results, tmp_path / "s", lambda path: path.open("a").write('{"round": 3, "ti'))
    assert read_sweep(tmp_path / "s", "tiny").notes == []


@pytest.mark.parametrize(
    "change, why", [(Path.unlink, "holds no run"), (lambda path: path.write_text(""), "its journal .* cannot be read")]
)
def test_the_error_without_a_journal_that_can_be_read_has_one_line(results, tmp_path, change, why) -> None:
    shutil.copytree(results, tmp_path / "r")
    for path in (tmp_path / "r").glob("tiny-*/journal/*.jsonl"):
        change(path)
    with pytest.raises(ConfigError, match=why) as caught:
        read_sweep(tmp_path / "r", "tiny")
    assert len(str(caught.value).splitlines()) == 1


def test_a_training_of_a_policy_that_has_not_ended_is_noted_with_its_own_steps() -> None:
    config = small_config("learning.minutes=null", "learning.env_steps=300000")
    rounds = pd.DataFrame({"round": [1000, 34_000], metrics.ASSIGNER_RETURN: [-20.0, -3.0]})
    half = History(
        "half", "RUNNING", None, yaml.safe_dump(config.model_dump(mode="json")), {}, {}, RunTables(rounds), 0, 1
    )
    read = assemble("any", "any", "train_assigner", "", [half], [])
    assert read.notes == ["half: not finished, 34,000 of at most 300,000 environment steps"]


def test_notes_name_unfinished_failed_and_empty_runs(results, tmp_path) -> None:
    shutil.copytree(results, tmp_path / "r")
    folder = next((tmp_path / "r").glob("tiny-*"))
    tracker = Tracker("", "hflray", folder.name, folder, sinks=())
    values = {metrics.ACCURACY: 0.5, metrics.ROUND_OBJECTIVE: 1.0}
    for name in ("half", "broken", "none"):
        tracker.start(name, name, small_config("seed=7"), {})
    tracker.round("half", 1, values)
    tracker.round("broken", 1, values)
    tracker.finish("broken", error="round 2: the weights are not finite")
    tracker.close()
    read = read_sweep(tmp_path / "r", str(folder))
    assert "half: not finished, 1 of at most 3 rounds" in read.notes
    assert "broken: failed after 1 rounds: round 2: the weights are not finite" in read.notes
    assert "none: left out: it has no rounds yet" in read.notes
    assert [run.name for run in read.runs][-2:] == ["half", "broken"]
    assert not read.find("half").ended
    with pytest.raises(ConfigError, match="did you mean 'half'"):
        read.find("halve")


def test_a_machine_names_its_gpu_if_the_run_trained_on_it() -> None:
    environment = {"cpu": "one (2 cores)", "gpu": "NVIDIA H200"}
    for device, facts, machine in (
        ("cpu", environment, "one (2 cores)"),
        ("cuda", environment, "one (2 cores) with NVIDIA H200"),
        ("cuda", {"cpu": "one"}, "one with a GPU that is not on record"),
        ("cpu", {}, "an unknown machine"),
    ):
        run = fabricated.run({metrics.ACCURACY: [0.5]}, f"training.device={device}")
        run.history.environment.clear()
        run.history.environment.update(facts)
        assert run.machine == machine


@pytest.mark.parametrize(
    "environment, iterations, name",
    [
        ({"rules": "2"}, 5, "scaffold"), ({}, 1, "scaffold"),
        ({}, 5, "scaffold (its variates moved in each edge iteration)"),
    ],
)  # fmt: skip
def test_a_run_of_the_former_scaffold_says_so(environment: dict[str, str], iterations: int, name: str) -> None:
    """Its results are another rule's, so that no report pools the two."""
    config = small_config("training.rule.name=scaffold", f"training.edge_iterations={iterations}")
    run = RunRecord(History("a", "FINISHED", None, "", environment, {}, RunTables(pd.DataFrame()), 0, 1), config)
    assert run.settings["training.rule.name"] == name
    assert dict(run.identity)["training.rule.name"] == repr(name)


RESULTS = Path(__file__).parents[1] / "data" / "results"


def test_runs_of_the_former_split_read_as_stratified_and_are_not_pooled_with_those_of_the_official_one() -> None:
    """An export from before the settings existed has neither; a run of the official split is another trial."""
    place = next((RESULTS / "fig3_fashion_scheduling").glob("*.zip"))
    content = json.loads(zipfile.ZipFile(place).read("runs.json"))
    data = [content["config"].get("data", {}), *(run["config"].get("data", {}) for run in content["runs"])]
    assert not any({"split", "validation"} & set(section) for section in data)
    former = read_export(place)
    assert {run.settings["data.split"] for run in former.runs} == {"stratified"}
    assert {run.settings["data.validation"] for run in former.runs} == {0}
    run = former.runs[0]
    tree = run.config.model_dump(mode="json")
    tree["data"] |= {"split": "official", "validation": 2000}
    newer = RunRecord(run.history, validate(ExperimentConfig, tree))
    assert newer.identity != run.identity
    assert dict(newer.identity)["data.split"] == "'official'"
    assert differing([run, newer]) == ["data.split", "data.validation"]
    both = SweepRecord("s", "s", "experiment", "", [run, newer])
    assert [len(runs) for runs in both.groups().values()] == [1, 1]
    assert [name for name in both.groups() if "official split, validation 2000" in name]
    assert len(select_alike([run, newer], ["scheduling.name"])[0]) == 1


def test_a_target_is_judged_by_the_validation_part_of_a_run_that_has_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("def f1(outputs, targets):\n    return 1.0\n")
    rounds = {"accuracy": [0.2, 0.9, 0.9], "total/objective": [1.0, 2.0, 3.0]}
    run = fabricated.run(rounds | {"validation_accuracy": [0.1, 0.7, 0.8]}, "data.validation=10")
    assert run.main_metric == "accuracy"
    assert run.last(run.main_metric) == 0.9
    assert run.judged("accuracy").tolist() == [0.1, 0.7, 0.8]
    own = {"f1": [0.9, 0.9], "accuracy": [0.1, 0.2], "validation_f1": [0.1, 0.95]}
    run = fabricated.run(own, "target.metric=own.py:f1")
    assert (run.main_metric, run.judged("f1").tolist()) == ("f1", [0.1, 0.95])


def test_targets_lengths_and_mixtures_are_no_seeds(tmp_path) -> None:
    for key, values, more in (
        ("target_accuracy", (0.5, 0.8), ()), ("max_rounds", (3, 9), ()),
        ("data.majority_fraction", (0.5, 0.8), ("data.partition=resampled",)),
        ("data.dirichlet_alpha", (0.1, 1.0), ("data.partition=resampled",)),
    ):  # fmt: skip
        runs = [fabricated.run({metrics.ACCURACY: [0.4]}, f"{key}={value}", f"seed={seed}", *more)
                for value in values for seed in (0, 1)]  # fmt: skip
        groups = fabricated.sweep("x", runs).groups()
        assert [[run.seed for run in group] for group in groups.values()] == [[0, 1], [0, 1]], key
        assert set(fields(runs)) == set(groups), key


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_has_an_empty_cell_for_an_option_that_is_not_given(form, tmp_path) -> None:
    settings = (
        ("assignment.name=d3qn", "scheduling={name: oort, options: {exploration: 0.5}}"),
        ("scheduling.name=ikc",),
    )
    runs = [fabricated.run({metrics.ACCURACY: [0.4]}, *some) for some in settings]
    runs[0].settings["assignment.polish_ms"], runs[1].settings["assignment.polish_ms"] = "optimum", 5
    path = frame.export(fabricated.sweep("x", runs), form, tmp_path / f"x.{form}")
    table = pd.read_csv(path) if form == "csv" else pd.read_parquet(path)
    assert table["assignment.polish_ms"].tolist() == ["optimum", "5"]
    assert table["scheduling.options.exploration"].astype(float).isna().tolist() == [False, True]


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("rounds", [2, 3])
def test_a_setting_that_is_a_list_is_one_cell(rounds, form, tmp_path) -> None:
    lists = ([1.0, 2.0], [0.5, 3.0])
    runs = [fabricated.run({metrics.ACCURACY: [0.4] * rounds}, f"fleet.edge_bandwidth_mhz={ends}") for ends in lists]
    sweep = fabricated.sweep("x", runs)
    assert frame.frame(sweep)["fleet.edge_bandwidth_mhz"].tolist() == [lists[0]] * rounds + [lists[1]] * rounds
    path = frame.export(sweep, form, tmp_path / f"x.{form}")
    table = pd.read_csv(path) if form == "csv" else pd.read_parquet(path)
    assert table["fleet.edge_bandwidth_mhz"].unique().tolist() == ["[1.0, 2.0]", "[0.5, 3.0]"]


@pytest.mark.parametrize("ended", ["reached", "stopped"])
def test_what_ended_before_the_sweep_got_more_rounds_is_a_seed_of_those_that_went_on(ended: str) -> None:
    early = fabricated.run({"accuracy": [0.9] * 3}, "seed=0", "max_rounds=3")
    late = fabricated.run({"accuracy": [0.5] * 9}, "seed=1", "max_rounds=9")
    assert fabricated.sweep("s", [early, late]).keys == ["max_rounds"]
    values = {metrics.ROUNDS_TO_TARGET: 3.0} if ended == "reached" else {}
    stopped = "asha after round 3" if ended == "stopped" else None
    early = replace(early, history=replace(early.history, values=values, stopped=stopped))
    assert fabricated.sweep("s", [early, late]).keys == []


@pytest.mark.parametrize("ended", ["reached", "stopped"])
@pytest.mark.parametrize(
    "others, keys", [([5], ["max_rounds"]), ([7], []), ([9], []), ([9, 4], ["max_rounds"]), ([], [])]
)
def test_what_ended_after_the_rounds_of_others_is_no_seed_of_theirs(ended: str, others: list[int], keys) -> None:
    """Of at most 5 rounds, a run that ended in round 6 would not have ended."""
    late = fabricated.run({"accuracy": [0.9] * 6}, "seed=0", "max_rounds=9")
    early = fabricated.run({"accuracy": [0.9] * 2}, "seed=1", "max_rounds=3")
    values = {metrics.ROUNDS_TO_TARGET: 1.0} if ended == "reached" else {}
    stopped = "asha" if ended == "stopped" else None
    runs = [replace(run, history=replace(run.history, values=values, stopped=stopped)) for run in (late, early)]
    runs += [fabricated.run({"accuracy": [0.5] * most}, f"seed={seed}", f"max_rounds={most}")
             for seed, most in enumerate(others, 2)]  # fmt: skip
    assert fabricated.sweep("s", runs).keys == keys
