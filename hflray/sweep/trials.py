"""Functions that load a sweep file, apply overrides, expand it to named trials, and shrink it to a smoke test."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hflray import metrics
from hflray.config import (
    COUNTED,
    SWEEP_ONLY,
    ExperimentConfig,
    absolute_paths,
    flatten,
    pin_sweep,
    read_mapping,
    set_dotted,
    split_override,
    validate,
)
from hflray.errors import ConfigError, nearest
from hflray.seeding import stream
from hflray.support.pinned import plain
from hflray.support.references import parse, short, spoken, unplaced
from hflray.support.text import one_line, shorten
from hflray.sweep.sections import LONGEST_NAME, Axis, SweepFile
from hflray.sweep.tasks import DEFAULT, find_task

MOST_TRIALS = 10_000  # of a sweep; each is checked before the first one starts
LONGEST_TRIAL = 200  # bytes of a trial's name, which names files and folders
SECTIONS = ("name", "description", "labels", "task", "sweep", "tune", "tracking")


@dataclass(frozen=True)
class Trial:
    """One point of a sweep.

    Attributes:
        name: a readable name, unique within the sweep.
        values: the swept values by dotted key.
        config: the configuration with these values.
    """

    name: str
    values: dict[str, Any]
    config: ExperimentConfig


def load_sweep(path: str | Path | None, overrides: Iterable[str] = (), bare: bool = False) -> SweepFile:
    """Load a sweep file, or an empty one if `path` is None, and apply the ``--set`` overrides.

    An override applies to the configuration, unless it begins with the name of another section (``tune.``,
    ``tracking.``, ``sweep.``). An override of a swept key, or of a section with it, replaces its axis by that value. A
    path (``mine.py:Thing``, ``mine.npz``) is relative to the sweep file, and in an override to the present folder.
    With `bare`, a file of an experiment's settings alone is accepted too.

    Raises:
        ConfigError: the message has one line per mistake.
    """
    tree = read_mapping(path) if path is not None else {}
    if bare and SWEEP_ONLY.isdisjoint(tree):
        tree = {"experiment": tree}
    if path is not None:
        tree.setdefault("name", _name_of(Path(path)))
        tree = pin_sweep(tree, Path(path).parent.resolve())
    for key in tree:
        if key in Axis.model_fields:
            raise ConfigError(
                f"{one_line(path)}: '{key}' belongs to a key of 'sweep:'; write it as in "
                f"sweep: {{seed: {{{key}: [0, 1]}}}}"
            )
        if key in ExperimentConfig.model_fields and key not in SweepFile.model_fields:
            raise ConfigError(
                f"{one_line(path)}: '{key}' belongs under 'experiment:'; indent the configuration below that line"
            )
    texts = texts_in(tree)
    for text in overrides:
        key, value = split_override(text)
        axes = tree.get("sweep")
        axes = axes if isinstance(axes, dict) else {}
        if outer := next((name for name in axes if key.startswith(f"{name}.")), None):
            raise ConfigError(
                f"--set: got {one_line(key)} beside the axis sweep.{one_line(outer)}, whose values take the place of "
                f"the whole section, so that it has no effect; accepted: {one_line(outer)}, which replaces the axis; "
                "set that"
            )
        if key.startswith("sweep."):
            _section(tree, "sweep", "swept keys")[key.partition(".")[2]] = value
        elif key.split(".")[0] in SECTIONS:
            set_dotted(tree, key, value)
        else:
            for name in _names_in(key, value):
                axes.pop(name, None)
            set_dotted(_section(tree, "experiment", "settings"), key, value)
    tree = pin_sweep(tree)
    file = validate(SweepFile, tree)
    _refuse_twice(file)
    if not file.labels:
        return file
    return file.model_copy(update={"labels": settled(file.labels, texts | texts_in(tree))})


def check_begins(file: SweepFile, trials: Iterable[Trial]) -> None:
    """Raise ConfigError if a sweep that begins has a setting without any effect; one that was stored can be read.

    These are ``tune.samples`` without a drawn axis, and scores that no run can reach.
    """
    if file.tune.samples > 1 and not file.tune.compares and not any(axis.drawn for axis in file.sweep.values()):
        raise ConfigError(
            f"tune.samples: got {file.tune.samples} with no axis that is drawn (uniform, loguniform, randint, choice), "
            "so that it has no effect; accepted: 1; leave it out, or repeat trials with an axis of seeds"
        )
    bounds = [(f"tune.stop.{name}", bound) for name, bound in file.tune.stop.items() if name in metrics.MAIN]
    targets = [trial.config.target for trial in trials]
    bounds += [("target.value", target.value or 0.0) for target in targets if target.metric in (None, *metrics.MAIN)]
    for key, bound in bounds:
        if bound > 1:
            raise ConfigError(f"{key}: got {bound:g}; accepted: at most 1; write 0.9 for 90 %")


def prolong(file: SweepFile, overrides: Sequence[str]) -> SweepFile:
    """Return a saved sweep file with more rounds, as ``--resume NAME --set max_rounds=N`` asks for.

    Raises:
        ConfigError: something else is set, N is not above the rounds that the sweep has, its task has no rounds of
            training, or what compares its trials at each round has already decided which of them go on.
    """
    before = validate(ExperimentConfig, file.experiment).max_rounds
    settings = dict(split_override(text) for text in overrides)
    rounds = settings.pop("max_rounds", None)
    if settings or type(rounds) is not int or rounds <= before:
        raise ConfigError(
            f"--set: got {', '.join(map(one_line, overrides))} with --resume; accepted: max_rounds alone, a number "
            f"above {before}, which the sweep has; begin a new sweep for other settings"
        )
    compares = file.tune.compares
    if compares or "max_rounds" in file.sweep or not find_task(file.task).trains_model:
        cause = f"tune.{compares[0]}" if compares else f"task {file.task}"
        cause = "the axis sweep.max_rounds" if "max_rounds" in file.sweep else cause
        raise ConfigError(f"--set max_rounds: a sweep with {cause} cannot get more rounds; begin a new sweep")
    return file.model_copy(update={"experiment": {**file.experiment, "max_rounds": rounds}})


def _section(tree: dict[str, Any], name: str, content: str) -> dict[str, Any]:
    """Return a section of a sweep file's tree, which an empty one becomes. Raises ConfigError: it is no mapping."""
    if tree.get(name) is None:
        tree[name] = {}
    if not isinstance(tree[name], dict):
        raise ConfigError(f"{name}: got {shorten(tree[name])}; accepted: a mapping of {content}; correct it")
    section: dict[str, Any] = tree[name]
    return section


