"""`hflray.tune.search`: a search and its halving go on from the journals as if they had not been broken off."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search import ConcurrencyLimiter, Searcher

from hflray.sweep import SweepFile, load_sweep, make_trial
from hflray.tracking import Journal
from hflray.tracking.sink import Ending, Run
from hflray.tune import search
from hflray.tune.launch import LAST, NAME, TRIAL, VALUES, name_of, parameters
from hflray.tune.search import RESULT, WORST, Halving, SettingSearch, drawn, figure, worst

VALUE = {"seed": 7, "cost.delay_weight": 0.1 + 0.2, "training.batch_size": 16}


def sweep(samples: int = 6, *overrides: str) -> SweepFile:
    return load_sweep(
        None,
        [
            "sweep.seed={randint: [0, 1000]}",
            "sweep.cost.delay_weight={loguniform: [0.01, 10]}",
            "sweep.training.batch_size={choice: [8, 16]}",
            "tune.search={metric: test_loss}",
            f"tune.samples={samples}",
            *overrides,
        ],
    )


class Lines:
    """A driver that writes each line of a search into a journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def __call__(self, name: str, entry: Any) -> None:
        self.journal.write(name, entry)

    def rounds(self, name: str, losses: Sequence[float], end: bool = True, error: str | None = None) -> None:
        self.journal.begin(Run(name, name), time_ms=1)
        for number, loss in enumerate(losses, start=1):
            self.journal.write(name, {"round": number, "time": 1, "metrics": {"test_loss": loss}})
        if end:
            self.journal.end(name, Ending("FAILED" if error else "FINISHED", error))


@pytest.fixture
def journal(tmp_path) -> Journal:
    return Journal(tmp_path)


def start(file: SweepFile, journal: Journal) -> SettingSearch:
    return SettingSearch(file, drawn(journal, file), Lines(journal))


def ask(searcher: Searcher, trial_id: str) -> dict[str, Any]:
    suggestion = searcher.suggest(trial_id)
    assert suggestion is not None
    return suggestion[TRIAL]


def test_a_draw_is_a_line_before_the_trial_and_its_number_ends_the_trials_name(journal) -> None:
    file = sweep()
    searcher = start(file, journal)
    first, second = ask(searcher, "a"), ask(searcher, "b")
    assert first[NAME] == f"{make_trial(file, first[VALUES]).name}-00000"
    assert second[NAME].endswith("-00001")
    assert journal.entries(first[NAME]) == [{"draw": 0, "values": first[VALUES]}]
    assert (first[LAST], searcher.remaining) == (0, 6)


def test_a_resume_suggests_begun_trials_first_with_their_values_and_then_draws_others(journal) -> None:
    file, lines = sweep(), Lines(journal)
    searcher = start(file, journal)
    trials = [ask(searcher, str(number)) for number in range(4)]
    lines.rounds(trials[0][NAME], [0.5, 0.4])
    lines.rounds(trials[1][NAME], [0.9], error="no memory")
    lines.rounds(trials[2][NAME], [0.6, 0.3, 0.2], end=False)

    again = start(file, journal)
    assert again.remaining == 5
    begun = [ask(again, str(number)) for number in range(3)]
    assert [trial[NAME] for trial in begun] == [trials[place][NAME] for place in (2, 3, 1)]  # the failed one comes last
    assert [trial[VALUES] for trial in begun] == [trials[place][VALUES] for place in (2, 3, 1)]
    assert [trial[LAST] for trial in begun] == [3, 0, 1]
    new = ask(again, "new")
    assert new[NAME].endswith("-00004")
    assert new[VALUES] not in [trial[VALUES] for trial in trials]  # another seed draws other values
    told = again._optuna._ot_study.trials  # what Optuna itself knows
    weight = "cost.delay_weight"
    assert [(trial.params[weight], trial.value) for trial in told if trial.value is not None] == [
        (trials[0][VALUES][weight], 0.4)
    ]
    assert [trial.params[weight] for trial in told if trial.value is None] == [new[VALUES][weight]]
    again.on_trial_complete("0", {RESULT: 0.1})
    (complete,) = [trial for trial in again._optuna._ot_study.trials if trial.value == 0.1]
    assert complete.params[weight] == begun[0][VALUES][weight]
    last = ask(start(file, journal), "0")
    third = start(file, journal)
    assert ask(third, "0") == last
    third.on_trial_complete("0", {"done": True})  # interrupted after its last round, which Tune does not report again
    assert 0.2 in [trial.value for trial in third._optuna._ot_study.trials]


