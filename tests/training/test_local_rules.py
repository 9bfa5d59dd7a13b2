"""Every registered local rule: one contract of all, rounds by hand in the real code, and the published algorithms.

`test_rules.py` follows all of them through many edge iterations beside plain loops.
"""

from __future__ import annotations

import numpy as np
import pytest

from hflray import registry
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.training.method import Method, Spec
from hflray.training.rules import CloudReport, EdgeReport, LocalRule, Received
from hflray.training.rules.base import RESIDUAL, TURN, after_turn, recalled
from hflray.training.rules.feddyn import FedDyn
from hflray.training.rules.fednova import FedNova, effective_steps
from hflray.training.rules.fedprox import FedProx
from hflray.training.rules.mtgc import MTGC
from hflray.training.rules.scaffold import Scaffold
from hflray.training.state import TrainingState
from tests.conftest import refusal, small_config
from tests.training.quadratics import RATE, Devices, drive, hierarchy

NAMES = list(registry.BUILTIN["local_rule"])


@pytest.mark.parametrize(
    "name, option, value, accepted",
    [
        *((name, "foo", 1, "") for name in NAMES),
        ("fedprox", "mu", -1, "at least 0"),
        ("feddyn", "alpha", 0, "above 0"),
        ("mtgc", "corrections", "z", "both, devices, edges"),
    ],
)
def test_an_option_that_is_not_accepted_is_refused_in_one_line(name, option, value, accepted) -> None:
    with refusal(ConfigError, option, accepted):
        registry.build("local_rule", name, **{option: value})


@pytest.mark.parametrize("name", NAMES)
def test_no_function_of_a_rule_changes_what_it_is_given_and_what_lasts_has_the_names_that_it_says(name: str) -> None:
    """All arrays are read-only, so that a change in place is an error."""

    def fixed(values):
        if isinstance(values, dict):
            return {key: fixed(value) for key, value in values.items()}
        if isinstance(values, np.ndarray):
            values.setflags(write=False)
        return values

    rule, vector = registry.build("local_rule", name), fixed(np.float32([1, -2, 3]))
    state, memory, extra = fixed(dict(rule.start(3, 2))), {}, {}
    for last in (False, True):
        received = Received(vector, fixed(dict(rule.sends(state, 1))), int(last), 0.2 * last, last, 1, 0)
        memory = fixed(dict(rule.begin(received, memory)))
        rule.correction(fixed(2 * vector), vector, received.vectors, memory)
        memory, extra = (fixed(dict(part)) for part in rule.finish(received, fixed(0.5 * vector), 0.2, memory))
    assert set(extra) == set(rule.extra)
    assert set(after_turn(rule, {**memory, TURN: (1, 0), RESIDUAL: vector})) - {RESIDUAL} == (
        set() if rule.forgets is True else set(rule.memory)
    )
    reports = {edge: EdgeReport(fixed(edge * vector), 0.4) for edge in (0, 1)}
    _, after = rule.cloud(CloudReport(vector, fixed(0.7 * vector), reports, extra, 5), state)
    assert {key: value.shape for key, value in after.items()} == {key: value.shape for key, value in state.items()}


def test_fedprox_two_steps_by_hand(monkeypatch) -> None:
    """The second gradient at 0.1 is 0.1 − 1 + 0.5 · 0.1 = −0.85, so that the weight becomes 0.185."""
    rule = hierarchy(monkeypatch, "fedprox", (1.0,))
    assert rule.train_round(1, np.zeros(1, np.float32), np.array([0]), np.array([0])) == pytest.approx(
        0.1 + 0.1 * (0.9 - 0.01 * 0.1), rel=1e-6
    )
    assert FedProx(0.5).correction(0.1, 0.0, {}, {}) == pytest.approx(0.05)


