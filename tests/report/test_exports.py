"""hflray.report.exports: an export holds a whole sweep, and several exports form one exhibit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pandas as pd
import pytest

from hflray.errors import ConfigError
from hflray.report import page
from hflray.report.detail import Replay
from hflray.report.exports import (
    ABOUT,
    FILE,
    MOST_DETAILED,
    content_of,
    export,
    exports,
    files_of,
    lacking,
    pack,
    read_exhibit,
    read_export,
    zip_of,
)
from hflray.report.runs import SweepRecord
from tests.report import fabricated


def assert_same_sweep(one: SweepRecord, other: SweepRecord) -> None:
    assert [run.name for run in one.runs] == [run.name for run in other.runs]
    for left, right in zip(one.runs, other.runs, strict=True):
        pd.testing.assert_frame_equal(left.rounds, right.rounds, check_dtype=False)
        assert left.devices is not None
        assert right.devices is not None
        pd.testing.assert_frame_equal(left.devices, right.devices)
        assert left.config.model_copy(update={"tracking": right.config.tracking}) == right.config


def test_an_export_holds_the_whole_sweep_and_no_local_paths(sweep, tmp_path) -> None:
    path = export(sweep, tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == [path] == [tmp_path / "tiny.zip"]
    assert_same_sweep(read_export(tmp_path / "tiny"), sweep)
    assert_same_sweep(read_exhibit(path), sweep)
    for source in (tmp_path, tmp_path / "tiny", path):
        assert exports(source) == [tmp_path / "tiny"]
    assert path.stat().st_size < 60_000
    files = files_of(path)
    assert sorted(files) == ["devices.parquet", "rounds.parquet", "runs.json"]
    assert b"mlflow.db" not in files["runs.json"]


def test_the_same_runs_give_the_same_bytes_and_the_origin_stays(sweep, tmp_path) -> None:
    path = export(sweep, tmp_path / "tiny")
    first = path.read_bytes()
    pack(path, files_of(path) | {ABOUT: b"made elsewhere"})
    assert path.read_bytes() != first
    assert read_export(path).parts == {"": "made elsewhere"}
    export(sweep, tmp_path / "tiny")
    assert read_export(path).parts == {"": "made elsewhere"}
    path.unlink()
    assert export(sweep, tmp_path / "tiny").read_bytes() == first


def test_a_zip_that_is_no_export_is_left_alone(sweep, tmp_path) -> None:
    export(sweep, tmp_path / "folder" / "tiny")
    for path in (tmp_path / "folder.zip", tmp_path / "folder" / "other.zip"):
        with ZipFile(path, "w") as archive:
            archive.writestr("folder/tiny.zip", b"")
    assert exports(tmp_path / "folder") == [tmp_path / "folder" / "tiny"]


@pytest.mark.parametrize("metric", ["accuracy", "r2", "macro_f1"])
def test_a_brief_export_keeps_the_main_metric(metric, tmp_path) -> None:
    rounds = {metric: [0.5, 0.6], "total/delay_s": [1.0, 2.0], "round/delay_s": [1.0, 1.0]}
    runs = [fabricated.run(rounds, f"seed={seed}") for seed in range(MOST_DETAILED + 1)]
    export(fabricated.sweep("mine", runs), tmp_path / "mine", brief=True)
    for run in read_export(tmp_path / "mine").runs:
        assert list(run.rounds) == ["round", metric, "total/delay_s"]
        assert run.series(metric).tolist() == [0.5, 0.6]


@pytest.mark.parametrize("damage", [lambda b: b[:-40], lambda b: b[:100] + b"?" * 60 + b[160:], lambda b: b""])
def test_a_damaged_file_is_an_error_of_one_line(damage, sweep, tmp_path) -> None:
    path = export(sweep, tmp_path / "tiny")
    path.write_bytes(damage(path.read_bytes()))
    for read in (read_export, read_exhibit):
        with pytest.raises(ConfigError, match="holds no export that can be read") as caught:
            read(tmp_path / "tiny")
        assert len(str(caught.value).splitlines()) == 1
    assert exports(tmp_path) == [tmp_path / "tiny"]
    assert_same_sweep(read_export(export(sweep, tmp_path / "tiny")), sweep)
    for text in ("", "{}", '{"version": 99, "runs": []}'):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_export(tmp_path)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("version", "what"), [(1, "version 1"), (2, "a folder")])
def test_an_export_of_an_older_form_is_refused_and_named_with_the_release_that_converts_it(
    version, what, sweep, tmp_path
) -> None:
    files = files_of(export(sweep, tmp_path / "new"))
    content = json.dumps(content_of(files) | {"version": version})
    if version == 1:
        pack(tmp_path / "old", files | {FILE: content.encode()})
    else:
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / FILE).write_text(content)
    assert exports(tmp_path) == [tmp_path / "new", tmp_path / "old"]
    with pytest.raises(ConfigError, match=f"{what}.*hflray report convert of hflray 0.2.0"):
        read_exhibit(tmp_path / "old")


def test_what_a_run_does_not_have_is_no_column_and_a_nan_stays_one(tmp_path) -> None:
    one = fabricated.run({"accuracy": [0.5, 0.6], "test_loss": [1.0, float("nan")]}, "seed=1")
    other = fabricated.run({"accuracy": [0.5], "total/delay_s": [2.0]}, "seed=2", "scheduling.name=joint_cost",
                           "scheduling.options={max_wait: 2}")  # fmt: skip
    export(fabricated.sweep("mine", [one, other]), tmp_path)
    read = read_export(tmp_path).runs
    for own, again in zip((one, other), read, strict=True):
        pd.testing.assert_frame_equal(own.rounds, again.rounds)
        assert own.config.model_dump(exclude={"data", "tracking"}) == again.config.model_dump(
            exclude={"data", "tracking"}
        )


def export_part(sweep: SweepRecord, folder: Path, seed: int, name: str, **changes: object) -> None:
    """Export the sweep's runs of one seed as those of a sweep of another name."""
    runs = [
        replace(
            run,
            history=replace(run.history, started_ms=run.history.started_ms + int(changes.get("later", 0))),
            config=run.config.model_copy(update=changes.get("config", {})),
        )
        for run in sweep.runs
        if run.seed == seed
    ]
    export(SweepRecord(name, name, sweep.task, "", runs), folder)


