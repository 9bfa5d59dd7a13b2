"""hflray.training.network_check: what a user's network gets wrong is said in one line before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hflray import registry
from hflray.config import TrainingConfig
from hflray.errors import ConfigError, HflrayError
from hflray.models.problem import ModelSpec, Problem
from hflray.training.network_check import check_network
from tests.conftest import says
from tests.training.test_local import IMAGES, colour_data

TRAINING = TrainingConfig(batch_size=4)


class User(nn.Module):
    """A network as a user writes it; the tests change a part of it."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(192, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(x.flatten(1))
        return scores


def attempt(factory: Callable[..., nn.Module], training: TrainingConfig = TRAINING, **changes: object) -> str:
    """Return the message with which a network is refused; empty if it is accepted."""
    registry.register("model", "mine", factory)
    problem = Problem(IMAGES, 3, model=ModelSpec("mine"), **changes)  # type: ignore[arg-type]
    try:
        check_network(problem, training, 0, colour_data())
    except HflrayError as error:
        assert "\n" not in str(error)
        return str(error)
    finally:
        registry._ADDED.pop(("model", "mine"))
    return ""


def changed(change: Callable[[User], object]) -> Callable[..., nn.Module]:
    def make(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        module = User(input_shape, num_outputs)
        change(module)
        return module

    return make


def test_a_good_network_and_the_built_in_ones_pass_and_leave_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    assert attempt(User) == ""
    for spec in (ModelSpec("mlp"), ModelSpec("logistic"), ModelSpec.of("resnet8", {"norm": "batch"})):
        check_network(Problem(IMAGES, 3, model=spec), TRAINING, 0, colour_data())
    assert torch.equal(torch.get_rng_state(), before)


class Pair(User):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x), x  # type: ignore[return-value]


class Norm(User):
    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__(input_shape, num_outputs)
        self.norm = nn.BatchNorm1d(192)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x.flatten(1)))


class Mixes(User):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Wanders(User):
    """A frozen layer whose weights come from a generator that nobody seeds."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__(input_shape, num_outputs)
        self.frozen = nn.Parameter(torch.randn(3, generator=torch.Generator().manual_seed(torch.seed())), False)


@pytest.mark.parametrize(
    "factory, message",
    [
        (
            changed(lambda net: setattr(net, "last", nn.Linear(192, 4))),
            r"returns the shape \[2, 4\] for 2 inputs; accepted: \[2, 3\]",
        ),
        (Pair, "returns a tuple; accepted: one tensor"),
        (
            changed(lambda net: setattr(net, "last", nn.Linear(100, 3))),
            r"cannot read a batch of inputs of the shape \[3, 8, 8\]: RuntimeError: mat1 ",
        ),
        (
            changed(lambda net: net.last.bias.data.fill_(torch.nan)),
            "'mine' has a loss of nan on its first batch, before any training",
        ),
        (changed(lambda net: net.requires_grad_(False)), "has no parameter to train"),
        (changed(lambda net: net.double()), "trains 'last.weight' as torch.float64"),
        (changed(lambda net: setattr(net, "last", nn.LazyLinear(3))), "lazy tensor 'last.weight'"),
        (Wanders, "has another 'frozen' each time that it is built"),
        (changed(lambda net: 1 / 0), "cannot be built: ZeroDivisionError: division by zero; correct the network"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(factory: Callable[..., nn.Module], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(attempt(factory))


def test_a_loss_of_several_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def each(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    monkeypatch.setitem(registry._ADDED, ("loss", "each"), each)
    assert "loss: 'each' returns a tensor of the shape [2]; accepted: one number" in attempt(User, loss="each")


def test_a_batch_of_one_sample_is_tried_where_a_device_has_one() -> None:
    """The devices have 8, 7 and 4 samples: batches of 7 leave one of 1, and batches of 5 do not."""
    assert "cannot train on a batch of one sample" in attempt(Norm, TrainingConfig(batch_size=7))
    assert attempt(Norm, TrainingConfig(batch_size=5)) == ""


def test_a_network_that_exceeds_the_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = Problem(IMAGES, 3, model=ModelSpec.of("mlp", {"hidden": [1_000_000, 1_000_000]}))
    with pytest.raises(ConfigError, match=r"'mlp' needs about 37,\d+\.\d GiB in every process .*a smaller network"):
        check_network(huge, TRAINING, 0, colour_data())
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if "SIZE" in name else 20)  # 80 KiB
    with pytest.raises(ConfigError, match=r"GiB for a batch"):
        check_network(Problem(IMAGES, 3, model=ModelSpec("logistic")), TRAINING, 0, colour_data((400, 7, 4)))


def test_a_gpu_refuses_what_it_cannot_train() -> None:
    on_gpu = TrainingConfig(device="cuda", batch_size=4)
    assert attempt(User, on_gpu) == ""
    for at, begin in ((on_gpu, "device: GPUs"), (TrainingConfig(kernel="batched", batch_size=4), "kernel: batched")):
        for factory, buffers in ((Norm, "average"), (Norm, "local"), (Mixes, "average")):
            facts = (begin, "takes statistics of its batches; use a normal", f"set training.{begin[:6]}")
            assert says(attempt(factory, at, buffers=buffers), *facts)
    dropout = Problem(IMAGES, 3, model=ModelSpec.of("mlp", {"dropout": 0.5}))
    with pytest.raises(ConfigError, match=r"'mlp' cannot be trained so .*randomness.*set training.device to cpu"):
        check_network(dropout, on_gpu, 0, colour_data())
