"""Files are pinned to their bytes, travel with what is pickled, and are refused when they change."""

from __future__ import annotations

import hashlib
import pickle
import shutil

import pytest

from hflray.assignment import build_assigner
from hflray.assignment.policy import POLICIES
from hflray.config import load_config, policies_in
from hflray.errors import ConfigError
from hflray.scheduling.learned import SHIPPED as SCHEDULER
from hflray.support import pinned
from hflray.sweep import expand, load_sweep
from hflray.sweep.results import SweepFolder, new_folder
from tests.conftest import refusal


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch):
    monkeypatch.setattr(pinned, "_held", {})


def test_a_pinned_name_and_its_bytes(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"a\n1\n")
    name = pinned.pin("d.csv", tmp_path)
    assert name.startswith("d.csv@sha256:")
    assert pinned.pin(name) == name
    assert pinned.content_of(name) == ("d.csv", b"a\n1\n")
    assert pinned.plain(name) == "d.csv"
    (tmp_path / "d.csv").unlink()
    assert pinned.content_of(name)[1] == b"a\n1\n"


def test_a_process_holds_what_it_unpickles(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"a\n1\n")
    name = pinned.pin(str(tmp_path / "d.csv"))
    sent = pickle.dumps(pinned.inputs_of([name, name, "other"]))
    pinned._held.clear()
    with pytest.raises(ConfigError, match=r"d.csv: its bytes are not at hand"):
        pinned.content_of(name)
    assert len(pickle.loads(sent)) == 1
    assert pinned.content_of(name)[1] == b"a\n1\n"


def test_json_keeps_small_files_and_the_places_of_data(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"a\n" + b"1\n" * 10_000)
    kept, placed = pinned.pin("d.csv", tmp_path), pinned.pin("d.csv", tmp_path, keep=False)
    assert kept == placed
    entries = pinned.to_json(pinned.inputs_of([kept]))
    assert len(entries[0]["zlib"]) < 500
    pinned._held.clear()
    assert pinned.from_json(entries)[0].content == (tmp_path / "d.csv").read_bytes()
    for damage in ({"zlib": entries[0]["zlib"][:40]}, {"sha256": 64 * "0"}, {"zlib": "x!"}):
        with pytest.raises(ValueError, match=r"cut off|another hash|base64|padding|Incorrect|Invalid"):
            pinned.from_json([entries[0] | damage])


