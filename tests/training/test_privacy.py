"""hflray.training.privacy: ε in closed form, the uploads that it counts, clipped updates, and the noise in a sum."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.aggregation import Frame, Mean
from hflray.aggregation.fixed_point import fraction_bits, mean, weighted
from hflray.config import ExperimentConfig
from hflray.errors import DivergedError
from hflray.training.exchange import Lifted, Version
from hflray.training.method import Spec
from hflray.training.nodes import EdgeWorker, add_up
from hflray.training.privacy import Mechanism, delta_of, epsilon_of, noised

FROZEN = json.loads((Path(__file__).parent / "dp_accounting.json").read_text(encoding="utf-8"))["cases"]


def config_of(**changes: object) -> ExperimentConfig:
    privacy = {"clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-5}
    return ExperimentConfig.model_validate({"privacy": privacy, "fleet": {"num_devices": 50}, **changes})


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize("epsilon, ratio", [(0.0, 1.0), (0.5, 0.3), (1.0, 1.0), (3.0, 2.0), (8.0, 1.5)])
def test_delta_is_balle_and_wang_s_formula(epsilon: float, ratio: float) -> None:
    expected = phi(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * phi(-ratio / 2 - epsilon / ratio)
    assert delta_of(epsilon, ratio) == pytest.approx(expected, rel=1e-9)


def test_epsilon_agrees_with_dp_accounting_to_one_per_cent() -> None:
    assert len(FROZEN) == 5 * 4 * 2
    for case in FROZEN:
        ratio = math.sqrt(case["releases"]) / case["noise_multiplier"]
        assert epsilon_of(ratio, case["delta"]) == pytest.approx(case["epsilon"], rel=0.01), case


@settings(deadline=None)
@given(st.floats(-6, 6), st.floats(-300, -0.01))
def test_epsilon_is_the_least_that_has_its_delta_for_small_and_large_noise(ratio: float, delta: float) -> None:
    ratio, delta = 10**ratio, 10**delta
    epsilon = epsilon_of(ratio, delta)
    assert math.isfinite(epsilon)
    assert delta_of(epsilon, ratio) <= delta
    if epsilon:
        assert delta_of(epsilon * (1 - 1e-6), ratio) > delta * (1 - 1e-6)


def test_nothing_released_costs_nothing_and_more_releases_cost_more() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    each = [epsilon_of(math.sqrt(k) / 2, 1e-5) for k in (1, 2, 3, 100)]
    assert each == sorted(each)
    assert len(set(each)) == 4


def frame_of(deviation: float, count: int = 4, **changes: int) -> Frame:
    return replace(Frame("edge", 0, 1, 0, count, count, 0, fraction_bits(count), 7, deviation), **changes)


def test_an_update_is_shortened_to_the_bound_by_hand() -> None:
    clipped = Mechanism(1.0, 1.0).clipped(np.float32([5, 6]), np.float32([2, 2]))  # the update (3, 4) has the length 5
    np.testing.assert_allclose(clipped, [2.6, 2.8], rtol=3e-6)


def test_an_update_within_the_bound_is_sent_as_it_is() -> None:
    model = np.float32([0.3, -0.4])
    assert Mechanism(0.6, 1.0).clipped(model, np.zeros(2, np.float32)) is model


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-12, 3), st.floats(-3, 1))
def test_no_rounding_makes_an_update_longer_than_the_bound(seed: int, bound: float, size: float) -> None:
    rng = np.random.default_rng(seed)
    received = (10**size * rng.standard_normal(50)).astype(np.float32)
    model = (received + 10**size * rng.standard_normal(50)).astype(np.float32)
    clip = 10**bound
    clipped = Mechanism(clip, 1.0).clipped(model, received)
    bits = fraction_bits(100)
    as_summed = (weighted(clipped, 1, bits) - weighted(received, 1, bits)).astype(np.float64) * 2.0**-bits
    # Rounding to 2^-45 adds at most √50 · 2^-45, which the margin holds where the bound is not below it.
    assert np.linalg.norm(as_summed) <= clip + 1e-12


def test_what_is_not_finite_is_left_to_the_sum_which_refuses_it() -> None:
    for bad in (np.nan, np.inf):
        clipped = Mechanism(1.0, 1.0).clipped(np.float32([bad, 0]), np.zeros(2, np.float32))
        with pytest.raises(DivergedError, match="not finite"):
            weighted(clipped, 1, 40)


def test_the_noise_has_the_deviation_of_the_frame_and_enters_the_sum() -> None:
    total, frame = np.full(200_000, 3 << fraction_bits(4), dtype=np.int64), frame_of(0.5)
    noise = mean(noised(total, frame) - total, 1, frame.fraction_bits).astype(np.float64)
    # The standard error of a deviation is σ/√(2n) = 0.0008, and that of a mean 0.0011.
    assert noise.std() == pytest.approx(0.5, abs=4 * 0.0008)
    assert noise.mean() == pytest.approx(0.0, abs=4 * 0.0011)
    assert (total == 3 << fraction_bits(4)).all()


def test_the_noise_is_drawn_by_round_iteration_edge_and_seed() -> None:
    total = np.zeros(3, dtype=np.int64)
    frames = [frame_of(1.0, **change) for change in ({}, {"round": 2}, {"iteration": 1}, {"index": 1}, {"seed": 8})]
    noise = [tuple(noised(total, frame)) for frame in frames]
    assert len(set(noise)) == len(frames)
    assert noise == [tuple(noised(total, frame)) for frame in frames]


def test_without_noise_the_sum_is_itself() -> None:
    total = np.arange(3)
    assert noised(total, frame_of(0.0)) is total


def test_noise_that_a_sum_cannot_hold_is_refused() -> None:
    with pytest.raises(DivergedError, match=r"round 1, edge 0: the noise .* lower privacy\.clip or privacy\.noise"):
        noised(np.zeros(10, dtype=np.int64), frame_of(1e6))


def test_an_edge_s_sum_is_noised_once_whether_it_is_finished_or_handed_to_the_cloud() -> None:
    models = [np.float32([n, -n]) for n in range(4)]
    frame, rule = frame_of(0.5), Mean()
    lifted = [Lifted(weighted(model, 1, frame.fraction_bits)) for model in models]
    halves = [add_up(rule, lifted[:1]), add_up(rule, lifted[1:])]
    mean_of, edge = Spec("aggregator", "mean"), EdgeWorker()
    closed = [edge.close(mean_of, frame, *parts).part for parts in (lifted, halves)]
    np.testing.assert_array_equal(closed[0], closed[1])
    before = Version(np.zeros(2, np.float32))
    finished = [edge.finish(mean_of, frame, False, before, *parts).model for parts in (lifted, halves)]
    np.testing.assert_array_equal(finished[0], finished[1])
    np.testing.assert_array_equal(finished[0], mean(closed[0], 4, frame.fraction_bits))
    plain = edge.finish(mean_of, replace(frame, deviation=0.0), False, before, *lifted).model
    assert not np.array_equal(finished[0], plain)
