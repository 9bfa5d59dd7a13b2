"""The cache of solved fleets."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from hflray import ConfigError
from hflray.rl import solved_fleets
from hflray.rl.fleets import FleetSpec, SolvedFleet
from hflray.rl.solved_fleets import SPEC, FleetPool, prepare

FLEETS = FleetSpec(num_scheduled=(3, 6), num_edges=(2, 3))


def equal(a: SolvedFleet, b: SolvedFleet) -> bool:
    fields = zip([*a.problem, *a[1:]], [*b.problem, *b[1:]], strict=True)
    return all(np.array_equal(x, y) for x, y in fields)


def test_a_cache_returns_the_solved_fleets(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(solved_fleets, "SHARD", 3)
    pool = prepare(FLEETS, 7, tmp_path / "a", workers=2)
    assert len(pool) == 7
    assert len(list((tmp_path / "a").glob("fleets-*.npz"))) == 3
    assert all(equal(pool[index], FLEETS.solve(index)) for index in range(7))
    assert pool.spec == FLEETS or pool.spec.hash == FLEETS.hash


def test_a_cache_grows_and_is_not_solved_again(tmp_path, monkeypatch) -> None:
    reports: list[tuple[int, int]] = []
    pool = prepare(FLEETS, 4, tmp_path, progress=lambda *done: reports.append(done))
    assert reports == [(0, 4), (4, 4)]
    prepare(FLEETS, 9, tmp_path)
    assert len(pool) == 4
    pool = FleetPool(tmp_path)
    assert equal(pool[8], FLEETS.solve(8))
    monkeypatch.setattr(FleetSpec, "solve", lambda *_: pytest.fail("solved again"))
    assert len(prepare(FLEETS, 6, tmp_path)) == 6
    assert len(FleetPool(tmp_path)) == 9


def test_a_cache_of_another_configuration_is_refused(tmp_path) -> None:
    prepare(FLEETS, 2, tmp_path)
    other = replace(FLEETS, seed=3, teacher="local_search", options={})
    for refused in (lambda: prepare(other, 2, tmp_path), lambda: FleetPool(tmp_path, other)):
        with pytest.raises(ConfigError) as error:
            refused()
        for part in (
            "another configuration",
            "teacher = hfel in the cache, local_search in the configuration",
            "seed = 0 in the cache, 3 in the configuration",
        ):
            assert part in str(error.value)
        assert "give another folder" in str(error.value)


def test_a_flipped_byte_is_never_trained_on(tmp_path) -> None:
    pool = prepare(FLEETS, 1, tmp_path)
    for path in (tmp_path / SPEC, *tmp_path.glob("fleets-*.npz")):
        whole, refused = path.read_bytes(), 0
        for index in range(len(whole)):
            path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
            try:
                damaged = FleetPool(tmp_path)
            except ConfigError as error:
                assert "\n" not in str(error)
                refused += 1
            else:  # a space, a date, or another byte that the values do not depend on
                assert damaged.spec == pool.spec
                assert len(damaged) == 1
                assert equal(damaged[0], pool[0])
        assert refused > len(whole) / 2
        path.write_bytes(whole)


def test_folders_that_are_not_caches_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="holds no solved fleets"):
        FleetPool(tmp_path)
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="not empty and not a cache"):
        prepare(FLEETS, 1, tmp_path)
    prepare(FLEETS, 3, tmp_path / "c")
    with pytest.raises(ConfigError, match=r"5 wanted.*holds 3.*hflray.rl.solved_fleets"):
        FleetPool(tmp_path / "c", count=5)
    next((tmp_path / "c").glob("*.npz")).write_bytes(b"PK damaged")
    with pytest.raises(ConfigError, match="damaged"):
        FleetPool(tmp_path / "c")
    content = json.loads((tmp_path / "c" / SPEC).read_text())
    (tmp_path / "c" / SPEC).write_text(json.dumps(content | {"format": 99}))
    with pytest.raises(ConfigError, match="format 99"):
        FleetPool(tmp_path / "c")


def test_an_unknown_option_makes_no_folder(tmp_path) -> None:
    with pytest.raises(ConfigError, match="unknown option 'exchangs'"):
        prepare(replace(FLEETS, options={"exchangs": 3}), 2, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_pickled_pool_names_its_cache_only(tmp_path) -> None:
    pool = prepare(FLEETS, 2, tmp_path)
    assert copy.deepcopy({"pool": pool})["pool"] is pool
    assert len(pickle.dumps(pool)) < 5000
    assert equal(pickle.loads(pickle.dumps(pool))[1], pool[1])
