"""Task ``train_scheduler``, from the sweep file to the policy and the logged curve."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hflray import metrics
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.scheduling.learned import load_scores
from hflray.sweep import expand, load_sweep
from hflray.sweep.tasks import Job, Result, Saved
from hflray.sweep.tasks.learning import SMALL_AGENT, TrainSchedulerTask
from tests.conftest import refusal, refusals

pytestmark = pytest.mark.usefixtures("ray_session")

FILE = Path(__file__).parents[3] / "tune_configs" / "scheduling_agent.yaml"
TASK = TrainSchedulerTask()
TINY = ["fleet.num_devices=6", "fleet.num_edges=2", "scheduling.num_scheduled=2", "scheduling.num_clusters=2",
        "max_rounds=5", "assignment.name=best_gain",
        *(f"agent.{key}={value}" for key, value in SMALL_AGENT.items())]  # fmt: skip


def test_progress_counts_rounds_and_shows_the_comparison() -> None:
    config = load_config(None, ["agent.env_steps=8000"])
    values = {metrics.AGENT_RETURN: -12.04, metrics.agent_metric("return"): -3.5}
    assert TASK.progress(config, 5000, values) == (5000, 8000, "round", "return -12.0, held-out -3.5")
    values[metrics.agent_metric("ratio", "energy_aware")] = 0.4321
    assert TASK.progress(config, 8100, values)[0] == 8000
    assert TASK.progress(config, 5000, values).text.endswith("joules 0.432 × energy_aware")


@pytest.mark.parametrize("settings, facts", refusals("rl/episodes"))
def test_a_dry_run_refuses_what_episodes_do_not_have(settings: str, facts: tuple[str, ...]) -> None:
    with refusal(ConfigError, *facts):
        TASK.check(load_config(FILE, settings.split("; ")))


def test_the_shipped_sweep_learns_for_two_rewards() -> None:
    TASK.check(load_config(FILE))
    assert [trial.name for trial in expand(load_sweep(FILE))] == [
        "H30-λ1-energy-load_balanced-s0",
        "H30-λ1-cost-load_balanced-s0",
        "H30-λ1-energy-load_balanced-s1",
        "H30-λ1-energy-load_balanced-s2",
    ]


def test_a_run_without_tune_continues_from_its_final_state(tmp_path) -> None:
    results: list[Result] = []
    for result in TASK.run(Job(load_config(None, TINY))):
        assert result.save is not None
        if result.due:
            result.save(tmp_path)
        results.append(result)
    assert results[-1].last
    load_scores(tmp_path / "policy.safetensors")
    longer = load_config(None, [*TINY, "agent.env_steps=300"])
    saved = Saved("one", lambda: contextlib.nullcontext(tmp_path))
    after = list(TASK.run(Job(longer, saved=[saved])))
    assert after[0].note is None
    assert [result.step > results[-1].step for result in after] == [True] * len(after)
    other = load_config(None, [*TINY, "agent.env_steps=300", "agent.gamma=0.5"])
    with pytest.raises(ConfigError, match=r"of another configuration \(gamma = 0\.99 in the checkpoint, 0\.5 in the"):
        next(TASK.run(Job(other, saved=[saved])))
