"""The parts of the documentation that are made from the code, as Markdown, so that a repository's page shows them too.

``make reference`` writes them anew between the comments ``<!-- generated: NAME -->`` and ``<!-- end -->`` of the pages,
and a test compares them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import hflray
from hflray import metrics, registry
from hflray.config import ExperimentConfig, Section
from hflray.config.explanations import accepted, section_of, sections
from hflray.errors import ConfigError
from hflray.support import live_metrics
from hflray.sweep import Axis, SweepFile, TuneConfig

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "benchmarks" / "results"
LOGGED = {
    "round": "Logged with each round",
    "clock": "Logged with each round if the section `clock` or a part of `world` is set",
    "cloud": "Logged with each round if the cloud is not synchronous (`clock.cloud`)",
    "asynchronous": "Logged with each round of an asynchronous cloud; the staleness only if an update came",
    "arrivals": "Logged with each round of asynchronous edges (`clock.edge`); the staleness only if a model arrived",
    "world": "Logged with each round if a part of `world` is set",
    "poll": "Logged with each round of a scheduler that polls devices, such as `power_of_choice`",
    "download": "Logged with each round if downloads are billed (`cost.download`)",
    "limits": "Logged with each round if `allocation.limits.drop` is on",
    "few": "Logged with each round if the edges' aggregator needs several models, as `krum` does",
    "private": "Logged with each round if the section `privacy` is on",
    "inside": "Logged with each round if a rule, an aggregator or a compressor is not the default, or with `privacy`; "
    "the first two also with `training.measure_updates`",
    "kind": "Logged with each round, in place of `accuracy`, for data without classes",
    "validation": "Logged with each round if there is a validation part (`data.validation`), a metric of your own as "
    "`validation_NAME`",
    "battery": "Logged with each round if devices have batteries (`world.battery.capacity_j`)",
    "end": "Logged once, at the end of a run",
    "fleet": "Logged with each fleet of an assignment study",
    "learning": "Logged with each point of a learning curve of the task `train_assigner`",
    "reference": "Logged with each such point, for each reference assigner",
    "agent": "Logged with each point of a learning curve of the task `train_scheduler`",
}
KINDS = {
    "scheduler": "schedulers (`scheduling.name`)",
    "assigner": "assigners (`assignment.name`)",
    "dataset": "data sets (`data.name`, or the path of an `.npz` file)",
    "partition": "partitions (`data.partition`)",
    "availability": "availability of devices (`world.availability.name`)",
    "fading": "laws of fading (`world.fading.name`)",
    "mobility": "motion of devices (`world.mobility.name`)",
    "access": "ways to share an uplink (`cost.access.name`)",
    "compute": "ways to compute (`cost.compute.name`)",
    "download": "downloads (`cost.download.name`)",
    "model": "networks (`model.name`; `torchvision:NAME` for a classifier of torchvision)",
    "loss": "losses (`training.loss`)",
    "local_rule": "local rules (`training.rule.name`)",
    "aggregator": "aggregators (`aggregation.edge.name`, `aggregation.cloud.name`, `tree.region.aggregation.name`)",
    "compressor": "compressors (`compression.device.name`, `compression.edge.name`, `tree.region.compression.name`)",
    "metric": "metrics besides those of the kinds of data (`target.metric`)",
    "observer": "observers (`observers`)",
    "sink": "trackers (`tracking.sinks`)",
    "fleet": "fleets (`fleet.name`)",
    "figure": "figures of a report (`hflray report --figure`, `drawings` of a `claims.yaml`)",
}

# The unit of a setting whose name ends in one of these; the longest ending that fits counts.
SUFFIXES = {
    "_dbm_per_hz": "dBm/Hz", "_dbm": "dBm", "_db": "dB", "_mhz": "MHz", "_ghz": "GHz", "_ms": "ms", "_s": "s",
    "_km": "km", "_m": "m", "_kb": "KB of 1024 bytes",
    "_mb": "MB of 1024² bytes", "_j": "J", "_w": "W",
}  # fmt: skip
# The units of the other numeric settings, by the last part of the dotted key, or by more of it where that is needed.
UNITS = {
    "batch_size": "samples", "base_share": "1", "buffer_capacity": "transitions", "capacitance": "J·s²/cycles³",
    "ce": "1", "deadline": "1", "cpus_per_trial": "CPUs", "cycles_per_sample": "cycles/sample", "delay_weight": "J/s",
    "deployment_seed": "1", "devices_per_actor": "devices", "dirichlet_alpha": "1", "edge_iterations": "1",
    "env_steps": "steps", "environments": "1", "epsilon": "1", "epsilon_steps": "steps", "evaluate_every": "steps",
    "evaluation_fleets": "fleets", "every": "rounds", "exchanges": "tries", "final_learning_rate": "1",
    "first": "devices", "region.count": "regions", "region.iterations": "1",
    "fleet.samples": "samples", "fleets": "fleets", "gamma": "1", "gpus_per_trial": "GPUs", "grace_rounds": "rounds",
    "grad_clip": "1", "hidden": "1", "learning_rate": "1", "learning_rate_steps": "steps", "learning_starts": "steps",
    "local_iterations": "1", "loguniform": "of the setting", "majority_fraction": "1", "max_concurrent": "trials",
    "max_failures": "1", "max_rounds": "rounds", "minutes": "min", "num_actors": "actors", "num_clusters": "clusters",
    "num_devices": "devices", "num_edges": "edges", "num_scheduled": "devices", "path_loss_slope_db": "dB per decade",
    "randint": "of the setting", "redraw": "1", "reduction": "1", "refinements": "1", "replaced": "1", "restarts": "1",
    "samples": "1", "samples_per_device": "samples", "seed": "1", "seeds": "seeds", "stop": "of the metric",
    "target_accuracy": "1",
    "target_update_steps": "steps", "td": "1", "threads": "threads", "train_batch": "transitions",
    "training_intensity": "1", "transfers": "tries", "uniform": "of the setting", "update_every": "steps",
    "validation": "samples", "value": "of the metric",
    "width": "1", "agent.env_steps": "rounds", "agent.evaluate_every": "rounds", "agent.train_batch": "rounds",
    "clip": "1", "entropy": "1", "epochs": "1", "gae_lambda": "1", "minibatch": "rounds",
    "factor": "1", "initial": "1", "momentum": "1", "rate_per_s": "1/s", "sigma": "1", "weight_decay": "1",
    "updates": "updates", "mixing": "1", "exponent": "1", "hinge": "1", "buffer": "updates", "max_iterations": "1",
    "key_bits": "bits", "noise_multiplier": "1", "delta": "1", "shares": "shares", "share": "1", "strength": "1",
    "slow_share": "1", "slow_factor": "1",
}  # fmt: skip


def escape(text: str) -> str:
    """Return a text as it is written in a cell of a Markdown table, on one line."""
    code = re.split(r"(`[^`]*`)", " ".join(text.split()))  # what stands between backquotes is literal
    code[::2] = [re.sub(r"([*_<>\[\]~])", r"\\\1", part) for part in code[::2]]
    return "".join(code).replace("|", "\\|")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0) -> str:
    """Return a Markdown table; the last `right` columns are aligned to the right."""
    left = len(headings) - right
    lines = [headings, ["---"] * left + ["--:"] * right, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


class Setting(NamedTuple):
    """A setting of a configuration.

    Attributes:
        key: the dotted key.
        accepted: the type and the bounds in words, as in the message for a wrong value.
        default: the default as YAML's author writes it; empty if the setting must be given.
        unit: the unit of the value; empty if it is not a number.
        meaning: what the setting says.
    """

    key: str
    accepted: str
    default: str
    unit: str
    meaning: str


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a model without those of its sections, in order; `prefix` precedes each key.

    A section that may be written as one value, such as ``clock.cloud: synchronous``, is a setting, too.
    """
    for name, field in model.model_fields.items():
        key, meaning = prefix + name, field.description or ""
        if isinstance(field.default, BaseModel):
            written = field.default.model_dump(mode="json")
            if not isinstance(written, dict):
                yield Setting(key, "a value, or a section", yaml_of(written), "", meaning)
        if section_of(field.annotation) is None:
            words = accepted(field)
            yield Setting(key, words, yaml_of(field.default), unit_of(key, words), meaning)


