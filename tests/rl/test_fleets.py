"""The specification, drawing and solving of fleets, and their cache."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hflray import ConfigError, DataError
from hflray.allocation import allocate_round
from hflray.assignment.d3qn import SHIPPED, load_policy
from hflray.assignment.features import feature_rows
from hflray.assignment.state import assigned_objective
from hflray.config import FleetConfig, load_config
from hflray.cost import round_cost
from hflray.rl import solved_fleets
from hflray.rl.fleets import FleetSpec, SolvedFleet, check_rows, held_out, network_spec, reporting
from hflray.rl.solved_fleets import SPEC as SPEC_FILE
from hflray.rl.solved_fleets import FleetPool, prepare
from tests.conftest import refusal, refusals

SPEC = FleetSpec(num_scheduled=(4, 9), num_edges=(2, 4), delay_weight=(0.1, 10.0), model_kb=(10.0, 882.0))


def test_a_fleet_is_a_function_of_its_number() -> None:
    one, repeated, other = SPEC.solve(3), SPEC.solve(3), SPEC.solve(4)
    assert np.array_equal(one.problem.snr, repeated.problem.snr)
    assert np.array_equal(one.labels, repeated.labels)
    assert one.problem.snr.shape != other.problem.snr.shape or not np.array_equal(one.problem.snr, other.problem.snr)


def test_training_held_out_and_reporting_fleets_are_disjoint() -> None:
    kinds = SPEC, held_out(SPEC), reporting(SPEC), reporting(held_out(SPEC))
    trained, choosing, reported, again = ({spec.draw(index)[0].gain.tobytes() for index in range(20)} for spec in kinds)
    assert len(trained | choosing | reported) == 60
    assert again == reported
    assert len({spec.hash for spec in kinds[:3]}) == 3
    assert "reporting" not in SPEC.to_dict()  # existing caches keep their names
    assert FleetSpec.from_dict(reporting(SPEC).to_dict()).hash == reporting(SPEC).hash


def test_draws_stay_within_their_ranges() -> None:
    drawn = [SPEC.draw(index) for index in range(200)]
    assert {fleet.num_devices for fleet, _ in drawn} == set(range(4, 10))
    assert {fleet.num_edges for fleet, _ in drawn} == {2, 3, 4}
    weights = np.array([work.delay_weight for _, work in drawn])
    assert 0.35 < np.mean(weights == 1.0) < 0.65  # the base values half of the time
    drawn_weights = weights[weights != 1.0]
    assert drawn_weights.min() > 0.1
    assert drawn_weights.max() < 10.0
    assert 0.3 < np.mean(drawn_weights < 1.0) < 0.7  # uniform in logarithms
    assert {work.model_bits / 8192 for _, work in drawn} == {448.0, 10.0, 882.0}


def test_the_objective_is_that_of_the_cost_model() -> None:
    solved = SPEC.solve(0)
    fleet, work = SPEC.draw(0)
    devices = np.arange(fleet.num_devices)
    labels = solved.labels.astype(int)
    cost = round_cost(fleet, work, devices, labels, allocate_round(fleet, work, devices, labels))
    assert solved.objective == pytest.approx(cost.objective, rel=1e-6)
    assert assigned_objective(solved.problem, labels) == solved.objective


@pytest.mark.parametrize("features", ["paper", "paper_db", "db"])
def test_rows_are_those_of_the_fleet(features) -> None:
    fleet, work = SPEC.draw(1)
    expected, _ = feature_rows(features, fleet, work, np.arange(fleet.num_devices))
    np.testing.assert_allclose(SPEC.solve(1).rows(features), expected, rtol=1e-5, atol=1e-6)


def test_rows_that_are_not_finite_are_refused() -> None:
    rows = np.zeros((3, 4), dtype=np.float32)
    rows[1, 2] = np.nan
    with pytest.raises(DataError, match=r"features\[1, 2\]: got nan"):
        check_rows(rows)
    solved = SPEC.solve(1)
    snr = solved.problem.snr.copy()
    snr[0, 0] = np.nan
    with pytest.raises(DataError, match="finite"):
        solved._replace(problem=solved.problem._replace(snr=snr)).rows("db")


def test_the_hash_tells_specifications_apart() -> None:
    assert FleetSpec.from_dict(SPEC.to_dict()).hash == SPEC.hash
    changed = [
        held_out(SPEC),
        replace(SPEC, seed=1),
        replace(SPEC, teacher="local_search", options={}),
        replace(SPEC, fleet=FleetConfig(shadowing_db=4.0)),
    ]
    assert len({SPEC.hash, *(other.hash for other in changed)}) == 5
    # The counts of the configuration are replaced by the ranges and do not matter.
    assert replace(SPEC, fleet=FleetConfig(num_devices=7)).hash == SPEC.hash


def test_a_later_setting_at_its_default_changes_no_hash() -> None:
    # The hash at commit 6c93c38, before fleet.power_law existed.
    assert FleetSpec().hash == "e5006fdefe593ea8"
    assert "power_law" not in FleetSpec().to_dict()["fleet"]
    watt = FleetSpec(fleet=FleetConfig(power_law="watt"))
    assert watt.hash != FleetSpec().hash
    assert FleetSpec.from_dict(watt.to_dict()) == watt


def test_the_shipped_policys_specifications_are_read_as_they_were_recorded() -> None:
    _, card = load_policy(SHIPPED)
    recorded = [card["trained_on"]["specification"], *(s for tuned in card["fine_tuned"] for s in tuned["fleets"])]
    assert len(recorded) > 1
    for values in recorded:
        assert FleetSpec.from_dict(values).to_dict() == values


def test_fixed_bandwidths_fix_the_number_of_edges() -> None:
    config = load_config(None, ["fleet.num_edges=2", "fleet.edge_bandwidths_mhz=[2.5, 1]"])
    fleet, _ = FleetSpec.of(config).draw(0)
    assert fleet.edge_bandwidth_hz.tolist() == [2.5e6, 1e6]
    with pytest.raises(ConfigError, match="2 fixed"):
        replace(FleetSpec.of(config), num_edges=(2, 3))


def test_a_deployment_seed_keeps_the_edges_of_all_fleets() -> None:
    spec = FleetSpec.of(load_config(None, ["fleet.deployment_seed=3", "scheduling.num_scheduled=6"]))
    fleets = [s.draw(i)[0] for s in (spec, held_out(spec)) for i in range(4)]
    for fleet in fleets[1:]:
        assert np.array_equal(fleet.edge_position_m, fleets[0].edge_position_m)
        assert np.array_equal(fleet.edge_bandwidth_hz, fleets[0].edge_bandwidth_hz)
    assert len({fleet.position_m.tobytes() for fleet in fleets}) == len(fleets)
    assert FleetSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(ConfigError, match=r"learning.num_edges: got \[5, 6\] with fleet.deployment_seed = 3"):
        replace(spec, num_edges=(5, 6))


def test_a_configuration_gives_its_specification() -> None:
    config = load_config(
        None, ["learning.teacher.name=hfel", "learning.teacher.start=geographic", "learning.num_scheduled=[10, 100]"]
    )
    spec = FleetSpec.of(config)
    assert (spec.teacher, spec.options) == ("hfel", {"exchanges": 300, "start": "geographic"})
    assert (spec.num_scheduled, spec.num_edges, spec.model_kb) == ((10, 100), (5, 5), (448.0,))
    local = FleetSpec.of(load_config(None, ["learning.teacher.name=local_search"]))
    assert local.options == {"start": "best_gain"}
    assert network_spec(config).num_edges == 5


def test_a_data_set_gives_the_sizes_of_models_and_devices() -> None:
    cifar = FleetSpec.of(load_config(None, ["data.name=cifar10"]))
    assert (cifar.fleet.samples, cifar.model_kb, cifar.base_model_kb) == ((300, 600), (882.0,), 882.0)
    assert FleetSpec.of(load_config(None, ["data.name=fashion_mnist"])).hash == FleetSpec.of(load_config(None)).hash
    with pytest.raises(ConfigError, match=r"data\.name: got 'synthetic'.*cost\.model_kb and fleet\.samples"):
        FleetSpec.of(load_config(None, ["data.name=synthetic"]))


@pytest.mark.parametrize("change, message", refusals("rl/fleets"))
def test_bad_specifications_are_refused(change, message) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SPEC, **change)


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


@pytest.mark.parametrize(
    ("setting", "value", "other"),
    [
        ("assignment.minimise", "mean_edge", ""),
        ("assignment.minimise", "mean_edge", "clock.cloud=asynchronous"),
        ("compression.device.name", "qsgd", ""),
        ("compression.edge.name", "sign", ""),
        ("cost.secure_aggregation.shares", "3", ""),
        ("training.rule.name", "scaffold", ""),
    ],
)
def test_what_changes_the_problem_but_not_the_fleets_is_refused(setting: str, value: str, other: str) -> None:
    with refusal(ConfigError, f"{setting}: got {value}", "for the training of ", "accepted"):
        FleetSpec.of(load_config(None, [other or f"{setting}={value}"]))
    FleetSpec.of(load_config(None, ["training.rule.name=fedprox"]))


def test_a_cache_of_another_configuration_is_refused(tmp_path) -> None:
    prepare(FLEETS, 2, tmp_path)
    other = replace(FLEETS, seed=3, teacher="local_search", options={})
    with pytest.raises(ConfigError) as error:
        prepare(other, 2, tmp_path)
    for part in (
        "another configuration",
        "teacher = hfel in the cache, local_search in the configuration",
        "seed = 0 in the cache, 3 in the configuration",
        "give another folder",
    ):
        assert part in str(error.value)


def test_a_flipped_byte_is_never_trained_on(tmp_path) -> None:
    pool = prepare(FLEETS, 1, tmp_path)
    for path in (tmp_path / SPEC_FILE, *tmp_path.glob("fleets-*.npz")):
        whole, refused = path.read_bytes(), 0
        for index in range(0, len(whole), 5):
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
        assert refused > len(whole) / 10
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
    content = json.loads((tmp_path / "c" / SPEC_FILE).read_text())
    (tmp_path / "c" / SPEC_FILE).write_text(json.dumps(content | {"format": 99}))
    with pytest.raises(ConfigError, match="format 99"):
        FleetPool(tmp_path / "c")


def test_an_unknown_option_makes_no_folder(tmp_path) -> None:
    with pytest.raises(ConfigError, match="unknown option 'exchangs'"):
        prepare(replace(FLEETS, options={"exchangs": 3}), 2, tmp_path / "new")
    assert not (tmp_path / "new").exists()
