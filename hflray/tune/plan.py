"""A plan: the sweep file of a search for the settings that reach an accuracy at the least cost, and what it recommends.

A *setting* is a value of each of `SEARCHED`; it runs with `SEEDS` seeds. It *meets* the plan if the runs of all seeds
reach the accuracy, and none takes more seconds or joules than allowed. Of those that do, the one of the least mean cost
is recommended. Where none does, the nearest is the one with the highest accuracy within the limits, as a mean of its
runs; runs that halving has stopped count with what they had reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml
from matplotlib.figure import Figure

from hflray import metrics
from hflray.config import flatten, set_dotted, validate
from hflray.errors import ConfigError
from hflray.report.figures import log_axis, save
from hflray.report.labels import BLUE, LAMBDA, VERMILION, H, setting
from hflray.support.files import write
from hflray.support.terminal.tables import MISSING, TextTable
from hflray.sweep import SweepFile, make_trial
from hflray.sweep.results import named_by
from hflray.sweep.sections import LONGEST_NAME
from hflray.sweep.tasks import find_task, tasks_where
from hflray.sweep.trials import first_values
from hflray.tune.search import SEED, DrawnTrial

SEEDS = 3
SETTINGS = 60  # the most that are tried, unless tune.samples says otherwise
# What is searched, with its heading. A scheduler that clusters is left out, because totals do not bill its clustering.
SEARCHED = {
    H: "H", LAMBDA: "λ", "scheduling.name": "scheduler", "assignment.name": "assigner", "clock.cloud": "clock",
}  # fmt: skip
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)  # of the devices, as H
FACTORS = (0.1, 1.0, 10.0)  # of the λ of the file
NAMES = {
    "scheduling.name": ("fedavg", "fastest", "energy_aware", "oort"),
    "assignment.name": ("geographic", "best_gain", "local_search"),
    "clock.cloud": ("synchronous", "asynchronous"),
}
SHOWN = 5  # settings of the table
YAML, PICTURE = "recommended.yaml", "pareto"
TOOK = (metrics.DELAY_TO_TARGET_S, metrics.ENERGY_TO_TARGET_J)
LIMITED = {"seconds": metrics.TOTAL_DELAY_S, "joules": metrics.TOTAL_ENERGY_J}


def plan_file(
    file: SweepFile, fixed: Sequence[str], accuracy: float, seconds: float | None, joules: float | None
) -> tuple[SweepFile, set[str]]:
    """Return the sweep file of a plan, and the keys whose values are ours and not the file's.

    Args:
        file: a sweep file; an axis of a key of `SEARCHED` gives the values to choose from.
        fixed: the dotted keys that are not searched.
        accuracy: the target.
        seconds, joules: the most that reaching it may take; None: no limit.

    Raises:
        ConfigError: the file has another task, another axis, or a search of its own, or nothing is left to search.
    """
    if not find_task(file.task).trains_model:
        accepted = tasks_where(lambda task: task.trains_model)
        raise ConfigError(f"task: got {file.task}; accepted for a plan: {accepted}; give such a file")
    chosen = [key for key in ("search", "early_stopping", "population", "stop") if getattr(file.tune, key)]
    if chosen:
        raise ConfigError(f"tune.{chosen[0]}: got it with a plan, which searches itself; remove it from the file")
    if other := [key for key in file.sweep if key not in SEARCHED]:
        raise ConfigError(
            f"sweep.{other[0]}: a plan is for one value of it; accepted below sweep: {', '.join(SEARCHED)}; choose "
            f"one with --set {other[0]}=…"
        )
    config = make_trial(file, first_values(file)).config
    named = flatten(file.experiment).get("scheduling.name", NAMES["scheduling.name"][0])
    first: dict[str, Any] = {
        H: config.scheduling.num_scheduled, LAMBDA: config.cost.delay_weight, "scheduling.name": named,
        "assignment.name": config.assignment.name,
        "clock.cloud": (file.experiment.get("clock") or {}).get("cloud", "synchronous"),
    }  # fmt: skip
    devices, weight = config.fleet.num_devices, config.cost.delay_weight
    ours: dict[str, Sequence[Any]] = {
        H: [max(1, round(share * devices)) for share in SHARES], LAMBDA: [factor * weight for factor in FACTORS],
        **NAMES,
    }  # fmt: skip
    axes: dict[str, Any] = {}
    for key in SEARCHED:
        if key in file.sweep:
            axis = file.sweep[key]
            axes[key] = {"choice" if axis.kind in ("grid", "zip") else axis.kind: getattr(axis, axis.kind)}
        elif not any(name == key or name.startswith(f"{key}.") for name in fixed):
            axes[key] = {"choice": [first[key], *(value for value in dict.fromkeys(ours[key]) if value != first[key])]}
    if not axes:
        raise ConfigError(f"--set: all of {', '.join(SEARCHED)} are fixed; leave one of them to the search")
    limits = {"seconds": seconds, "joules": joules}
    limited = [name for name, limit in limits.items() if limit is not None]
    minimised = {"joules": metrics.DELAY_TO_TARGET_S, "seconds": metrics.ENERGY_TO_TARGET_J}
    metric = minimised[limited[0]] if len(limited) == 1 else metrics.OBJECTIVE_TO_TARGET
    search = {"metric": metric, "mode": "min", "seeds": SEEDS}
    search |= {"delay_weight": weight} if metric == metrics.OBJECTIVE_TO_TARGET else {}
    tree = file.model_dump(mode="json", exclude_unset=True)
    tree |= {
        "name": f"{file.name[: LONGEST_NAME - 5]}_plan", "sweep": axes,
        "experiment": deepcopy(file.experiment) | {"target_accuracy": accuracy},
        "tune": {"samples": SETTINGS} | tree.get("tune", {}) | {
            "search": search, "early_stopping": {"metric": metrics.ACCURACY, "mode": "max", "per": "cost"},
            "stop": {LIMITED[name]: limits[name] for name in limited},
        },
    }  # fmt: skip
    return validate(SweepFile, tree), {key for key in axes if key not in file.sweep}


@dataclass(frozen=True)
class Limits:
    """What a plan asks for: the accuracy, and the most seconds and joules until then (infinite: no limit)."""

    accuracy: float
    seconds: float
    joules: float

    @classmethod
    def of(cls, file: SweepFile) -> Limits:
        """Return those of the sweep file of a plan. Raises ConfigError: it is of none."""
        search, accuracy = file.tune.search, file.experiment.get("target_accuracy")
        if search is None or search.seeds == 1 or accuracy is None:
            raise ConfigError(f"--resume: {file.name} is no plan; accepted: a sweep of hflray plan; use hflray tune")
        return cls(accuracy, *(file.tune.stop.get(name, float("inf")) for name in LIMITED.values()))

    def __str__(self) -> str:
        parts = [
            f"{value:g} {unit}" for value, unit in ((self.seconds, "s"), (self.joules, "J")) if value < float("inf")
        ]
        return f"accuracy {self.accuracy:g}{' within ' * bool(parts)}{' and '.join(parts)}"


@dataclass(frozen=True)
class Tried:
    """A setting that was tried.

    Attributes:
        values: its values by dotted key.
        runs: the metrics of the rounds of each run that has ended, those of a run's end in its last round.
        limits: what is asked for.
        weight: joules that a second, and those that a joule counts as in the cost that is minimised.
    """

    values: dict[str, Any]
    runs: Sequence[Sequence[Mapping[str, float]]]
    limits: Limits
    weight: tuple[float, float]

    @cached_property
    def reached(self) -> list[Mapping[str, float]]:
        """The last rounds of the runs that reached the accuracy."""
        return [run[-1] for run in self.runs if metrics.DELAY_TO_TARGET_S in run[-1]]

    def took(self, metric: str) -> list[float]:
        """Return a metric of the target of each run that reached it."""
        return [last[metric] for last in self.reached]

    @property
    def whole(self) -> bool:
        """Whether the runs of all seeds reached the accuracy."""
        return len(self.reached) == SEEDS

    @cached_property
    def meets(self) -> bool:
        """Whether they did so within the limits."""
        ends = zip(TOOK, (self.limits.seconds, self.limits.joules), strict=True)
        return self.whole and all(max(self.took(metric)) <= limit for metric, limit in ends)

    @cached_property
    def cost(self) -> float:
        """The mean of what is minimised, over the runs that reached the accuracy; infinite if none did."""
        second, joule = self.weight
        costs = [second * s + joule * j for s, j in zip(*map(self.took, TOOK), strict=True)]
        return fmean(costs) if costs else float("inf")

    @cached_property
    def accuracy(self) -> float:
        """The highest accuracy within the limits, as a mean over the runs."""
        return fmean(
            max([metrics.deciding(metrics.ACCURACY, row) or 0.0 for row in run
                 if row[metrics.TOTAL_DELAY_S] <= self.limits.seconds
                 and row[metrics.TOTAL_ENERGY_J] <= self.limits.joules], default=0.0)
            for run in self.runs
        )  # fmt: skip

    @property
    def label(self) -> str:
        """Its values in words."""
        return ", ".join(setting(key, value) for key, value in self.values.items())


def settings_of(file: SweepFile, trials: Sequence[DrawnTrial]) -> list[Tried]:
    """Return the settings of which a run has ended, the best first: those that meet the plan by their cost, then the
    nearest.
    """
    limits, search = Limits.of(file), file.tune.search
    assert search is not None
    weight = {metrics.DELAY_TO_TARGET_S: (1.0, 0.0), metrics.ENERGY_TO_TARGET_J: (0.0, 1.0)}.get(
        search.metric, (search.delay_weight or 1.0, 1.0)
    )
    runs: dict[str, tuple[dict[str, Any], list[Any]]] = {}
    for trial in trials:
        if trial.ending is not None and trial.ending.error is None and trial.rounds:
            values = {key: value for key, value in trial.values.items() if key != SEED}
            runs.setdefault(repr(values), (values, []))[1].append([round.values for round in trial.rounds])
    tried = [Tried(values, rounds, limits, weight) for values, rounds in runs.values()]
    return sorted(
        tried,
        key=lambda candidate: (
            not candidate.meets,
            candidate.cost if candidate.meets else -candidate.accuracy,
            candidate.cost,
        ),
    )


def answer(tried: Sequence[Tried]) -> str:
    """Return in a sentence or two what is recommended and what was given up for what, or what comes nearest."""
    best = tried[0]
    if not best.meets:
        seeds = f"{len(best.reached)} of {SEEDS} seeds reached the accuracy" if best.reached else "no seed reached it"
        return (
            f"Nothing meets this ({best.limits}, with each of {SEEDS} seeds). The nearest is {best.label}: accuracy "
            f"{best.accuracy:.3f}{' within the limits' * (str(best.limits).count('within'))}; {seeds}."
        )
    (s, j), whole = (median(best.took(name)) for name in TOOK), [other for other in tried if other.whole]
    trades = []
    for name, word, other_word in zip(TOOK, ("seconds", "joules"), ("joules", "seconds"), strict=True):
        extreme = min(whole, key=lambda other: fmean(other.took(name)))
        its_use, less = (fmean(best.took(end)) for end in (name, TOOK[name == TOOK[0]]))
        least, more = (fmean(extreme.took(end)) for end in (name, TOOK[name == TOOK[0]]))
        if least < its_use:
            which = "fastest" if word == "seconds" else "most frugal"
            gain = f"for {1 - less / more:.1%} fewer {other_word}" if less < more else "which is not within the limits"
            trades.append(f"{its_use / least - 1:.1%} more {word} than the {which} ({extreme.label}), {gain}")
    gave = f"Given up: {'; and '.join(trades)}." if trades else "None that was tried is faster or takes fewer joules."
    return f"Recommended: {best.label}: {best.limits.accuracy:g} after {s:.4g} s and {j:.4g} J (medians). {gave}"


def table_of(tried: Sequence[Tried], title: str) -> TextTable:
    """Return the table of the best settings, with the median, the least and the largest of the seeds."""
    rows = []
    for candidate in tried[:SHOWN]:
        row = {SEARCHED[key]: setting(key, value).rpartition("= ")[2] for key, value in candidate.values.items()}
        row |= {"seeds": f"{len(candidate.reached)} of {SEEDS}", metrics.ACCURACY: f"{candidate.accuracy:.3f}"}
        for head, metric in (("seconds", metrics.DELAY_TO_TARGET_S), ("joules", metrics.ENERGY_TO_TARGET_J),
                             ("rounds", metrics.ROUNDS_TO_TARGET)):  # fmt: skip
            took = candidate.took(metric)
            row[head] = f"{median(took):.4g} ({min(took):.4g}–{max(took):.4g})" if took else MISSING
        rows.append(row)
    caption = (
        "seconds, joules and rounds until the accuracy: median (least–largest) of the seeds that reached it; accuracy: "
        "the highest within the limits, mean of the runs"
    )
    return TextTable.of(rows, title, caption=caption)


def pareto(tried: Sequence[Tried]) -> Figure:
    """Draw seconds against joules until the accuracy: a point with the range of its seeds for each setting that reached
    it with all of them; a line joins those that no other beats, and a star is what is recommended.
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    whole = [candidate for candidate in tried if candidate.whole]
    points = [(fmean(candidate.took(TOOK[0])), fmean(candidate.took(TOOK[1]))) for candidate in whole]
    for candidate, (x, y) in zip(whole, points, strict=True):
        seconds, joules = map(candidate.took, TOOK)
        axes.errorbar(
            x, y, [[y - min(joules)], [max(joules) - y]], [[x - min(seconds)], [max(seconds) - x]], fmt="o", ms=4,
            lw=0.6, color=BLUE, mfc=BLUE if candidate.meets else "white",
        )  # fmt: skip
    front = sorted(a for a in points if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in points))
    axes.plot([x for x, _ in front], [y for _, y in front], color="0.4", lw=1)
    if tried[0].meets:
        axes.plot(*points[whole.index(tried[0])], "*", ms=14, color=VERMILION)
    limits = tried[0].limits
    for limit, draw in ((limits.seconds, axes.axvline), (limits.joules, axes.axhline)):
        if limit < float("inf"):
            draw(limit, color=VERMILION, lw=0.8, ls=":")
    for k, axis in enumerate((axes.xaxis, axes.yaxis)):
        if points and max(p[k] for p in points) > 8 * min(p[k] for p in points):
            log_axis(axis)
    axes.set(xlabel=f"Simulated seconds to {limits.accuracy:g}", ylabel=f"Joules to {limits.accuracy:g}")
    return figure