def test_fedprox_it_is_the_published_algorithm() -> None:
    devices, model = Devices(4), None
    models = drive(FedProx(0.3), devices, [{0: [0, 1, 2, 3]}] * 5).models
    model = devices.start
    for given in models:
        ends = []
        for device in range(4):
            local = model.copy()
            for _ in range(devices.steps[device]):
                local -= RATE * (devices.gradient(device, local) + 0.3 * (local - model))
            ends.append(local)
        model = np.average(ends, axis=0, weights=devices.weights)
        np.testing.assert_allclose(given, model, rtol=1e-12, atol=1e-12)


BOTH = np.array([0, 1])


def test_example_4_of_the_design(monkeypatch) -> None:
    """Gradients w − 1 and w + 3, K = 2, β = 0.1, from 0: the ends 0.19 and −0.57, and c₀⁺ = −0.95, c₁⁺ = 2.85."""
    rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0))
    state = rounds.result(1, rounds.start(np.zeros(1, np.float32)), BOTH, np.array([0, 0])).state
    assert state.model == pytest.approx(-0.19, rel=1e-6)
    assert [state.memories[n]["c"].item() for n in BOTH] == pytest.approx([-0.95, 2.85], rel=1e-6)
    assert state.rule["c"].item() == pytest.approx(0.95, rel=1e-6)
    after = rounds.result(2, state, BOTH[:1], np.array([0])).state
    # Device 0 alone: its first corrected gradient is −1.19 + 0.95 + 0.95 = 0.71, and its second 0.71 − 0.071.
    assert after.model == pytest.approx(-0.19 - 0.1 * (0.71 + 0.639), rel=1e-6)
    assert after.memories[1] == state.memories[1]  # it has not trained


def test_two_edge_iterations_of_one_step_are_one_of_two_steps(monkeypatch) -> None:
    """Two edges of one device each: variates stay fixed in a round, so that an edge makes its device's two steps."""
    states = []
    for iterations, steps in ((2, 1), (1, 2)):
        rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0), iterations=iterations, steps=steps)
        state = rounds.start(np.zeros(1, np.float32))
        for index in (1, 2, 3):
            state = rounds.result(index, state, BOTH, BOTH).state
            if index == 1:
                assert state.model == pytest.approx(-0.19, rel=1e-6)  # the mean of the edges' 0.19 and −0.57
                assert [state.memories[n]["c"].item() for n in BOTH] == pytest.approx([-0.95, 2.85], rel=1e-6)
                assert state.rule["c"].item() == pytest.approx(0.95, rel=1e-6)
                assert {name for n in BOTH for name in state.memories[n]} == {"c"}
        states.append(state)
    assert states[0].model == pytest.approx(states[1].model, rel=1e-5)
    assert states[0].rule["c"].item() == pytest.approx(states[1].rule["c"].item(), rel=1e-5)


def test_a_device_that_is_missing_in_the_last_edge_iteration_keeps_its_variate(monkeypatch) -> None:
    """Device 0 misses it: only device 1 hands up a change, over its own three moves, and c grows by half of that."""
    rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0), iterations=3, steps=1)
    there = np.array([[True, True], [True, True], [False, True]])
    state = rounds.result(1, rounds.start(np.zeros(1, np.float32)), BOTH, BOTH, there).state
    # Edge 1: −0.3, −0.57, −0.813; its moves add up to 0.813 over a rate of 0.3.
    assert state.memories[0]["c"].item() == 0.0
    assert state.memories[1]["c"].item() == pytest.approx(2.71, rel=1e-5)
    assert state.rule["c"].item() == pytest.approx(1.355, rel=1e-5)
    # What device 0 had added up is gone: after a whole round its variate is that of this round alone.
    after = rounds.result(2, state, BOTH[:1], BOTH[:1], np.ones((3, 1), dtype=bool)).state
    w, moved = float(state.model[0]), 0.0
    for _ in range(3):
        step = 0.1 * ((w - 1) + 1.355)
        w, moved = w - step, moved + step
    assert after.memories[0]["c"].item() == pytest.approx(moved / 0.3 - 1.355, rel=1e-4)


