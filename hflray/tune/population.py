"""Population-based training (``tune.population``): the worst members adopt the states of the best between rounds.

Every few rounds all members wait for each other. The worst then continue from the checkpoint of one of the best, with
slightly changed settings (`hflray.config.MUTABLE`). The source is Jaderberg et al., Population Based Training of Neural
Networks, 2017; as there, the factors are 0.8 and 1.2, a quarter is replaced and a quarter is redrawn. Values of a list
move to a neighbouring one, as in Ray Tune's `PopulationBasedTraining`.

An exchange is a line ``{"exchange": round, "from": donor, "values": {…}, "among": [members]}`` in the journal of each
member that adopts a state. It is written after the journals have that round of all members, and before any of them goes
on. Its draws are functions of (seed, round, member). A resume therefore reads from the journals how each member stands
(`standing`), and computes an exchange again of which a kill has left a part.

A member that has ended or failed is no longer waited for. If it is run again and the others have passed an exchange
meanwhile, it goes on without that exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from hflray import metrics
from hflray.seeding import stream
from hflray.sweep import Axis, PopulationConfig, SweepFile, Trial
from hflray.sweep.tasks import Result
from hflray.tracking import Journal
from hflray.tracking.journal import ending_of, rounds_of
from hflray.tune.launch import Unsaved, Write, name_of, parameters

SCORE = "population"  # the key of a member's score in what it reports to Tune
FACTORS = (0.8, 1.2)


def score(result: Result, settings: PopulationConfig) -> dict[str, float]:
    """Return the entry with a round's score, or no entry between exchanges and after the last round."""
    if result.step % settings.every or result.last:
        return {}
    return {SCORE: _score(settings, result.metrics)}


def _score(settings: PopulationConfig, values: Mapping[str, float]) -> float:
    """Return the score of a round; a metric that is missing or infinite, which no journal has, is not a number."""
    value = metrics.deciding(settings.metric, values)
    return value if value is not None and math.isfinite(value) else math.nan


