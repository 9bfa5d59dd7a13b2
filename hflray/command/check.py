"""``hflray check own.py``: try every part in a file as ``--dry-run`` would, trackers included.

A part is known by its class, or by the names of its parameters, see `kinds_of`. It is put into a small experiment on
digits, or on a data set of the same file, which is built and tried (`hflray.experiment.parts_check`).
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

import hflray
from hflray import registry
from hflray.errors import ConfigError, HflrayError
from hflray.registry import Kind
from hflray.support import references
from hflray.support.references import load, reason
from hflray.support.terminal.app import HELP, single

if TYPE_CHECKING:
    import numpy as np

SMALL = (
    "fleet.num_devices=8", "fleet.num_edges=2", "scheduling.num_scheduled=4", "scheduling.name=fedavg",
    "assignment.name=geographic", "training.backend=serial", "training.local_iterations=1",
)  # fmt: skip
# Data of each kind with a network that learns them. A part that needs other data than digits is tried on these.
DATA = {
    "classification": ("digits", "{name: logistic}"),
    "regression": ("friedman1", "{name: mlp}"),
    "next_token": ("pydoc_topics", "{name: gru, options: {embedding: 4, hidden: 8}}"),
}
OF_DATA = ("partition", "model", "loss", "metric")  # the kinds for which it matters what is learned
TRIED: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

app = single()


@app.command(context_settings=HELP)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file with parts of your own.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a setting, such as an option that a part needs."),
    ] = None,
) -> None:
    """Try every part in a file as --dry-run would: a line for each says its kind, what was tried, and what is wrong.

    A tracker gets a run of two rounds in a folder that is then removed. The exit code is 2 if a part is wrong.

    \b
    Examples:
      hflray check own.py
      hflray check own.py --set scheduling.options.decay=0.5
    """
    if file.suffix != ".py":
        raise ConfigError(f"FILE: got {file}; accepted: a Python file, such as own.py; correct it")
    things = references.things_in(file)
    parts = [(kinds, name) for name, thing in things.items() if (kinds := kinds_of(thing))]
    if not parts:
        raise ConfigError(
            f"FILE: {file} holds no part; accepted: a class that extends a base class of hflray, or a function such as "
            "load(root); see docs/reference/parts.md"
        )
    datasets = [name for kinds, name in parts if kinds == ["dataset"]]
    wrong = False
    for kinds, name in sorted(parts, key=lambda part: part[0] != ["dataset"]):
        kind, problem = tried(kinds, f"{file}:{name}", [f"{file}:{dataset}" for dataset in datasets], overrides or ())
        wrong |= bool(problem)
        print(f"{kind:12} {name:20} {TRIED[kind]}: {problem or 'ok'}")
    for name in things:
        if name not in [dataset for _, dataset in parts]:
            print(f"{'-':12} {name:20} not tried: no part, by its base class or its parameters")
    if wrong:
        raise typer.Exit(2)


def kinds_of(thing: Any) -> list[Kind]:
    """Return what a class or function may be, by its base class or the names of its first parameters.

    A function of outputs and targets is a loss or a metric.
    """
    from torch import nn

    extended: tuple[Kind, ...] = (
        "scheduler", "local_rule", "aggregator", "compressor", "availability", "fading", "mobility", "observer", "sink",
        "access", "compute", "download",
    )  # fmt: skip
    bases = {kind: getattr(hflray, kind.title().replace("_", "")) for kind in extended}
    if isinstance(thing, type) and not issubclass(thing, nn.Module):
        of_base: list[Kind] = [kind for kind, base in bases.items() if base in thing.__mro__]
        by_method: dict[str, Kind] = {"assign": "assigner", "__call__": "partition"}
        return of_base or [kind for method, kind in by_method.items() if _takes_four(getattr(thing, method, None))]
    functions: tuple[Kind, ...] = ("dataset", "fleet", "figure", "model")
    signatures: dict[tuple[str, ...], list[Kind]] = {registry.ARGUMENTS[kind]: [kind] for kind in functions}
    signatures |= {
        registry.ARGUMENTS["metric"]: ["metric", "loss"], ("module", "batches", "loss", "rate", "rng"): ["local_rule"],
    }  # fmt: skip
    names = tuple(inspect.signature(thing).parameters) if callable(thing) else ()
    return next((kinds for first, kinds in signatures.items() if names[: len(first)] == first), [])


def _takes_four(method: Any) -> bool:
    """Return whether a method of a class takes four arguments by position, as of a partition and of an assigner."""
    try:
        inspect.signature(method).bind(*("itself", 1, 2, 3, 4))
    except (TypeError, ValueError):
        return False
    return inspect.isfunction(method)


def tried(
    kinds: Sequence[Kind], reference: str, datasets: Sequence[str], overrides: Sequence[str]
) -> tuple[Kind, str | None]:
    """Try a part as each of its possible kinds; return the kind, and what is wrong in one line, if anything is.

    Args:
        kinds: what it may be.
        reference: the part, ``own.py:Thing``.
        datasets: references to data sets of the same file.
        overrides: further settings.
    """
    problems = {}
    for kind in kinds:
        problem = _problem(kind, reference, datasets, overrides)
        if problem is None:
            return kind, None
        problems[kind] = problem
    return kinds[-1], "; or ".join(problems.values())


def _problem(kind: Kind, reference: str, datasets: Sequence[str], overrides: Sequence[str]) -> str | None:
    from hflray.config import named_settings
    from hflray.sweep.tasks import find_task
    from hflray.tracking.tracker import try_sink

    first = None
    try:
        if kind == "sink":
            return try_sink(reference)
        if kind == "figure":
            _try_figure(reference)
            return None
        settings = [key for key, named in named_settings().items() if named == kind][:1]
        if kind == "aggregator":
            part = load(reference)
            settings = [f"aggregation.{at}.name" for at in ("edge", "cloud") if getattr(part, f"at_{at}", True)]
        for data, network in _data(kind, reference, datasets):
            model = [] if kind == "model" else [f"model={network or DATA[hflray.load_dataset(data).kind][1]}"]
            data_name = [] if kind == "dataset" else [f"data.name={json.dumps(data)}"]
            needs_columns = kind in ("access", "compute", "download") and bool(load(reference).needs)
            columns = [f"fleet.name={__name__}:measured_fleet"] if needs_columns else []
            value = json.dumps([reference] if kind == "observer" else reference)
            named = [f"{setting}={value}" for setting in settings]
            sections = tuple(f"{setting.rpartition('.')[0]}." for setting in settings)
            more = [
                override
                for override in overrides
                if "options" not in override.partition("=")[0] or override.startswith(sections)
            ]
            try:
                find_task("experiment").check(
                    hflray.load_config(None, [*SMALL, *columns, *data_name, *model, *named, *more])
                )
                return None
            except HflrayError as error:
                first = first or str(error)
    except HflrayError as error:
        return first or str(error)
    except Exception as error:  # a part may raise any type
        return f"fails ({reason(error)}); correct it"
    return first


def measured_fleet(config: hflray.FleetConfig, rng: np.random.Generator) -> hflray.Fleet:
    """Return a fleet with every column that a part of the physics may need."""
    n, m = config.num_devices, config.num_edges
    columns = {name: rng.uniform(0.1, 1.0, n) for name in ("fixed_s", "step_s", "compute_w", "upload_w")}
    links = {"latency_s": rng.uniform(0.1, 1.0, (n, m)), "rate_bps": rng.uniform(1e6, 9e6, (n, m))}
    return hflray.Fleet.of(config, rng, seconds_per_sample=rng.uniform(1e-3, 1e-2, n), **columns, **links)


def _try_figure(reference: str) -> None:
    """Draw a figure of the user's own from a small run. Raises what the figure raises."""
    import pandas as pd

    from hflray.report.figures import save
    from hflray.report.runs import RunRecord, SweepRecord
    from hflray.sweep.tasks import DEFAULT
    from hflray.tracking import History, RunTables

    config = hflray.load_config(None, [*SMALL, "max_rounds=2"])
    with hflray.Experiment(config) as experiment:
        rounds = pd.DataFrame([{"round": record.round} | record.metrics() for record in experiment])
    history = History("own", "FINISHED", None, "", {}, {}, RunTables(rounds), 0, 1)
    sweep = SweepRecord("own", "own", DEFAULT, "", [RunRecord(history, config)])
    with TemporaryDirectory() as folder:
        save(registry.resolve("figure", reference), sweep, Path(folder), "own")


def _data(kind: Kind, reference: str, datasets: Sequence[str]) -> list[tuple[str, str]]:
    """Return the data sets on which a part is tried until one fits, each with a network; empty: that of its kind."""
    if kind == "dataset":
        return [(reference, "")]
    if kind not in OF_DATA:
        return [DATA["classification"]]
    return [*((dataset, "") for dataset in datasets), *DATA.values()]