def test_several_exports_form_one_exhibit(sweep, tmp_path) -> None:
    top = tmp_path / "fig3_fashion_scheduling"
    export_part(sweep, top / "h10", 0, "fig3_fashion_scheduling")
    export_part(sweep, top / "more" / "h30", 1, "another name")
    pack(top / "h10", files_of(top / "h10") | {ABOUT: b"made elsewhere\n"})
    assert exports(tmp_path) == [top]
    read = read_exhibit(top)
    assert (read.name, read.task) == ("fig3_fashion_scheduling", sweep.task)
    assert {run.part: run.seed for run in read.runs} == {"h10": 0, "more/h30": 1}
    assert {label: len(runs) for label, runs in read.groups().items()} == {"IKC": 2, "FedAvg": 2}
    assert read.parts == {"h10": "made elsewhere", "more/h30": ""}
    assert read.notes == []
    assert read_exhibit(top / "h10").parts == {"": "made elsewhere"}


def test_the_present_folder_may_hold_exports(sweep, tmp_path, monkeypatch) -> None:
    """``--from .``: the path has no name, and nothing can stand before a suffix."""
    export(sweep, tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert exports(Path(".")) == exports(Path("./")) == [Path("tiny")]
    assert zip_of(Path("/")) == Path("/.zip")
    export(sweep, tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir("folder")
    assert len(read_exhibit(exports(Path("."))[0]).runs) == len(sweep.runs)


def test_the_newer_of_two_runs_of_a_trial_is_used_and_a_note_names_the_other(sweep, tmp_path) -> None:
    top = tmp_path / "fig3"
    export_part(sweep, top / "a", 0, "x", later=5000)
    export_part(sweep, top / "b", 0, "x", config={"max_rounds": 7})  # the number of rounds does not identify a trial
    export_part(sweep, top / "c", 1, "x")
    read = read_exhibit(top)
    assert sorted(run.part for run in read.runs) == ["a", "a", "c", "c"]
    assert len(read.notes) == 2
    old = next(run.name for run in sweep.runs if run.seed == 0)
    assert f"b/{old}: left out: a/{old} is a newer run of the same trial" in read.notes


def test_a_part_that_cannot_be_read_is_noted_and_the_others_are_used(sweep, tmp_path) -> None:
    top = tmp_path / "fig3"
    export_part(sweep, top / "a", 0, "x")
    (top / "b").mkdir()
    (top / "b" / FILE).write_text("{}")
    read = read_exhibit(top)
    assert {run.part for run in read.runs} == {"a"}
    assert len(read.notes) == 1
    assert read.notes[0].startswith("b: left out: ")
    zip_of(top / "a").unlink()
    with pytest.raises(ConfigError, match="holds no export that can be read"):
        read_exhibit(top)


def test_parts_of_two_tasks_are_refused(sweep, tmp_path) -> None:
    top = tmp_path / "fig3"
    export_part(sweep, top / "a", 0, "x")
    export_part(sweep, top / "b", 1, "x")
    files = files_of(top / "b")
    pack(top / "b", files | {FILE: json.dumps(content_of(files) | {"task": "clustering"}).encode()})
    with pytest.raises(ConfigError, match="must be of one task; a is of task experiment, b is of task clustering"):
        read_exhibit(top)


def test_a_brief_export_has_the_accuracy_and_the_totals_only_and_says_so(sweep, tmp_path) -> None:
    assert "devices.parquet" not in files_of(export(sweep, tmp_path / "brief", brief=True))
    read = read_export(tmp_path / "brief")
    for brief, whole in zip(read.runs, sweep.runs, strict=True):
        assert brief.series("accuracy").equals(whole.series("accuracy"))
        assert brief.last("total/objective") == whole.last("total/objective")
        assert "devices" in whole.rounds
        assert "devices" not in brief.rounds
    with pytest.raises(ConfigError, match="it is from a brief export, which has no devices and schedules"):
        Replay(read.runs[0])
    _, missing = page.render(read)
    assert missing == ["2 of 2 groups are from a brief export, which has no devices and schedules"]
    assert "brief" in lacking(sweep, True)[0]
    assert lacking(read, False)[0].startswith("devices and schedules of 4 of 4 runs in the export: it is from a brief")
    assert read_export(export(read, tmp_path / "again")).runs[0].brief, "an export of a brief one is brief"


def test_an_export_of_many_runs_by_an_older_hflray_is_brief(sweep, tmp_path, monkeypatch) -> None:
    path = export(sweep, tmp_path / "old", brief=True)
    content = json.loads(files_of(path)[FILE])
    del content["brief"]
    pack(path, files_of(path) | {FILE: json.dumps(content).encode()})
    assert not read_export(path).runs[0].brief
    monkeypatch.setattr("hflray.report.exports.MOST_DETAILED", len(sweep.runs) - 1)
    assert read_export(path).runs[0].brief


def test_an_export_keeps_labels_as_texts_of_one_line(tmp_path) -> None:
    own = {"ikc": "a\x1b[31mb", "fedavg": "Theirs"}
    runs = [replace(fabricated.run({"accuracy": [0.5]}, f"scheduling.name={name}"), labels=own) for name in own]
    export(fabricated.sweep("mine", runs), tmp_path / "mine")
    one = read_export(tmp_path / "mine")
    assert list(one.groups()) == ["a\\x1b[31mb", "Theirs"]
    export(fabricated.sweep("plain", [replace(run, labels={}) for run in runs]), tmp_path / "plain")
    assert "labels" not in content_of(files_of(tmp_path / "plain"))