def test_a_failed_trial_is_never_a_good_one(journal) -> None:
    searcher = start(sweep(), journal)
    for number, (result, error) in enumerate([({"round": -1, "error": "diverged"}, False), (None, True)]):
        ask(searcher, str(number))
        searcher.on_trial_result(str(number), {RESULT: 0.0, "training_iteration": 1})  # it looked good at first
        searcher.on_trial_complete(str(number), result, error)
    assert all(trial.value is None and not trial.intermediate_values for trial in searcher._optuna._ot_study.trials)


def test_a_trial_without_its_metric_has_the_worst_figure(journal) -> None:
    file, lines = sweep(1, "tune.search.metric=objective_to_target"), Lines(journal)
    (trial,) = [ask(start(file, journal), "a")]
    lines.rounds(trial[NAME], [0.5])
    assert [known.result for known in drawn(journal, file)] == [WORST]
    assert search.worst("max") == -WORST


def test_a_concurrency_limit_holds_for_begun_trials_too(journal) -> None:
    file = sweep()
    searcher = start(file, journal)
    names = [ask(searcher, str(number))[NAME] for number in range(2)]
    limited = ConcurrencyLimiter(start(file, journal), max_concurrent=1)
    assert ask(limited, "a")[NAME] == names[0]
    assert limited.suggest("b") is None
    limited.on_trial_complete("a", {RESULT: 1.0})
    assert ask(limited, "b")[NAME] == names[1]


def test_no_more_begun_trials_go_on_than_the_sweep_still_needs(journal) -> None:
    lines = Lines(journal)
    searcher = start(sweep(3), journal)
    trials = [ask(searcher, str(number)) for number in range(3)]
    lines.rounds(trials[0][NAME], [0.5], error="given up")
    lines.rounds(trials[1][NAME], [0.5])
    again = start(sweep(2), journal)
    assert again.remaining == 1
    assert ask(again, "a")[NAME] == trials[2][NAME]


def test_trials_of_an_older_hflray_are_known_by_their_settings(journal) -> None:
    file = sweep()
    for name, time_ms, params in (
        ("x-ab12cd34", 5, VALUE),
        ("x-00345678", 4, VALUE | {"seed": 8}),
        ("y", 1, {"seed": 1}),
    ):
        journal.begin(Run(name, name, params={**params, "max_rounds": 3}), time_ms)
        journal.write(name, {"round": 1, "time": 1, "metrics": {"test_loss": 0.5}})
    journal.end("x-ab12cd34", Ending("FINISHED"))
    assert [(trial.number, trial.name, trial.values, trial.result) for trial in drawn(journal, file)] == [
        (0, "x-00345678", VALUE | {"seed": 8}, None),
        (1, "x-ab12cd34", VALUE, 0.5),
    ]  # "y" has a value that is not known
    assert drawn(journal, load_sweep(None, ["sweep.seed={grid: [1]}"])) == []
    searcher = start(file, journal)
    assert ask(searcher, "a")[NAME] == "x-00345678"
    assert ask(searcher, "b")[NAME].endswith("-00002")


def test_tune_pickles_nothing_of_a_search_or_of_halving(journal) -> None:
    searcher = SettingSearch(sweep(), [], lambda name, entry: None)
    assert pickle.loads(pickle.dumps(searcher)) == ""
    assert pickle.loads(pickle.dumps(Halving(halved(), 9, journal))) == ""


def halved() -> SweepFile:
    return load_sweep(None, ["tune.early_stopping={metric: test_loss, mode: min, grace_rounds: 1, reduction: 2}"])


LOSSES = [[0.9, 0.8, 0.7, 0.6], [0.5, 0.4, 0.3, 0.2], [0.7, 0.7, 0.7, 0.7], [0.6, 0.3, 0.5, 0.1], [0.8, 0.2, 0.1, 0.1]]
LOSSES.append([0.1, 0.9, 0.05, 0.9])


def decisions(scheduler: Any, trial: Any, losses: Sequence[float], first: int, limit: int = 4) -> list[str]:
    """Return the decisions about a trial from its round `first` on, until it is stopped or ends."""
    made = list[str]()
    for index in range(first, limit + 1):
        result = {"round": index, "metrics/test_loss": losses[index - 1]}
        made.append(scheduler.on_trial_result(None, trial, result))
        if made[-1] == TrialScheduler.STOP:
            break
    if len(made) + first > limit or made[-1] == TrialScheduler.STOP:
        scheduler.on_trial_complete(None, trial, result)
    return made