def test_a_turn_that_its_last_edge_iteration_missed_leaves_nothing_to_the_next() -> None:
    """Under an asynchronous cloud an edge may have two turns in a round."""
    rule, one = Scaffold(), np.ones(1, np.float32)
    missed, _ = rule.finish(Received(one, {"c": 0 * one}, 0, 0.0, last=False), 0.5 * one, 0.1, {"c": 0 * one})
    kept = {**missed, TURN: (3, 0)}
    assert recalled(rule, kept, (3, 0)) == missed
    assert set(recalled(rule, kept, (3, 2))) == {"c"}
    assert set(after_turn(rule, {**kept, RESIDUAL: one})) == {"c", RESIDUAL}


def test_a_checkpoint_of_moving_variates_is_refused() -> None:
    """With one edge iteration a round nothing has changed, so that such a run goes on."""
    for iterations in (1, 2):
        config = small_config("training.rule.name=scaffold", f"training.edge_iterations={iterations}", "max_rounds=2")
        with Experiment(config) as experiment:
            experiment.run_round()
            state = experiment.state_dict()
        assert state.pop("rule_revision") == 2  # as hflray 0.2 saved it
        again = Experiment(config)
        if iterations == 1:
            again.load_state_dict(state)
            continue
        with pytest.raises(ConfigError, match=r"training\.rule\.name: the run began with revision 1 of scaffold.*anew"):
            again.load_state_dict(state)


def test_a_rule_that_only_finishes_keeps_what_it_returns(monkeypatch) -> None:
    finish = lambda self, received, trained, rate, memory: ({"n": memory.get("n", 0) + 1}, {})  # noqa: E731
    monkeypatch.setitem(registry._ADDED, ("local_rule", "counts"), type("Counts", (LocalRule,), {"finish": finish}))
    rounds = hierarchy(monkeypatch, "counts", (1.0,), 2)
    after = rounds.result(1, rounds.start(np.zeros(1, np.float32)), np.array([0]), np.array([0])).state
    assert after.memories[0]["n"] == 2


def test_a_plain_number_in_a_memory_is_the_same_after_a_resume(monkeypatch) -> None:
    """A number of Python leaves float32 as it is, and one of NumPy makes it float64."""

    class Numbers(LocalRule):
        def begin(self, received, memory):
            return memory or {"d": np.zeros_like(received.model), "rate": 3.0, "wide": np.float64(7)}

        def finish(self, received, trained, rate, memory):
            d = memory["d"] / 3 + (received.model - trained) / memory["rate"] / memory["wide"]
            return {**memory, "d": d, "rate": rate}, {}

    monkeypatch.setitem(registry._ADDED, ("local_rule", "numbers"), Numbers)
    rounds, one = hierarchy(monkeypatch, "numbers", (1.0,)), np.array([0])
    before = rounds.result(1, rounds.start(np.zeros(1, np.float32)), one, one).state
    again = TrainingState.of_arrays(before.model, before.arrays())
    unbroken, resumed = (rounds.result(2, state, one, one).state.memories[0]["d"] for state in (before, again))
    assert (resumed.dtype, resumed.item()) == (unbroken.dtype, unbroken.item())


def test_if_everybody_misses_the_last_edge_iteration_variates_stay(monkeypatch) -> None:
    rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0), iterations=2, steps=1)
    there = np.array([[True, True], [False, False]])
    state = rounds.result(1, rounds.start(np.zeros(1, np.float32)), BOTH, BOTH, there).state
    assert state.model == pytest.approx(-0.1, rel=1e-5)
    assert [state.memories[n]["c"].item() for n in BOTH] == [0.0, 0.0]
    assert state.rule["c"].item() == 0.0