def _names_in(key: str, value: Any) -> list[str]:
    """Return the dotted keys that a value sets: its own, and those of the settings in a mapping."""
    inner = value.items() if isinstance(value, dict) else ()
    return [key, *(name for part, content in inner for name in _names_in(f"{key}.{part}", content))]


def _refuse_twice(file: SweepFile) -> None:
    """Refuse a setting that is given twice in one file, because one of the two would have no effect.

    A value of an axis takes the place of the experiment's value of its key, and so does a mapping as a whole.

    Raises:
        ConfigError: an axis lies within another one, the experiment sets what the mappings of an axis do not repeat, or
            ``tracking`` is given twice or is an axis.
    """
    for outer, axis in file.sweep.items():
        inner = next((key for key in file.sweep if key.startswith(f"{outer}.")), None)
        if inner is not None:
            raise ConfigError(
                f"sweep: got the axes {outer} and {inner}, which is a part of the first, so that one of them has no "
                f"effect; accepted: one axis for each setting; remove {outer}, or write {inner} into its values"
            )
        section: Any = file.experiment
        for part in outer.split("."):
            section = section.get(part) if isinstance(section, dict) else None
        for key in flatten(section, f"{outer}.") if isinstance(section, dict) else ():
            if any(isinstance(value, dict) and key not in _names_in(outer, value) for value in axis.values):
                raise ConfigError(
                    f"experiment: got {key} beside the axis sweep.{outer}, whose mappings take the place of the whole "
                    f"section, so that {key} has no effect; write it into each of them, or sweep single settings"
                )
    if swept := [key for key in file.sweep if key.split(".")[0] == "tracking"]:
        raise ConfigError(f"sweep.{swept[0]}: a sweep is tracked in one place; accepted: tracking; move it there")
    if file.tracking is not None and file.experiment.get("tracking"):
        raise ConfigError(
            "tracking: got it beside experiment.tracking, which then has no effect; accepted: one of the two; move the "
            "settings to one place"
        )


