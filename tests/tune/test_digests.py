"""`hflray.tune.digests`: the record of Tune's files is this user's, or empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hflray.support.checksum import digest
from hflray.tune.digests import FILE, MOST, STATE, TUNER, TuneDigests


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "staging").mkdir()
    (tmp_path / "sweep").mkdir()
    return tmp_path / "sweep"


def test_staged_files_are_recorded_when_they_change(folder) -> None:
    staging, record = folder.parent / "staging", TuneDigests(folder)
    assert not record.add_staged(staging)
    (staging / "experiment_state-1.json").write_bytes(b"one")
    (staging / "searcher-state-1.pkl").write_bytes(b"search")
    (staging / "result.json").write_bytes(b"not Tune's state")
    assert record.add_staged(staging)
    assert not record.add_staged(staging)
    (staging / "experiment_state-1.json").write_bytes(b"one and two")
    assert record.add_staged(staging)
    record.add(TUNER, b"tuner")
    record.save()
    assert TuneDigests.load(folder).known == {
        "experiment_state-1.json": [digest(b"one"), digest(b"one and two")],
        "searcher-state-1.pkl": [digest(b"search")],
        TUNER: [digest(b"tuner")],
    }


def test_the_last_digests_are_kept(folder) -> None:
    record = TuneDigests(folder)
    for number in range(2 * MOST):
        record.add("a", bytes([number]))
        record.add("a", bytes([number]))
    assert record.known["a"] == [digest(bytes([number])) for number in range(MOST, 2 * MOST)]


def test_a_record_that_is_missing_damaged_foreign_or_of_another_sweep_is_empty(folder, monkeypatch, tmp_path) -> None:
    assert TuneDigests.load(folder).known == {}
    record = TuneDigests(folder)
    record.add(TUNER, b"x")
    record.save()
    path = folder / FILE
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (b"", whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b"[]"):
        path.write_bytes(damaged)
        assert TuneDigests.load(folder).known == {}
    content = json.loads(whole)
    del content["seal"], content["sha256"]
    path.write_text(json.dumps(content))
    assert TuneDigests.load(folder).known == {}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE).write_bytes(whole)
    assert TuneDigests.load(tmp_path / "other").known == {}
    path.write_bytes(whole)
    assert TuneDigests.load(folder).known
    monkeypatch.setenv("HFLRAY_KEY_FILE", str(tmp_path / "key"))
    assert TuneDigests.load(folder).known == {}


def test_the_pattern_covers_every_name_that_tune_looks_for() -> None:
    """Tune matches with shell patterns, in which a star also stands for nothing and for a line break."""
    from ray.tune.callback import CallbackList
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.search import Searcher, SearchGenerator
    from ray.tune.search.basic_variant import BasicVariantGenerator

    for owner in (CallbackList, TuneController, Searcher, SearchGenerator, BasicVariantGenerator):
        for text in ("2026-01-01_00-00-00", "", "a\nb", "x-y.json"):
            match = STATE.fullmatch(owner.CKPT_FILE_TMPL.format(text))
            assert match, owner
            assert match[1] == text