def test_scaffold_it_is_the_published_algorithm_with_partial_participation() -> None:
    devices = Devices(5)
    devices.weights[:] = 1.0  # the paper's mean of devices has no weights
    chosen = [[0, 1, 2], [2, 3], [0, 4, 1, 3, 2], [1], [2, 3, 4]]
    driven = drive(Scaffold(), devices, [{0: members} for members in chosen])
    x, c, variates = devices.start.copy(), np.zeros(3), np.zeros((5, 3))
    for given, members in zip(driven.models, chosen, strict=True):
        change_x, change_c = np.zeros(3), np.zeros(3)
        for i in members:
            y = x.copy()
            for _ in range(devices.steps[i]):
                y -= RATE * (devices.gradient(i, y) - variates[i] + c)
            plus = variates[i] - c + (x - y) / (devices.steps[i] * RATE)
            change_x, change_c = change_x + (y - x), change_c + (plus - variates[i])
            variates[i] = plus
        x = x + change_x / len(members)
        c = c + len(members) / 5 * change_c / len(members)
        np.testing.assert_allclose(given, x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(driven.states[-1]["c"], variates.mean(axis=0), rtol=1e-12, atol=1e-12)


def test_with_momentum_a_variate_is_still_a_gradient(monkeypatch) -> None:
    """K = 2, β = 0.1, ρ = 0.5, gradients w − 1 and w + 3 from 0: device 0 moves by 0.1 and 0.05 + 0.09.

    Its mean gradient, weighted by how far each step carries, is −0.24 / 0.25 = −0.96; without the weights it was −1.2.
    """
    rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0), momentum=0.5)
    state = rounds.result(1, rounds.start(np.zeros(1, np.float32)), BOTH, np.array([0, 0])).state
    assert [state.memories[n]["c"].item() for n in BOTH] == pytest.approx([-0.96, 2.88], rel=1e-5)


def test_with_momentum_variates_converge_to_the_gradients(monkeypatch) -> None:
    """At the optimum −1 the gradients are −2 and 2. What momentum lengthens once is lengthened again in each round."""

    def variates() -> list[float]:
        rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0), steps=5, momentum=0.9)
        state = rounds.start(np.zeros(1, np.float32))
        for index in range(1, 41):
            state = rounds.result(index, state, BOTH, np.array([0, 0])).state
        return [state.memories[n]["c"].item() for n in BOTH]

    assert variates() == pytest.approx([-2.0, 2.0], rel=1e-4)
    # Divided by Kβ alone, they grow without end.
    monkeypatch.setattr(Method, "total_rate", lambda method, rates: float(rates.sum()))
    assert min(map(abs, variates())) > 10


def test_feddyn_two_rounds_by_hand(monkeypatch) -> None:
    """With α = 0.01, N = 3 and two participants, of which device 1 has three samples, and all the weight 1.

    Round 1, K = 1: the ends are 0.1 and −0.3, so that h₀ = −0.001, h₁ = 0.003, h = 0.002/3, w = −0.1 − h/α.
    """
    rounds = hierarchy(monkeypatch, "feddyn", (1.0, -3.0, 7.0), steps=1, uniform=True)
    both, edges = np.array([0, 1]), np.array([0, 1])
    state = rounds.result(1, rounds.start(np.zeros(1, np.float32)), both, edges).state
    assert [state.memories[n]["h"].item() for n in both] == pytest.approx([-0.001, 0.003], rel=1e-5)
    assert state.rule["h"].item() == pytest.approx(0.002 / 3, rel=1e-5)
    w = -0.1 - 0.2 / 3
    assert state.model.item() == pytest.approx(w, rel=1e-5)
    # Device 0 alone: its gradient is w − 1 + 0.001, without a pull in the first step.
    after = rounds.result(2, state, both[:1], edges[:1]).state
    change = -0.1 * (w - 1 + 0.001)
    assert after.memories[0]["h"].item() == pytest.approx(-0.001 - 0.01 * change, rel=1e-5)
    assert after.model.item() == pytest.approx(w + change - (0.002 - 0.01 * change) / 3 / 0.01, rel=1e-5)