def _name_of(path: Path) -> str:
    """Return a sweep's name for a file that gives none."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", path.stem)[: LONGEST_NAME - len("sweep")]
    return name if name[:1].isalnum() else f"sweep{name}"


def expand(file: SweepFile, numbered: bool = False) -> list[Trial]:
    """Return every trial of a sweep, each validated. The first grid varies slowest, and zipped keys vary together.

    Drawn values depend only on ``tune.seed`` and the number of the draw, so the same file gives the same trials. A
    search makes its trials while it runs; the result is then a single trial with the first values of all axes, which
    validates the file.

    Args:
        file: the sweep file.
        numbered: whether trials whose short names are equal get numbers, as older versions named them, and not first
            the values in full.

    Raises:
        ConfigError: zipped lists have unequal lengths, or a trial's configuration refuses a value. The message then
            names the trial.
    """
    if file.tune.search is not None:
        return [make_trial(file, first_values(file))]
    zipped = {key: axis.zip for key, axis in file.sweep.items() if axis.zip is not None}
    lengths = {key: len(values) for key, values in zipped.items()}
    if len(set(lengths.values())) > 1:
        listing = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise ConfigError(f"sweep: zipped keys move together and need lists of one length; {listing}")
    steps = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
    grids = {key: axis.grid for key, axis in file.sweep.items() if axis.grid is not None}
    trials: list[Trial] = []
    drawn = {key: axis for key, axis in file.sweep.items() if axis.drawn}
    count = len(steps) * math.prod(map(len, grids.values())) * (file.tune.samples if drawn else 1)
    if count > MOST_TRIALS:
        raise ConfigError(
            f"sweep: its lists and tune.samples = {file.tune.samples} make {count:,} trials; accepted: at most "
            f"{MOST_TRIALS:,}; shorten the lists, or lower tune.samples"
        )
    for step in steps:
        for row in itertools.product(*grids.values()):
            for number in range(file.tune.samples if drawn else 1):
                point = step | dict(zip(grids, row, strict=True))
                draws = {k: axis.draw(stream(file.tune.seed, f"sweep/{k}", number)) for k, axis in drawn.items()}
                trials.append(make_trial(file, {key: (point | draws)[key] for key in file.sweep}))
    if file.tune.population is not None:  # the values change between rounds, so that they are not part of the names
        every, interval = file.tune.population.every, trials[0].config.checkpoint.every
        if not interval or every % interval:  # no population changes this interval
            raise ConfigError(
                f"checkpoint.every: got {interval}; a population exchanges checkpoints every {every} rounds; "
                "accepted: 1, or a divisor of tune.population.every"
            )
        decay = trials[0].config.training.learning_rate_decay
        for key in COUNTED[decay.every] if decay.factor < 1 else ():
            if key in file.sweep:
                raise ConfigError(
                    f"training.learning_rate_decay.every: got {decay.every} with tune.population and sweep.{key}, "
                    "whose present value would count all rounds of the past; accepted: round; set it, or factor to 1"
                )
        base = run_name(trials[0].config, {}, file.task)
        return [Trial(f"{base}-p{number}", trial.values, trial.config) for number, trial in enumerate(trials)]
    if _are_different(trials):
        return trials
    whole = [Trial(run_name(t.config, t.values, file.task, whole=True), t.values, t.config) for t in trials]
    if not numbered and _are_different(whole):
        trials = whole
    else:  # a list has two equal values, or files of one name
        width = len(str(len(trials)))
        trials = [Trial(f"{i:0{width}d}-{trial.name}", trial.values, trial.config) for i, trial in enumerate(trials)]
    return trials


def _are_different(trials: Sequence[Trial]) -> bool:
    return len({trial.name for trial in trials}) == len(trials)


def make_trial(file: SweepFile, values: dict[str, Any]) -> Trial:
    """Return the trial with these swept values. Raises ConfigError: the message names the trial."""
    tree = deepcopy(file.experiment)
    for key, value in values.items():
        set_dotted(tree, key, value)
    if file.tracking is not None:
        tree["tracking"] = file.tracking.model_dump(mode="json")
    try:
        config = find_task(file.task).complete(validate(ExperimentConfig, tree))
    except ConfigError as error:
        if not values:
            raise
        texts = {key: one_line(value) for key, value in values.items()}
        point = ", ".join(f"{key}={text if len(text) <= 60 else f'{text[:60]}…'}" for key, text in texts.items())
        raise ConfigError(f"trial ({point}): {error}") from error
    return Trial(run_name(config, values, file.task), values, config)


def run_name(config: ExperimentConfig, values: dict[str, Any], task: str = DEFAULT, whole: bool = False) -> str:
    """Return a name such as ``digits-H10-λ1-ikc-hfel-s0``, to which the other swept settings are appended.

    With `whole`, numbers have all their digits, and references the names of their files.
    """
    labels = find_task(task).label(config)
    texts = {key: f"{value:.4g}" if isinstance(value, float) else short(value) for key, value in values.items()}
    shown = [key for key in texts if key not in labels]
    if whole:
        shown += [key for key, value in values.items() if key in labels and parse(str(value))]
        texts = {key: plain(spoken(value)) if isinstance(value, str) else short(value) for key, value in values.items()}
    parts = [part for part in labels.values() if part]
    parts += [f"{key.rpartition('.')[2]}={texts[key]}" for key in shown]
    name = re.sub(r"[^\w.=λ-]+", "_", "-".join(parts))
    if len(name.encode()) > LONGEST_TRIAL:  # a file system has no longer names; the digest keeps them different
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name.encode()[: LONGEST_TRIAL - 9].decode(errors='ignore')}-{digest}"
    return name


def first_values(file: SweepFile) -> dict[str, Any]:
    """Return the first value of every axis; for a range this is its lower end."""
    return {key: axis.values[0] for key, axis in file.sweep.items()}


def smoke(file: SweepFile) -> SweepFile:
    """Return the smallest sweep with all parts of `file`: one trial, synthetic data, two short rounds."""
    first = first_values(file)
    small = find_task(file.task).shrink(make_trial(file, first).config)
    experiment = deepcopy(file.experiment)
    for key, value in small.items():
        set_dotted(experiment, key, value)
    sweep = {key: Axis(grid=[small.get(key, value)]) for key, value in first.items()}
    tune = file.tune.model_copy(update={"samples": 1, "search": None, "early_stopping": None, "population": None})
    changes = {"name": f"{file.name}-smoke", "experiment": experiment, "sweep": sweep, "tune": tune}
    return file.model_copy(update=changes)


def with_data_root(file: SweepFile, root: Path) -> SweepFile:
    """Return the sweep with ``data.root`` set to `root`, which replaces an axis of it."""
    data = file.experiment.get("data") or {}
    if not isinstance(data, dict):
        return file  # the validation of the trials says what is wrong with it
    axes = {key: axis for key, axis in file.sweep.items() if key != "data.root"}
    if "data" in axes:
        axis = axes["data"]
        moved = [value | {"root": str(root)} if isinstance(value, dict) else value for value in axis.values]
        axes["data"] = axis.model_copy(update={axis.kind: moved})
    experiment = file.experiment | {"data": data | {"root": str(root)}}
    return file.model_copy(update={"experiment": experiment, "sweep": axes})


def with_absolute_paths(file: SweepFile) -> SweepFile:
    """Return the sweep with absolute paths. Those of the command line are relative to the command's folder."""
    return validate(SweepFile, absolute_paths(file.model_dump(mode="json", exclude_unset=True)))


