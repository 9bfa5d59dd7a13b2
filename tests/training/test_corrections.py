"""hflray.training.differences: a rule of the user's own sees one device at a time, whatever trains it."""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np
import pytest
import torch

from hflray.errors import HflrayError
from hflray.models.paper import init_vector
from hflray.registry import register
from hflray.seeding import stream
from hflray.support.native import compiler
from hflray.training.method import Method, Spec
from hflray.training.rules import LocalRule
from hflray.training.rules.base import of_correction
from hflray.training.rules.fedprox import FedProx
from tests.models.samples import build_model
from tests.training.rounds import Rounds, serial_rounds
from tests.training.test_local import SHAPE, make_data, make_job

SIZES = (9, 7, 5, 4)
DEVICES, EDGES = np.arange(4), np.array([1, 0, 1, 0])
KERNELS = ["eager", "channels_last", "batched", *(["fused"] if compiler() else [])]


class Norm(LocalRule):
    """A pull of fixed length towards the received model: its norm tells whose numbers it sees."""

    seen: ClassVar[list[tuple[int, ...]]] = []

    def correction(self, weights, received, vectors, memory):
        self.seen.append(tuple(weights.shape))
        difference = weights - received
        return difference / (torch.linalg.vector_norm(difference) + 1e-3)


class FlatNorm(Norm):
    """The same over the whole model."""

    flat = True

    def correction(self, weights, received, vectors, memory):
        return super().correction(weights, received, vectors, memory)


class Stacked(FedProx):
    """A subclass of a shipped rule, whose own correction is not said to go number by number."""

    def correction(self, weights, received, vectors, memory):
        difference = weights - received
        return self.mu * difference / (torch.linalg.vector_norm(difference) + 1e-3)


class Placed(LocalRule):
    """A correction by device and round."""

    seen: ClassVar[set[tuple[int, int]]] = set()

    def correction(self, weights, received, vectors, memory, device, round):
        self.seen.add((device, round))
        return torch.full_like(weights, 0.01 * (device + 1) * round)


for each in (Norm, FlatNorm, Stacked, Placed):
    register("local_rule", f"test {each.__name__}", each)


def rounds_of(rule: str, kernel: str, **options: float) -> Rounds:
    method = Method(rule=Spec("local_rule", f"test {rule}", json.dumps(options)))
    job = make_job(kernel=kernel, method=method, learning_rate=0.05, local_iterations=2)
    return serial_rounds(job, make_data(SIZES), edge_iterations=2)


def trained(rule: str, kernel: str, **options: float) -> np.ndarray:
    rounds = rounds_of(rule, kernel, **options)
    model = init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))
    return np.asarray(rounds.result(1, rounds.start(model), DEVICES, EDGES).state.model)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rule", ["Norm", "FlatNorm", "Stacked"])
def test_a_norm_is_that_of_one_device_with_every_kernel(rule: str, kernel: str) -> None:
    """With plain loops of eager, one device is trained alone; other kernels give the same up to rounding."""
    options = {"mu": 1.0} if rule == "Stacked" else {}
    start = init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))
    expected = trained(rule, "eager", **options)
    Norm.seen.clear()
    model = trained(rule, kernel, **options)
    assert np.linalg.norm(model - expected) < 1e-4 * np.linalg.norm(expected - start)
    shapes = [tuple(tensor.shape) for tensor in build_model("hfl", SHAPE, 3).parameters()]
    if rule == "Norm":
        assert set(Norm.seen) == set(shapes)
    if rule == "FlatNorm":
        assert set(Norm.seen) == {(sum(int(np.prod(shape)) for shape in shapes),)}


def test_a_subclass_says_anew_of_an_inherited_correction_what_it_is() -> None:
    class Whole(Norm):
        flat = True

    class Below(Whole):
        pass

    class Again(Whole):
        correction = Stacked.correction

    assert [of_correction(made(), "flat") for made in (Norm, Whole, Below, Again)] == [False, True, True, False]


def test_the_two_norms_differ() -> None:
    assert not np.allclose(trained("Norm", "eager"), trained("FlatNorm", "eager"), rtol=1e-3)


@pytest.mark.parametrize("kernel", ["eager", "batched"])
def test_device_and_round_reach_a_rule_that_names_them(kernel: str) -> None:
    rounds = rounds_of("Placed", kernel)
    state = rounds.start(init_vector(build_model("hfl", SHAPE, 3), stream(0, "model")))
    Placed.seen.clear()
    for index in (1, 2):
        state = rounds.result(index, state, DEVICES, EDGES).state
    assert Placed.seen == {(device, index) for device in range(4) for index in (1, 2)}


@pytest.mark.parametrize(
    "returned, got",
    [
        (lambda weights: weights[None], "a tensor of torch.float32 with the shape (1, "),
        (lambda weights: weights.flatten()[:1], "with the shape (1,)"),
        (lambda weights: weights * float("nan"), "not finite"),
        (lambda weights: weights.numpy(), "an array of float32 of shape (15, 1, 5, 5)"),
        (lambda weights: 0.5, "the float 0.5"),
        (lambda weights: torch.zeros(weights.shape, dtype=torch.int64), "a tensor of torch.int64"),
    ],
)
def test_what_a_correction_returns_is_checked(returned, got: str) -> None:
    class Wrong(LocalRule):
        def correction(self, weights, received, vectors, memory):
            return returned(weights)

    name = f"Wrong {len(got)} {got[:9]}"
    register("local_rule", f"test {name}", Wrong)
    with pytest.raises(HflrayError) as caught:
        trained(name, "eager")
    message = str(caught.value)
    assert got in message
    assert "training.rule.name: " in message
    assert "Wrong returned" in message
    assert "accepted: None, or a tensor of finite floats of the weights' shape" in message