def test_feddyn_it_is_the_published_algorithm_with_partial_participation() -> None:
    alpha, devices = 0.05, Devices(5)
    devices.weights[:] = 1.0
    chosen = [[0, 1, 2], [2, 3], [0, 4, 1, 3, 2], [1], [2, 3, 4]]
    driven = drive(FedDyn(alpha), devices, [{0: members} for members in chosen])
    theta, h, gradients = devices.start.copy(), np.zeros(3), np.zeros((5, 3))
    for given, members in zip(driven.models, chosen, strict=True):
        ends = []
        for k in members:
            local = theta.copy()
            for _ in range(devices.steps[k]):
                local -= RATE * (devices.gradient(k, local) - gradients[k] + alpha * (local - theta))
            gradients[k] = gradients[k] - alpha * (local - theta)
            ends.append(local)
        h = h - alpha / 5 * sum(end - theta for end in ends)
        theta = np.mean(ends, axis=0) - h / alpha
        np.testing.assert_allclose(given, theta, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(driven.states[-1]["h"], gradients.mean(axis=0), rtol=1e-12, atol=1e-12)


def test_effective_steps_by_hand() -> None:
    """With ρ = 0.5, three steps weigh 1.75, 1.5 and 1: the first gradient enters all three steps."""
    assert effective_steps(np.array([1.0, 2.0, 3.0]), 0.5) == pytest.approx([1.0, 2.5, 4.25])
    assert effective_steps(np.array([1.0, 4.0]), 0.0) == pytest.approx([1.0, 4.0])


def test_momentum_enters_only_at_the_edge() -> None:
    steps, weights = np.array([1.0, 3.0]), np.array([0.25, 0.75])
    factors, effective = FedNova().scales("edge", steps, weights, 0.5)
    assert effective == pytest.approx(0.25 + 0.75 * 4.25)
    assert factors == pytest.approx([effective, effective / 4.25])
    factors, effective = FedNova().scales("cloud", steps, weights, 0.5)
    assert (effective, *factors) == pytest.approx((2.5, 2.5, 2.5 / 3))


def test_fednova_a_hierarchy_by_hand(monkeypatch) -> None:
    """Devices 0 and 1 with one and two samples, so K = 1 and 2, at edge 0; device 2 with one at edge 1; Q = 2."""
    rounds = hierarchy(monkeypatch, "fednova", (1.0, -3.0, 2.0), iterations=2, steps=1, samples=(1, 2, 1))
    devices, edges = np.array([0, 1, 2]), np.array([0, 0, 1])
    model = rounds.train_round(1, np.zeros(1, np.float32), devices, edges)

    def ends(w: float, minimum: float, steps: int) -> float:
        return minimum + (w - minimum) * 0.9**steps

    at_edge, tau = 0.0, 1 / 3 * 1 + 2 / 3 * 2
    for _ in range(2):
        per_step = 1 / 3 * (ends(at_edge, 1.0, 1) - at_edge) + 2 / 3 * (ends(at_edge, -3.0, 2) - at_edge) / 2
        at_edge += tau * per_step
    other = ends(0.0, 2.0, 2)
    effective = 3 / 4 * 2 * tau + 1 / 4 * 2
    expected = effective * (3 / 4 * at_edge / (2 * tau) + 1 / 4 * other / 2)
    assert model.item() == pytest.approx(expected, rel=1e-5)


def test_fednova_it_is_the_published_algorithm() -> None:
    devices = Devices(4)
    driven = drive(FedNova(), devices, [{0: [0, 1, 2, 3]}] * 5)
    x, share = devices.start.copy(), devices.weights / devices.weights.sum()
    for given in driven.models:
        normalised = np.array([(x - devices.trained(i, x)) / (RATE * devices.steps[i]) for i in range(4)])
        x = x - (share @ devices.steps) * RATE * (share @ normalised)
        np.testing.assert_allclose(given, x, rtol=1e-12, atol=1e-12)
    assert np.unique(devices.steps).size > 1


EDGES = {0: [0, 1, 2], 1: [3, 4]}


def test_example_5_of_the_design(monkeypatch) -> None:
    """Two edges of one device each: edge models 0.19 and −0.57, w̄ = −0.19, y₀ = 1.9 and y₁ = −1.9."""
    rounds = hierarchy(monkeypatch, "mtgc", (1.0, -3.0))
    both = np.array([0, 1])
    state = rounds.result(1, rounds.start(np.zeros(1, np.float32)), both, both).state
    assert state.model == pytest.approx(-0.19, rel=1e-6)
    assert state.rule["y"].flatten() == pytest.approx([1.9, -1.9], rel=1e-6)
    assert state.memories == {}  # z begins each round at 0
    after = rounds.result(2, state, both[:1], both[:1]).state
    # Device 0's first corrected gradient is −1.19 + 1.9 = 0.71, and its second 0.71 − 0.071.
    assert after.model == pytest.approx(-0.19 - 0.1 * (0.71 + 0.639), rel=1e-6)
    # Edge 1 has not reached the cloud, and edge 0 is at the mean.
    np.testing.assert_array_equal(after.rule["y"], state.rule["y"])


def test_mtgc_two_edge_iterations_by_hand(monkeypatch) -> None:
    """Both devices at one edge, K = 1: after 0.1 and −0.3, z₀ = (0.1 + 0.1)/0.1 = 2 and z₁ = −2, from −0.1."""
    rounds = hierarchy(monkeypatch, "mtgc", (1.0, -3.0), iterations=2, steps=1)
    begin = rounds.start(np.zeros(1, np.float32))
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


def test_a_device_that_misses_edge_iterations_compares_itself_with_what_its_update_entered(monkeypatch) -> None:
    """In round 2 device 1 is late: z₁ = −2 from the model −0.1 of iteration 1, and so z₀ + z₁ = 0 in the third."""
    begin, edge = np.zeros(1, np.float32), np.array([0, 0])
    late = np.array([[True, True], [True, False], [True, True]])

    def model(rule: str, minima: tuple[float, ...], present: np.ndarray) -> float:
        rounds = hierarchy(monkeypatch, rule, minima, iterations=len(present), steps=1)
        return float(rounds.result(1, rounds.start(begin), np.array([0, 1]), edge, present).state.model[0])

    # −0.1 + 0.1·(1.1 − 2) = −0.19; then the corrected gradients −1.19 + 2 and 2.81 − 2 are equal.
    assert model("mtgc", (1.0, -3.0), late) == pytest.approx(-0.19 - 0.081, rel=1e-5)
    # Devices with the same data have nothing to correct, whoever misses what.
    for seed in range(5):
        present = np.random.default_rng(seed).random((10, 2)) < 0.5
        assert model("mtgc", (1.0, 1.0), present) == pytest.approx(model("sgd", (1.0, 1.0), present), rel=1e-5)


def test_an_iteration_in_which_an_edge_keeps_its_model_counts_for_no_rule(monkeypatch) -> None:
    """Krum needs five models, and edge 0 gets four in the first of two iterations: it moves 0.1, and edge 1 0.19."""
    krum, edge = Spec("aggregator", "krum", '{"f": 1}'), np.array([0] * 5 + [1] * 5)
    few = np.ones((2, 10), dtype=bool)
    few[0, 0] = False

    def after(rule: str, present: np.ndarray) -> TrainingState:
        rounds = hierarchy(monkeypatch, rule, (1.0,) * 10, iterations=len(present), steps=1, edge=krum)
        return rounds.result(1, rounds.start(np.zeros(1, np.float32)), np.arange(10), edge, present).state

    corrected = after("mtgc", few)
    assert corrected.rule["y"].flatten() == pytest.approx([-0.045 / 0.1, 0.045 / 0.2], rel=1e-5)
    assert after("fednova", few).model == pytest.approx(1.5 * (0.1 / 1 + 0.19 / 2) / 2, rel=1e-5)
    for row in range(4):
        present = np.ones((4, 10), dtype=bool)
        present[row, :2] = False
        assert after("mtgc", present).model == pytest.approx(after("sgd", present).model, rel=1e-5)
    nothing = np.ones((2, 10), dtype=bool)
    nothing[:, 0] = False  # edge 0 keeps its model throughout, and weighs 4 of 9
    assert after("fednova", nothing).model == pytest.approx(2 * 5 / 9 * (0.19 / 2) * 5 / 9, rel=1e-5)
    assert after("mtgc", nothing).rule["y"].flatten() == pytest.approx([0.0, 0.19 * 4 / 9 / 0.2], rel=1e-5)


def test_a_half_of_mtgc_carries_y_only_where_it_is_used() -> None:
    state = {"y": np.ones((2, 3), dtype=np.float32)}
    assert [sorted(MTGC(half).sends(state, 0)) for half in ("both", "devices", "edges")] == [["y"], [], ["y"]]


@pytest.mark.parametrize(
    ("corrections", "edges", "iterations"),
    [
        ("both", EDGES, 3),
        ("edges", EDGES, 2),
        ("both", {0: [0], 1: [1], 2: [2]}, 1),  # the flat algorithm: y of an edge is a variate of its device
    ],
)
def test_mtgc_it_is_the_published_algorithm(corrections: str, edges: dict[int, list[int]], iterations: int) -> None:
    """Algorithm 1 of arXiv 2409.18448, with the mean of K over an edge in place of its common H; or its half y."""
    devices = Devices(sum(map(len, edges.values())))
    driven = drive(MTGC(corrections), devices, [edges] * 4, iterations=iterations)
    x, y = devices.start.copy(), np.zeros((len(edges), 3))
    shares = {m: devices.weights[members] / devices.weights[members].sum() for m, members in edges.items()}
    of_edges = np.array([devices.weights[members].sum() for members in edges.values()]) / devices.weights.sum()
    steps = {m: shares[m] @ devices.steps[members] for m, members in edges.items()}
    for given, state in zip(driven.models, driven.states, strict=True):
        z, at_edge = np.zeros((len(devices), 3)), {m: x.copy() for m in edges}
        for _ in range(iterations):
            for m, members in edges.items():
                ends = []
                for i in members:
                    local = at_edge[m].copy()
                    for _ in range(devices.steps[i]):
                        local -= RATE * (devices.gradient(i, local) + z[i] + y[m])
                    ends.append(local)
                at_edge[m] = shares[m] @ np.array(ends)
                for i, end in zip(members, ends, strict=True):
                    z[i] += (corrections == "both") * (end - at_edge[m]) / (steps[m] * RATE)
        x = of_edges @ np.array(list(at_edge.values()))
        for m in edges:
            y[m] += (at_edge[m] - x) / (iterations * steps[m] * RATE)
        np.testing.assert_allclose(given, x, rtol=1e-11, atol=1e-12)
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


def test_a_half_is_the_whole_where_the_other_half_is_0() -> None:
    """z is 0 with one edge iteration, and y with one edge. Elsewhere the two halves and the whole differ."""

    def models(corrections: str, edges: dict[int, list[int]], iterations: int) -> np.ndarray:
        return np.array(drive(MTGC(corrections), Devices(5), [edges] * 4, iterations=iterations).models)

    one_edge = {0: [0, 1, 2, 3, 4]}
    np.testing.assert_array_equal(models("edges", EDGES, 1), models("both", EDGES, 1))
    np.testing.assert_allclose(models("devices", one_edge, 3), models("both", one_edge, 3), rtol=1e-12)
    ends = [models(corrections, EDGES, 3)[-1] for corrections in ("both", "devices", "edges")]
    assert min(np.abs(ends[i] - ends[j]).max() for i, j in ((0, 1), (0, 2), (1, 2))) > 1e-4
