"""hflray.command.new: the written file is a valid sweep, explains its settings, and replaces no file."""

from __future__ import annotations

import re

import pytest

from hflray.command.new import SYSTEM, TEMPLATE, write_system, write_template
from hflray.errors import ConfigError
from hflray.sweep import expand, load_sweep
from tests.command.calls import caller

call = caller()


def test_the_file_passes_a_dry_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert "hflray.tune my_sweep.yaml --dry-run" in call(capsys, "new", "my_sweep")[1]
    code, out, _ = call(capsys, "tune", "my_sweep.yaml", "--dry-run")
    assert code == 0
    assert "my_sweep: 4 trials of task 'experiment'" in out
    assert "FedAvg" in out or "fedavg" in out


@pytest.mark.parametrize("given", ["mine", "mine.yaml", "mine.yml"])
def test_the_name_may_have_an_ending(tmp_path, given: str) -> None:
    path = write_template(tmp_path / given)
    assert path.name == (given if "." in given else "mine.yaml")
    assert load_sweep(path).name == "mine"


def test_every_setting_that_is_a_comment_is_valid_too(tmp_path) -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    text = re.sub(r"^(  +)# ((?:\w+\.)?\w+: )", r"\1\2", text, flags=re.M)
    text = text.replace("{grid: [ikc, fedavg]}", "{zip: [ikc, fedavg]}").replace(
        "uri: http://127.0.0.1:5000", "uri: null"
    )
    path = tmp_path / "all.yaml"
    path.write_text(text.replace("name: NAME", "name: all"), encoding="utf-8")
    trials = expand(load_sweep(path))
    assert len(trials) == 2 * 3 * 2 * 8
    assert {trial.config.data.name for trial in trials} == {"digits", "synthetic"}
    assert trials[0].config.target_accuracy == 0.9


def test_a_file_that_exists_is_left_alone(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("precious")
    assert call(capsys, "new", "mine")[::2] == (2, "error: NAME: mine.yaml exists; choose another name, or remove it\n")
    assert (tmp_path / "mine.yaml").read_text() == "precious"


@pytest.mark.parametrize("name", ["my sweep", "-x", "ü"])
def test_a_name_that_no_sweep_may_have_is_refused(tmp_path, name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        write_template(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_system_is_written_into_a_new_folder(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "new", "system", "town")[0] == 0
    assert sorted(path.name for path in (tmp_path / "town").iterdir()) == sorted(path.name for path in SYSTEM.iterdir())
    assert "own_system: 3 trials" in call(capsys, "tune", "town/sweep.yaml", "--dry-run")[1]
    assert "town exists; choose another name" in call(capsys, "new", "system", "town")[2]
    assert "FOLDER: got town with NAME = mine" in call(capsys, "new", "mine", "town")[2]
    assert call(capsys, "new", "system", "no/town")[0] == 2


def test_every_comment_of_the_systems_sweep_is_valid_too(tmp_path) -> None:
    write_system(tmp_path / "town")
    path = tmp_path / "town" / "sweep.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("# area:", "area:"), encoding="utf-8")
    assert expand(load_sweep(path))[0].config.fleet.num_devices == 12
