"""Files of data are pinned to their bytes, travel with what is pickled, and are refused when they change."""

from __future__ import annotations

import pickle

import pytest

from hflray.errors import ConfigError
from hflray.support import inputs


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch):
    monkeypatch.setattr(inputs, "_held", {})


def test_a_pinned_name_and_its_bytes(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"a\n1\n")
    name = inputs.pin("d.csv", tmp_path)
    assert name.startswith("d.csv@sha256:")
    assert inputs.pin(name) == name
    assert inputs.content_of(name) == ("d.csv", b"a\n1\n")
    assert inputs.plain(name) == "d.csv"
    (tmp_path / "d.csv").unlink()
    assert inputs.content_of(name)[1] == b"a\n1\n"


def test_a_process_holds_what_it_unpickles(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"a\n1\n")
    name = inputs.pin(str(tmp_path / "d.csv"))
    sent = pickle.dumps(inputs.inputs_of([name, name, "other"]))
    inputs._held.clear()
    with pytest.raises(ConfigError, match=r"d.csv: its bytes are not at hand"):
        inputs.content_of(name)
    assert len(pickle.loads(sent)) == 1
    assert inputs.content_of(name)[1] == b"a\n1\n"


def test_json_keeps_small_files_and_the_places_of_data(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"a\n" + b"1\n" * 10_000)
    kept, placed = inputs.pin("d.csv", tmp_path), inputs.pin("d.csv", tmp_path, keep=False)
    assert kept == placed
    entries = inputs.to_json(inputs.inputs_of([kept]))
    assert len(entries[0]["zlib"]) < 500
    inputs._held.clear()
    assert inputs.from_json(entries)[0].content == (tmp_path / "d.csv").read_bytes()
    for damage in ({"zlib": entries[0]["zlib"][:40]}, {"sha256": 64 * "0"}, {"zlib": "x!"}):
        with pytest.raises(ValueError, match=r"cut off|another hash|base64|padding|Incorrect|Invalid"):
            inputs.from_json([entries[0] | damage])


def test_a_folder_is_its_json_files(tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a.json").write_text("{}")
    name = inputs.pin("f", tmp_path, keep=False)
    assert inputs.path_of(name) == tmp_path / "f"
    (tmp_path / "f" / "b.json").write_text("{}")
    with pytest.raises(ConfigError, match="f has changed: it has sha256"):
        inputs.path_of(name)


@pytest.mark.parametrize(
    ("name", "message"), [("none.csv", "cannot be read"), ("", "cannot be read"), ("a\0b", "cannot be read")]
)
def test_what_cannot_be_read_is_one_line(name, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        inputs.pin(name, tmp_path)


def test_another_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"a\n1\n")
    name = inputs.pin("d.csv", tmp_path)
    held = inputs.inputs_of([name])[0]
    (tmp_path / "d.csv").write_bytes(b"a\n2\n")
    with pytest.raises(ConfigError, match=r"d.csv has changed: it has sha256 \w+… now"):
        inputs.refuse_change(held)
    inputs._held.clear()
    with pytest.raises(ConfigError, match="has changed"):
        inputs.pin(name, tmp_path)
