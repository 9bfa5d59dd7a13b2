"""`hflray.tune.population`: who adopts whose state, when members wait, and a resume that gives the same bits."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import TrialScheduler

from hflray import metrics
from hflray.sweep import PopulationConfig, SweepFile, Trial, load_sweep
from hflray.sweep.tasks.base import Job, Result
from hflray.sweep.tasks.experiment import ExperimentTask
from hflray.tracking import Journal
from hflray.tracking.sink import Ending, Run
from hflray.tune.launch import ADOPTED, LAST, NAME, TRIAL, VALUES, parameters
from hflray.tune.population import SCORE, Population, Standing, exchanges, line_of, score, standing
from tests.conftest import cases, small_config

pytestmark = pytest.mark.timeout(300)
OVERRIDES = [
    "sweep.training.learning_rate={loguniform: [0.001, 0.1]}",
    "sweep.training.batch_size={choice: [8, 16, 32]}",
    "sweep.training.local_iterations={randint: [1, 3]}",
    "tune.samples=5",
    "tune.population={every: 2, replaced: 0.4}",
]
ROUNDS = 7
VALUES_OF = {
    name: {"training.learning_rate": 0.01 * place, "training.batch_size": 16, "training.local_iterations": 2}
    for place, name in enumerate("abcde", start=1)
}


def sweep(*overrides: str) -> SweepFile:
    return load_sweep(None, [*OVERRIDES, *overrides])


def members() -> list[Trial]:
    config: Any = SimpleNamespace(max_rounds=ROUNDS)
    return [Trial(name, dict(values), config) for name, values in VALUES_OF.items()]


class Killed(BaseException):
    """The driver's process ends at once."""


def train(state: str, values: dict[str, Any], index: int) -> tuple[str, float]:
    """Return a state that depends on all that came before, and its accuracy. Values have passed through JSON or not."""
    state = hashlib.sha256(f"{state}{json.dumps(values, sort_keys=True)}{index}".encode()).hexdigest()
    return state, int(state[:8], 16) / 2**32


class Files:
    """The checkpoints of the toy trials, in files, since the real Tune has other processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, index: int, state: str) -> None:
        path = self.folder / name / f"{index:03d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(state)
        path.with_suffix(".new").replace(path)

    def start(self, trial: dict[str, Any]) -> tuple[int, str]:
        """Return the round and the state from which a trial goes on, as `hflray.tune.launch` says."""
        saved = sorted((self.folder / trial[NAME]).glob("[0-9]" * 3))
        donor, since = trial[ADOPTED] or ("", 0)
        own = [path for path in saved if since < int(path.name) <= trial[LAST]]
        if own:
            return int(own[-1].name), own[-1].read_text()
        return (since, (self.folder / donor / f"{since:03d}").read_text()) if donor else (0, "")


class Write:
    """A driver's journal that ends the process before or after its line number `kill`."""

    def __init__(self, journal: Journal, kill: float = math.inf, after: bool = False) -> None:
        self.journal, self.kill, self.after, self.count = journal, kill, after, 0

    def __call__(self, name: str, entry: Any) -> None:
        self.count += 1
        if self.count >= self.kill and not self.after:
            raise Killed
        self.journal.write(name, entry)
        if self.count >= self.kill:
            raise Killed


class FakeTrial:
    """The part of a Tune trial that the scheduler sees."""

    PENDING, RUNNING, PAUSED, TERMINATED, ERROR = "PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"

    def __init__(self, name: str) -> None:
        self.config, self.status = parameters(name, {}), self.PENDING
        self.running: tuple[int, str] | None = None

    def set_status(self, status: str) -> None:
        self.status = status

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config


