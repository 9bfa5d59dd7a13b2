"""hflray.sweep.labels: the labels of a sweep file name values that its trials have, and change no trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray.config import ExperimentConfig, validate
from hflray.errors import ConfigError
from hflray.sweep import SweepFile, expand, load_sweep, smoke, with_absolute_paths
from hflray.sweep.results import new_folder
from tests.conftest import refusal, refusals, says
from tests.hostile import BREAKING, NAMES

OWN = "from hflray import Scheduler\n\n\nclass {}(Scheduler):\n    pass\n"


def written(folder: Path, labels: str, swept: str = "[ikc, own.py:Mine]") -> Path:
    (folder / "own.py").write_text(OWN.format("Mine"))
    path = folder / "mine.yaml"
    path.write_text(f"labels: {labels}\nsweep: {{scheduling.name: {{grid: {swept}}}}}\n")
    return path


def test_a_label_belongs_to_the_value_as_the_trials_have_it(tmp_path) -> None:
    file = load_sweep(written(tmp_path, '{"own.py:Mine": Ours, ikc: Zhang, d3qn: Learned}'))
    pinned = file.sweep["scheduling.name"].grid[1]
    assert pinned.startswith("own.py:Mine@sha256:")
    assert file.labels == {pinned: "Ours", "ikc": "Zhang", "d3qn": "Learned"}  # the last is a default
    assert load_sweep(written(tmp_path, f"{{'{pinned}': Ours}}")).labels == {pinned: "Ours"}


def test_a_policy_keeps_its_label_wherever_its_file_lies(tmp_path, monkeypatch) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "best.safetensors").write_bytes(b"weights")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "labels: {policies/best.safetensors: Best}\nexperiment: {assignment: {policy: policies/best.safetensors}}"
    )
    file = with_absolute_paths(load_sweep(path))
    (key,) = file.labels
    assert key.startswith("best.safetensors@sha256:")
    assert file.experiment["assignment"]["policy"].endswith(f"/policies/{key}")


def test_labels_change_no_trial_and_stay_in_the_folder(tmp_path) -> None:
    plain = expand(load_sweep(written(tmp_path, "{}")))
    file = load_sweep(written(tmp_path, '{"own.py:Mine": Ours}'))
    assert expand(file) == plain
    assert smoke(file).labels == file.labels
    folder = new_folder(tmp_path, file, "sqlite:///x.db", "tests")
    assert SweepFile.model_validate(folder.file.model_dump(mode="json", exclude_unset=True)).labels == file.labels
    assert b"Ours" in folder.content()
    assert "labels" not in ExperimentConfig.model_fields
    assert b"labels" not in new_folder(tmp_path, load_sweep(None), "sqlite:///x.db", "tests").content()


def test_an_override_may_leave_out_what_has_a_label(tmp_path) -> None:
    path = written(tmp_path, '{"own.py:Mine": Ours}')
    assert list(load_sweep(path, ["scheduling.name=ikc"]).labels.values()) == ["Ours"]


@pytest.mark.parametrize("label", NAMES)
def test_a_label_is_any_text_of_one_line(label, tmp_path) -> None:
    quoted = label.replace("'", "''")
    assert list(load_sweep(written(tmp_path, f"{{ikc: '{quoted}'}}")).labels.values()) == [label]


@pytest.mark.parametrize("label", BREAKING)
def test_a_label_that_breaks_lines_is_refused(label) -> None:
    with pytest.raises(ConfigError) as error:
        validate(SweepFile, {"labels": {"ikc": label}})
    assert says(str(error.value), "labels: ikc: got ", "accepted: a text of one line that is not empty")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("labels, words", [*refusals("sweep/labels"), (f"{{ikc: {'x' * 101}}}", ["labels"])])
def test_a_wrong_label_is_refused_in_one_line(labels, words, tmp_path) -> None:
    with refusal(ConfigError, *words):
        load_sweep(written(tmp_path, labels))


def test_a_label_of_two_files_of_one_name_is_refused(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "own.py").write_text(OWN.format("Mine") + "# another\n")
    with pytest.raises(ConfigError, match=r"labels: got 'own\.py:Mine', which names own\.py:Mine@sha256:"):
        load_sweep(written(tmp_path, '{"own.py:Mine": Ours}', "[a/own.py:Mine, own.py:Mine]"))


def test_an_empty_section_has_no_labels(tmp_path) -> None:
    assert load_sweep(written(tmp_path, "")).labels == {}
