"""Both trainings have a learning curve and limits, and resume bit for bit; what the scheduler's learns on a toy."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from hflray import ConfigError, DivergedError, metrics
from hflray.assignment.policy import load_policy
from hflray.config import ExperimentConfig
from hflray.errors import DamagedError
from hflray.rl import POLICY
from hflray.rl.command import main
from hflray.rl.scheduling_env import SchedulingEnv, environment
from hflray.rl.session import HISTORY, PROGRESS, AssignerTraining, SchedulerTraining
from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.learned import Learned, ScoreNetwork, load_scores, scores_of
from hflray.seeding import stream
from tests.rl.small import SMALL, small, toy

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


def test_a_restored_run_continues_bit_for_bit(tmp_path) -> None:
    config = small(tmp_path)
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
        _restored(small(tmp_path, "learning.learning_rate=0.5"), tmp_path / "saved")


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


def joules_over_the_least(network: ScoreNetwork, env: SchedulingEnv, fleets: int = 10) -> float:
    """Return the energy of the pairs that a network chooses on random fleets over that of the best pairs.

    The best pair of a fleet is known by trying all fifteen.
    """
    chosen_j = least_j = 0.0
    for index in range(fleets):
        env.begin(stream(0, "test/toy", index))
        joules = {pair: env._bill(np.array(pair))[1].energy_j for pair in itertools.combinations(range(6), 2)}
        scores = scores_of(network, env.observation().reshape(6, -1))
        chosen_j += joules[tuple(sorted(np.argsort(-scores)[:2].tolist()))]
        least_j += min(joules.values())
    return chosen_j / least_j


def test_the_agent_learns_the_known_best_choice_of_a_toy() -> None:
    config = toy("agent.env_steps=480", "agent.evaluate_every=480")
    env = SchedulingEnv(**environment(config))
    with SchedulerTraining(config) as training:
        assert joules_over_the_least(training.algorithm.network(), env) > 3
        point = training.advance()
        assert joules_over_the_least(training.algorithm.network(), env) < 1.3
        assert training.finished
    assert point.metrics[metrics.agent_metric("reached")] == 0  # and nothing to the target is logged
    assert metrics.agent_metric("joules") not in point.metrics


def test_a_resumed_training_of_the_scheduler_goes_on_bit_for_bit(tmp_path: Path) -> None:
    with SchedulerTraining(toy()) as whole:
        first = whole.advance()
        whole.save(tmp_path / "state")
        second = whole.advance()
        weights = whole.algorithm.network().state_dict()
        weights = {name: tensor.clone() for name, tensor in weights.items()}
    with SchedulerTraining(toy()) as resumed:
        resumed.restore(tmp_path / "state")
        assert resumed.surroundings()["environment"]["fleet"] == {"num_devices": 6, "num_edges": 1}
        assert resumed.env_steps == first.env_steps
        again = resumed.advance()
        for name, tensor in resumed.algorithm.network().state_dict().items():
            assert torch.equal(tensor, weights[name]), name
        assert resumed.points[0][metrics.AGENT_RETURN] == first.metrics[metrics.AGENT_RETURN]
    measured = {metrics.WALL_LEARN_S}
    assert {k: v for k, v in again.metrics.items() if k not in measured} == {
        k: v for k, v in second.metrics.items() if k not in measured
    }
    with SchedulerTraining(toy("agent.reward=cost")) as other, pytest.raises(ConfigError, match="reward = energy in"):
        other.restore(tmp_path / "state")


def test_the_policy_that_is_saved_gives_the_scores_of_the_training(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("device,gain_0,samples\n" + "".join(f"{n},{n + 2}e-11,50\n" for n in range(6)))
    fleet = {"name": "table", "num_devices": 6, "num_edges": 1, "options": {"devices": str(tmp_path / "d.csv")}}
    config = toy(f"fleet={json.dumps(fleet)}", "target_accuracy=null", "target={metric: accuracy, value: 0.9}")
    with SchedulerTraining(config) as training:
        training.advance()
        training.save_policy(tmp_path / "policy.safetensors")
        trained = training.algorithm.network()
        env = SchedulingEnv(**environment(config))
        env.begin(stream(0, "test/saved"))
        expected = scores_of(trained, env.observation().reshape(6, -1))
    network, card = load_scores(tmp_path / "policy.safetensors")
    assert scores_of(network, env.observation().reshape(6, -1)).tolist() == expected.tolist()
    assert card["trained_on"]["target"] == 0.9
    assert card["trained_on"]["fleet"]["name"] == "table"
    assert card["results"][metrics.AGENT_RETURN] == training.points[-1][metrics.AGENT_RETURN]
    options = {"policy": str(tmp_path / "policy.safetensors")}
    scheduler = build_scheduler("learned", num_devices=6, num_scheduled=2, **options)
    assert isinstance(scheduler, Learned)
    assert choose_devices(scheduler, env.context()).tolist() == sorted(np.argsort(-expected)[:2].tolist())


def test_a_loss_that_is_not_finite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with SchedulerTraining(toy()) as training:
        sampled = {"num_env_steps_sampled_lifetime": 480, "num_episodes_lifetime": 160}
        result = {"env_runners": sampled, "learners": {"default_policy": {"total_loss": math.nan}}}
        monkeypatch.setattr(training.algorithm, "train", lambda: result)
        with pytest.raises(DivergedError, match=r"agent: the loss is nan after 480 steps; lower agent\.learning_rate"):
            training.advance()


def test_the_command_trains_saves_and_resumes(tmp_path, capsys) -> None:
    settings = [f"--set={text}" for text in (*SMALL, f"learning.cache={tmp_path / 'fleets'}")]
    out = ["--out", str(tmp_path / "run")]
    assert main(["train-assigner", *settings, "--set=learning.env_steps=600", *out]) == 0
    printed = capsys.readouterr().out
    assert "training fleets: 12/12" in printed
    assert "policy:" in printed
    assert len((tmp_path / "run" / HISTORY).read_text().splitlines()) == 2
    assert main(["train-assigner", *settings, *out]) == 2
    assert "go on with --resume" in capsys.readouterr().err
    assert main(["train-assigner", *settings, *out, "--resume"]) == 0  # to the 1,200 steps of the configuration
    curve = [json.loads(line)["env_steps"] for line in (tmp_path / "run" / HISTORY).read_text().splitlines()]
    assert len(curve) == 4
    assert curve == sorted(curve)
    assert curve[-1] >= 1200
    assert (tmp_path / "run" / POLICY).stat().st_size > 1000


def test_a_mistake_of_the_command_is_one_line(tmp_path, capsys) -> None:
    assert main(["train-assigner", "--out", str(tmp_path / "x"), "--set=learning.teacher.name=hefl"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: learning.teacher.name: got 'hefl'; unknown assigner 'hefl'")
    assert len(error.splitlines()) == 1