def write_plan(file: SweepFile, tried: Sequence[Tried], folder: Path) -> list[Path]:
    """Write a picture of the settings that reached the accuracy with all seeds, and the sweep file of the recommended
    one with the files that it names, unless they are there; return the paths of what is written.
    """
    paths = save(pareto, tried, folder, PICTURE) if any(candidate.whole for candidate in tried) else []
    if not tried[0].meets:
        (folder / YAML).unlink(missing_ok=True)  # of a plan before this one
        return paths
    experiment = deepcopy(file.experiment)
    for key, value in tried[0].values.items():
        set_dotted(experiment, key, value)
    seed = make_trial(file, first_values(file)).config.seed
    content = {
        "name": f"{file.name}_run"[:LONGEST_NAME], "description": f"{tried[0].limits}: {tried[0].label}",
        "experiment": experiment, "sweep": {SEED: {"grid": list(range(seed, seed + SEEDS))}},
    }  # fmt: skip
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    sources, inputs = named_by(content)
    beside = {source.name: source.text.encode() for source in sources if source.is_file}
    for file_named in inputs:
        if file_named.content is None:
            pin = f"@sha256:{file_named.sha256}"
            text = text.replace(file_named.name + pin, file_named.path + pin)
        else:
            beside[file_named.name] = file_named.content
    for name, bytes_of in beside.items():
        if not (folder / name).exists():
            paths.append(write(folder / name, bytes_of))
    head = "# What hflray plan recommends; run it with: hflray tune recommended.yaml\n"
    return [write(folder / YAML, head + text), *paths]
