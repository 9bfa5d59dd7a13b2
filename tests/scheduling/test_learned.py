"""hflray.scheduling.learned: a policy's scores decide, and files that are no such policy are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hflray.assignment.policy import SHIPPED as ASSIGNER
from hflray.assignment.policy import load_policy, save_policy
from hflray.errors import ConfigError
from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.context import BEFORE_CLASSES, device_rows, nominal_iteration
from hflray.scheduling.learned import Learned, ScoreNetwork, ScoreSpec, load_scores, scores_of
from tests.scheduling import toy

FLEET = toy.fleet(np.geomspace(1e-13, 1e-11, 8)[:, None] * np.ones((1, 2)))


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Return a policy that has learned nothing, with a target of 50 %."""
    torch.manual_seed(1)
    path = tmp_path / "policy.safetensors"
    save_policy(path, ScoreNetwork(ScoreSpec(width=4)), {"trained_on": {"target": 0.5}})
    return path


def learned(policy: Path) -> Learned:
    scheduler = build_scheduler("learned", num_devices=8, num_scheduled=3, policy=str(policy))
    assert isinstance(scheduler, Learned)
    return scheduler


def test_a_saved_policy_gives_the_same_scores(policy: Path) -> None:
    torch.manual_seed(1)
    network = ScoreNetwork(ScoreSpec(width=4))
    context = toy.context(FLEET)
    expected = scores_of(network, device_rows(context, 3, 0.0))
    assert learned(policy).scores(context).tolist() == expected.tolist()


def test_the_available_devices_of_the_highest_scores_train(policy: Path) -> None:
    scheduler, context = learned(policy), toy.context(FLEET)
    order = np.argsort(-scheduler.scores(context))
    assert choose_devices(scheduler, context).tolist() == sorted(order[:3])
    available = np.ones(8, dtype=bool)
    available[order[1]] = False
    away = toy.context(FLEET, available=available)
    assert choose_devices(scheduler, away).tolist() == sorted(order[[0, 2, 3]])


def test_the_accuracy_of_the_last_round_is_seen_relative_to_the_target(policy: Path) -> None:
    scheduler = learned(policy)
    for accuracy, progress in ((0.25, 0.5), (0.75, 1.0), (np.nan, 0.0)):
        context = toy.context(FLEET, 2, record=SimpleNamespace(accuracy=accuracy))
        expected = scores_of(scheduler.network, device_rows(context, 3, progress))
        assert scheduler.scores(context).tolist() == expected.tolist()


def test_the_shipped_policy_prefers_cheap_devices() -> None:
    """Only the links of the devices differ, so that the strongest three cost least."""
    scheduler = build_scheduler("learned", num_devices=8, num_scheduled=3)
    assert choose_devices(scheduler, toy.context(FLEET)).tolist() == [5, 6, 7]


def test_other_files_are_refused(tmp_path: Path, policy: Path) -> None:
    setting = "scheduling.options.policy"
    with pytest.raises(ConfigError, match=rf"{setting}: .*none.* does not exist; .*scheduling_agent\.yaml"):
        learned(tmp_path / "none")
    with pytest.raises(ConfigError, match=f"{setting}: .* is of another kind or version"):
        learned(ASSIGNER)
    with pytest.raises(ConfigError, match=r"assignment\.policy: .* is of another kind or version"):
        load_policy(policy)
    content = bytearray(policy.read_bytes())
    content[-1] ^= 1
    policy.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{setting}: .* changed or damaged"):
        load_scores(policy)


@pytest.fixture
def network() -> ScoreNetwork:
    torch.manual_seed(0)
    return ScoreNetwork(ScoreSpec(width=8)).eval().requires_grad_(False)


def rows(devices: int, classes: int) -> torch.Tensor:
    """Return random rows, (1, N, 6 + C), whose shares of the classes add up to 1."""
    generator = torch.Generator().manual_seed(devices)
    numbers = torch.rand((1, devices, BEFORE_CLASSES + classes), generator=generator)
    numbers[..., BEFORE_CLASSES:] /= numbers[..., BEFORE_CLASSES:].sum(-1, keepdim=True)
    return numbers


def test_devices_and_classes_have_no_order(network: ScoreNetwork) -> None:
    example = rows(7, 4)
    devices, classes = torch.randperm(7), BEFORE_CLASSES + torch.randperm(4)
    shuffled = example[:, devices][..., torch.cat([torch.arange(BEFORE_CLASSES), classes])]
    assert torch.allclose(network(shuffled), network(example)[:, devices], atol=1e-6)


def test_one_network_scores_any_fleet(network: ScoreNetwork) -> None:
    assert network(rows(3, 2)).shape == (1, 3)
    assert network(rows(50, 10)).shape == (1, 50)


THREE = toy.fleet([[1e-12, 5e-12], [4e-12, 1e-13], [1e-13, 1e-13]], samples=[50.0, 100.0, 150.0])


def test_the_columns_by_hand() -> None:
    counts = np.array([[50, 0], [25, 75], [0, 150]])
    context = toy.context(THREE, 5, class_counts=counts, participation=[4, 1, 0], last_round=[4, 2, 0])
    rows = device_rows(context, 2, 0.25)
    delay_s, energy_j = nominal_iteration(context, 2)
    assert rows.dtype == np.float32
    assert rows[:, 0] == pytest.approx((np.log(delay_s) - np.log(delay_s).mean()) / 3, abs=1e-6)
    assert rows[:, 1] == pytest.approx((np.log(energy_j) - np.log(energy_j).mean()) / 3, abs=1e-6)
    assert rows[:, 2] == pytest.approx([-0.5, 0.0, 0.5])
    assert rows[:, 3] == pytest.approx([1.0, 0.25, 0.0])
    assert rows[:, 4] == pytest.approx([0.0, 0.2, 0.4])
    assert rows[:, 5] == pytest.approx([0.25] * 3)
    assert rows[:, 6:] == pytest.approx(np.array([[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]]))
