"""Every registered aggregator: one contract of all, each by hand and beside its paper or Flower, and exact sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hflray import registry
from hflray.aggregation import Aggregator, OfModels, OfUpdate
from hflray.aggregation.fixed_point import MAX_WEIGHT, fraction_bits, mean, weighted
from hflray.aggregation.robust import GeometricMedian, Krum, TrimmedMean
from hflray.aggregation.server_optimisers import FedYogi
from hflray.errors import ConfigError, DivergedError
from hflray.training.method import Method, Spec
from tests.aggregation.places import FLOWER, combined
from tests.conftest import refusal

OPTIONS: dict[str, dict[str, Any]] = {"krum": {"f": 1}, "multi_krum": {"f": 1}}
NAMES = list(registry.BUILTIN["aggregator"])


def build(name: str, **options: Any) -> Any:
    made: Aggregator = registry.build("aggregator", name, **(options or OPTIONS.get(name, {})))
    return made


AT_CLOUD = [name for name in NAMES if not build(name).at_edge]
AT_EDGE = [name for name in NAMES if not build(name).at_cloud]
ROWS = arrays.arrays(np.float32, (7, 5), elements=st.floats(-8, 8, width=32))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(models=ROWS, weights=st.lists(st.integers(1, 900), min_size=7, max_size=7), split=st.integers(1, 6))
def test_no_grouping_of_the_senders_changes_a_bit_and_no_input_changes(name: str, models, weights, split) -> None:
    aggregator, before = build(name), np.float32([0.5, 0, 1, -1, 2])
    kept = models.copy(), before.copy(), {key: value.copy() for key, value in aggregator.start(5).items()}
    whole = combined(aggregator, models, weights, before)
    np.testing.assert_array_equal(combined(aggregator, models, weights, before, split=split), whole)
    assert (whole.dtype, whole.shape) == (np.float32, (5,))
    np.testing.assert_array_equal(models, kept[0])
    np.testing.assert_array_equal(before, kept[1])
    if isinstance(aggregator, OfUpdate):
        state = aggregator.start(5)
        aggregator.step(whole.astype(np.float64) - before, state)
        assert all((state[key] == value).all() for key, value in kept[2].items())


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_the_weighted_mean_for_which_alone_weights_count_at_an_edge(name: str) -> None:
    models, weights = np.random.default_rng(3).normal(size=(7, 5)), np.array([9, 1, 1, 1, 1, 1, 2])
    weighted, plain = (combined(build(name), models, given, statistics=2) for given in (weights, None))
    np.testing.assert_allclose(weighted[3:], np.average(models[:, 3:], axis=0, weights=weights), rtol=1e-6)
    assert (name in AT_EDGE) == np.array_equal(plain[:3], weighted[:3])
    np.testing.assert_array_equal(plain[:3], combined(build(name), models[:, :3]))


@pytest.mark.parametrize("name", [*AT_EDGE, *AT_CLOUD])
def test_each_stands_at_its_place(name: str) -> None:
    spec = Spec.of("aggregator", type("Section", (), {"name": name, "options": OPTIONS.get(name, {})}))
    here, other = ("edge", "cloud") if name in AT_EDGE else ("cloud", "edge")
    parts = Method(**{here: spec}).parts()
    assert isinstance(getattr(parts, here), OfModels if name in AT_EDGE else OfUpdate)
    assert not parts.adds_totals
    with refusal(ConfigError, f"aggregation.{other}.name", name, f"aggregation.{here}"):
        Method(**{other: spec}).parts()


def test_how_many_models_each_needs() -> None:
    assert {name: build(name).least for name in NAMES} == {name: 5 if "krum" in name else 1 for name in NAMES}
    assert [Krum(f).least for f in (0, 1, 3)] == [3, 5, 9]


FAR = [[9.0], [2.0], [0.0], [-7.0], [1.0]]  # Krum's scores with f = 1: 113, 5, 5, 113 and 2


@pytest.mark.parametrize(
    "name, options, models, expected",
    [
        ("mean", {}, [[1], [4]], [2.5]),
        ("median", {}, [[0, 5], [1, -1], [9, 2]], [1, 2]),
        ("median", {}, [[0, 5], [1, -1]], [0.5, 2]),
        ("trimmed_mean", {}, [[0, 5], [1, -1], [9, 2], [-7, 3], [3, 4]], [4 / 3, 3]),
        ("krum", {"f": 1}, FAR, [1]),
        ("krum", {"f": 0}, [[1], [0], [2]], [1]),
        ("krum", {"f": 1}, [[5], [2], [1], [5], [2]], [2]),  # the lower index wins ties
        ("multi_krum", {"f": 1, "keep": 1}, FAR, [1]),
        ("multi_krum", {"f": 1, "keep": 2}, FAR, [1.5]),
        ("multi_krum", {"f": 1}, FAR, [3]),  # n − f models: 9 wins the tie
        ("multi_krum", {"f": 1, "keep": 9}, FAR, [1]),
        ("geometric_median", {}, [[1.25, 1.25]] * 4, [1.25, 1.25]),
        # The diagonals of a convex quadrilateral, from (0, 0) to (4, 4) and from (6, 0) to (0, 3), cross at (2, 2).
        ("geometric_median", {}, [[0, 0], [6, 0], [4, 4], [0, 3]], [2, 2]),
        # Seen from the Fermat point of a triangle, its corners are 120 degrees apart.
        ("geometric_median", {}, [[-1, 0], [1, 0], [0, 5]], [0, 1 / np.sqrt(3)]),
        ("geometric_median", {}, [[0], [1], [5], [100], [0.5]], [1]),  # on a line it is the median
        ("geometric_median", {}, [[-1], [-1], [-1], [0], [3]], [-1]),  # the mean is a model, and is left
        ("fedavgm", {}, [[2], [4]], [3]),
    ],
)
def test_by_hand(name: str, options: dict[str, Any], models, expected) -> None:
    np.testing.assert_allclose(combined(build(name, **options), models), expected, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_geometric_median_of_scaled_models_is_scaled(scale: float) -> None:
    models = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    median = build("geometric_median").of_models(models, np.ones(4))
    scaled = build("geometric_median").of_models(scale * models, np.ones(4))
    np.testing.assert_allclose(scaled, scale * median, rtol=1e-6)


@pytest.mark.parametrize("case", FLOWER)
def test_those_that_flower_has_are_flowers(case) -> None:
    models, weights = np.array(case["models"]), np.ones(len(case["models"]))
    for name in ("median", "trimmed_mean", "krum", "multi_krum"):
        aggregator = build(name, **({"f": case["f"]} if "krum" in name else {}))
        np.testing.assert_allclose(aggregator.of_models(models, weights), case[name], rtol=0, atol=1e-12)


def test_distances_of_krum_are_taken_by_differences() -> None:
    """At a distance of 1e8 from 0, expanded squares would lose all of these differences."""
    near = np.array(FAR)
    np.testing.assert_allclose(Krum(1).scores(near), [49 + 64, 1 + 4, 1 + 4, 49 + 64, 1 + 1])
    np.testing.assert_array_equal(Krum(1).scores(near + 1e8), Krum(1).scores(near))


@pytest.mark.parametrize(
    "share, count, left", [(0.2, 4, 4), (0.2, 5, 3), (0.5, 4, 2), (0.5, 5, 1), (0.5, 1, 1), (0.29, 100, 42), (0, 3, 3)]
)
def test_how_many_a_trimmed_mean_leaves(share: float, count: int, left: int) -> None:
    """Of 0, 1, 4, 9, … the mean of the middle ones tells how many these are."""
    squares, cut = np.arange(count, dtype=float)[:, None] ** 2, (count - left) // 2
    assert TrimmedMean(share).of_models(squares, np.ones(count)) == pytest.approx(squares[cut : count - cut].mean())


@pytest.mark.parametrize("seed", range(3))
def test_the_unit_vectors_from_a_geometric_median_add_up_to_0_and_one_far_model_moves_it_little(seed: int) -> None:
    models, weights = np.random.default_rng(seed).normal(size=(10, 6)), np.ones(10)
    median = GeometricMedian().of_models(models, weights)
    units = (models - median) / np.linalg.norm(models - median, axis=1, keepdims=True)
    assert np.linalg.norm(units.sum(axis=0)) < 1e-4
    models[0] = 1e6
    assert np.linalg.norm(GeometricMedian().of_models(models, weights) - median) < 2


def test_the_second_moment_of_fedyogi_moves_towards_the_squares_by_hand() -> None:
    """Δ² = 4 is above v = 1 and adds 0.04; Δ² = 0.25 is below it and takes away 0.0025."""
    moved = FedYogi().second(np.array([1.0, 1.0, 1.0]), np.array([4.0, 0.25, 1.0]))
    assert moved == pytest.approx([1.04, 0.9975, 1.0])


@pytest.mark.parametrize(
    "name, updates, moves",
    [
        ("fedavgm", [2, 2], [2, 3.8]),  # v = 2; then 0.9 · 2 + 2
        ("fedadagrad", [3, 4], [0.1 * 3 / 3, 0.1 * 4 / 5]),  # v = 9 and 25, but for τ² = 1e-6
        ("fedadam", [2], [0.01 * 0.2 / 0.2]),  # m = 0.1 · 2, v = 0.01 · 4, and no bias is corrected
    ],
)
def test_default_steps_by_hand(name: str, updates: list[float], moves: list[float]) -> None:
    aggregator, made = build(name), []
    state = aggregator.start(1)
    for update in updates:
        step, state = aggregator.step(np.array([float(update)]), state)
        made.append(step.item())
    assert made == pytest.approx(moves, rel=6e-3)


Published = Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray]
TWO_MOMENTS = {"learning_rate": 0.3, "beta_1": 0.8, "beta_2": 0.95}


def momentum(update, state):
    state["v"] = 0.8 * state.get("v", 0.0) + update
    return 0.5 * state["v"]


def adagrad(update, state):
    state["v"] = state.get("v", 1e-2**2) + update**2
    return 0.3 * update / (np.sqrt(state["v"]) + 1e-2)


def adam(update, state):
    state["m"] = 0.8 * state.get("m", 0.0) + 0.2 * update
    state["v"] = 0.95 * state.get("v", 1e-2**2) + 0.05 * update**2
    return 0.3 * state["m"] / (np.sqrt(state["v"]) + 1e-2)


def yogi(update, state):
    v = state.get("v", np.full(4, 1e-1**2))
    state["m"] = 0.8 * state.get("m", 0.0) + 0.2 * update
    state["v"] = v - 0.05 * update**2 * np.sign(v - update**2)
    return 0.3 * state["m"] / (np.sqrt(state["v"]) + 1e-1)


@pytest.mark.parametrize(
    "name, options, published",
    [
        ("fedavgm", {"learning_rate": 0.5, "momentum": 0.8}, momentum),
        ("fedadagrad", {"learning_rate": 0.3, "tau": 1e-2}, adagrad),
        ("fedadam", {**TWO_MOMENTS, "tau": 1e-2}, adam),
        ("fedyogi", {**TWO_MOMENTS, "tau": 1e-1}, yogi),
    ],
)
def test_a_server_optimiser_is_the_published_algorithm(name: str, options, published: Published) -> None:
    aggregator, theirs = build(name, **options), {}
    state = aggregator.start(4)
    for update in np.random.default_rng(5).normal(scale=0.1, size=(6, 4)):
        change, state = aggregator.step(update, state)
        np.testing.assert_allclose(change, published(update, theirs), rtol=1e-12, atol=1e-12)


def test_fraction_bits_leave_room_for_the_largest_sum() -> None:
    # 27,500 samples need 15 bits and weights up to 2^10 need 10 bits, which leaves 62 - 10 - 15 = 37 places.
    assert fraction_bits(27_500) == 37
    assert [fraction_bits(samples) for samples in (1, 2, 3, 4)] == [51, 50, 50, 49]
    for samples in (1, 2, 27_500, 2**31):
        top = weighted(np.float32([MAX_WEIGHT, -MAX_WEIGHT]), samples, fraction_bits(samples))
        assert top[0] == -top[1] == samples * int(MAX_WEIGHT) << fraction_bits(samples)


vectors = arrays.arrays(np.float32, 6, elements=st.floats(-8, 8, width=32))


@settings(deadline=None)
@given(st.lists(st.tuples(vectors, st.integers(1, 700)), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_any_grouping_gives_the_same_bits_and_the_weighted_mean(models, random) -> None:
    samples = sum(count for _, count in models)
    bits = fraction_bits(samples)
    in_order = sum(weighted(vector, count, bits) for vector, count in models)
    shuffled = list(models)
    random.shuffle(shuffled)
    cut = random.randrange(len(models) + 1)
    halves = [
        sum((weighted(vector, count, bits) for vector, count in part), np.zeros(6, np.int64))
        for part in (shuffled[:cut], shuffled[cut:])
    ]
    np.testing.assert_array_equal(in_order, halves[0] + halves[1])
    direct = sum(vector.astype(np.float64) * count for vector, count in models) / samples
    np.testing.assert_allclose(mean(in_order, samples, bits), direct, rtol=1e-6, atol=1e-9)


def test_the_sum_of_one_weight_by_hand() -> None:
    # 2.5 with 3 binary places is 20 eighths; 7 samples of it are 140. The mean divides by 7 and by 8.
    assert weighted(np.float32([2.5]), 7, 3).tolist() == [140]
    assert mean(np.array([140]), 7, 3).tolist() == [2.5]
    assert weighted(np.float32([]), 7, 3).tolist() == []


@pytest.mark.parametrize(
    "vector, options, facts",
    [
        ([0, -2 * MAX_WEIGHT], {}, ("trained weights are as large as 2.05e+03", "training.learning_rate")),
        *(([bad, 0.5], {}, ("trained weights are not finite", "learning_rate")) for bad in (np.nan, np.inf, -np.inf)),
        ([1, 2.0**24 + 2], {"statistics": 1}, ("trained statistics are as large as 1.68e+07",)),
        ([0, np.nan], {"statistics": 1}, ("trained statistics are not finite",)),
        ([2 * MAX_WEIGHT], {"noun": "numbers of the vector c"}, ("numbers of the vector c are as large as 2.05e+03",)),
    ],
)
def test_what_cannot_be_summed_is_refused(vector, options, facts: tuple[str, ...]) -> None:
    with refusal(DivergedError, *facts):
        weighted(np.float32(vector), 10, fraction_bits(10), **options)


def test_statistics_may_be_larger_than_weights_and_their_sum_is_exact() -> None:
    """BatchNorm's variance of features of 100 is 10,000: no sign of divergence."""
    bits = fraction_bits(1000)
    vectors = [np.array([0.25, 1e4 + device, 1e-3], dtype=np.float32) for device in range(3)]
    sums = [weighted(vector, 100 * (device + 1), bits, 2) for device, vector in enumerate(vectors)]
    np.testing.assert_array_equal(sums[0] + (sums[1] + sums[2]), (sums[0] + sums[1]) + sums[2])
    average = mean(np.sum(sums, axis=0), 600, bits, 2)
    expected = np.average(np.array(vectors, dtype=np.float64), axis=0, weights=[1, 2, 3])
    np.testing.assert_allclose(average, expected, rtol=1e-6, atol=1e-7)
    # A device of one sample leaves 51 places for weights, and 14 fewer for statistics: 2^24 · 2^37 = 2^61.
    bits = fraction_bits(1)
    assert weighted(np.float32([1.0, 2.0**24]), 1, bits, statistics=1).tolist() == [2**51, 2**61]