@pytest.mark.parametrize("begun", [0, 1, 2, 3])
def test_halving_decides_as_if_the_sweep_had_not_been_broken_off(journal, begun) -> None:
    """Three of six trials have ended; a fourth has `begun` so many rounds."""
    unbroken = ASHAScheduler("round", "metrics/test_loss", "min", max_t=4, grace_period=1, reduction_factor=2)
    trials = [SimpleNamespace(trial_id=f"{number}", config=parameters(f"t{number}", {})) for number in range(6)]
    for trial in trials:
        unbroken.on_trial_add(None, trial)
    lines = Lines(journal)
    for number in range(3):
        made = decisions(unbroken, trials[number], LOSSES[number], 1)
        lines.rounds(f"t{number}", LOSSES[number][: len(made)])
    for index in range(1, begun + 1):
        unbroken.on_trial_result(None, trials[3], {"round": index, "metrics/test_loss": LOSSES[3][index - 1]})
    lines.rounds("t3", LOSSES[3][:begun], end=False)

    again = Halving(halved(), 4, journal)
    again_trials = [
        SimpleNamespace(trial_id=f"new{number}", config=trial.config) for number, trial in enumerate(trials)
    ]
    for trial in again_trials[3:]:
        again.on_trial_add(None, trial)
    expected, made = list[list[str]](), list[list[str]]()
    for number, first in ((4, 1), (3, begun + 1), (5, 1)):
        expected.append(decisions(unbroken, trials[number], LOSSES[number], first))
        made.append(decisions(again, again_trials[number], LOSSES[number], first))
    assert made == expected
    assert {decision for each in made for decision in each} == {TrialScheduler.CONTINUE, TrialScheduler.STOP}


def test_a_grace_longer_than_the_trials_stops_nobody_early(journal) -> None:
    scheduler = Halving(halved(), 3, journal)
    again = Halving(
        load_sweep(None, ["tune.early_stopping={grace_rounds: 9, metric: test_loss, mode: min}"]), 3, journal
    )
    for trial_scheduler, expected in ((scheduler, 1), (again, 3)):
        trials = [SimpleNamespace(config=parameters(str(number), {})) for number in range(2)]
        for trial in trials:
            trial_scheduler.on_trial_add(None, trial)
        decisions(trial_scheduler, trials[0], [0.1, 0.1, 0.1], 1, 3)
        assert len(decisions(trial_scheduler, trials[1], [0.9, 0.9, 0.9], 1, 3)) == expected


