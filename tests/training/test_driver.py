"""hflray.training.driver: every rule, aggregator and compressor in real rounds, in any pool and by any kernel."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hflray import metrics
from hflray.compression import Whole
from hflray.errors import DivergedError
from hflray.models.paper import init_vector
from hflray.seeding import stream
from hflray.support.native import compiler
from hflray.training.exchange import Version, delivered
from hflray.training.job import LocalJob
from hflray.training.method import Method, Spec
from hflray.training.privacy import Mechanism
from hflray.training.rules.base import RESIDUAL
from hflray.training.state import TrainingState
from hflray.world.faults import Faulty
from tests.models.samples import build_model
from tests.training.rounds import Rounds, actors, serial_rounds
from tests.training.test_local import SHAPE, make_data, make_job

SIZES = (9, 7, 5, 4, 3, 2)
DEVICES = np.array([0, 1, 2, 3, 4, 5])
EDGES = np.array([1, 0, 1, 0, 1, 1])
# Device 1 misses the second edge iteration, and edge 0 has nobody in the last.
COUNTS = np.array([[1, 1, 1, 1, 0, 1], [1, 0, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1]], dtype=bool)


def rule(name: str, **options: Any) -> dict[str, Spec]:
    return {"rule": Spec("local_rule", name, json.dumps(options))}


def at(place: str, kind: str, name: str, **options: Any) -> dict[str, Spec]:
    return {place: Spec(kind, name, json.dumps(options))}


RULES: dict[str, Method] = {
    "sgd": Method(),
    "fedprox": Method(**rule("fedprox", mu=0.5)),
    "scaffold": Method(**rule("scaffold")),
    "feddyn": Method(**rule("feddyn", alpha=0.5), uniform=True),
    "fednova": Method(**rule("fednova"), momentum=0.5),
    "mtgc": Method(**rule("mtgc")),
}
# All that is kept and sent beside models at once: vectors of the rule, residuals of both hops, state of the aggregator.
EVERYTHING = Method(
    **rule("scaffold"),
    momentum=0.5,
    **at("device_compressor", "compressor", "top_k", share=0.1),
    **at("edge_compressor", "compressor", "sign"),
    **at("edge", "aggregator", "trimmed_mean"),
    **at("cloud", "aggregator", "fedadam"),
)
# Clipping after a compressor and before the sum; the noise before the next hop and the cloud's aggregator.
PRIVATE = Method(
    **rule("mtgc"),
    momentum=0.5,
    **at("device_compressor", "compressor", "qsgd"),
    **at("edge_compressor", "compressor", "sign"),
    **at("cloud", "aggregator", "fedadam"),
    uniform=True,
    privacy=Mechanism(0.2, 0.5),
)
METHODS = {
    **RULES,
    "mtgc and qsgd": Method(**rule("mtgc"), **at("device_compressor", "compressor", "qsgd")),
    "krum": Method(**at("edge", "aggregator", "krum", f=0)),
    "geometric median": Method(**at("edge", "aggregator", "geometric_median"), **rule("fedprox")),
    "private": PRIVATE,
    "private totals": Method(uniform=True, privacy=Mechanism(0.2, 0.5)),
    "faulty": Method(**at("edge", "aggregator", "median"), faulty=Faulty(0.5, "noise", 3.0)),
    "everything": EVERYTHING,
}


def job_of(method: Method, **changes: Any) -> LocalJob:
    return make_job(method=method, edge_iterations=3, learning_rate=0.01, **changes)


@pytest.fixture
def start() -> np.ndarray:
    return init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))


def two_rounds(rounds: Rounds, start: np.ndarray) -> TrainingState:
    """Return the state after a round of all devices, and one in which some are missing."""
    first = rounds.result(1, rounds.start(start), DEVICES, EDGES).state
    return rounds.result(2, first, DEVICES, EDGES, COUNTS).state


def assert_same_bits(state: TrainingState, expected: TrainingState) -> None:
    np.testing.assert_array_equal(state.model, expected.model)
    ours, theirs = state.arrays(), expected.arrays()
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


KERNELS = ["channels_last", "fused", "batched"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", RULES)
def test_kernels_agree_with_every_rule_as_with_plain_steps(name: str, kernel: Any, start) -> None:
    if kernel == "fused" and compiler() is None:
        pytest.skip("no C compiler")
    data = make_data(SIZES)
    models = [
        two_rounds(serial_rounds(job_of(RULES[name], kernel=used), data, 3), start).model for used in ("eager", kernel)
    ]
    assert np.linalg.norm(models[1] - models[0]) / np.linalg.norm(models[0] - start) < 1e-5


def few(name: str) -> Any:
    return name if name == "everything" else pytest.param(name, marks=pytest.mark.slow)


# Two actors for three edges are the case between one for all and one for each.
@pytest.mark.parametrize("pools", [(2,), pytest.param((1, 3), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [few(name) for name in METHODS])
def test_every_pool_gives_the_bits_of_the_serial_backend(ray_session, start, name: str, pools: tuple[int, ...]) -> None:
    data, job = make_data(SIZES), job_of(METHODS[name])
    serial = serial_rounds(job, data, 3)
    expected = two_rounds(serial, start)
    third = serial.result(3, expected, DEVICES, EDGES)
    for count in pools:
        with actors(job, data, 3, count) as pool:
            assert_same_bits(two_rounds(pool, start), expected)
            again = pool.result(3, expected, DEVICES, EDGES)
        assert_same_bits(again.state, third.state)
        assert again.measures == third.measures


def test_everything_keeps_what_it_should(start) -> None:
    state = two_rounds(serial_rounds(job_of(EVERYTHING), make_data(SIZES), 3), start)
    assert {name for memory in state.memories.values() for name in memory} == {"c", RESIDUAL}
    assert sorted(state.memories) == DEVICES.tolist()
    assert sorted(state.residuals) == [0, 1]
    assert (sorted(state.rule), sorted(state.cloud)) == (["c"], ["m", "v"])


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_has_the_bits_of_one_without_a_break_and_a_round_leaves_the_state_before_it(name, start) -> None:
    rounds = serial_rounds(job_of(METHODS[name]), make_data(SIZES), 3)
    before = two_rounds(rounds, start)
    copy = {name: value.copy() for name, value in before.arrays().items()}
    third = rounds.result(3, before, DEVICES, EDGES).state
    for key, value in before.arrays().items():
        np.testing.assert_array_equal(value, copy[key], err_msg=key)
    resumed = TrainingState.of_arrays(before.model, before.arrays())
    assert_same_bits(resumed, before)
    again = serial_rounds(job_of(METHODS[name]), make_data(SIZES), 3)
    assert_same_bits(again.result(3, resumed, DEVICES, EDGES).state, third)


def test_a_vector_named_model_is_not_taken_for_the_model() -> None:
    state = TrainingState(np.zeros(1), fetched={1: Version(np.zeros(1), {"model": np.ones(1)})})
    resumed = TrainingState.of_arrays(state.model, state.arrays()).fetched[1]
    assert (resumed.model, *resumed.vectors.items()) == (0, ("model", 1))


def test_a_device_that_does_not_take_part_keeps_its_memory(start) -> None:
    rounds = serial_rounds(job_of(EVERYTHING), make_data(SIZES), 3)
    before = two_rounds(rounds, start)
    away = np.ones((3, 6), dtype=bool)
    away[:, 2] = False
    after = rounds.result(3, before, DEVICES, EDGES, away).state
    for name, value in before.memories[2].items():
        np.testing.assert_array_equal(after.memories[2][name], value)
    assert (after.memories[0]["c"] != before.memories[0]["c"]).any()


def test_a_compressor_changes_nothing_before_it(start) -> None:
    """With all numbers sent, only the rounding of the update is left."""
    data = make_data(SIZES)
    whole = Method(**at("device_compressor", "compressor", "top_k", share=1.0))
    given, plain = (
        serial_rounds(job_of(method), data, 3).train_round(1, start, DEVICES, EDGES) for method in (whole, Method())
    )
    np.testing.assert_allclose(given, plain, rtol=1e-5, atol=1e-7)


def test_an_edge_at_which_too_few_arrive_keeps_its_model(start) -> None:
    """Krum with f = 0 needs three models; edge 0 has two devices, and edge 1 four."""
    data, method = make_data(SIZES), Method(**at("edge", "aggregator", "krum", f=0))
    rounds = serial_rounds(job_of(method), data, 1)
    state = rounds.result(1, rounds.start(start), DEVICES, EDGES).state
    alone = rounds.result(1, rounds.start(start), DEVICES[EDGES == 1], EDGES[EDGES == 1]).state
    share = (9 + 5 + 3 + 2) / sum(SIZES)
    np.testing.assert_allclose(state.model, start + share * (alone.model - start), rtol=1e-5, atol=1e-7)


def test_what_is_not_finite_is_not_compressed() -> None:
    update, received = np.float32([1, np.nan]), np.zeros(2, np.float32)
    compressor = METHODS["everything"].parts().device_compressor
    rng = np.random.default_rng(0)
    with pytest.raises(DivergedError, match="not finite"):
        delivered(update, received, 1.0, compressor, [2], rng, None)
    assert delivered(update, received, 1.0, Whole(), [2], rng, None)[0] is update


def test_statistics_travel_whole() -> None:
    model, received = np.float32([3, -1, 7]), np.float32([1, 0, 5])
    given, kept = delivered(
        model, received, 1.0, METHODS["everything"].parts().edge_compressor, [2], np.random.default_rng(0), None
    )
    np.testing.assert_array_equal(given, [1 + 1.5, -1.5, 7])
    np.testing.assert_array_equal(kept, [0.5, 0.5])
    scaled, _ = delivered(model, received, 0.5, Whole(), [2], np.random.default_rng(0), None)
    np.testing.assert_array_equal(scaled, [2, -0.5, 7])


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_clips_the_updates_that_it_hands_up(kernel: Any, start) -> None:
    """With a tiny bound and almost no noise, the global model moves by at most Q bounds."""
    if kernel == "fused" and compiler() is None:
        pytest.skip("no C compiler")
    method = Method(uniform=True, privacy=Mechanism(1e-3, 1e-6))
    model = serial_rounds(job_of(method, kernel=kernel), make_data(SIZES), 3).train_round(1, start, DEVICES, EDGES)
    moved = np.linalg.norm(model.astype(np.float64) - start)
    assert 1e-3 < moved < 3 * 1e-3 * (1 + 1e-3)


def test_the_noise_of_every_edge_and_iteration_reaches_the_model(start) -> None:
    """With a bound so tiny that updates vanish, the global model moves by the noise alone, whose size is known."""
    clip, multiplier = 1e-6, 2e4
    data = make_data(SIZES)
    method = Method(uniform=True, privacy=Mechanism(clip, multiplier))
    moved = serial_rounds(job_of(method), data, 3).train_round(1, start, DEVICES, EDGES) - start
    # An edge of n devices adds N(0, 0.02²)/n in each of three iterations; edges have 2 and 4 of the 6 devices.
    variance = 3 * ((2 / 6) ** 2 / 2**2 + (4 / 6) ** 2 / 4**2) * (clip * multiplier) ** 2
    assert moved.std() == pytest.approx(np.sqrt(variance), rel=0.02)


def test_updates_are_measured_only_where_a_part_is_not_the_default_or_it_is_asked_for(start) -> None:
    def measures(method: Method) -> set[str]:
        rounds = serial_rounds(job_of(method), make_data(SIZES), 3)
        return set(rounds.result(1, rounds.start(start), DEVICES, EDGES).measures)

    assert measures(Method()) == measures(Method(momentum=0.5)) == set()
    assert measures(Method(measured=True)) == measures(METHODS["krum"]) == {metrics.UPDATE_NORM, metrics.UPDATE_DRIFT}
    assert measures(EVERYTHING) == set(metrics.names_logged("inside"))


def test_measuring_changes_no_bit_and_has_the_numbers_of_one_device_trained_alone(start) -> None:
    data, alone = make_data(SIZES), (DEVICES[:1], EDGES[:1])
    results = []
    for method in (Method(), Method(measured=True)):
        rounds = serial_rounds(job_of(method), data, 1)
        results.append(rounds.result(1, rounds.start(start), *alone))
    np.testing.assert_array_equal(results[0].state.model, results[1].state.model)
    moved = np.linalg.norm(results[1].state.model.astype(np.float64) - start)
    values = results[1].measures
    assert values == {name: pytest.approx(moved, rel=1e-6) for name in (metrics.UPDATE_NORM, metrics.UPDATE_DRIFT)}


def test_the_error_of_a_compressor_is_what_it_kept(start) -> None:
    data, method = make_data(SIZES), Method(**at("device_compressor", "compressor", "top_k", share=0.1))
    rounds = serial_rounds(job_of(method), data, 1)
    first = rounds.result(1, rounds.start(start), DEVICES[:1], EDGES[:1])
    kept = np.linalg.norm(first.state.memories[0][RESIDUAL].astype(np.float64))
    error, drift = first.measures[metrics.COMPRESSION_ERROR], first.measures[metrics.UPDATE_DRIFT]
    assert 0.1 < error < 1
    assert error == pytest.approx(kept / drift, rel=1e-5)  # nothing was left of an update before
    second = rounds.result(2, first.state, DEVICES[:1], EDGES[:1])
    left = np.linalg.norm(second.state.memories[0][RESIDUAL].astype(np.float64))
    assert second.measures[metrics.COMPRESSION_ERROR] > left / (second.measures[metrics.UPDATE_DRIFT] + kept)


def test_faulty_devices_are_named_by_their_world_and_no_others_change(start) -> None:
    """One device alone: if it is faulty, the model moves backwards, and else as without faulty devices."""
    data, mask = make_data(SIZES), Faulty(0.5, "sign_flip", 1.0).devices(job_of(Method()).seed, 6)
    assert mask.sum() == 3
    for device in DEVICES:
        plain, other = (
            serial_rounds(job_of(method), data, 1).train_round(1, start, DEVICES[[device]], np.array([0])) - start
            for method in (Method(), Method(faulty=Faulty(0.5, "sign_flip", 1.0)))
        )
        np.testing.assert_allclose(other, -plain if mask[device] else plain, atol=1e-6)
