"""hflray.training.rules.own: a function of the user's own trains, with the kernels that have a module."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hflray import registry
from hflray.errors import HflrayError
from hflray.experiment import Experiment
from tests.conftest import small_config
from tests.training.quadratics import hierarchy

OWN = "training.rule={name: mine, options: {momentum: 0.5}}"
QUICK = "scheduling.name=round_robin"


def train(module, batches, loss, rate, rng, momentum=0.0):
    """Train with PyTorch's own SGD, and draw once from the generator."""
    optimiser = torch.optim.SGD(module.parameters(), lr=rate, momentum=momentum)
    rng.random()
    for inputs, targets in batches:
        optimiser.zero_grad()
        loss(module(inputs), targets).backward()
        optimiser.step()


@pytest.fixture(autouse=True)
def _registered(monkeypatch) -> None:
    monkeypatch.setitem(registry._ADDED, ("local_rule", "mine"), train)


def test_two_steps_by_hand(monkeypatch) -> None:
    rounds = hierarchy(monkeypatch, "mine", (1.0,))
    model = rounds.train_round(1, np.zeros(1, np.float32), np.array([0]), np.array([0]))
    assert model.item() == pytest.approx(0.19, rel=1e-6)


@pytest.mark.parametrize(
    ("kernel", "precision", "most"),
    [("eager", "float32", 1e-5), ("channels_last", "float32", 1e-5), ("eager", "bf16", 0.02)],
)
def test_it_trains_like_the_rule_that_it_is(kernel: str, precision: str, most: float) -> None:
    """In bf16, autocast kept the weights that the function had changed, and took all gradients at the first ones."""
    common = (QUICK, f"training.kernel={kernel}", f"training.precision={precision}", "max_rounds=1")
    own = Experiment(small_config(OWN, *common))
    theirs = Experiment(small_config("training.momentum=0.5", *common))
    start = own.global_model
    for experiment in (own, theirs):
        experiment.run_round()
    error = np.linalg.norm(own.global_model - theirs.global_model) / np.linalg.norm(theirs.global_model - start)
    assert error < most


def test_a_gradient_that_a_device_leaves_does_not_reach_the_next(monkeypatch) -> None:
    def leaves(module, batches, loss, rate, rng):
        for inputs, targets in batches:
            loss(module(inputs), targets).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= rate * parameter.grad

    monkeypatch.setitem(registry._ADDED, ("local_rule", "leaves"), leaves)

    def trained(devices: list[int]) -> float:
        rounds = hierarchy(monkeypatch, "leaves", (3.0, 1.0))
        return rounds.train_round(1, np.zeros(1, np.float32), np.array(devices), np.array(devices)).item()

    assert trained([0, 1]) == pytest.approx((trained([0]) + trained([1])) / 2)


def test_device_and_round_reach_a_function_that_asks_for_them(monkeypatch) -> None:
    seen = set()

    def placed(module, batches, loss, rate, rng, device, round):
        seen.add((device, round))

    def on_torch(module, batches, loss, rate, rng, device="cpu"):
        seen.add((device, 0))

    monkeypatch.setitem(registry._ADDED, ("local_rule", "placed"), placed)
    monkeypatch.setitem(registry._ADDED, ("local_rule", "on torch"), on_torch)
    for name in ("placed", "on torch"):
        rounds = hierarchy(monkeypatch, name, (1.0, 2.0))
        for index in (1, 2):
            rounds.train_round(index, np.zeros(1, np.float32), np.array([0, 1]), np.array([0, 1]))
    assert seen == {(device, index) for device in (0, 1) for index in (1, 2)} | {("cpu", 0)}


def test_auto_chooses_a_kernel_with_a_module() -> None:
    assert Experiment(small_config(OWN)).resolve().training.kernel == "channels_last"
    table = ("data.name=breast_cancer", "model.name=mlp", "scheduling.name=fedavg")
    assert Experiment(small_config(OWN, *table)).resolve().training.kernel == "eager"
    assert Experiment(small_config(OWN, "training.device=auto")).resolve().training.device == "cpu"


@pytest.mark.parametrize("kernel", ["fused", "layers", "batched"])
def test_other_kernels_are_refused(kernel: str) -> None:
    message = rf"^training\.kernel: got '{kernel}' with a function of your own .*; accepted with it: auto, eager, chann"
    with pytest.raises(HflrayError, match=message):
        Experiment(small_config(OWN, f"training.kernel={kernel}")).resolve()


def test_a_gpu_is_refused() -> None:
    with pytest.raises(
        HflrayError, match=r"^training\.device: got 'cuda' .*; accepted with it: auto, cpu; set it to a"
    ):
        Experiment(small_config(OWN, "training.device=cuda")).resolve()