class FakeTune:
    """Tune's loop with CPUs, in which each step a random running trial makes a round, fails (`failing`), or ends."""

    def __init__(
        self, folder: Path, file: SweepFile, seed: int, write: Write, cpus: int = 2, failing: float = 0
    ) -> None:
        journal = Journal(folder)
        for key in journal.run_keys():
            journal.cut(key)
        self.past = standing(journal, file, members())
        if self.past.again:
            for key in journal.run_keys():
                journal.cut(key, after=0)
            self.past = standing(journal, file, members())
        self.files, self.cpus, self.write, self.journal = Files(folder / "checkpoints"), cpus, write, journal
        self.rng, self.failing = random.Random(seed), failing
        self.scheduler = Population(file, self.past, write)
        names = [t.name for t in members() if (end := journal.ending(t.name)) is None or end.error is not None]
        self.rng.shuffle(names)
        self.trials = [FakeTrial(name) for name in names]
        for trial in self.trials:
            self.scheduler.on_trial_add(self, trial)
        self.most = 0

    def get_trials(self) -> list[FakeTrial]:
        return self.trials

    def pause_trial(self, trial: FakeTrial, should_checkpoint: bool = True) -> None:
        assert not should_checkpoint
        trial.status, trial.running = trial.PAUSED, None

    def run(self) -> None:
        idle = 0
        while any(trial.status not in (trial.TERMINATED, trial.ERROR) for trial in self.trials):
            self.step()
            busy = [trial for trial in self.trials if trial.running]
            self.most = max(self.most, len(busy))
            idle = 0 if busy else idle + 1
            assert idle < 5, "all members wait for ever"

    def step(self) -> None:
        chosen = self.scheduler.choose_trial_to_run(self)
        if chosen is not None:
            chosen.status = chosen.PENDING
        for trial in self.trials:
            if trial.status == trial.PENDING and sum(t.running is not None for t in self.trials) < self.cpus:
                trial.status, trial.running = trial.RUNNING, self.files.start(trial.config[TRIAL])
        held = {m.trial for m in self.scheduler._members.values() if m.score is not None}
        running = [trial for trial in self.trials if trial.running and trial not in held]
        if running:
            self.event(self.rng.choice(running))

    def event(self, trial: FakeTrial) -> None:
        name, given = trial.config[TRIAL][NAME], trial.config[TRIAL]
        assert trial.running is not None
        index, state = trial.running
        known = [entry["round"] for entry in self.journal.entries(name) if "round" in entry]
        if self.rng.random() < self.failing:  # its process is lost, and Tune starts it again
            trial.running = None
            self.scheduler.on_trial_error(self, trial)
            trial.status = trial.PENDING
            self.scheduler.on_trial_add(self, trial)
            trial.set_config({TRIAL: {**given, LAST: max(known, default=0)}})
        elif index == ROUNDS:
            self.scheduler.on_trial_complete(self, trial, {"round": index})
            self.write(name, {"end": "FINISHED", "error": None, "tags": {}})
            trial.status, trial.running = trial.TERMINATED, None
        else:
            index += 1
            state, accuracy = train(state, given[VALUES], index)
            self.files.save(name, index, state)
            trial.running = index, state
            result: dict[str, Any] = {"round": index, "metrics/accuracy": accuracy}
            if index % 2 == 0 and index < ROUNDS:
                result[SCORE] = accuracy
            decision = self.scheduler.on_trial_result(self, trial, result)
            assert decision in (TrialScheduler.CONTINUE, TrialScheduler.NOOP)
            if index not in known:
                self.write(name, {"round": index, "time": 1, "metrics": {metrics.ACCURACY: accuracy}})


def journals(folder: Path) -> dict[str, list[Any]]:
    """Return all that the journals say, without the starts and ends of interrupted runs."""
    journal = Journal(folder)
    return {key: journal.entries(key) for key in journal.run_keys()}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("unbroken")
    FakeTune(folder, sweep(), 1, Write(Journal(folder))).run()
    return journals(folder)