def unit_of(key: str, words: str) -> str:
    """Return the unit of a setting, given its dotted key and what it accepts in words; empty if it is not a number.

    Raises:
        ConfigError: the setting is a number and neither its name nor `UNITS` gives its unit.
    """
    parts = key.split(".")
    for ending in (".".join(parts[-2:]), parts[-1]):
        if ending in UNITS:
            return UNITS[ending]
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if parts[-1].endswith(suffix):
            return SUFFIXES[suffix]
    if any(word in words for word in ("number", "integer")):
        raise ConfigError(f"{key}: has no unit; end its name in one, or add it to UNITS in {__name__}")
    return ""


def yaml_of(default: Any) -> str:
    """Return a default as it is written in YAML on one line; a value that must be given is empty."""
    if default is PydanticUndefined:
        return ""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, tuple | list):
        return f"[{', '.join(yaml_of(value) for value in default)}]"
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if default != "" else '""'


def _settings_table(rows: Iterable[Setting]) -> str:
    cells = [
        (f"`{row.key}`", escape(row.accepted), f"`{row.default}`" if row.default else "", row.unit, escape(row.meaning))
        for row in rows
    ]
    return table(("key", "accepted", "default", "unit", "meaning"), cells)


def _summary(model: type[Section]) -> str:
    """Return the docstring of a section of the configuration as Markdown, without its example."""
    text = (model.__doc__ or "").partition("\n\n    Examples:")[0]
    return " ".join(part.strip() for part in text.replace("``", "`").split("\n"))


