"""hflray.training.differences: momentum, decay and clipping by hand, on quadratics whose gradients are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from hflray import registry
from hflray.models import build
from hflray.models.paper import init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.training import differences
from hflray.training.differences import Differences
from hflray.training.kernels import build_kernel
from hflray.training.method import Method, RateDecay, Spec
from hflray.training.rules import LocalRule, Received

RATE = 0.1


class Quadratics:
    """Devices whose weights are single numbers, and whose gradient at w is w − aₙ."""

    def __init__(self, *minima: float) -> None:
        self._minima = torch.tensor(minima, dtype=torch.float32).view(-1, 1)
        self._weights = torch.zeros(len(minima), 1)

    def weights(self) -> list[torch.Tensor]:
        """Return the resident weights."""
        return [self._weights]

    def arranged(self, vectors: torch.Tensor) -> list[torch.Tensor]:
        """Return vectors in the shape of the weights."""
        return [vectors]

    def memory(self) -> list[torch.Tensor]:
        """Return the memory of the weights: C code makes the steps of one device."""
        return [self._weights]

    def make(self) -> None:
        """Make a plain step."""
        self._weights -= RATE * (self._weights - self._minima)

    def values(self) -> list[float]:
        """Return the weight of each device."""
        return self._weights.flatten().tolist()


def path(method: Method, steps: int, *minima: float, active: Callable[[int], np.ndarray] | None = None):
    """Return the weights of each device after each step from 0."""
    devices = Quadratics(*minima)
    received = [Received(np.zeros(1, np.float32)) for _ in minima]
    rates = np.stack([method.decay.rates(RATE, (1, 0), 1, steps) for _ in minima])
    each = Differences(method, RATE, devices, received, [{} for _ in minima], rates)
    values = []
    for index in range(steps):
        each.step(devices.make, index, None if active is None else active(index))
        values.append(devices.values())
    return np.array(values)


def test_momentum_by_differences() -> None:
    """This is example 6 of the design: w = 0.1, then v = 0.05 + 0.09 = 0.14 and w = 0.24."""
    np.testing.assert_allclose(path(Method(momentum=0.5), 2, 1.0), [[0.1], [0.24]], rtol=1e-6)


def test_momentum_is_that_of_torch() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=RATE, momentum=0.9, weight_decay=0.3)
    expected = []
    for _ in range(6):
        optimiser.zero_grad()
        ((weight - 1.0) ** 2 / 2).sum().backward()
        optimiser.step()
        expected.append([weight.item()])
    np.testing.assert_allclose(path(Method(momentum=0.9, weight_decay=0.3), 6, 1.0), expected, rtol=1e-5)


def test_decay_and_clipping_by_hand() -> None:
    # From 0 with the gradient −1 decay adds nothing; at 0.1 it adds 0.5 · 0.1: the step is 0.1 · (0.9 − 0.05).
    np.testing.assert_allclose(path(Method(weight_decay=0.5), 2, 1.0), [[0.1], [0.185]], rtol=1e-6)
    # The gradients −4 and −0.2 have norms of their own: only that of the first device is cut to 1.
    np.testing.assert_allclose(path(Method(clip=1.0), 1, 4.0, 0.2), [[0.1, 0.02]], rtol=1e-6)
    np.testing.assert_allclose(path(Method(clip=1.0), 1, 0.0), [[0.0]])  # no gradient has no direction


def test_a_correction_of_one_device_by_hand() -> None:
    # FedProx with μ = 0.5: at 0.1 the gradient is −0.9 + 0.5 · 0.1.
    method = Method(rule=Spec("local_rule", "fedprox", '{"mu": 0.5}'))
    np.testing.assert_allclose(path(method, 2, 1.0), [[0.1], [0.185]], rtol=1e-6)


def test_clipping_takes_the_norm_over_all_tensors() -> None:
    class Two(Quadratics):
        def weights(self) -> list[torch.Tensor]:
            return [self._weights[:, :1], self._weights[:, 1:]]

        def memory(self) -> list[torch.Tensor]:
            return []

    devices = Two(0.0)
    devices._minima, devices._weights = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)
    each = Differences(Method(clip=1.0), RATE, devices, [Received(np.zeros(2))], [{}], np.full((1, 1), RATE))
    each.step(devices.make, 0)
    np.testing.assert_allclose(devices.values(), [0.06, 0.08], rtol=1e-6)  # the norm of (3, 4) is 5


def test_a_falling_rate_by_hand() -> None:
    values = path(Method(decay=RateDecay(0.5, "step")), 2, 1.0)
    np.testing.assert_allclose(values, [[0.1], [0.1 + 0.05 * 0.9]], rtol=1e-6)


@pytest.mark.parametrize(("every", "expected"), [("round", 0.25), ("iteration", 0.5**7), ("step", 0.5 ** (7 * 3))])
def test_what_the_rate_falls_after(every: str, expected: float) -> None:
    """It is the edge iteration 1 of round 3 with Q = 3 and K = 3: two rounds and seven edge iterations have passed."""
    rates = RateDecay(0.5, every).rates(1.0, (3, 1), 3, 3)
    assert rates[0] == pytest.approx(expected)
    assert len(rates) == 3
    assert rates[2] == pytest.approx(expected / 4 if every == "step" else expected)


def test_a_device_without_a_batch_keeps_its_weights_and_its_momentum() -> None:
    active = np.array([[True, True], [True, False], [True, True]])
    values = path(Method(momentum=0.5), 3, 1.0, 1.0, active=lambda index: active[index])
    expected = path(Method(momentum=0.5), 3, 1.0)
    np.testing.assert_allclose(values[:, 0], expected[:, 0])
    np.testing.assert_allclose(values[:, 1], expected[[0, 0, 1], 0])


class Pull(LocalRule):
    """Adds w − w₀ + c + m to each gradient, from which a test sees that each argument is the right one."""

    memory = ("m",)

    def correction(self, weights, received, vectors, memory):
        """Return the sum."""
        return weights - received + vectors["c"] + memory["m"]


def test_a_correction_sees_the_weights_before_the_step_and_all_its_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Method(rule=Spec("local_rule", "pull"), momentum=0.5)
    monkeypatch.setitem(registry._ADDED, ("local_rule", "pull"), Pull)
    devices = Quadratics(1.0, 1.0)
    devices._weights += 2.0
    received = [Received(np.full(1, 2.0), {"c": np.full(1, c)}) for c in (0.5, 0.0)]
    rates = np.full((2, 2), RATE)
    each = Differences(method, RATE, devices, received, [{"m": np.zeros(1)}, {"m": np.full(1, -1.0)}], rates)
    each.step(devices.make, 0)
    # The gradient at 2 is 1. Device 0 adds 0.5, and device 1 adds −1.
    np.testing.assert_allclose(devices.values(), [2 - 0.15, 2.0], rtol=1e-6)
    each.step(devices.make, 1)
    # Device 0: v = −0.075 − 0.1 (0.85 + (−0.15 + 0.5)) = −0.195.
    np.testing.assert_allclose(devices.values(), [1.85 - 0.195, 2.0], rtol=1e-6)


def test_plain_steps_need_no_differences() -> None:
    assert Method().parts().plain_steps
    for changed in ({"momentum": 0.1}, {"weight_decay": 0.1}, {"clip": 1.0}, {"decay": RateDecay(0.9)}):
        assert not replace(Method(), **changed).parts().plain_steps


class Steady(LocalRule):
    """Adds 0.5 to each gradient, and counts its calls."""

    constant = True
    calls = 0

    def correction(self, weights, received, vectors, memory):
        type(self).calls += 1
        return torch.full_like(weights, 0.5)


class Pulled(Steady):
    """Adds half of the weights, and says nothing of being constant."""

    def correction(self, weights, received, vectors, memory):
        type(self).calls += 1
        return 0.5 * weights


@pytest.mark.parametrize(
    "rule, factor, calls", [(Steady, 1.0, 1), (Steady, 0.5, 4), (Pulled, 1.0, 4), (Pulled, 0.5, 4)]
)
def test_a_constant_correction_is_computed_once_for_each_learning_rate(monkeypatch, rule, factor, calls) -> None:
    """What a subclass corrects is constant only if it says so again. The weights follow the formula of the module."""
    name = rule.__name__.lower()
    monkeypatch.setitem(registry._ADDED, ("local_rule", name), rule)
    monkeypatch.setattr(rule, "calls", 0)
    method = Method(rule=Spec("local_rule", name), decay=RateDecay(factor=factor, every="step"))
    w, expected = 0.0, []
    for k in range(4):
        w -= RATE * factor**k * (w - 1.0 + (0.5 if rule is Steady else 0.5 * w))
        expected.append([w])
    np.testing.assert_allclose(path(method, 4, 1.0), expected, rtol=1e-5)
    assert rule.calls == calls


IMAGES = Problem((1, 28, 28), 10)
RULES = {
    "decay": Method(weight_decay=0.3),
    "wide clip": Method(clip=1e3, decay=RateDecay(0.9, "step")),
    "narrow clip": Method(clip=0.5, weight_decay=0.1),
    "momentum": Method(momentum=0.9, rule=Spec("local_rule", "fedprox")),
    "all": Method(momentum=0.5, clip=100.0, weight_decay=0.1, decay=RateDecay(0.9), rule=Spec("local_rule", "mtgc")),
}


@pytest.mark.parametrize("method", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", ["channels_last", "fused", "mlp"])
def test_c_code_and_torch_make_the_same_bits(name: str, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch makes the steps that the narrow clip cuts; the paper's network has padded weights."""
    problem = replace(IMAGES, model=ModelSpec("mlp_200_200")) if name == "mlp" else IMAGES
    kernel = build_kernel("fused" if name == "mlp" else name, build(problem), problem, RATE, "float32")
    rng = np.random.default_rng(0)
    start = init_vector(build(problem), rng)
    kernel.hold(torch.from_numpy(rng.standard_normal((8, 1, 28, 28), dtype=np.float32)), torch.arange(8))
    assert kernel.memory()
    vectors = {"y": rng.standard_normal(len(start)).astype(np.float32) / 100}
    rates = np.array([method.decay.rates(RATE, (2, 0), 1, 6)])

    in_code: list[bool] = []

    def trained() -> np.ndarray:
        kernel.load(start)
        received = Received(start, vectors)
        each = Differences(method, RATE, kernel, [received], [{"z": vectors["y"][::-1], "trained": start}], rates)
        for index in range(6):
            each.step(lambda index=index: kernel.step(np.arange(index % 3, 8)), index)
            in_code.append(each._holds_before)
        return kernel.vector()

    in_c = trained()
    assert any(in_code) or method.clip == RULES["narrow clip"].clip
    assert not all(in_code) or method.clip != RULES["narrow clip"].clip
    monkeypatch.setattr(differences, "_code", lambda: None)
    np.testing.assert_array_equal(in_c, trained())
    assert not np.array_equal(in_c, start)


def test_parameters_that_share_memory_are_left_to_torch() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    both = torch.zeros(7850)
    module[1].weight = torch.nn.Parameter(both[:7840].view(10, 784))
    module[1].bias = torch.nn.Parameter(both[7840:])
    assert build_kernel("eager", module, IMAGES, RATE, "float32").memory() == []
    assert build_kernel("eager", module.double(), IMAGES, RATE, "float32").memory() == []


@pytest.mark.parametrize("count", [1, 15, 16, 4095, 5000])
def test_the_norm_of_the_c_code_is_close_enough(count: int) -> None:
    code = differences._code()
    assert code is not None
    d = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    one, two = torch.from_numpy(d), torch.zeros(count)
    memory = (differences._Memory * 1)(differences._Memory(count, one.data_ptr(), two.data_ptr(), None, None))
    assert code.differences_squares(memory, 1) == pytest.approx(float((d.astype(np.float64) ** 2).sum()), rel=1e-4)
