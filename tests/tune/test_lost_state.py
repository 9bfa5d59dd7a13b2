"""`hflray.tune.lost_state`: a search or a population that lost Tune's state keeps its ended trials and starts the
others.
"""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from hflray.sweep import expand, load_sweep
from hflray.sweep.preflight import Checked
from hflray.tracking import Journal, default_uri
from hflray.tracking.sink import Ending, Run
from hflray.tune import lost_state
from hflray.tune.callback import SweepCallback
from hflray.tune.lost_state import GIVEN_UP, completed, give_up, given_up, points, renamed
from tests.conftest import says
from tests.tune import test_cli

pytestmark = pytest.mark.timeout(600)
run_in_process = test_cli.run_in_process  # a fixture
SMALL = """
name: lost
experiment:
  max_rounds: 2
  data: {name: synthetic, samples_per_device: [20, 40]}
  fleet: {num_devices: 12, num_edges: 2}
  scheduling: {name: fedavg, num_scheduled: 4}
  assignment: {name: geographic}
  training: {local_iterations: 1, edge_iterations: 1, batch_size: 16, backend: serial}
  checkpoint: {every: 1}
"""
SEARCH = (
    SMALL.replace("max_rounds: 2", "max_rounds: 2\n  target_accuracy: 0.01")
    + "sweep:\n  seed: {randint: [0, 1000000]}\n  cost.delay_weight: {loguniform: [0.1, 10]}\n"
    + "tune: {samples: 3, max_concurrent: 1, search: {metric: objective_to_target}}\n"
)
ROUNDS = 60  # so many that no trial ends between its interrupt and its stop, however fast the machine is
LONG_SEARCH = (
    SEARCH.replace("\n  target_accuracy: 0.01", "")
    .replace("max_rounds: 2", f"max_rounds: {ROUNDS}")
    .replace("objective_to_target", "test_loss")
)
POPULATION = (
    SMALL.replace("max_rounds: 2", f"max_rounds: {ROUNDS}")
    + "sweep:\n  training.learning_rate: {loguniform: [0.0001, 0.1]}\n"
    + "tune: {samples: 2, population: {every: 30, replaced: 0.5}}\n"
)


@pytest.fixture
def journal(tmp_path) -> Journal:
    """Return a journal with a trial that has ended, one that failed, and one that has begun."""
    journal = Journal(tmp_path)
    for key, seed in (("done", 1), ("failed", 2), ("begun", 3)):
        journal.begin(Run(key, key, params={"seed": seed, "cost.delay_weight": 0.5}), time_ms=1)
        for number in (1, 2):
            metrics = {"accuracy": number / 10} | ({"objective_to_target": 7.0} if number == 2 else {})
            journal.write(key, {"round": number, "time": number, "metrics": metrics})
    journal.end("done", Ending("FINISHED"))
    journal.end("failed", Ending("FAILED", "no memory"))
    return journal


def test_ended_trials_are_kept_and_all_others_that_have_begun_are_given_up_once(journal) -> None:
    assert (completed(journal), given_up(journal)) == (["done"], [])
    assert give_up(journal) == (1, 2)
    assert (completed(journal), given_up(journal)) == (["done"], ["begun", "failed"])
    ending = journal.ending("begun")
    assert ending is not None
    assert (ending.status, ending.tags) == ("FAILED", {"hflray.error": GIVEN_UP})
    assert len([entry for entry in journal.entries("begun") if "round" in entry]) == 2  # its rounds stay
    assert give_up(journal) == (1, 0)


def test_a_search_learns_from_the_trials_that_are_kept(journal, tmp_path) -> None:
    (tmp_path / "lost.yaml").write_text(SEARCH)
    file = load_sweep(tmp_path / "lost.yaml")
    assert points(file, journal) == [({"seed": 1, "cost.delay_weight": 0.5}, 7.0)]
    journal.begin(Run("never", "never", params={"seed": 4, "cost.delay_weight": 0.25}), time_ms=1)
    journal.write("never", {"round": 2, "time": 2, "metrics": {"accuracy": 0.1}})  # it never reached its target
    journal.end("never", Ending("FINISHED"))
    journal.begin(Run("other", "other", params={"seed": 4}), time_ms=1)  # a value is not known, so it teaches nothing
    journal.write("other", {"round": 2, "time": 2, "metrics": {"objective_to_target": 1.0}})
    journal.end("other", Ending("FINISHED"))
    assert points(file, journal)[1:] == [({"seed": 4, "cost.delay_weight": 0.25}, lost_state.WORST)]
    assert points(load_sweep(None, ["sweep.seed={grid: [1]}"]), journal) == []