def test_a_folder_is_its_json_files(tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a.json").write_text("{}")
    name = pinned.pin("f", tmp_path, keep=False)
    assert pinned.path_of(name) == tmp_path / "f"
    (tmp_path / "f" / "b.json").write_text("{}")
    with pytest.raises(ConfigError, match="f has changed: it has sha256"):
        pinned.path_of(name)


@pytest.mark.parametrize("name", ["none.csv", "", "a\0b"])
def test_what_cannot_be_read_is_one_line(name, tmp_path):
    with pytest.raises(ConfigError, match=r"^.*cannot be read.*$"):
        pinned.pin(name, tmp_path)


def test_another_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"a\n1\n")
    name = pinned.pin("d.csv", tmp_path)
    held = pinned.inputs_of([name])[0]
    (tmp_path / "d.csv").write_bytes(b"a\n2\n")
    with pytest.raises(ConfigError, match=r"d.csv has changed: it has sha256 \w+… now"):
        pinned.refuse_change(held)
    pinned._held.clear()
    with pytest.raises(ConfigError, match="has changed"):
        pinned.pin(name, tmp_path)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hflray" / "policies"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Make the folder `sweeps` with a policy, and stand beside it in a folder without one."""
    for name in ("sweeps", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "sweeps" / "mine.safetensors"
    shutil.copy(POLICIES / "paper_db.safetensors", path)
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def other(path):
    """Put another whole policy at `path`."""
    shutil.copy(POLICIES / "paper_literal.safetensors", path)


def test_a_policy_is_pinned_relative_to_its_file_and_in_an_override_to_the_present_folder(mine, tmp_path) -> None:
    (mine.parent / "my.yaml").write_text("assignment: {name: d3qn, policy: mine.safetensors}\n")
    name = f"{mine}@sha256:{sha256(mine)}"
    assert load_config(mine.parent / "my.yaml").assignment.policy == name
    other(tmp_path / "here" / "mine.safetensors")
    config = load_config(mine.parent / "my.yaml", ["assignment.policy=mine.safetensors"])
    assert config.assignment.policy == f"mine.safetensors@sha256:{sha256(tmp_path / 'here' / 'mine.safetensors')}"
    assert load_config(None, [f"assignment.policy={name}"]).assignment.policy == name


@pytest.mark.parametrize("name", ["paper_db", "gone.safetensors", "folder/gone.safetensors", "greedy"])
def test_a_shipped_name_and_a_file_that_is_not_there_stay_as_they_are(mine, name) -> None:
    assert load_config(None, [f"assignment.policy={name}"]).assignment.policy == name


def test_the_pinned_policies_of_a_sweep_are_used_and_named_shortly(mine) -> None:
    shutil.copy(SCHEDULER, mine.parent / "scores.safetensors")
    (mine.parent / "my.yaml").write_text(
        "experiment: {scheduling: {name: learned, options: {policy: scores.safetensors}}, assignment: {name: d3qn}}\n"
        "sweep: {assignment.policy: {grid: [paper_db, mine.safetensors]}}\n"
    )
    file = load_sweep(mine.parent / "my.yaml")
    scores = f"{mine.parent / 'scores.safetensors'}@sha256:{sha256(SCHEDULER)}"
    assert policies_in(file.model_dump(mode="json", exclude_unset=True)) == [
        ("scheduling.options.policy", scores),
        ("assignment.policy", "paper_db"),
        ("assignment.policy", f"{mine}@sha256:{sha256(mine)}"),
    ]
    trials = expand(file)
    assert all("sha256" not in trial.name for trial in trials)
    assert pinned.locate(scores, "x") == mine.parent / "scores.safetensors"
    assert build_assigner("d3qn", policy=trials[1].config.assignment.policy).path == mine


@pytest.fixture
def folder(mine, tmp_path) -> SweepFolder:
    """Return the folder of a sweep that names the policy."""
    (mine.parent / "my.yaml").write_text("experiment: {assignment: {name: d3qn, policy: mine.safetensors}}\n")
    return new_folder(tmp_path, load_sweep(mine.parent / "my.yaml"), "uri", "experiment")


def test_a_resume_with_another_file_of_the_same_name_is_refused_with_both_hashes(folder, mine) -> None:
    then = sha256(mine)
    folder.admit()
    other(mine)
    with refusal(
        ConfigError, f"assignment.policy: {mine}", f"{then[:12]}… then", f"{sha256(mine)[:12]}… now", "--fresh"
    ):
        folder.admit()
    with pytest.raises(ConfigError, match="is another policy now"):  # and so does a trial
        build_assigner("d3qn", policy=folder.file.experiment["assignment"]["policy"])


def test_a_sweep_goes_on_after_its_policy_has_moved(folder, mine, cache) -> None:
    """As with a reference, whose text is at hand: a file that is not there is no change."""
    digest = sha256(mine)
    mine.rename(mine.with_name("elsewhere.safetensors"))
    folder.admit()
    copy = build_assigner("d3qn", policy=folder.file.experiment["assignment"]["policy"]).path
    assert (copy, sha256(copy)) == (cache / f"{digest}.safetensors", digest)
    other(copy)  # a damaged copy is not used
    with pytest.raises(ConfigError, match="does not exist, and this machine has no copy of it"):
        folder.admit()
    mine.with_name("elsewhere.safetensors").rename(mine)
    folder.admit()
