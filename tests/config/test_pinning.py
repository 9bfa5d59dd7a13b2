"""References in configurations and sweep files are pinned to their texts, each relative to the right folder."""

from __future__ import annotations

import hashlib
import re

import pytest

from hflray import registry
from hflray.config import (
    ExperimentConfig,
    load_config,
    named_settings,
    pin_sweep,
    references_in,
    refuse_unpinned,
    to_yaml,
    validate_stored,
)
from hflray.errors import ConfigError
from hflray.sweep import SweepFile, expand, load_sweep

MINE = "class Mine: pass\n"
PINNED = f"mine.py:Mine@sha256:{hashlib.sha256(MINE.encode()).hexdigest()}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a folder `sweeps` with `mine.py`, and stand beside it in a folder with another `mine.py`."""
    for name, text in (("sweeps", MINE), ("here", f"# another\n{MINE}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "sweeps"


def pinned_here():
    return registry.check("assigner", "mine.py:Mine")


def test_the_settings_that_name_something_of_the_registry():
    settings = named_settings()
    assert settings["scheduling.name"] == "scheduler"
    assert settings["learning.teacher.name"] == "assigner"
    assert settings["tracking.sinks"] == "sink"
    assert {"data.name", "data.partition", "assignment.name"} <= set(settings)
    for key, kind in settings.items():  # each of them refuses an unknown name of its kind
        with pytest.raises(ConfigError, match=f"{re.escape(key)}.*unknown {kind} 'no_such_name'"):
            load_config(None, [f"{key}={'[no_such_name]' if key.endswith(('sinks', 'observers')) else 'no_such_name'}"])


def test_a_path_in_a_file_is_relative_to_the_file_and_one_in_an_override_to_the_present_folder(folder):
    (folder / "my.yaml").write_text(
        "assignment: {name: 'mine.py:Mine'}\ndata: {name: 'mine.py:Mine', partition: iid}\n"
        "learning: {teacher: {name: './mine.py:Mine'}}\ntracking: {sinks: [csv, 'mine.py:Mine']}\n"
    )
    config = load_config(folder / "my.yaml", ["scheduling.name=mine.py:Mine"])
    assert config.assignment.name == config.data.name == config.learning.teacher.name == PINNED
    assert config.tracking.sinks == ("csv", PINNED)
    assert config.scheduling.name == pinned_here() != PINNED
    (folder / "again.yaml").write_text(to_yaml(config))
    assert load_config(folder / "again.yaml") == config


def test_a_configuration_made_in_python_is_pinned_in_the_present_folder(folder):
    config = ExperimentConfig.model_validate({"scheduling": {"name": "mine.py:Mine"}})
    assert config.scheduling.name == pinned_here()
    assert config != ExperimentConfig.model_validate({"scheduling": {"name": PINNED}})
    assert ExperimentConfig.model_validate(config.model_dump(mode="json")) == config


def test_references_are_swept_and_named_shortly(folder):
    (folder / "my.yaml").write_text(
        "experiment: {assignment: {name: 'mine.py:Mine'}}\n"
        "sweep:\n  scheduling.name: {grid: [ikc, 'mine.py:Mine']}\n"
        "  data: {zip: [{name: synthetic}, {name: 'mine.py:Mine'}]}\n"
    )
    file = load_sweep(folder / "my.yaml")
    trials = expand(file)
    assert [trial.config.scheduling.name for trial in trials] == ["ikc", PINNED] * 2
    assert [trial.config.data.name for trial in trials] == ["synthetic"] * 2 + [PINNED] * 2
    assert {trial.config.assignment.name for trial in trials} == {PINNED}
    assert [trial.name.partition("-data=")[0] for trial in trials] == [
        f"{data}-H50-λ1-{scheduler}-Mine-s0" for data in ("synthetic", "Mine") for scheduler in ("ikc", "Mine")
    ]
    assert references_in(file.model_dump(mode="json", exclude_unset=True), sweep=True) == {
        "assignment.name": [PINNED], "scheduling.name": [PINNED], "data.name": [PINNED],
    }  # fmt: skip
    file = load_sweep(folder / "my.yaml", ["scheduling.name=mine.py:Mine", "tracking.sinks=['mine.py:Mine']"])
    assert {trial.config.scheduling.name for trial in expand(file)} == {pinned_here()}
    assert expand(file)[0].config.tracking.sinks == (pinned_here(),)


def test_a_mistake_names_the_setting(folder):
    (folder / "my.yaml").write_text("sweep: {scheduling.name: {grid: [ikc, 'gone.py:Mine']}}\n")
    with pytest.raises(ConfigError) as error:
        load_sweep(folder / "my.yaml")
    assert str(error.value).startswith(f"scheduling.name: got 'gone.py:Mine'; {folder}/gone.py: no such file; a path")
    with pytest.raises(ConfigError, match=r"^assignment.name: got 'gone.py:A'; .*/here/gone.py: no such file"):
        ExperimentConfig.model_validate({}) and load_config(None, ["assignment.name=gone.py:A"])


def test_other_texts_with_a_colon_are_left_alone(folder):
    tree = {
        "description": "mine.py:Mine",
        "experiment": {"assignment": {"options": {"place": "mine.py:Mine"}}, "data": None, "scheduling": 3},
        "sweep": {"assignment.options.place": {"grid": ["mine.py:Mine"]}, "seed": {"grid": 3}, "fleet": [1]},
    }
    assert pin_sweep(tree) == tree
    assert references_in(tree, sweep=True) == {}


def test_a_tree_of_hflrays_own_has_no_reference_without_a_hash():
    refuse_unpinned({"scheduling": {"name": PINNED}, "assignment": {"name": "d3qn"}}, "config.yaml")
    refuse_unpinned("no tree", "config.yaml")
    for tree in ({"scheduling": {"name": "os:system"}}, {"tracking": {"sinks": ["csv", "/tmp/a.py:B"]}}):
        with pytest.raises(ConfigError, match=r"^config.yaml: .* without the hash of its text"):
            refuse_unpinned(tree, "config.yaml")
    with pytest.raises(ConfigError, match="without the hash"):
        refuse_unpinned({"sweep": {"scheduling.name": {"grid": ["a.py:B"]}}}, "sweep.json", sweep=True)


def test_a_run_of_an_older_hflray_goes_on_without_what_is_gone(caplog) -> None:
    """Nothing is measured any more, and two kernels are gone."""
    tree = load_config(None, ["training.kernel=eager"]).model_dump(mode="json")
    old = tree | {"training": tree["training"] | {"autotune": True, "kernel": "native"}}
    assert validate_stored(ExperimentConfig, old, "config.yaml").training.kernel == "fused"
    assert not caplog.text  # a report reads many
    assert validate_stored(ExperimentConfig, old, "state", goes_on=True).training.kernel == "fused"
    assert "training.kernel: 'native' is gone; going on with 'fused', the nearest" in caplog.text
    old["training"]["kernel"] = "compiled"
    assert validate_stored(ExperimentConfig, old, "state").training.kernel == "channels_last"
    axes = {"training.autotune": {"grid": [True, False]}, "training.kernel": {"grid": ["native", "eager"]}}
    file = {"experiment": {"training": {"autotune": False}, "training.kernel": "compiled"}, "sweep": axes}
    swept = validate_stored(SweepFile, file, "sweep.json")
    assert {key: axis.grid for key, axis in swept.sweep.items()} == {"training.kernel": ["fused", "eager"]}
    assert swept.experiment == {"training": {}, "training.kernel": "channels_last"}
