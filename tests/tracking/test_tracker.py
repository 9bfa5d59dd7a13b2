"""hflray.tracking.tracker: one interface to the journal and all trackers."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from hflray.config import to_yaml
from hflray.errors import ConfigError
from hflray.tracking import Ending, Run, Tracker, titles
from tests.conftest import small_config


def test_a_required_store_that_cannot_be_opened_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"tracking.uri: .*http://127.0.0.1:9") as error:
        Tracker("http://127.0.0.1:9", "tests", "x", tmp_path / "x", required=True)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()


def test_a_second_tracker_receives_everything(open_tracker, diary, tmp_path) -> None:
    config = small_config("cost.delay_weight=0.5")
    tracker = open_tracker("told", sinks=("diary",))
    (second_tracker,) = diary
    assert second_tracker.place.sweep == "told"
    data = {"name": "digits", "digest": "abc", "source": "embedded", "profile": "{}"}
    tracker.start("t1", "a-readable-name", config, {"hflray.task": "experiment"}, dataset=data)
    tracker.round("t1", 1, {"accuracy": 0.25, "round/delay_s": 3.0})
    tracker.round("t1", 2, {"accuracy": 0.5, "round/delay_s": math.inf, "rounds_to_target": 2.0}, {"devices": [1]})
    tracker.artifact("t1", "tables")
    tracker.finish("t1", tags={"hflray.stopped": "asha after round 2"})
    assert tracker.close()

    ((run,),) = second_tracker.of("open")
    assert isinstance(run, Run)
    assert (run.key, run.name, run.dataset) == ("t1", "a-readable-name", data)
    assert run.params["cost.delay_weight"] == 0.5
    assert run.tags["hflray.sweep"] == "told"
    assert run.tags["hflray.trial"] == "t1"
    assert run.tags["hflray.task"] == "experiment"
    assert run.artifacts["config.yaml"] == to_yaml(config)
    assert [(round.number, round.values) for round in second_tracker.pages["t1"].rounds] == [
        (1, {"accuracy": 0.25, "round/delay_s": 3.0}), (2, {"accuracy": 0.5, "rounds_to_target": 2.0}),
    ]  # fmt: skip
    (tables,) = second_tracker.pages["t1"].artifacts
    (path,) = tables.write(tmp_path)[:1]
    assert pd.read_parquet(path)["round"].tolist() == [1, 2]
    last = {"accuracy": 0.5, "round/delay_s": 3.0, "rounds_to_target": 2.0}
    stopped = {"hflray.stopped": "asha after round 2"}
    assert second_tracker.ending() == Ending("FINISHED", None, stopped, last)
    assert second_tracker.calls[0] == ("connect",)
    assert [call[0] for call in second_tracker.calls][-2:] == ["artifact", "end"]
    assert tracker.seen_at() == ["Read the diary on my desk"]


def test_the_journal_is_written_without_any_tracker(tmp_path) -> None:
    tracker = Tracker("http://127.0.0.1:9", "tests", "alone", tmp_path / "alone", required=True, sinks=())
    tracker.start("t1", "x", small_config(), {})
    tracker.round("t1", 1, {"accuracy": 0.25})
    tracker.artifact("t1", "tables")
    tracker.finish("t1")
    assert tracker.close()
    assert tracker.history("t1") == [(1, {"accuracy": 0.25})]
    assert (tracker.experiment_id, tracker.run_ids(), tracker.seen_at()) == (None, [], [])


def test_messages_name_trackers_by_their_titles(diary) -> None:
    assert titles(("mlflow", "csv", "diary")) == "MLflow, CSV, the diary"
    assert titles(()) == "no tracker"
    with pytest.raises(ConfigError, match="sink: unknown sink 'wandb'; known: csv, diary, mlflow"):
        titles(("wandb",))


def test_the_settings_of_learning_are_logged_of_runs_that_learn_or_set_one(open_tracker, diary) -> None:
    tracker = open_tracker("learns", sinks=("diary",))
    tracker.start("plain", "x", small_config(), {})
    tracker.start("learns", "x", small_config(), {}, learns="learning")
    tracker.start("plays", "x", small_config(), {}, learns="agent")
    tracker.start("sets", "x", small_config("learning.features=paper"), {})
    assert tracker.close()
    (other,) = diary
    runs = {run.key: run.params for run, *_ in other.of("open")}
    assert {
        key: [section for section in ("learning", "agent") if f"{section}.learning_rate" in params]
        for key, params in runs.items()
    } == {"plain": [], "learns": ["learning"], "plays": ["agent"], "sets": ["learning"]}
    assert not any(name.startswith("tracking.") for params in runs.values() for name in params)


def test_a_run_has_the_references_as_tags_and_their_texts_as_artifacts(open_tracker, diary, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: pass\n")
    place = f"{tmp_path}/mine.py:Mine"
    config = small_config(f"scheduling.name={place}", f"learning.teacher.name={place}", f"assignment.name={place}")
    tracker = open_tracker("refers", sinks=("diary",))
    tracker.start("t1", "x", config, {})
    assert tracker.close()
    ((run,),) = diary[0].of("open")
    pinned = config.scheduling.name
    assert pinned.startswith("mine.py:Mine@sha256:")
    assert run.tags["reference/scheduler"] == run.params["scheduling.name"] == pinned
    assert run.tags["reference/assigner"] == pinned
    assert (run.tags["hflray.scheduler"], run.tags["hflray.assigner"]) == ("mine.py:Mine", "mine.py:Mine")
    assert run.artifacts["references/mine.py"] == "class Mine: pass\n"
    assert not [name for name in run.tags if name.startswith("reference/") and "data" in name]