def test_an_unbroken_population_makes_every_exchange_before_its_last_round(unbroken) -> None:
    lines = [
        (entry["exchange"], name) for name, entries in unbroken.items() for entry in entries if "exchange" in entry
    ]
    assert sorted(index for index, _ in lines) == [2, 2, 4, 4, 6, 6]  # 0.4 of 5 members
    for entries in unbroken.values():
        order = [entry.get("round", entry.get("exchange")) for entry in entries if "end" not in entry]
        assert order == sorted(order)
        assert [entry["round"] for entry in entries if "round" in entry] == list(range(1, ROUNDS + 1))
    states = {
        name: [entry["metrics"][metrics.ACCURACY] for entry in entries if "round" in entry]
        for name, entries in unbroken.items()
    }
    for name, entries in unbroken.items():
        for entry in entries:
            if "exchange" in entry:  # a loser is worse than its donor, and takes its place
                assert states[name][entry["exchange"] - 1] < states[entry["from"]][entry["exchange"] - 1]


@pytest.mark.parametrize("after", [False, True])
def test_a_population_killed_at_any_line_resumes_to_the_same_bits(unbroken, tmp_path, after) -> None:
    lines = sum(map(len, unbroken.values()))
    for kill in range(1, lines + 1):
        folder = tmp_path / str(kill)
        with pytest.raises(Killed):
            FakeTune(folder, sweep(), kill, Write(Journal(folder), kill, after)).run()
        FakeTune(folder, sweep(), kill + 1, Write(Journal(folder))).run()
        assert journals(folder) == unbroken, f"killed at line {kill}"


def test_a_population_killed_again_and_again_with_lost_processes_has_the_same_bits(unbroken, tmp_path) -> None:
    rng = random.Random(0)
    for attempt in range(20):
        folder, starts = tmp_path / str(attempt), 0
        while True:
            starts += 1
            write = Write(Journal(folder), rng.randint(1, 12), rng.random() < 0.5)
            try:
                FakeTune(folder, sweep(), rng.randrange(2**30), write, rng.randint(1, 5), failing=0.15).run()
                break
            except Killed:
                assert starts < 200
        assert starts > 3
        assert journals(folder) == unbroken


def test_the_limit_of_trials_at_a_time_is_kept_by_the_population(unbroken, tmp_path) -> None:
    tune = FakeTune(tmp_path, sweep("tune.max_concurrent=2"), 3, Write(Journal(tmp_path)), cpus=5)
    tune.run()
    assert tune.most == 2
    assert journals(tmp_path) == unbroken


def cut_line(folder: Path, name: str, number: int) -> None:
    """Damage a line of a journal."""
    path = Journal(folder).path(name)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = lines[number].replace(b'"', b"'", 1)
    path.write_bytes(b"".join(lines))


def broken_off(folder: Path, seed: int, at: int) -> None:
    """Leave a population when one of its members has written round `at`."""

    class Until(Write):
        def __call__(self, name: str, entry: Any) -> None:
            super().__call__(name, entry)
            if entry.get("round") == at:
                raise Killed

    with pytest.raises(Killed):
        FakeTune(folder, sweep(), seed, Until(Journal(folder))).run()


@pytest.mark.parametrize("at", [5, 6])
def test_damage_before_an_exchange_that_was_made_begins_all_again_and_later_damage_does_not(
    unbroken, tmp_path, at
) -> None:
    for name in VALUES_OF:
        for number in range(8):
            folder = tmp_path / f"{name}{number}"
            broken_off(folder, 5, at)
            entries = Journal(folder).entries(name)
            if number >= len(entries):
                continue
            cut_line(folder, name, number)
            Journal(folder).cut(name)
            past = standing(Journal(folder), sweep(), members())
            left = max((entry["round"] for entry in entries[:number] if "round" in entry), default=0)
            assert bool(past.again) == (left < 4)
            if past.again:
                assert past.again.startswith(
                    f"{name}: the journal lacks what led to the exchange after round 4; the pop"
                )
            FakeTune(folder, sweep(), 6, Write(Journal(folder))).run()
            assert journals(folder) == unbroken


