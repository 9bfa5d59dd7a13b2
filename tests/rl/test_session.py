"""A training run has a learning curve and limits, and resumes bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hflray import ConfigError, DivergedError, metrics
from hflray.assignment.policy import load_policy
from hflray.config import ExperimentConfig
from hflray.errors import DamagedError
from hflray.rl.resumable import PROGRESS
from hflray.rl.session import AssignerTraining
from tests.rl.small import small

pytestmark = pytest.mark.usefixtures("ray_session")
TIMED = {metrics.WALL_LEARN_S, metrics.ASSIGNER_STEPS_PER_S}


def state(training: AssignerTraining) -> list[torch.Tensor]:
    """Return copies of the weights, the target network's weights and Adam's moments."""
    learner = training.algorithm.learner_group._learner
    optimizer = next(iter(learner._named_optimizers.values()))
    moments = [value for entry in optimizer.state_dict()["state"].values() for value in entry.values()]
    return [*(v.clone() for v in learner.module["default_policy"].state_dict().values()), *(v.clone() for v in moments)]


def untimed(points: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in point.items() if name not in TIMED} for point in points]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        pytest.param(
            ("learning.architecture=shared", "learning.num_edges=[2, 4]", "learning.num_scheduled=[2, 9]",
             "learning.width=8", "learning.ce=1", "learning.reward=cost"), marks=pytest.mark.slow),
        pytest.param(
            ("learning.features=paper", "fleet.deployment_seed=1", "learning.replay=transitions",
             "learning.update_every=3", "learning.td_loss=squared", "learning.grad_clip=null",
             "learning.environments=1", "learning.double_q=false", "learning.num_scheduled=[2, 9]"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["bilstm", "shared", "literal"],
)  # fmt: skip
def test_a_restored_run_continues_bit_for_bit(tmp_path, overrides) -> None:
    config = small(tmp_path, *overrides)
    with AssignerTraining(config, workers=2) as training:
        for _ in range(2):
            training.advance()
        training.save(tmp_path / "saved")
        for _ in range(2):
            training.advance()
        unbroken, points = state(training), training.points
        assert training.finished
        assert training.algorithm.network().body.two_threads
    with AssignerTraining(config, workers=1) as training:  # the number of CPUs changes no bit
        assert not training.algorithm.network().body.two_threads
        training.restore(tmp_path / "saved")
        assert [point["env_steps"] for point in training.points] == [point["env_steps"] for point in points[:2]]
        while not training.finished:
            training.advance()
        assert len(unbroken) == len(state(training)) > 40
        assert all(torch.equal(a, b) for a, b in zip(unbroken, state(training), strict=True))
        assert untimed(training.points) == untimed(points)
    with pytest.raises(
        ConfigError, match=r"of another configuration \(learning_rate = 0.001 in the checkpoint, 0.5 in the config"
    ):
        _restored(small(tmp_path, *overrides, "learning.learning_rate=0.5"), tmp_path / "saved")


def _restored(config: ExperimentConfig, folder: Path) -> None:
    with AssignerTraining(config) as training:
        training.restore(folder)


def test_a_checkpoint_older_than_a_setting_resumes_with_its_default(tmp_path) -> None:
    with AssignerTraining(small(tmp_path)) as training:
        training.advance()
        training.save(tmp_path / "saved")
        progress = tmp_path / "saved" / PROGRESS
        state = json.loads(progress.read_text())
        for name in ("td_loss", "replay", "update_every", "grad_clip"):  # commit 6c93c38 lacked these settings
            del state["learning"][name]
        del state["sha256"]
        progress.write_text(json.dumps(state))
        training.restore(tmp_path / "saved")
    with (
        AssignerTraining(small(tmp_path, "learning.td_loss=squared")) as training,
        pytest.raises(ConfigError, match=r"td_loss = huber in the checkpoint, squared in the configuration"),
    ):
        training.restore(tmp_path / "saved")


def test_a_damaged_checkpoint_is_refused_before_anything_changes(tmp_path) -> None:
    config = small(tmp_path)
    with AssignerTraining(config) as training:
        training.advance()
        training.save(tmp_path / "saved")
        before = state(training)
        files = [path for path in sorted((tmp_path / "saved").rglob("*")) if path.is_file()]
        assert [path.name for path in files] == ["arrays.safetensors", "state.json", "training.json"]
        for path in files:
            whole = path.read_bytes()
            middle = len(whole) // 2
            for damaged in (b"", whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
                path.write_bytes(damaged)
                with pytest.raises(DamagedError) as error:
                    training.restore(tmp_path / "saved")
                assert "\n" not in str(error.value)
            path.write_bytes(whole)
        assert all(torch.equal(a, b) for a, b in zip(before, state(training), strict=True))


def test_a_point_has_the_glossarys_names(tmp_path) -> None:
    reports = []
    with AssignerTraining(small(tmp_path), lambda *solved: reports.append(solved)) as training:
        assert reports[0] == ("training fleets", 0, 12)
        assert ("held-out fleets", 3, 3) in reports
        assert reports[-1] == ("references", 3, 3)
        point = training.advance()
        training.save_policy(tmp_path / "policy.safetensors")
    values = point.metrics
    assert point.env_steps >= 300
    assert values[metrics.ASSIGNER_EPISODES] == point.env_steps / 8
    ratios = {
        metrics.assigner_ratio(name) for name in ("teacher", "hfel-100", "hfel-300", "local_search", "lower_bound")
    }
    assert set(values) == {*metrics.LEARNING, *ratios}
    assert values[metrics.assigner_ratio("lower_bound")] >= 1.0
    assert -8 <= values[metrics.ASSIGNER_GREEDY_RETURN] <= 8
    assert values[metrics.ASSIGNER_GREEDY_RETURN] == pytest.approx(8 * (2 * values[metrics.ASSIGNER_AGREEMENT] - 1))
    network, card = load_policy(tmp_path / "policy.safetensors")
    assert network.spec.hidden == 8
    assert card["env_steps"] == point.env_steps
    assert card["trained_on"]["num_scheduled"] == [8, 8]


def test_the_card_reports_on_fleets_outside_the_learning_curve(tmp_path) -> None:
    with AssignerTraining(small(tmp_path)) as training:
        curve, card = training.evaluate.pool, training.evaluate_finished.pool
        assert (curve.spec.held_out, card.spec.reporting) == (True, True)
        sets = [{fleet.problem.snr.tobytes() for fleet in pool.fleets} for pool in (training.pool, curve, card)]
        assert sum(map(len, sets)) == len(set.union(*sets)) == 12 + 3 + 3
        training.advance()
        training.save_policy(tmp_path / "policy.safetensors")
        expected = training.evaluate_finished(training.algorithm.network())
        _, written = load_policy(tmp_path / "policy.safetensors")
        assert written["results"]["objective"] == round(expected.objective, 3)
        assert written["results"]["objective"] != round(training.evaluate(training.algorithm.network()).objective, 3)
        assert written["results"]["reporting_fleets"] == 3


def test_the_time_limit_ends_a_run(tmp_path) -> None:
    with AssignerTraining(small(tmp_path, "learning.minutes=1e-6", "learning.env_steps=null")) as training:
        assert not training.finished
        training.advance()
        assert training.finished


def test_divergence_is_an_error(tmp_path) -> None:
    with AssignerTraining(small(tmp_path)) as training:
        training.advance()
        with torch.no_grad():
            next(iter(training.algorithm.network().parameters())).fill_(float("nan"))
        with pytest.raises(DivergedError, match=r"lower learning\.learning_rate"):
            training.advance()


def test_a_cache_of_other_fleets_is_refused(tmp_path) -> None:
    with AssignerTraining(small(tmp_path)):
        pass
    with pytest.raises(ConfigError, match="fleets of another configuration"):
        AssignerTraining(small(tmp_path, "seed=4"))
