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
from hflray.experiment import Experiment
from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.learned import Learned, load_scores, scores_of
from hflray.scheduling.network import ScoreNetwork, ScoreSpec
from hflray.scheduling.rows import device_rows
from tests.conftest import small_config
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


def test_an_experiment_runs_with_it_and_goes_on_after_a_resume() -> None:
    config = small_config("scheduling.name=learned", "max_rounds=4")
    with Experiment(config) as whole, Experiment(config) as half, Experiment(config) as resumed:
        expected = [record.devices.tolist() for record in whole]
        half.run_round(), half.run_round()
        resumed.load_state_dict(half.state_dict())
        assert [record.devices.tolist() for record in resumed] == expected[2:]


def test_other_files_are_refused(tmp_path: Path, policy: Path) -> None:
    setting = "scheduling.options.policy"
    with pytest.raises(ConfigError, match=rf"{setting}: .*none.* does not exist; .*scheduling_agent\.yaml"):
        learned(tmp_path / "none")
    with pytest.raises(ConfigError, match=f"{setting}: .* is no policy of a scheduler"):
        learned(ASSIGNER)
    with pytest.raises(ConfigError, match=r"assignment\.policy: .* is of another version"):
        load_policy(policy)
    content = bytearray(policy.read_bytes())
    content[-1] ^= 1
    policy.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{setting}: .* changed or damaged"):
        load_scores(policy)