def test_a_member_that_failed_is_not_waited_for_and_later_goes_on_without_the_exchanges_that_it_missed(
    tmp_path,
) -> None:
    journal, file, four = Journal(tmp_path), sweep(), {name: VALUES_OF[name] for name in "abcd"}
    made = exchanges(population_of(file), file.sweep, 0, 2, {name: ord(name) / 200 for name in four}, four)
    assert len(made) == 2
    for name in VALUES_OF:
        journal.begin(Run(name, name), time_ms=1)
        for index in range(1, 4 if name in four else 2):
            Files(tmp_path / "checkpoints").save(name, index, f"{name}{index}")
            journal.write(name, {"round": index, "time": 1, "metrics": {metrics.ACCURACY: ord(name) / 200}})
            if name in made and index == 2:
                donor, values = made[name]
                journal.write(name, {"exchange": 2, "from": donor, "values": values, "among": [*four]})
    journal.end("e", Ending("FAILED", "no memory"))
    past = standing(journal, file, members())
    assert (past.again, past.owed, past.passed) == ("", [], 2)
    FakeTune(tmp_path, file, 0, Write(journal)).run()
    entries = journals(tmp_path)
    assert not [entry for entry in entries["e"] if entry.get("exchange") == 2]
    assert all([e["round"] for e in lines if "round" in e] == list(range(1, ROUNDS + 1)) for lines in entries.values())
    exchanged = [entry["among"] for lines in entries.values() for entry in lines if entry.get("exchange") == 4]
    assert exchanged == [[*"abcde"]] * 2  # at the next one it takes part


def write_rounds(journal: Journal, name: str, first: int, last: int) -> None:
    if first == 1:
        journal.begin(Run(name, name), time_ms=1)
    for index in range(first, last + 1):
        journal.write(name, {"round": index, "time": 1, "metrics": {metrics.ACCURACY: ord(name) / 200}})


@pytest.mark.parametrize("among", ["abcd", "abcde"])
def test_the_rest_of_an_exchange_follows_from_those_who_took_part(tmp_path, among) -> None:
    """Member e failed in round 2 and was run again, either after the exchange of the others or before it."""
    journal, file = Journal(tmp_path), sweep()
    for name in "abcd":
        write_rounds(journal, name, 1, 2)
    write_rounds(journal, "e", 1, 1)
    journal.end("e", Ending("FAILED", "no memory"))
    write_rounds(journal, "e", 2, 2)
    values = {name: VALUES_OF[name] for name in among}
    made = exchanges(population_of(file), file.sweep, 0, 2, {name: ord(name) / 200 for name in among}, values)
    lines = {name: line_of(2, donor, changed, among) for name, (donor, changed) in made.items()}
    first, second = lines
    journal.write(first, lines[first])
    past = standing(journal, file, members())
    assert (past.owed, past.passed, past.again) == ([(second, lines[second])], 2, "")
    assert past.members[second].adopted == (made[second][0], 2)
    scheduler, trial = Population(file, past, Write(journal)), FakeTrial("e")
    assert journal.entries(second)[-1] == lines[second]
    scheduler.on_trial_add(None, trial)
    assert scheduler.on_trial_result(None, trial, {"round": 2, SCORE: 0.5}) == TrialScheduler.CONTINUE


def test_a_member_that_failed_does_not_wait_where_the_others_have_passed(tmp_path) -> None:
    journal, file = Journal(tmp_path), sweep()
    write_rounds(journal, "a", 1, 3)
    for name in "bcd":
        write_rounds(journal, name, 1, 1)
        journal.end(name, Ending("FINISHED"))
    write_rounds(journal, "e", 1, 1)
    journal.end("e", Ending("FAILED", "no memory"))
    scheduler, trial = Population(file, standing(journal, file, members()), Write(journal)), FakeTrial("e")
    scheduler.on_trial_add(None, trial)
    assert scheduler.on_trial_result(None, trial, {"round": 2, SCORE: 0.5}) == TrialScheduler.CONTINUE
    write_rounds(journal, "e", 2, 2)
    past = standing(journal, file, members())
    assert (past.owed, past.passed, past.again) == ([], 2, "")  # a was alone at that exchange
    assert scheduler.on_trial_result(None, trial, {"round": 4, SCORE: 0.5}) == TrialScheduler.NOOP