def experiment_settings() -> str:
    """Return every key of the configuration of an experiment, by section."""
    parts = [_settings_table(settings(ExperimentConfig))]
    for key, section in sections(ExperimentConfig):
        parts += [f"### {key}", _summary(section), _settings_table(settings(section, f"{key}."))]
    return "\n\n".join(parts)


def sweep_settings() -> str:
    """Return every key of a sweep file besides those of the configuration."""
    top = [row for row in settings(SweepFile) if row.key != "tracking"]
    parts = [_settings_table(top), "### tune", _summary(TuneConfig), _settings_table(settings(TuneConfig, "tune."))]
    for key, section in sections(TuneConfig, "tune."):
        parts += [f"### {key}", _summary(section), _settings_table(settings(section, f"{key}."))]
    parts += ["### sweep", _summary(Axis), _settings_table(settings(Axis, "sweep.KEY."))]
    return "\n\n".join(parts)


def glossary() -> str:
    """Return every logged metric with its unit and meaning."""
    parts = []
    for logged, title in LOGGED.items():
        rows = [row for row in metrics.METRICS.values() if row.logged == logged]
        rows += [row for row in metrics.PER_EDGE if row.logged == logged]
        cells = [(f"`{row.name}`", row.unit, escape(row.label), escape(row.meaning)) for row in rows]
        parts += [f"## {title}", table(("metric", "unit", "label", "meaning"), cells)]
    live = [(f"`{row.exported}`", ", ".join(row.labels), escape(row.description)) for row in live_metrics.LIVE]
    parts += ["## Exported to Prometheus while a sweep runs", table(("metric", "labels", "meaning"), live)]
    return "\n\n".join(parts)


def names() -> str:
    """Return the registered names of each kind, with the entry point group that adds names."""
    cells = []
    for kind, title in KINDS.items():
        listed = " ".join(f"`{name}`" for name in registry.BUILTIN[kind])
        cells.append((title, listed, f"`{registry.GROUPS[kind]}`"))
    return table(("kind", "built in", "entry point group"), cells)


