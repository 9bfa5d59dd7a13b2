"""hflray.training.autotune: what is measured, what is kept, and what is left alone."""

from __future__ import annotations

import json

import pytest

from hflray.config import TrainingConfig
from hflray.errors import HflrayError
from hflray.training import autotune

SHAPE = (1, 16, 16)
BIG = autotune.WORTH_MEASURING


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(autotune, "SECONDS", 0.001)
    monkeypatch.setattr(autotune, "REPEATS", 1)


def rates(monkeypatch: pytest.MonkeyPatch, known: dict[str, float]) -> list[str]:
    """Let `known` be the measured rates; return the list that the measured things are added to."""
    asked: list[str] = []

    def remembered(what, measure):
        asked.append(what["measured"])
        return known

    monkeypatch.setattr(autotune, "_remembered", remembered)
    return asked


def test_what_is_named_stays_and_nothing_is_measured(monkeypatch) -> None:
    asked = rates(monkeypatch, {})
    named = TrainingConfig(kernel="eager", threads=3)
    assert autotune.resolve(named, SHAPE, 3, BIG) == named
    assert asked == []


@pytest.mark.parametrize("changes, passes", [({}, BIG - 1), ({"autotune": False}, BIG)])
def test_small_rounds_and_no_autotune_take_the_fixed_choice(monkeypatch, changes, passes) -> None:
    asked = rates(monkeypatch, {})
    resolved = autotune.resolve(TrainingConfig(**changes), SHAPE, 3, passes)
    assert (resolved.kernel, resolved.threads) == ("channels_last", 1)
    assert asked == []


def test_the_fastest_kernel_is_taken_and_more_threads_only_if_they_pay(monkeypatch) -> None:
    monkeypatch.setattr(autotune, "available_cpus", lambda: (0, 1))
    known = {"eager/1": 5.0, "channels_last/1": 8.0, "native/1": 11.0, "native/2": 11.1}
    rates(monkeypatch, known)
    resolved = autotune.resolve(TrainingConfig(), SHAPE, 3, BIG)
    assert (resolved.kernel, resolved.threads) == ("native", 1)
    rates(monkeypatch, known | {"native/2": 15.0})
    resolved = autotune.resolve(TrainingConfig(), SHAPE, 3, BIG)
    assert (resolved.kernel, resolved.threads) == ("native", 2)


def test_a_measurement_is_made_once_and_kept_whole(tmp_path, monkeypatch) -> None:
    config = TrainingConfig(batch_size=4, threads=1)
    first = autotune.resolve(config, SHAPE, 3, BIG)
    (path,) = (tmp_path / "hflray" / "autotune").iterdir()
    kept = json.loads(path.read_text())
    assert {"eager/1", "channels_last/1"} <= set(kept["rates"])
    assert kept["of"]["model"] == [*SHAPE, 3, 4, "float32"]

    monkeypatch.setattr(autotune, "_sample", lambda *_: pytest.fail("measured again"))
    assert autotune.resolve(config, SHAPE, 3, BIG) == first


def test_a_spoilt_file_is_measured_anew(tmp_path) -> None:
    config = TrainingConfig(batch_size=4, threads=1)
    autotune.resolve(config, SHAPE, 3, BIG)
    (path,) = (tmp_path / "hflray" / "autotune").iterdir()
    path.write_text('{"rates": ')
    autotune.resolve(config, SHAPE, 3, BIG)
    assert json.loads(path.read_text())["rates"]


def test_without_a_compiler_native_is_no_candidate_and_by_name_an_error(monkeypatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    autotune.library.cache_clear()
    try:
        assert autotune.resolve(TrainingConfig(batch_size=4, threads=1), SHAPE, 3, BIG).kernel != "native"
        with pytest.raises(HflrayError, match="C compiler"):
            autotune.resolve(TrainingConfig(kernel="native"), SHAPE, 3, 1)
    finally:
        autotune.library.cache_clear()


def test_half_the_cpus_are_used_where_the_others_add_nothing(monkeypatch) -> None:
    monkeypatch.setattr(autotune, "available_cpus", lambda: tuple(range(8)))
    config = TrainingConfig(kernel="eager", threads=1)

    def useful(changes: dict, passes: int = BIG, cpus: int = 8) -> int:
        return autotune.useful_cpus(config.model_copy(update=changes), SHAPE, 3, passes, cpus)

    asked = rates(monkeypatch, {"4": 100.0, "8": 102.0})
    assert useful({}) == 4
    rates(monkeypatch, {"4": 100.0, "8": 150.0})
    assert useful({}) == 8
    asked.clear()
    assert useful({}, passes=1) == useful({"autotune": False}) == useful({"threads": 2}) == 8
    assert useful({}, cpus=1) == 1
    assert useful({}, cpus=64) == 64  # a cluster's: this machine cannot tell
    assert asked == []


def test_the_pool_is_measured_with_processes(monkeypatch) -> None:
    monkeypatch.setattr(autotune, "POOL_REPEATS", 1)
    config = TrainingConfig(kernel="eager", threads=1, batch_size=4)
    assert autotune.useful_cpus(config, SHAPE, 3, BIG, min(2, len(autotune.available_cpus()))) in (1, 2)