def test_members_that_end_early_are_not_waited_for(tmp_path) -> None:
    """One has reached its target in the round of an exchange, and one a bound of tune.stop; neither has its end yet."""
    journal, file = Journal(tmp_path), sweep("tune.stop={accuracy: 0.9}")
    for name, values in (("a", {metrics.ROUNDS_TO_TARGET: 2.0}), ("b", {metrics.ACCURACY: 0.95}), ("c", {})):
        journal.begin(Run(name, name), time_ms=1)
        for index in (1, 2):
            journal.write(name, {"round": index, "time": 1, "metrics": {metrics.ACCURACY: 0.1} | values})
    past = standing(journal, file, members())
    assert [name for name, member in past.members.items() if member.over] == ["a", "b"]
    assert [name for name, member in past.members.items() if member.score is not None] == ["c"]
    scheduler = Population(file, past, Write(journal))
    trials = {name: FakeTrial(name) for name in VALUES_OF}
    tune = SimpleNamespace(get_trials=lambda: [*trials.values()])
    for trial in trials.values():
        scheduler.on_trial_add(tune, trial)
    started = list[str]()
    while (chosen := scheduler.choose_trial_to_run(tune)) is not None:
        started.append(chosen.config[TRIAL][NAME])
        chosen.status = chosen.RUNNING
    assert started == ["a", "b", "d", "e"]  # c waits for d and e; a and b are started only to end
    assert scheduler.on_trial_result(tune, trials["d"], {"round": -1}) == TrialScheduler.CONTINUE  # a mistake


def test_a_finished_population_of_an_older_hflray_is_left_alone_and_a_broken_one_begins_again(tmp_path) -> None:
    """Its journals have no lines of exchanges."""
    journal, file = Journal(tmp_path), sweep()
    for name in VALUES_OF:
        journal.begin(Run(name, name), time_ms=1)
        for index in range(1, ROUNDS + 1):
            journal.write(name, {"round": index, "time": 1, "metrics": {metrics.ACCURACY: 0.5}})
        journal.end(name, Ending("FINISHED"))
    assert not standing(journal, file, members()).again
    journal.cut("c", after=5)
    assert "the population begins again from round 1" in standing(journal, file, members()).again


def population_of(file: SweepFile) -> PopulationConfig:
    assert file.tune.population is not None
    return file.tune.population


def adopt(scores: dict[str, float], *overrides: str, index: int = 2) -> dict[str, tuple[str, dict[str, Any]]]:
    file = sweep(*overrides)
    values = {name: VALUES_OF.get(name, VALUES_OF["a"]) for name in scores}
    return exchanges(population_of(file), file.sweep, file.tune.seed, index, scores, values)


def test_the_worst_adopt_the_best_whatever_the_order_of_arrival() -> None:
    scores = {"a": 0.1, "b": 0.2, "c": 0.5, "d": 0.8, "e": 0.9}
    made = adopt(scores)
    assert [*made] == ["a", "b"]
    assert {donor for donor, _ in made.values()} <= {"d", "e"}
    assert adopt(dict(reversed(scores.items()))) == made
    assert adopt(scores, index=4) != made
    assert {adopt(scores, index=index)["a"][0] for index in range(2, 40, 2)} == {"d", "e"}
    assert adopt(scores, "tune.seed=1") != made
    assert [*adopt(scores, "tune.population.mode=min")] == ["d", "e"]


@pytest.mark.parametrize("scores, losers", cases("tune/ties"))
def test_ties_missing_scores_and_small_populations(scores, losers) -> None:
    assert [*adopt(scores, "tune.population.replaced=0.5")] == losers