def exchanges(
    settings: PopulationConfig,
    axes: Mapping[str, Axis],
    seed: int,
    round: int,
    scores: Mapping[str, float],
    values: Mapping[str, Mapping[str, Any]],
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return which members adopt whose state after a round, and their new values.

    Args:
        settings: the settings of the population.
        axes: the swept keys, which are the settings that change.
        seed: the seed of the draws.
        round: the round.
        scores: the metric of each member that takes part. One that is not a number is the worst. Of equal ones, that of
            the first name is better.
        values: the values of each member by dotted key.

    Returns:
        For each member that adopts a state, by name: the donor, and the values with which it goes on.
    """
    sign = -1 if settings.mode == "max" else 1
    best = sorted(scores, key=lambda name: (math.isnan(scores[name]), sign * scores[name], name))
    count = min(math.ceil(len(best) * settings.replaced), len(best) // 2)
    made = {}
    for name in sorted(best[len(best) - count :]):
        draws = f"population/{name}"
        donor = best[int(stream(seed, draws, round).integers(count))]
        made[name] = (
            donor,
            {
                key: _changed(axes[key], value, settings.redraw, stream(seed, f"{draws}/{key}", round))
                for key, value in values[donor].items()
            },
        )
    return made


def _changed(axis: Axis, value: Any, redraw: float, rng: np.random.Generator) -> Any:
    """Return a value that is drawn anew, or changed: multiplied, or in a list moved to a neighbouring one."""
    if rng.random() < redraw or (axis.choice is not None and value not in axis.choice):
        return axis.draw(rng)
    step = int(rng.integers(2))
    if axis.choice is not None:
        place = axis.choice.index(value) + (-1, 1)[step]
        return axis.choice[min(max(place, 0), len(axis.choice) - 1)]
    changed = value * FACTORS[step]
    changed = round(changed) if isinstance(value, int) else changed
    low, high = axis.uniform or axis.loguniform or axis.randint or (changed, changed)
    return min(max(changed, low), high)


@dataclass
class Member:
    """How a member of a population stands.

    Attributes:
        values: its present values by dotted key.
        last: its last round, 0 if there is none.
        adopted: the donor and the round of the state that it adopted last; None if it adopted none.
        score: its score if it stands after a round of an exchange that has not been made; None if it does not wait.
        over: whether nobody waits for it, because it has ended, failed or done its last round.
        trial: Tune's trial once Tune has made it.
    """

    values: dict[str, Any]
    last: int = 0
    adopted: tuple[str, int] | None = None
    score: float | None = None
    over: bool = False
    trial: Any = None


@dataclass(frozen=True)
class Standing:
    """How a population stands according to its journals.

    Attributes:
        members: its members by name.
        passed: the last round whose exchange has been made or passed, 0 if there is none.
        owed: lines of that exchange that a kill has kept from the journals, with the members' names.
        again: why the population must begin again from round 1; empty if it need not.
    """

    members: dict[str, Member]
    passed: int = 0
    owed: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    again: str = ""


def standing(journal: Journal, file: SweepFile, trials: Sequence[Trial]) -> Standing:
    """Return how a population stands according to its journals, from which damaged lines have been cut.

    If `Standing.again` is not empty, all journals have to be cut (`Journal.cut`, after round 0).

    Args:
        journal: the sweep's journal.
        file: a sweep file with ``tune.population``.
        trials: the members with the values with which they begin.
    """
    settings = file.tune.population
    assert settings is not None
    entries = {trial.name: journal.entries(trial.name) for trial in trials}
    rounds = {name: {r.number: r.values for r in rounds_of(lines)} for name, lines in entries.items()}
    made = {
        name: {entry["exchange"]: entry for entry in lines if "exchange" in entry} for name, lines in entries.items()
    }
    failed = {name for name, lines in entries.items() if any("end" in entry and entry["error"] for entry in lines)}
    members = dict[str, Member]()
    for trial in trials:
        lines = made[trial.name]
        values, adopted = _after(trial, lines, max(lines, default=0))
        last = max(rounds[trial.name], default=0)
        ending = ending_of(entries[trial.name])
        ended = ending is not None and ending.error is None
        over = ended or (last > 0 and _is_last(file, trial, last, rounds[trial.name][last]))
        members[trial.name] = Member(values, last, adopted, over=over)
    passed = max(
        max((index for lines in made.values() for index in lines), default=0),
        max(((member.last - 1) // settings.every * settings.every for member in members.values()), default=0),
    )
    behind = [n for n, member in members.items() if member.last < passed and not member.over and n not in failed]
    owed: list[tuple[str, dict[str, Any]]] = []
    if passed and not behind and not all(member.over for member in members.values()):
        lines = {name: lines[passed] for name, lines in made.items() if passed in lines}
        took_part = [
            name
            for name, member in members.items()
            if passed in rounds[name] and name not in failed and not (member.over and member.last == passed)
        ]
        among = next((line["among"] for line in lines.values()), took_part)
        behind = [name for name in among if passed not in rounds[name]]
        before = {trial.name: _after(trial, made[trial.name], passed - 1)[0] for trial in trials}
        scores = {name: _score(settings, rounds[name][passed]) for name in among if name not in behind}
        computed = exchanges(settings, file.sweep, file.tune.seed, passed, scores, before) if not behind else {}
        for name, (donor, values) in computed.items():
            if name in lines:
                continue
            if members[name].last > passed:  # an older hflray did not record it, or its journal has been changed
                behind.append(name)
            members[name].values, members[name].adopted = values, (donor, passed)
            owed.append((name, line_of(passed, donor, values, among)))
    if behind:
        return Standing(members, passed, [], f"{_list(behind)}: the journal lacks what led to the exchange after round "
                        f"{passed}; the population begins again from round 1")  # fmt: skip
    for name, member in members.items():
        if not member.over and member.last > passed and member.last % settings.every == 0:
            member.score = _score(settings, rounds[name][member.last])
    return Standing(members, passed, owed)


def line_of(round: int, donor: str, values: Mapping[str, Any], among: Iterable[str]) -> dict[str, Any]:
    """Return the journal's line of an exchange, see the module."""
    return {"exchange": round, "from": donor, "values": dict(values), "among": sorted(among)}


def _after(trial: Trial, lines: Mapping[int, Mapping[str, Any]], round: int) -> tuple[dict[str, Any], Any]:
    """Return a member's values after the exchange of `round`, and what it had adopted then."""
    index = max((number for number in lines if number <= round), default=None)
    if index is None:
        return trial.values, None
    return dict(lines[index]["values"]), (str(lines[index]["from"]), index)


def _is_last(file: SweepFile, trial: Trial, last: int, values: Mapping[str, float]) -> bool:
    """Return whether a member ends with this round, even if its journal does not say so yet."""
    stopped = file.tune.bound(values) is not None
    return last >= trial.config.max_rounds or metrics.ROUNDS_TO_TARGET in values or stopped


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class Population(Unsaved, FIFOScheduler):  # type: ignore[misc]  # Ray ships no types for it
    """Lets the members of a population wait for each other, and makes the exchanges.

    Tune gives a result to its scheduler before it gives it to its callbacks, which write the journal. An exchange is
    therefore made in Tune's next step, when all journals have the round. Members wait paused, since a population may be
    larger than the machine, and a paused member's function is called anew with its parameters. The population also sees
    to ``tune.max_concurrent``: Tune would count those that wait, and must not be told it.

    Args:
        file: a sweep file with ``tune.population``.
        past: how the population stands, see `standing`. Its missing lines are written.
        write: writes a line into a member's journal.

    Raises:
        OSError: a line cannot be written. `choose_trial_to_run`, and with it Tune, raises it as well.
    """

    def __init__(self, file: SweepFile, past: Standing, write: Write) -> None:
        super().__init__()
        self._file, self._members, self._passed, self._write = file, past.members, past.passed, write
        for name, line in past.owed:
            write(name, line)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Give a new trial its parameters, and let it wait until it is chosen; one that starts again is on its way."""
        member = self._members[name_of(trial)]
        if member.trial is None:
            trial.set_status(type(trial).PAUSED)
            self._set(member, trial)
        else:
            member.over = False

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Hold a member that stands before an exchange. It stays as it is up to the next step."""
        member = self._members[name_of(trial)]
        index = int(result["round"])
        if index <= member.last:  # a round that is repeated after a failure
            return str(TrialScheduler.CONTINUE)
        member.last = index
        if SCORE not in result or index <= self._passed:
            return str(TrialScheduler.CONTINUE)
        member.score = float(result[SCORE])
        return str(TrialScheduler.NOOP)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Wait for this member no longer. Tune adds it again if it starts again."""
        member = self._members[name_of(trial)]
        member.over, member.score = True, None

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Wait for this member no longer."""
        self.on_trial_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Wait for this member no longer."""
        self.on_trial_error(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Pause the members that have arrived, make the exchange if all have, and return one that may go on."""
        for member in self._members.values():
            if member.score is not None and member.trial is not None and member.trial.status == member.trial.RUNNING:
                tune_controller.pause_trial(member.trial, should_checkpoint=False)
        live = [name for name, member in self._members.items() if not member.over]
        if live and all(self._members[name].score is not None for name in live):
            self._exchange(live)
        trials = tune_controller.get_trials()
        limit = self._file.tune.max_concurrent
        if limit is not None and sum(trial.status in (trial.PENDING, trial.RUNNING) for trial in trials) >= limit:
            return None
        free = (t for t in trials if t.status == t.PAUSED and self._members[name_of(t)].score is None)
        return next(free, None)

    def _exchange(self, live: Sequence[str]) -> None:
        settings = self._file.tune.population
        assert settings is not None
        index = min(self._members[name].last for name in live)
        among = [name for name in live if self._members[name].last == index]
        scores = {name: score for name in among if (score := self._members[name].score) is not None}
        values = {name: self._members[name].values for name in among}
        made = exchanges(settings, self._file.sweep, self._file.tune.seed, index, scores, values)
        for name, (donor, changed) in made.items():
            self._write(name, line_of(index, donor, changed, among))
        self._passed = index
        for name in among:
            member = self._members[name]
            if name in made:
                member.values, member.adopted = made[name][1], (made[name][0], index)
            member.score = None
            if member.trial is not None:
                self._set(member, member.trial)

    def _set(self, member: Member, trial: Any) -> None:
        """Give Tune's trial the parameters with which it goes on."""
        member.trial = trial
        trial.set_config({**trial.config, **parameters(name_of(trial), member.values, member.last, member.adopted)})
