"""Each cache, policy and key × each kind of damage: it is made again, or one line says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hflray.assignment import policy
from hflray.assignment.policy import load_policy, save_policy
from hflray.errors import ConfigError
from hflray.rl.evaluation import references
from hflray.rl.solved_fleets import prepare
from hflray.support.native import compiler
from hflray.training.kernel_base import library
from tests.damage.cells import AGAIN, CACHE_FILES, DAMAGES, PAGE, STOPS, table
from tests.damage.test_matrix import WITHOUT_PRIVILEGE
from tests.rl.small import TINY, tiny_network


class Cache(NamedTuple):
    """A kind of file: `use` makes or reads it and returns what it holds; `pattern` finds it below the folder."""

    use: Callable[[Path], Any]
    pattern: str


def use_policy(folder: Path) -> Any:
    path = folder / "policy.safetensors"
    if not (folder / "made").exists():
        save_policy(path, tiny_network(), {"trained_on": {}})
        (folder / "made").touch()
    policy._load.cache_clear()  # as in a new process
    return [tensor.numpy() for tensor in load_policy(path)[0].state_dict().values()]


def use_library(folder: Path) -> Any:
    if compiler() is None:
        pytest.skip("no C compiler")
    library.cache_clear()
    try:
        return [library("mini").cross_entropy_backward is not None]
    finally:
        library.cache_clear()


def use_fleets(folder: Path) -> Any:
    return [fleet.problem.snr for fleet in prepare(TINY, 2, folder / "fleets").fleets]


CACHES = {
    "policy": Cache(use_policy, "policy.safetensors"),
    "fleets' `spec.json`": Cache(use_fleets, "fleets/spec.json"),
    "fleets' `.npz`": Cache(use_fleets, "fleets/fleets-*.npz"),
    "references on fleets": Cache(
        lambda folder: list(references(prepare(TINY, 2, folder / "fleets")).values()), "fleets/references.npz"
    ),
    "compiled kernel": Cache(use_library, "hflray/mini/*.so"),
}


@pytest.fixture
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def check(folder: Path, kind: str, damage: str) -> None:
    use, pattern = CACHES[kind]
    before = use(folder)
    (path,) = folder.glob(pattern)
    if kind == "compiled kernel":  # this process has mapped the file, so a copy takes its place
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    DAMAGES[damage](path)
    try:
        after = use(folder)
    except ConfigError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error) or str(path.parent) in str(error)
        result = STOPS
    else:
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        result = AGAIN
    if notes := os.environ.get("HFLRAY_DAMAGE_NOTES"):
        with open(notes, "a", encoding="utf-8") as file:
            file.write("\t".join([kind, damage, result, ""]) + "\n")
        return
    assert table(PAGE.read_text(encoding="utf-8"), "matrix of caches")[kind, damage] == result


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage != "unreadable"])
@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_is_made_again_or_says_what_to_do(folder, kind: str, damage: str) -> None:
    check(folder, kind, damage)


@pytest.mark.skipif(WITHOUT_PRIVILEGE not in os.environ, reason="run by test_unreadable_files in a process of its own")
@pytest.mark.parametrize("kind", CACHES)
def test_an_unreadable_cache(folder, kind: str) -> None:
    check(folder, kind, "unreadable")


def test_the_page_has_a_cell_for_each_cache_and_damage() -> None:
    expected = table(PAGE.read_text(encoding="utf-8"), "matrix of caches")
    assert set(CACHES) == set(CACHE_FILES)
    assert set(expected) == {(kind, damage) for kind in CACHES for damage in DAMAGES}
    assert set(expected.values()) <= {AGAIN, STOPS}
