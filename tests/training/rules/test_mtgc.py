"""hflray.training.rules.mtgc: example 5 of the design by the real code, the published algorithm, and vanishing sums."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.training.rules.mtgc import MTGC
from tests.training.rules.quadratics import RATE, Devices, drive, hierarchy

EDGES = {0: [0, 1, 2], 1: [3, 4]}


def test_example_5_of_the_design(monkeypatch) -> None:
    """Two edges of one device each: edge models 0.19 and −0.57, w̄ = −0.19, y₀ = 1.9 and y₁ = −1.9."""
    rounds = hierarchy(monkeypatch, "mtgc", (1.0, -3.0))
    both = np.array([0, 1])
    state = rounds.result(1, rounds.setting.start(np.zeros(1, np.float32)), both, both).state
    assert state.model == pytest.approx(-0.19, rel=1e-6)
    assert state.rule["y"].flatten() == pytest.approx([1.9, -1.9], rel=1e-6)
    assert state.memories == {}  # z begins each round at 0
    after = rounds.result(2, state, both[:1], both[:1]).state
    # Device 0's first corrected gradient is −1.19 + 1.9 = 0.71, and its second 0.71 − 0.071.
    assert after.model == pytest.approx(-0.19 - 0.1 * (0.71 + 0.639), rel=1e-6)
    # Edge 1 has not reached the cloud, and edge 0 is at the mean.
    np.testing.assert_array_equal(after.rule["y"], state.rule["y"])


def test_two_edge_iterations_by_hand(monkeypatch) -> None:
    """Both devices at one edge, K = 1: after 0.1 and −0.3, z₀ = (0.1 + 0.1)/0.1 = 2 and z₁ = −2, from −0.1."""
    rounds = hierarchy(monkeypatch, "mtgc", (1.0, -3.0), iterations=2, steps=1)
    begin = rounds.setting.start(np.zeros(1, np.float32))
    state = rounds.result(1, begin, np.array([0, 1]), np.array([0, 0])).state
    # The gradients −1.1 + 2 and 2.9 − 2 are equal.
    assert state.model == pytest.approx(-0.1 - 0.09, rel=1e-5)
    # A device that misses the second iteration leaves the other with its z of 2.
    away = np.array([[True, True], [True, False]])
    state = rounds.result(1, begin, np.array([0, 1]), np.array([0, 0]), away).state
    assert state.model == pytest.approx(-0.1 - 0.09, rel=1e-5)
    # A device that first takes part in the second iteration has nothing to compare.
    late = np.array([[False, True], [True, False]])
    state = rounds.result(1, begin, np.array([0, 1]), np.array([0, 0]), late).state
    assert state.model == pytest.approx(-0.3 + 0.1 * 1.3, rel=1e-5)


def test_it_is_the_published_algorithm() -> None:
    """Algorithm 1 of arXiv 2409.18448, with the mean of K over an edge in place of its common H."""
    devices = Devices(5)
    driven = drive(MTGC(), devices, [EDGES] * 4, iterations=3)
    x, y = devices.start.copy(), np.zeros((2, 3))
    shares = {m: devices.weights[members] / devices.weights[members].sum() for m, members in EDGES.items()}
    of_edges = np.array([devices.weights[members].sum() for members in EDGES.values()]) / devices.weights.sum()
    steps = {m: shares[m] @ devices.steps[members] for m, members in EDGES.items()}
    for given, state in zip(driven.models, driven.states, strict=True):
        z, at_edge = np.zeros((5, 3)), {m: x.copy() for m in EDGES}
        for _ in range(3):
            for m, members in EDGES.items():
                ends = []
                for i in members:
                    local = at_edge[m].copy()
                    for _ in range(devices.steps[i]):
                        local -= RATE * (devices.gradient(i, local) + z[i] + y[m])
                    ends.append(local)
                at_edge[m] = shares[m] @ np.array(ends)
                for i, end in zip(members, ends, strict=True):
                    z[i] += (end - at_edge[m]) / (steps[m] * RATE)
        x = of_edges @ np.array(list(at_edge.values()))
        for m in EDGES:
            y[m] += (at_edge[m] - x) / (3 * steps[m] * RATE)
        np.testing.assert_allclose(given, x, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(state["y"], y, rtol=1e-11, atol=1e-12)


def test_weighted_sums_of_both_corrections_vanish() -> None:
    """The weights at the cloud are those that y_m is built with: all edges have the same mean of steps here."""
    devices = Devices(5)
    devices.steps[:] = 3
    driven = drive(MTGC(), devices, [EDGES] * 4, iterations=3)
    for memories, state in zip(driven.memories, driven.states, strict=True):
        for members in EDGES.values():
            total = sum(devices.weights[i] * memories[i]["z"] for i in members)
            assert np.abs(total).max() < 1e-11
            assert np.abs(memories[members[0]]["z"]).max() > 1e-3
        total = sum(devices.weights[members].sum() * state["y"][m] for m, members in EDGES.items())
        assert np.abs(total).max() < 1e-11
        assert np.abs(state["y"]).max() > 1e-3


def test_without_edge_iterations_and_with_edges_of_one_device_it_is_the_flat_algorithm() -> None:
    """With Q = 1 and one device an edge, y of each edge is a variate of its device, and z stays 0."""
    devices = Devices(3)
    driven = drive(MTGC(), devices, [{0: [0], 1: [1], 2: [2]}] * 5)
    x, y = devices.start.copy(), np.zeros((3, 3))
    for given in driven.models:
        ends = [devices.trained(i, x, lambda weights, own=y[i]: own) for i in range(3)]
        x = np.average(ends, axis=0, weights=devices.weights)
        y += [(end - x) / (RATE * devices.steps[i]) for i, end in enumerate(ends)]
        np.testing.assert_allclose(given, x, rtol=1e-12, atol=1e-12)


def test_a_half_is_the_whole_where_the_other_half_is_0() -> None:
    """z is 0 with one edge iteration, and y with one edge. Elsewhere the two halves and the whole differ."""

    def models(corrections: str, edges: dict[int, list[int]], iterations: int) -> np.ndarray:
        return np.array(drive(MTGC(corrections), Devices(5), [edges] * 4, iterations=iterations).models)

    one_edge = {0: [0, 1, 2, 3, 4]}
    np.testing.assert_array_equal(models("edges", EDGES, 1), models("both", EDGES, 1))
    np.testing.assert_allclose(models("devices", one_edge, 3), models("both", one_edge, 3), rtol=1e-12)
    ends = [models(corrections, EDGES, 3)[-1] for corrections in ("both", "devices", "edges")]
    assert min(np.abs(ends[i] - ends[j]).max() for i, j in ((0, 1), (0, 2), (1, 2))) > 1e-4


def test_the_half_of_the_edges_alone_is_a_variate_of_each_edge() -> None:
    """Algorithm 1 without z."""
    devices = Devices(5)
    driven = drive(MTGC("edges"), devices, [EDGES] * 3, iterations=2)
    x, y = devices.start.copy(), np.zeros((2, 3))
    shares = {m: devices.weights[members] / devices.weights[members].sum() for m, members in EDGES.items()}
    of_edges = np.array([devices.weights[members].sum() for members in EDGES.values()]) / devices.weights.sum()
    for given in driven.models:
        at_edge = {m: x.copy() for m in EDGES}
        for _ in range(2):
            for m, members in EDGES.items():
                ends = [devices.trained(i, at_edge[m], lambda weights, own=y[m]: own) for i in members]
                at_edge[m] = shares[m] @ np.array(ends)
        x = of_edges @ np.array(list(at_edge.values()))
        for m, members in EDGES.items():
            y[m] += (at_edge[m] - x) / (2 * RATE * (shares[m] @ devices.steps[members]))
        np.testing.assert_allclose(given, x, rtol=1e-11, atol=1e-12)


def test_an_unknown_half_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"training\.rule\.options\.corrections: got 'z'; accepted: both, devices, edges"
    ):
        MTGC("z")