# Labels: texts that tables and figures show in place of values, ``labels: {own.py:Mine: Ours}``. A label is
# display text and never identity: no trial's configuration, name or hash contains one.


def texts_in(tree: Mapping[str, Any]) -> set[str]:
    """Return every text that the tree of a sweep file with labels gives to a setting, and the others' defaults."""
    if not tree.get("labels"):
        return set()
    sections = [section for name in ("experiment", "sweep") if isinstance(section := tree.get(name), dict)]
    written = {key for section in sections for key in (*section, *flatten(section))}
    defaults = flatten(ExperimentConfig().model_dump(mode="json"))
    places: list[Any] = [*sections, *(value for key, value in defaults.items() if key not in written)]
    texts: set[str] = set()
    while places:
        place = places.pop()
        if isinstance(place, dict | list):
            places += place.values() if isinstance(place, dict) else place
        elif isinstance(place, str):
            texts.add(place)
    return texts


def settled(labels: Mapping[str, str], texts: Set[str]) -> dict[str, str]:
    """Return labels by the values as reports look for them: pinned, and without the folders of files.

    Args:
        labels: the labels by the values as their author wrote them.
        texts: the values of all settings that are texts, pinned.

    Raises:
        ConfigError: no trial has one of the values, or it names several files.
    """
    values: dict[str, set[str]] = {}
    for text in texts:
        for name in {text, _written(text)}:
            values.setdefault(name, set()).add(unplaced(text))
    result = {}
    for key, label in labels.items():
        name, end = _written(key), f"/{key.removeprefix('./')}"
        hits = values.get(key) or values.get(name) or {v for n in values if n.endswith(end) for v in values[n]}
        if len(hits) != 1:
            reason = f", which names {', '.join(sorted(hits))}" if hits else nearest(name, values)
            raise ConfigError(
                f"labels: got {shorten(key)}{reason}; accepted: a value that a setting of a trial has, such as a "
                "registered name, a reference or the file of a policy; correct it, or remove the line"
            )
        result[hits.pop()] = label
    return result


def _written(text: str) -> str:
    """Return a value as its author wrote it, but for the folders of a reference."""
    return plain(spoken(text))