@pytest.mark.timeout(200)
def test_tune_makes_the_trials_that_a_search_still_needs(ray_session, journal, tmp_path, monkeypatch) -> None:
    """The first start draws two trials, of which one does not end; the second start goes on with it."""
    for name in ("TUNE_DISABLE_STRICT_METRIC_CHECKING", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    lines, begun = Lines(journal), list[tuple[str, int]]()

    def run(file: SweepFile, unended: str | None) -> None:
        class Callback(tune.Callback):  # type: ignore[misc]
            def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
                begun.append((name_of(trial), result["round"]))
                journal.write(name_of(trial), {"round": result["round"], "time": 1, "metrics": result["metrics"]})

            def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
                if unended is None or not name_of(trial).endswith(unended):
                    journal.end(name_of(trial), Ending("FINISHED"))

            def __reduce__(self) -> tuple[Any, ...]:
                return str, ()

        searcher = SettingSearch(file, drawn(journal, file), lines)
        tune.Tuner(
            tune.with_resources(tune.with_parameters(toy, rounds=2 if unended else 3), {"cpu": 1}),
            tune_config=tune.TuneConfig(search_alg=searcher, num_samples=searcher.remaining, max_concurrent_trials=1),
            run_config=tune.RunConfig(
                name=f"start-{len(begun)}", storage_path=str(tmp_path), verbose=0, callbacks=[Callback()]
            ),
        ).fit()

    run(sweep(2), "-00001")
    first, second = journal.run_keys() if journal.run_keys()[0].endswith("0") else reversed(journal.run_keys())
    assert begun == [(first, 1), (first, 2), (second, 1), (second, 2)]
    begun.clear()
    run(sweep(3), None)
    (third,) = {*journal.run_keys()} - {first, second}
    assert third.endswith("-00002")
    assert begun == [(second, 3), (third, 1), (third, 2), (third, 3)]
    assert [trial.ending is not None for trial in drawn(journal, sweep(3))] == [True] * 3


def toy(params: dict[str, Any], rounds: int) -> None:
    """The function of a trial, which goes on after its last round."""
    for index in range(params[TRIAL][LAST] + 1, rounds + 1):
        tune.report({"round": index, "metrics": {"test_loss": 1 / index}, RESULT: 1 / index})


@pytest.mark.parametrize("metric", ["accuracy", "test_loss", "objective_to_target"])
def test_a_search_gets_the_value_of_the_validation_part_where_there_is_one(metric) -> None:
    file = load_sweep(None, ["sweep.training.learning_rate={uniform: [0.1, 1]}", f"tune.search={{metric: {metric}}}"])
    assert file.tune.search is not None
    assert figure(file.tune.search, {metric: 0.4}) == 0.4
    on_validation = {"accuracy": "validation_accuracy", "test_loss": "validation_loss"}.get(metric, metric)
    assert figure(file.tune.search, {metric: 0.4, on_validation: 0.7}) == 0.7
    assert figure(file.tune.search, {}) == worst("max" if metric == "accuracy" else "min")


def test_halving_compares_the_validation_parts(journal) -> None:
    """By the test losses it would stop the other trial, also with what a journal has of the first."""
    lines = {"t0": (0.1, 0.9), "t1": (0.9, 0.1)}
    for filled in (False, True):
        if filled:
            values = {"test_loss": lines["t0"][0], "validation_loss": lines["t0"][1]}
            journal.write("t0", {"round": 1, "time": 1, "metrics": values})
        scheduler = Halving(halved(), 4, journal)
        trials = [SimpleNamespace(config=parameters(name, {})) for name in lines]
        for trial in trials:
            scheduler.on_trial_add(None, trial)
        made = []
        for trial, (test, validation) in list(zip(trials, lines.values(), strict=True))[filled:]:
            result = {"round": 1, "metrics/test_loss": test, "metrics/validation_loss": validation}
            made.append(scheduler.on_trial_result(None, trial, result))
        assert made[-1] == TrialScheduler.CONTINUE
        result = {"round": 2, "metrics/test_loss": 0.0, "metrics/validation_loss": 0.95}
        scheduler.on_trial_result(None, trials[1], result | {"metrics/validation_loss": 0.05})
        assert scheduler.on_trial_result(None, trials[0], result) == TrialScheduler.STOP


def settings_sweep(samples: int = 3, *overrides: str) -> SweepFile:
    return load_sweep(
        None,
        [
            "seed=4",
            "fleet.num_devices=8",
            "scheduling.num_clusters=2",
            "sweep.scheduling.num_scheduled={choice: [4, 9, 2]}",  # nine of eight devices are refused
            "sweep.clock.cloud={choice: [synchronous, {semi_synchronous: {period_s: 3}}]}",
            "tune.search={metric: delay_s_to_target, seeds: 3}",
            f"tune.samples={samples}",
            *overrides,
        ],
    )


def run_settings(file: SweepFile, journal: Journal, most: int = 99) -> tuple[SettingSearch, list[dict[str, Any]]]:
    """Run a search one run after another; H = 2 misses its target. Return it, and the parameters of its runs."""
    searcher, lines = SettingSearch(file, drawn(journal, file), Lines(journal)), Lines(journal)
    made = list[dict[str, Any]]()
    while len(made) < most and (asked := searcher.suggest(str(len(made)))) != Searcher.FINISHED:
        assert isinstance(asked, dict)
        trial = asked[TRIAL]
        seed, scheduled = trial[VALUES]["seed"], trial[VALUES]["scheduling.num_scheduled"]
        values = {"accuracy": 0.5} if scheduled == 2 else {"accuracy": 0.9, "delay_s_to_target": float(seed)}
        lines.journal.begin(Run(trial[NAME], trial[NAME]), time_ms=1)
        lines.journal.write(trial[NAME], {"round": 1, "time": 1, "metrics": values})
        lines.journal.end(trial[NAME], Ending("FINISHED"))
        assert file.tune.search is not None
        searcher.on_trial_complete(str(len(made)), {RESULT: figure(file.tune.search, values)})
        made.append(trial)
    return searcher, made


def test_a_search_of_settings_runs_each_with_its_seeds_and_none_twice(journal) -> None:
    searcher, made = run_settings(settings_sweep(99), journal)
    first = [trial[VALUES] for trial in made[:3]]
    assert first == [{"scheduling.num_scheduled": 4, "clock.cloud": "synchronous", "seed": seed} for seed in (4, 5, 6)]
    seeds: dict[str, list[int]] = {}
    for trial in made:
        seeds.setdefault(str(trial[VALUES] | {"seed": None}), []).append(trial[VALUES]["seed"])
    assert sorted(seeds.values()) == [[4], [4], [4, 5, 6], [4, 5, 6]]  # two clocks; H = 2 misses with the first seed
    told = [trial.value for trial in searcher._optuna._ot_study.trials if trial.value is not None]
    assert sorted(told)[:2] == [5, 5]
    assert set(told[2:]) <= {5, 1.5 * WORST, 2 * WORST}


@pytest.mark.parametrize("begun", range(1, 8))
def test_a_search_of_settings_goes_on_where_it_was_broken_off(journal, begun) -> None:
    file = settings_sweep(3)
    _, made = run_settings(file, journal, begun)
    (journal.folder / f"{made[-1][NAME]}.jsonl").write_text(
        "".join((journal.folder / f"{made[-1][NAME]}.jsonl").read_text().splitlines(keepends=True)[:1])
    )  # the last one has not ended
    _, more = run_settings(file, journal)
    assert more[0] == made[-1]
    names = [trial[NAME] for trial in (*made, *more[1:])]
    assert len(names) == len(set(names))
    settled = {str(trial[VALUES] | {"seed": None}) for trial in (*made, *more)}
    assert len(settled) == 3
    values = [str(trial[VALUES]) for trial in (*made, *more[1:])]
    assert len(values) == len(set(values))
    assert run_settings(file, journal)[1] == []
    assert SettingSearch(file, drawn(journal, file), Lines(journal)).remaining == 0


def test_a_search_of_settings_waits_for_a_first_seed_before_it_ends(journal) -> None:
    searcher = SettingSearch(settings_sweep(1), [], Lines(journal))
    assert isinstance(searcher.suggest("a"), dict)
    assert searcher.suggest("b") is None
    searcher.on_trial_complete("a", {RESULT: 2.0})
    assert [isinstance(searcher.suggest(name), dict) for name in "bcd"] == [True, True, False]


def test_halving_by_cost_compares_the_first_seeds_where_they_have_spent_as_much(journal) -> None:
    """A round of the second setting costs a quarter, so that it learns less in a round and more for a second."""
    file = settings_sweep(
        3, "tune.early_stopping={metric: accuracy, mode: max, per: cost, grace_rounds: 1, reduction: 2}"
    )
    scheduler = Halving(file, 9, journal)

    def decide(name: str, seed: int, accuracies: Sequence[float], round_s: float) -> list[str]:
        trial = SimpleNamespace(config=parameters(name, {"seed": seed}))
        scheduler.on_trial_add(None, trial)
        return [
            scheduler.on_trial_result(
                None, trial, {"round": n, "metrics/accuracy": value, "metrics/total/delay_s": n * round_s}
            )
            for n, value in enumerate(accuracies, start=1)
        ]

    go, stop = TrialScheduler.CONTINUE, TrialScheduler.STOP
    assert decide("dear", 4, [0.4, 0.5], 4.0) == [go, go]  # rungs of 4 and 8 s
    assert decide("cheap", 4, [0.2, 0.3, 0.35, 0.45], 1.0) == [go] * 4  # 0.45 after 4 s
    assert decide("other seed", 5, [0.1] * 4, 1.0) == [go] * 4
    assert decide("worse", 4, [0.2, 0.3, 0.3, 0.41], 1.0) == [go, go, go, stop]
    with pytest.raises(Exception, match=r"early_stopping\.per"):
        load_sweep(None, ["tune.early_stopping={per: cost}"])


def test_a_first_seed_that_goes_on_is_followed_by_all_others(journal) -> None:
    file = settings_sweep(2)
    for number, clock in enumerate(("synchronous", {"semi_synchronous": {"period_s": 3}})):
        values = {"scheduling.num_scheduled": 4, "clock.cloud": clock, "seed": 4}
        journal.write(f"t{number}", {"draw": number, "values": values})
    _, made = run_settings(file, journal)
    assert len(made) == 6 == SettingSearch(file, (), Lines(journal)).remaining
    begun = [trial for trial in drawn(journal, file) if trial.number < 2]
    begun = [replace(trial, ending=None, rounds=[]) for trial in begun]
    assert SettingSearch(file, begun, Lines(journal)).remaining == 6


@pytest.mark.parametrize(
    "metric, mode",
    [("clustering/ari", "max"), ("schedule/class_balance", "max"), ("test_loss", "min"),
     ("rounds_to_target", "min"), ("total/energy_j", "min")],
)  # fmt: skip
def test_the_metric_says_which_values_are_better(metric: str, mode: str) -> None:
    file = load_sweep(None, ["sweep.seed={randint: [0, 9]}", f"tune.search={{metric: {metric}}}"])
    assert file.tune.search is not None
    assert file.tune.search.mode == mode
