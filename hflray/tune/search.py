"""A search (``tune.search``) and successive halving (``tune.early_stopping``), which go on from the journals.

Ray Tune is started anew at each start of a sweep. A search is then told the trials that have ended, and suggests those
that have begun before it draws new ones. Each draw has a number, which ends the trial's name, and is a line of the
trial's journal, ``{"draw": number, "values": {dotted key: value}}``, that is written before the trial starts.

The search is Optuna's TPE (Bergstra et al., Algorithms for Hyper-Parameter Optimization, 2011). Halving is Li et al., A
System for Massively Parallel Hyperparameter Tuning, 2020 (ASHA). Both are used as Ray Tune has them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher

from hflray import metrics
from hflray.errors import ConfigError
from hflray.sweep import Axis, SearchConfig, SweepFile, make_trial
from hflray.tracking import Journal
from hflray.tracking.journal import ending_of, rounds_of, run_of
from hflray.tracking.sink import Ending, Round
from hflray.tune.launch import Unsaved, Write, name_of, parameters

RESULT = "search"  # the key of a trial's figure for the search in what it reports to Tune
WORST = 1e12  # the figure of a trial without the search's metric


def worst(mode: str) -> float:
    """Return the figure that a search gets for a trial without its metric, if it looks for the ``min`` or ``max``."""
    return WORST if mode == "min" else -WORST


def figure(settings: SearchConfig, values: dict[str, float]) -> float:
    """Return a round's figure for the search. A trial may never reach its target, but a search needs a number."""
    value = metrics.deciding(settings.metric, values)
    return worst(settings.mode) if value is None else value


@dataclass(frozen=True)
class DrawnTrial:
    """A trial that a search has drawn.

    Attributes:
        number: the number of its draw, from 0.
        name: the trial's name.
        values: its values by dotted key.
        rounds: its journalled rounds.
        ending: how it ended; None if it has not ended.
        result: its figure for the search; None unless it has ended without an error.
    """

    number: int
    name: str
    values: dict[str, Any]
    rounds: list[Round]
    ending: Ending | None
    result: float | None

    @property
    def failed(self) -> bool:
        """Whether the trial ended with an error. A resume runs it again."""
        return self.ending is not None and self.ending.error is not None


def drawn(journal: Journal, file: SweepFile) -> list[DrawnTrial]:
    """Return the trials of a search by the number of their draw; empty without a search.

    Journals of an older hflray have no line of the draw. Their trials are numbered in the order in which they began,
    and the values are those of their settings. A trial is left out if a value is not known, such as a list, which is no
    setting of its own.
    """
    search = file.tune.search
    if search is None:
        return []
    trials, older = list[DrawnTrial](), list[tuple[float, DrawnTrial]]()
    for key in journal.run_keys():
        entries = journal.entries(key)
        run, rounds, ending = run_of(key, entries), rounds_of(entries), ending_of(entries)
        line = next((entry for entry in entries if "draw" in entry), None)
        recorded = line["values"] if line is not None else run.params if run is not None else {}
        if not all(name in recorded for name in file.sweep):
            continue
        values = {name: recorded[name] for name in file.sweep}
        result = figure(search, rounds[-1].values) if rounds and ending is not None and ending.error is None else None
        trial = DrawnTrial(-1 if line is None else int(line["draw"]), key, values, rounds, ending, result)
        if line is not None:
            trials.append(trial)
        else:
            older.append((next(float(entry["start"]) for entry in entries if "start" in entry), trial))
    older.sort(key=lambda pair: (pair[0], pair[1].name))
    numbered = [replace(trial, number=number) for number, (_, trial) in enumerate(older)]
    return numbered + sorted(trials, key=lambda trial: trial.number)  # a draw comes after all that were known then