def test_values_change_by_a_fifth_stay_in_their_ranges_and_lists_move_to_a_neighbour() -> None:
    seen: dict[str, set[Any]] = {key: set() for key in VALUES_OF["a"]}
    for index in range(2, 200, 2):
        made = adopt({"a": 0.1, "e": 0.9}, "tune.population={every: 2, replaced: 0.5, redraw: 0}", index=index)
        for key, value in made["a"][1].items():
            seen[key].add(value)
    rate = VALUES_OF["e"]["training.learning_rate"]
    assert seen == {
        "training.learning_rate": {rate * 0.8, rate * 1.2},
        "training.batch_size": {8, 32},
        "training.local_iterations": {2},  # 1.6 and 2.4 are rounded
    }
    assert all(
        type(value) is int for key in ("training.batch_size", "training.local_iterations") for value in seen[key]
    )
    file = sweep("tune.population.redraw=0")
    edge = {"training.learning_rate": 0.1, "training.batch_size": 32, "training.local_iterations": 3}
    for index in range(2, 60, 2):
        made = exchanges(population_of(file), file.sweep, 0, index, {"a": 0, "b": 1}, {"a": edge, "b": edge})
        values = made["a"][1]
        assert values["training.learning_rate"] in (0.1, 0.1 * 0.8)
        assert values["training.batch_size"] in (16, 32)
        assert values["training.local_iterations"] in (2, 3)


def test_with_probability_redraw_a_value_is_drawn_anew() -> None:
    key, redraw = "training.learning_rate", "tune.population={every: 2, redraw: 0.25}"
    rates = [adopt({"a": 0.1, "e": 0.9}, redraw, index=index)["a"][1][key] for index in range(2, 802, 2)]
    rate = VALUES_OF["e"][key]
    assert 0.15 < sum(value not in (rate * 0.8, rate * 1.2) for value in rates) / len(rates) < 0.35


def test_a_trial_reports_its_score_at_exchanges_only() -> None:
    settings = PopulationConfig(every=2)
    job = Job(small_config("scheduling.name=fedavg", "max_rounds=4"))
    scores = [score(result, settings) for result in ExperimentTask().run(job)]
    assert [list(entry) for entry in scores] == [[], [SCORE], [], []]
    assert 0 < scores[1][SCORE] < 1
    result = Result(step=2, metrics={"accuracy": 0.9, "validation_accuracy": 0.4}, last=False)
    assert score(result, settings) == {SCORE: 0.4}


def test_tune_pickles_nothing_of_a_population(tmp_path) -> None:
    assert pickle.loads(pickle.dumps(Population(sweep(), Standing({}), lambda name, entry: None))) == ""


def toy(params: dict[str, Any], place: str) -> None:
    given, files = params[TRIAL], Files(Path(place))
    index, state = files.start(given)
    while index < ROUNDS:
        index += 1
        state, accuracy = train(state, given[VALUES], index)
        files.save(given[NAME], index, state)
        entry = {SCORE: accuracy} if index % 2 == 0 else {}
        tune.report({"round": index, "metrics": {metrics.ACCURACY: accuracy}, **entry})


def test_tune_itself_runs_a_population_to_the_same_bits(ray_session, unbroken, tmp_path, monkeypatch) -> None:
    for name in ("TUNE_DISABLE_STRICT_METRIC_CHECKING", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    file, journal = sweep(), Journal(tmp_path)

    class Callback(tune.Callback):  # type: ignore[misc]
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            line = {"round": result["round"], "time": 1, "metrics": result["metrics"]}
            journal.write(trial.config[TRIAL][NAME], line)

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            journal.write(trial.config[TRIAL][NAME], {"end": "FINISHED", "error": None, "tags": {}})

        def __reduce__(self) -> tuple[Any, ...]:
            return str, ()

    tune.Tuner(
        tune.with_resources(tune.with_parameters(toy, place=str(tmp_path / "checkpoints")), {"cpu": 1}),
        param_space={TRIAL: tune.grid_search([parameters(trial.name, {})[TRIAL] for trial in members()])},
        tune_config=tune.TuneConfig(
            scheduler=Population(file, standing(journal, file, members()), journal.write), reuse_actors=True
        ),
        run_config=tune.RunConfig(name="start-1", storage_path=str(tmp_path), verbose=0, callbacks=[Callback()]),
    ).fit()
    assert journals(tmp_path) == unbroken


def test_the_fake_has_the_names_of_tunes_trial() -> None:
    for name in ("PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"):
        assert getattr(TuneTrial, name) == getattr(FakeTrial, name)
    for name in ("set_status", "set_config"):
        assert callable(getattr(TuneTrial, name))