def command_app() -> tuple[str, Any]:
    """Return the name and the Typer application of the command."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    name = min(scripts, key=len)  # `hflray`; the other scripts are its parts
    return name, importlib.import_module(scripts[name].partition(":")[0]).app


def command() -> str:
    """Return the help of the command ``hflray`` and of each of its subcommands."""
    import typer

    name, app = command_app()
    return "\n\n".join(_help(typer.main.get_command(app), name, 2))


def _help(part: Any, name: str, depth: int) -> list[str]:
    """Return the Markdown of a command and its subcommands, one text per paragraph, heading or table."""
    context = part.make_context(name, [], resilient_parsing=True)  # Typer may bring its own click
    arguments = [one for one in part.params if one.param_type_name == "argument"]
    options = [one for one in part.params if one.param_type_name == "option" and not getattr(one, "hidden", False)]
    words = [name, *map(_placeholder, arguments), *(["[OPTIONS]"] if options else [])]
    words += ["COMMAND"] if hasattr(part, "list_commands") else []
    texts = [
        f"{'#' * min(depth, 4)} {name}",
        f"    {' '.join(words)}",
        *_paragraphs(part.help or part.short_help or ""),
    ]
    rows = [(f"`{_placeholder(one)}`", escape(getattr(one, "help", None) or ""), "") for one in arguments]
    for one in options:
        given = ", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts))
        default = one.get_default(context, call=False)
        plain = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
        rows.append((given, escape(one.help or ""), f"`{default}`" if plain else ""))
    texts += [table(("argument or option", "meaning", "default"), rows)] if rows else []
    for word in part.list_commands(context) if hasattr(part, "list_commands") else ():
        subcommand = part.get_command(context, word)
        if subcommand is not None and not subcommand.hidden:
            texts += _help(subcommand, f"{name} {word}", depth + 1)
    return texts


def _placeholder(argument: Any) -> str:
    """Return the word that stands for an argument, in brackets if it may be left out."""
    word = argument.metavar or argument.name.upper()
    return word if argument.required or word.startswith("[") else f"[{word}]"


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a command's help; indented lines, which are examples, become code."""
    texts = []
    for paragraph in re.split(r"\n\s*\n", text.replace("\b", "")):
        for indented, group in itertools.groupby(
            filter(str.strip, paragraph.splitlines()), lambda line: line[0] == " "
        ):
            lines = [line.strip() for line in group]
            texts.append("\n".join(["```text", *lines, "```"]) if indented else escape(" ".join(lines)))
    return texts


def api() -> str:
    """Return signature and docstring of every public name of `hflray`, by the module that defines it."""
    parts = []
    for module, public in hflray._PUBLIC.items():
        parts.append(f"## {module}")
        for name in public:
            value = getattr(hflray, name)
            parts += [f"### {name}", f"`{_call(name, value)}`", *_docstring(value.__doc__ or "")]
            if isinstance(value, type) and not issubclass(value, Section):  # the page of settings lists those
                parts += _members(value)
    return "\n\n".join(filter(None, parts))


def _call(name: str, value: Any) -> str:
    """Return how a class or a function is called: its name, and its parameters with their defaults."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # an exception of Python's own signature
        return name
    words = []
    for parameter in parameters:
        if parameter.name == "self":
            continue
        marks = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        words.append(f"{marks}{parameter.name}{default}")
    return f"{name}({', '.join(words)})"


def _default(value: Any) -> str:
    """Return a default as it is written; what has no short form is three dots."""
    plain = isinstance(value, str | bool | int | float | tuple | dict | None)
    return repr(value) if plain and len(repr(value)) < 40 else "…"


def _members(value: type) -> list[str]:
    """Return a table of the methods and properties that a class defines itself, with the first paragraph of each."""
    rows = []
    for name, member in vars(value).items():
        function = getattr(member, "__func__", member)
        is_property = isinstance(member, property | functools.cached_property)
        if name.startswith("_") or not (inspect.isfunction(function) or is_property) or not function.__doc__:
            continue
        first = inspect.cleandoc(function.__doc__).partition("\n\n")[0]
        rows.append((f"`{name if is_property else _call(name, function)}`", escape(first.replace("``", "`"))))
    return [table(("member", "meaning"), rows)] if rows else []


def _docstring(text: str) -> list[str]:
    """Return a docstring of Google's form as Markdown, one text per paragraph, list or block of code."""
    texts = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text).replace("``", "`")):
        lines = paragraph.splitlines()
        if lines and (heading := re.fullmatch(r"(Args|Attributes|Returns|Yields|Raises|Examples):", lines[0])):
            texts.append(f"**{heading[1]}**")
            lines = inspect.cleandoc("\n" + "\n".join(lines[1:])).splitlines()
            listed = heading[1] not in ("Examples", "Returns", "Yields")
            if listed:
                entries = re.split(r"\n(?! )", "\n".join(lines))
                texts.append("\n".join(f"* {escape(_entry(' '.join(entry.split())))}" for entry in entries))
                continue
        if any(line.lstrip().startswith(">>>") for line in lines):
            texts.append("\n".join(["```pycon", *inspect.cleandoc("\n" + "\n".join(lines)).splitlines(), "```"]))
        elif lines and all(line.startswith("    ") for line in lines):
            texts.append("\n".join(["```text", *(line[4:] for line in lines), "```"]))
        else:
            texts.append(escape(" ".join(lines)))
    return texts


