"""hflray.training.rules.scaffold: example 4 of the design by the real code, and the published algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.training.memory import RESIDUAL, after_turn, recalled, remembered
from hflray.training.method import Method, Spec
from hflray.training.rules import Received
from hflray.training.rules.scaffold import Scaffold
from tests.conftest import small_config
from tests.training.rules.quadratics import RATE, Devices, drive, hierarchy

BOTH = np.array([0, 1])


def test_a_vector_is_sent_beside_the_model_on_each_hop() -> None:
    method = Method(rule=Spec("local_rule", "scaffold"))
    assert (method.device_bits((3, 2), 1), method.edge_bits((3, 2), 1)) == (11 * 32.0, 11 * 32.0)
    assert method.device_bits((3, 2), 1, edge_iterations=5) == 7 * 32.0  # 5 + 1 + 5 / 5: one vector a round


def test_example_4_of_the_design(monkeypatch) -> None:
    """Gradients w − 1 and w + 3, K = 2, β = 0.1, from 0: the ends 0.19 and −0.57, and c₀⁺ = −0.95, c₁⁺ = 2.85."""
    rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0))
    state = rounds.result(1, rounds.setting.start(np.zeros(1, np.float32)), BOTH, np.array([0, 0])).state
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
        state = rounds.setting.start(np.zeros(1, np.float32))
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
    state = rounds.result(1, rounds.setting.start(np.zeros(1, np.float32)), BOTH, BOTH, there).state
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
    kept = remembered(rule, missed, (3, 0))
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


def test_if_everybody_misses_the_last_edge_iteration_variates_stay(monkeypatch) -> None:
    rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0), iterations=2, steps=1)
    there = np.array([[True, True], [False, False]])
    state = rounds.result(1, rounds.setting.start(np.zeros(1, np.float32)), BOTH, BOTH, there).state
    assert state.model == pytest.approx(-0.1, rel=1e-5)
    assert [state.memories[n]["c"].item() for n in BOTH] == [0.0, 0.0]
    assert state.rule["c"].item() == 0.0


def test_it_is_the_published_algorithm_with_partial_participation() -> None:
    devices = Devices(5)
    devices.weights[:] = 1.0  # the paper's mean of devices has no weights
    chosen = [[0, 1, 2], [2, 3], [0, 4, 1, 3, 2], [1], [2, 3, 4]]
    driven = drive(Scaffold(), devices, [{0: each} for each in chosen])
    x, c, each_c = devices.start.copy(), np.zeros(3), np.zeros((5, 3))
    for given, members in zip(driven.models, chosen, strict=True):
        change_x, change_c = np.zeros(3), np.zeros(3)
        for i in members:
            y = x.copy()
            for _ in range(devices.steps[i]):
                y -= RATE * (devices.gradient(i, y) - each_c[i] + c)
            plus = each_c[i] - c + (x - y) / (devices.steps[i] * RATE)
            change_x, change_c = change_x + (y - x), change_c + (plus - each_c[i])
            each_c[i] = plus
        x = x + change_x / len(members)
        c = c + len(members) / 5 * change_c / len(members)
        np.testing.assert_allclose(given, x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(driven.states[-1]["c"], each_c.mean(axis=0), rtol=1e-12, atol=1e-12)


def test_with_momentum_a_variate_is_still_a_gradient(monkeypatch) -> None:
    """K = 2, β = 0.1, ρ = 0.5, gradients w − 1 and w + 3 from 0: device 0 moves by 0.1 and 0.05 + 0.09.

    Its mean gradient, weighted by how far each step carries, is −0.24 / 0.25 = −0.96; without the weights it was −1.2.
    """
    rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0), momentum=0.5)
    state = rounds.result(1, rounds.setting.start(np.zeros(1, np.float32)), BOTH, np.array([0, 0])).state
    assert [state.memories[n]["c"].item() for n in BOTH] == pytest.approx([-0.96, 2.88], rel=1e-5)


def test_with_momentum_variates_converge_to_the_gradients(monkeypatch) -> None:
    """At the optimum −1 the gradients are −2 and 2. What momentum lengthens once is lengthened again in each round."""

    def variates() -> list[float]:
        rounds = hierarchy(monkeypatch, "scaffold", (1.0, -3.0), steps=5, momentum=0.9)
        state = rounds.setting.start(np.zeros(1, np.float32))
        for index in range(1, 41):
            state = rounds.result(index, state, BOTH, np.array([0, 0])).state
        return [state.memories[n]["c"].item() for n in BOTH]

    assert variates() == pytest.approx([-2.0, 2.0], rel=1e-4)
    # Divided by Kβ alone, they grow without end.
    monkeypatch.setattr(Method, "total_rate", lambda method, rates: float(rates.sum()))
    assert min(map(abs, variates())) > 10
