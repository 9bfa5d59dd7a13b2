"""hflray.scheduling.network: the scores do not depend on the order of devices or classes."""

from __future__ import annotations

import pytest
import torch

from hflray.scheduling.network import ScoreNetwork, ScoreSpec
from hflray.scheduling.rows import OWN


@pytest.fixture
def network() -> ScoreNetwork:
    torch.manual_seed(0)
    return ScoreNetwork(ScoreSpec(width=8)).eval().requires_grad_(False)


def rows(devices: int, classes: int) -> torch.Tensor:
    """Return random rows, (1, N, 6 + C), whose shares of the classes add up to 1."""
    generator = torch.Generator().manual_seed(devices)
    numbers = torch.rand((1, devices, OWN + classes), generator=generator)
    numbers[..., OWN:] /= numbers[..., OWN:].sum(-1, keepdim=True)
    return numbers


def test_devices_and_classes_have_no_order(network: ScoreNetwork) -> None:
    example = rows(7, 4)
    devices, classes = torch.randperm(7), OWN + torch.randperm(4)
    shuffled = example[:, devices][..., torch.cat([torch.arange(OWN), classes])]
    assert torch.allclose(network(shuffled), network(example)[:, devices], atol=1e-6)


def test_one_network_scores_any_fleet(network: ScoreNetwork) -> None:
    assert network(rows(3, 2)).shape == (1, 3)
    assert network(rows(50, 10)).shape == (1, 50)


def test_a_score_depends_on_the_devices_of_the_same_classes(network: ScoreNetwork) -> None:
    """At first one head attends to devices of like labels: another value there changes more than elsewhere."""
    example = rows(4, 2)
    example[0, :, OWN:] = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    like, unlike = example.clone(), example.clone()
    like[0, 1, :OWN] += 1.0
    unlike[0, 2, :OWN] += 1.0
    before = network(example)[0, 0]
    assert (network(like)[0, 0] - before).abs() > (network(unlike)[0, 0] - before).abs() > 0
