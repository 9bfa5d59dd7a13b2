"""What a search or a population keeps when Ray Tune's state is lost.

The next values of a search and the exchanges of a population follow from Tune's state, so that a trial that has not
ended cannot go on without it. The trials that have ended are kept, and a search learns from them. The others are given
up: their runs end as failed and keep their rounds, and new trials of other names take their place.

The journals say all this, so that every later resume comes to the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hflray.sweep import SweepFile, Trial
from hflray.tracking.journal import Journal, rounds_of
from hflray.tracking.sink import Ending

if TYPE_CHECKING:
    from hflray.sweep.preflight import Checked

GIVEN_UP = "given up, because Ray Tune's state was lost; another trial of the sweep has taken its place"
WORST = 1e12  # the value that a search gets for a trial without its metric


def completed(journal: Journal) -> list[str]:
    """Return the names of the trials that have ended without an error."""
    endings = {key: journal.ending(key) for key in journal.run_keys()}
    return [key for key, ending in endings.items() if ending is not None and ending.error is None]


def given_up(journal: Journal) -> list[str]:
    """Return the names of the trials that were given up."""
    endings = {key: journal.ending(key) for key in journal.run_keys()}
    return [key for key, ending in endings.items() if ending is not None and ending.error == GIVEN_UP]


def give_up(journal: Journal) -> tuple[int, int]:
    """Give up all trials that have begun and have not ended without an error.

    Returns:
        The number of trials that are kept, and of those that are given up by this call.

    Raises:
        OSError: a journal cannot be written.
    """
    stay = {*completed(journal), *given_up(journal)}
    lost = [key for key in journal.run_keys() if key not in stay]
    for key in lost:
        journal.end(key, Ending("FAILED", GIVEN_UP, {"hflray.error": GIVEN_UP}))
    return len(completed(journal)), len(lost)


def renamed(trials: Sequence[Trial], checked: Checked, gone: Iterable[str]) -> list[Trial]:
    """Return the trials of a population, in which those that were given up have new names with a number at the end.

    Args:
        trials: the trials of the sweep file.
        checked: their checks, which become those of the renamed trials as well.
        gone: the names of the trials that were given up.
    """
    taken, current = set(gone), []
    for trial in trials:
        name, number = trial.name, 1
        while name in taken:
            number += 1
            name = f"{trial.name}-{number}"
        if trial.name in checked.resolved:
            checked.resolved[name] = checked.resolved[trial.name]
        current.append(replace(trial, name=name))
    return current


def points(file: SweepFile, journal: Journal) -> list[tuple[dict[str, Any], float]]:
    """Return the drawn values (dotted key to value) and the result of each kept trial; empty without a search.

    A trial is left out if one of its values is not a setting of its own, such as a list.
    """
    search = file.tune.search
    learned = list[tuple[dict[str, Any], float]]()
    if search is None:
        return learned
    for key in completed(journal):
        run, rounds = journal.run(key), rounds_of(journal.entries(key))
        if run and rounds and all(name in run.params for name in file.sweep):
            values = {name: run.params[name] for name in file.sweep}
            learned.append((values, rounds[-1].values.get(search.metric, worst(search.mode))))
    return learned


def worst(mode: str) -> float:
    """Return the value that a search gets for a trial without its metric, if it looks for the ``min`` or ``max``."""
    return WORST if mode == "min" else -WORST