def test_a_trial_that_was_given_up_gets_the_next_free_name_and_its_checks(tmp_path) -> None:
    (tmp_path / "lost.yaml").write_text(POPULATION)
    trials = expand(load_sweep(tmp_path / "lost.yaml"))
    first, second = (trial.name for trial in trials)
    checked = Checked(resolved={trial.name: trial.config for trial in trials})
    assert renamed(trials, checked, []) == trials
    again = renamed(trials, checked, [second, f"{second}-2", "another"])
    assert again == [trials[0], replace(trials[1], name=f"{second}-3")]
    assert checked.resolved[f"{second}-3"] == trials[1].config
    assert first in checked.resolved


def interrupt_at(monkeypatch: pytest.MonkeyPatch, place: int, round_number: int) -> None:
    """Interrupt the sweep as Ctrl-C does when the trial in this `place` reports a round."""
    on_result, begun = SweepCallback.on_trial_result, list[str]()

    def interrupt(self: SweepCallback, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        on_result(self, iteration, trials, trial, result, **info)
        name = self._sweep_trial(trial).name
        begun.extend([name] if name not in begun else [])
        if begun.index(name) == place and result["round"] == round_number:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SweepCallback, "on_trial_result", interrupt)


def statuses(results: Path) -> dict[str, str]:
    client = MlflowClient(default_uri(results))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    return {run.info.run_name: run.info.status for run in client.search_runs([experiment.experiment_id])}


def lose_the_state(folder: Path) -> None:
    for path in folder.glob("experiment_state-*.json"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_search_that_was_interrupted_ends_with_all_its_trials(
    ray_session, run_in_process, tmp_path, monkeypatch, lost: bool
) -> None:
    (tmp_path / "lost.yaml").write_text(LONG_SEARCH)
    with monkeypatch.context() as patch:
        interrupt_at(patch, place=1, round_number=1)
        code, out, err = run_in_process("lost.yaml")
    assert code == 130, out + err
    (folder,) = tmp_path.glob("hflray_results/lost-*")
    journal = Journal(folder)
    (ended,) = completed(journal)
    (begun,) = {*journal.run_keys()} - {ended}
    before = journal.path(ended).read_bytes()
    if lost:
        lose_the_state(folder)
    code, out, err = run_in_process("--resume", folder.name)
    assert code == 0, out + err
    assert len(completed(journal)) == 3
    assert given_up(journal) == ([begun] if lost else [])
    assert journal.path(ended).read_bytes() == before
    assert len({json.dumps(journal.run(key).params["seed"]) for key in journal.run_keys()}) == 3 + lost  # type: ignore[union-attr]
    said = " ".join(out.split())
    assert says(said, "1 ended trials are kept", "1 of the others", "given up") == lost
    expected = dict.fromkeys(completed(journal), "FINISHED") | dict.fromkeys(given_up(journal), "FAILED")
    assert statuses(tmp_path / "hflray_results") == expected


@pytest.mark.slow
def test_a_population_that_lost_tunes_state_begins_its_members_anew(
    ray_session, run_in_process, tmp_path, monkeypatch
) -> None:
    (tmp_path / "lost.yaml").write_text(POPULATION)
    with monkeypatch.context() as patch:
        interrupt_at(patch, place=1, round_number=3)
        code, out, err = run_in_process("lost.yaml")
    assert code == 130, out + err
    (folder,) = tmp_path.glob("hflray_results/lost-*")
    lose_the_state(folder)
    names = [trial.name for trial in expand(load_sweep(tmp_path / "lost.yaml"))]
    code, out, err = run_in_process("--resume", folder.name)
    assert code == 0, out + err
    journal = Journal(folder)
    assert sorted(given_up(journal)) == sorted(names)
    assert sorted(completed(journal)) == sorted(f"{name}-2" for name in names)
    for name in completed(journal):
        assert [entry["round"] for entry in journal.entries(name) if "round" in entry] == [*range(1, ROUNDS + 1)]
    expected = dict.fromkeys(completed(journal), "FINISHED") | dict.fromkeys(names, "FAILED")
    assert statuses(tmp_path / "hflray_results") == expected