def _entry(text: str) -> str:
    """Return an entry of a list of arguments with its name as code."""
    return re.sub(r"^([\w*, ]+): ", r"`\1`: ", text)


def benchmarks() -> str:
    """Return the tables of `make bench` for each machine, with command, date and load; one line names missing ones.

    The machine with most tables comes first.
    """
    from tests.benchmarks.__main__ import BENCHMARKS

    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))]
    if not files:
        return "*Not measured*: `tests/benchmarks/results/` has no file yet. `make bench && make bench-keep` makes one."
    parts = []
    for kept in sorted(files, key=lambda kept: -len(kept["tables"])):
        machine = kept["machine"]
        parts += [
            f"## {machine['cpu']}",
            f"{machine['cores']} cores, {machine['memory_gib']} GiB, {escape(machine['system'])}; commit "
            f"`{kept['commit'][:12]}`. {_loops(kept['bare_loops'])}",
        ]
        missing = [key for benchmark in BENCHMARKS for key in benchmark.keys if key not in kept["tables"]]
        if missing:
            parts.append(f"*Not measured* on this machine: {', '.join(map(escape, missing))}.")
        for benchmark in BENCHMARKS:
            keys = [key for key in benchmark.keys if key in kept["tables"]]
            if not keys:
                continue
            parts += [f"### {benchmark.name}", f"`make bench BENCH='--only {benchmark.name}'`"]
            for key in keys:
                parts += _bench_table(key, kept["tables"][key])
    return "\n\n".join(parts)


def _loops(loops: dict[str, float] | None) -> str:
    """Say how two bare loops scale on the machine."""
    if loops is None:
        return "It has one CPU, so that nothing parallel was measured."
    return f"Two bare loops at the same time do {loops['ratio']:.2f} times the work of one."


def _bench_table(key: str, kept: dict[str, Any]) -> list[str]:
    """Return the Markdown of one table of a file of benchmarks."""
    if kept["status"] != "measured":
        reason = f" ({kept['status']}: {escape(kept['message'])})" if kept["message"] else ""
        return [f"**{escape(key)}**: *not measured*{reason}."]
    others = kept.get("others_cpus")
    about = f"Measured on {kept['date'][:10]} at {kept['date'][11:16]} UTC"
    about += "" if others is None else f"; other processes used {others:.2f} CPUs meanwhile"
    about += "; **the machine was too busy for a comparison with other figures**" if kept["busy"] else ""
    texts = [f"**{escape(key)}**: {escape(kept['title'])}. {about}."]
    columns = kept["columns"]
    if columns and kept["rows"]:
        rows = [[_cell(row.get(name), spec) for name, _, spec in columns] for row in kept["rows"]]
        texts.append(table([escape(heading) for _, heading, _ in columns], rows, right=len(columns) - 1))
    ratios = [
        (escape(name), "not measured" if value is None else f"{value:.3g} ×") for name, value in kept["ratios"].items()
    ]
    if ratios:
        texts.append(table(("ratio", "value"), ratios, right=1))
    notes = [f"* {escape(note)}" for note in kept["notes"] if not note.startswith(("TOO BUSY", "the load average"))]
    return [*texts, "\n".join(notes)] if notes else texts


def _cell(value: Any, spec: str) -> str:
    """Return a value of a benchmark's row as text."""
    if value is None:
        return ""
    return escape(format(value, spec))


PAGES: dict[str, Callable[[], str]] = {
    "experiment-settings": experiment_settings,
    "sweep-settings": sweep_settings,
    "glossary": glossary,
    "names": names,
    "command": command,
    "api": api,
    "benchmarks": benchmarks,
}


def renewed(text: str) -> str:
    """Return the text of a page with its generated parts as the code makes them now."""

    def part(found: re.Match[str]) -> str:
        return f"<!-- generated: {found[1]} -->\n\n{PAGES[found[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- generated: ([\w-]+) -->\n.*?<!-- end -->", part, text, flags=re.S)


def main() -> None:
    """Write the generated parts of all pages anew."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