class TrialSearch(Unsaved, Searcher):  # type: ignore[misc]  # Ray ships no types for it
    """Suggests the trials of a search: first those that have begun, then new ones.

    A trial that failed is run again after all others that have begun, and until then the search does not know it. In
    Tune's settings ``num_samples`` is `remaining`; there is no ``param_space``.

    Args:
        file: a sweep file with ``tune.search``.
        past: the trials that were drawn before, see `drawn`.
        write: writes the line of a new draw into the trial's journal.

    Raises:
        ConfigError: Optuna is not installed.
    """

    def __init__(self, file: SweepFile, past: Sequence[DrawnTrial], write: Write) -> None:
        super().__init__()
        settings = file.tune.search
        assert settings is not None
        ended = [trial for trial in past if trial.ending is not None and not trial.failed]
        self.remaining = max(0, file.tune.samples - len(ended))
        open_trials = sorted((trial for trial in past if trial not in ended), key=lambda trial: trial.failed)
        self._begun = open_trials[: self.remaining]
        self._file, self._write = file, write
        self._next = 1 + max((trial.number for trial in past), default=-1)
        evaluated = [(trial.values, trial.result) for trial in ended if trial.result is not None]
        try:
            from ray.tune.search.optuna import OptunaSearch

            self._optuna = OptunaSearch(
                space=OptunaSearch.convert_search_space({key: _domain(axis) for key, axis in file.sweep.items()}),
                metric=RESULT,
                mode=settings.mode,
                seed=file.tune.seed + len(past),  # with the first seed it would draw the same values again
                points_to_evaluate=[trial.values for trial in self._begun],
            )
            logging.getLogger("optuna").setLevel(logging.WARNING)  # else it says each study and each trial
        except (ImportError, AssertionError) as error:
            raise ConfigError("tune.search: optuna is not installed; pip install 'hflray[search]'") from error
        for values, result in evaluated:
            self._optuna.add_evaluated_point(values, result)

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the parameters of the next trial.

        Raises:
            ConfigError: the configuration refuses the values that were drawn.
            OSError: the line of the draw cannot be written.
        """
        values = dict(self._optuna.suggest(trial_id))  # of a trial that has begun if there is one, in the same order
        if self._begun:
            trial = self._begun.pop(0)
            return parameters(trial.name, trial.values, trial.rounds[-1].number if trial.rounds else 0)
        number, self._next = self._next, self._next + 1
        name = f"{make_trial(self._file, values).name}-{number:05d}"  # a search may draw equal values
        self._write(name, {"draw": number, "values": values})
        return parameters(name, values)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell the search how a trial ended. It counts a trial that failed as a bad one, or not at all."""
        self._optuna.on_trial_complete(trial_id, result=result, error=error)


def _domain(axis: Axis) -> Any:
    """Return an axis in Tune's form."""
    if axis.choice is not None:
        return tune.choice(axis.choice)
    if axis.randint is not None:
        return tune.randint(axis.randint[0], axis.randint[1] + 1)  # Tune excludes the upper end
    if axis.loguniform is not None:
        return tune.loguniform(*axis.loguniform)
    assert axis.uniform is not None
    return tune.uniform(*axis.uniform)


class Halving(Unsaved, ASHAScheduler):  # type: ignore[misc]
    """Stops trials that are behind at their rungs, which are filled from the journals when a sweep goes on.

    It knows a trial by its name, because Tune's own names differ from start to start. What it would decide of a
    journalled round is ignored.

    Args:
        file: a sweep file with ``tune.early_stopping``.
        rounds: the largest number of rounds of a trial.
        journal: the sweep's journal.
    """

    def __init__(self, file: SweepFile, rounds: int, journal: Journal) -> None:
        settings = file.tune.early_stopping
        assert settings is not None
        self._judges = settings.metric
        super().__init__(
            time_attr="round",
            metric=f"metrics/{settings.metric}",
            mode=settings.mode,
            max_t=rounds,
            grace_period=min(settings.grace_rounds, rounds),
            reduction_factor=settings.reduction,
        )
        for key in journal.run_keys():
            entries = journal.entries(key)
            trial = SimpleNamespace(config=parameters(key, {}))
            self.on_trial_add(None, trial)
            results = [
                {"round": index, **{f"metrics/{name}": value for name, value in values.items()}}
                for index, _, values in rounds_of(entries)
            ]
            for result in results:
                self.on_trial_result(None, trial, result)
            ending = ending_of(entries)
            if results and ending is not None and ending.error is None:
                self.on_trial_complete(None, trial, results[-1])

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """See `ASHAScheduler.on_trial_add`."""
        super().on_trial_add(tune_controller, _by_name(trial))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """See `ASHAScheduler.on_trial_result`."""
        return str(super().on_trial_result(tune_controller, _by_name(trial), self._judged(result)))

    def _judged(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result in which the value of the validation part, if there is one, is that of the metric."""
        on_validation = f"metrics/{metrics.on_validation(self._judges)}"
        return result | {f"metrics/{self._judges}": result[on_validation]} if on_validation in result else result

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """See `ASHAScheduler.on_trial_complete`."""
        super().on_trial_complete(tune_controller, _by_name(trial), self._judged(result))

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """See `ASHAScheduler.on_trial_remove`."""
        super().on_trial_remove(tune_controller, _by_name(trial))


def _by_name(trial: Any) -> Any:
    """Return what halving asks of a trial, its name in place of Tune's."""
    return SimpleNamespace(trial_id=name_of(trial))
