"""Seeded mutations of what a user gives to the command: sweep files, overrides and paths.

A case is a function of the seed and its number, so that a defect can be repeated: ``python -m tests.inputs --only 12``.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from hflray.config import ExperimentConfig, parse_yaml
from hflray.support.shipped import sweep_files
from hflray.sweep import SweepFile, TuneConfig
from tests.foreign.mutations import swapped_bytes
from tests.hostile import NAMES

ROOT = Path(__file__).parents[2]
SHIPPED = {path.name: path.read_text(encoding="utf-8") for path in sweep_files()}

VALUES = (
    *yaml.safe_load(Path(__file__).with_name("values.yaml").read_text(encoding="utf-8")),
    "9" * 5000, "0x" + "f" * 5000, "'" + "x" * 300 + "'", "'" + "x" * 5000 + "'", "x" * 300 + ".npz",
    "[" + "1, " * 3000 + "1]", "[" * 60 + "]" * 60, "[" * 5000 + "]" * 5000,
    *(yaml.safe_dump(name, allow_unicode=True).removesuffix("\n").removesuffix("\n...") for name in NAMES),
)  # fmt: skip
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
LETTERS = string.ascii_letters + string.digits + " \t\n:-[]{},&*!|>'\"%@`#?.=<\\/_~\x00\x07\x85\u2028é試\ufeff"


@dataclass(frozen=True)
class Case:
    """One call of the command.

    Attributes:
        number: the case's number; -1 for a written one.
        kind: what is mutated.
        change: the mutation in words.
        arguments: the command's arguments.
        files: the files in the command's folder, by name.
    """

    number: int
    kind: str
    change: str
    arguments: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


def dotted(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every section and setting of a model."""
    for name, info in model.model_fields.items():
        yield prefix + name
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from dotted(info.annotation, f"{prefix}{name}.")


SETTINGS = tuple(dotted(ExperimentConfig))
KEYS = (
    *SETTINGS, *SETTINGS,
    *dotted(TuneConfig, "tune."), "tune.search.metric", "tune.search.mode", "tune.early_stopping.metric",
    "tune.population.every", *(name for name in SweepFile.model_fields), *(f"sweep.{key}" for key in SETTINGS),
)  # fmt: skip


def paths_of(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the position of every value in a tree of YAML."""
    if path:
        yield path
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from paths_of(value, (*path, key))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def typo(rng: random.Random, text: str) -> str:
    """Return a text with one letter dropped, doubled, swapped or replaced."""
    place = rng.randrange(len(text) + 1)
    before, letter, after = text[:place], text[place : place + 1], text[place + 1 :]
    changed = (after, 2 * letter + after, after[:1] + letter + after[1:], rng.choice(LETTERS) + letter + after)
    return before + rng.choice(changed)


MARK = "MUTATEDVALUE"


def _value(rng: random.Random, text: str) -> tuple[str, str]:
    tree = parse_yaml(text, "seed")
    path = rng.choice(list(paths_of(tree)))
    at(tree, path[:-1])[path[-1]] = MARK
    value = rng.choice(VALUES)
    return yaml.safe_dump(tree, sort_keys=False).replace(MARK, value), f"{'.'.join(map(str, path))}: {value[:40]}"


def _extra(rng: random.Random, text: str) -> tuple[str, str]:
    tree = parse_yaml(text, "seed")
    key, value = rng.choice(KEYS), rng.choice(VALUES)
    section = tree
    *sections, last = (key if key.split(".")[0] in SweepFile.model_fields else f"experiment.{key}").split(".")
    if sections and sections[0] == "sweep":
        sections, last = ["sweep"], key.partition(".")[2]
    for name in sections:
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            return _value(rng, text)
    section[last] = MARK
    return yaml.safe_dump(tree, sort_keys=False).replace(MARK, value), f"{key}: {value[:40]}"


def _letters(rng: random.Random, text: str) -> tuple[str, str]:
    for _ in range(rng.randint(1, 4)):
        text = typo(rng, text)
    return text, "letters changed"


def _lines(rng: random.Random, text: str) -> tuple[str, str]:
    lines = text.splitlines(keepends=True)
    place, line = rng.randrange(len(lines)), rng.choice(lines)
    indent = rng.choice(("", "  ", " ", "\t"))
    kept = rng.choice((lines[:place], lines[:place] + lines[place + 1 :], lines))
    kept.insert(rng.randrange(len(kept) + 1), indent + line)
    return "".join(kept), "lines changed"


def _whole(rng: random.Random, text: str) -> tuple[str, str]:
    swept = ("seed", "max_rounds", "training.batch_size", "checkpoint.every", "cost.delay_weight")
    wide = ", ".join(f"{key}: {{grid: {list(range(1, 21))}}}" for key in swept)
    wholes = {
        "empty": "",
        "only spaces": "   \n \n",
        "one word": "words",
        "a number": "7",
        "a list": "- x\n",
        "two documents": f"{text}\n---\n{text}",
        "twice the same": text + text,
        "a bomb": LAUGHS + text,
        "a bomb in a setting": LAUGHS + "experiment: {data: {name: *a11}}\n",
        "a bomb in the options": LAUGHS + "experiment: {assignment: {options: {x: *a9}}}\n",
        "deep": "experiment: " + "{a: " * 400 + "1" + "}" * 400,
        "a long list": "sweep: {seed: {grid: [" + "1, " * 30_000 + "1]}}",
        "many trials": f"sweep: {{{wide}}}",
        "a long file": "# comment\n" * 100_000,
    }
    name = rng.choice(list(wholes))
    return wholes[name], name


def _bytes(rng: random.Random, text: str) -> tuple[bytes, str]:
    data = text.encode()
    coded = {"a byte order mark": b"\xef\xbb\xbf" + data, "CRLF": data.replace(b"\n", b"\r\n"),
             "UTF-16": text.encode("utf-16"), "random bytes": rng.randbytes(500)}  # fmt: skip
    what = rng.choice((*coded, "bytes", "bytes"))
    return (coded[what], what) if what in coded else swapped_bytes(data, rng)


SWEEP_CHANGES: tuple[Callable[[random.Random, str], tuple[str | bytes, str]], ...] = (
    *(_value,) * 5, *(_extra,) * 5, *(_letters,) * 4, *(_lines,) * 2, _whole, _bytes,
)  # fmt: skip


def sweep_file(rng: random.Random, number: int) -> Case:
    name = rng.choice(list(SHIPPED))
    content: str | bytes = SHIPPED[name]
    changes = []
    for _ in range(rng.choice((1, 1, 2))):
        if not isinstance(content, str):
            break
        try:
            content, change = rng.choice(SWEEP_CHANGES)(rng, content)
        except Exception:  # the earlier mutation left nothing that can be parsed
            content, change = _letters(rng, content)
        changes.append(change)
    data = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    return Case(number, "sweep file", f"{name}: {'; '.join(changes)}", (name, "--dry-run"), {name: data})


SMALL = Path(__file__).with_name("small.yaml").read_text(encoding="utf-8")


def override(rng: random.Random, number: int) -> Case:
    arguments = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = f"{rng.choice(KEYS)}={rng.choice(VALUES)}"
        text = typo(rng, text) if rng.random() < 0.25 else text
        arguments += ["--set", text.replace("\0", "")]  # no argument of a process holds a zero byte
    task = rng.choice(("experiment", "experiment", "clustering", "assignment", "train_assigner"))
    files = {"small.yaml": f"task: {task}\n{SMALL}".encode()}
    change = f"{task}: {', '.join(text[:50] for text in arguments[1::2])}"
    return Case(number, "override", change, ("small.yaml", "--dry-run", *arguments), files)


CONFIGS = (".", "..", "missing.yaml", "/dev/null", "/dev/zero", "/etc", "small.yaml/x", "", " ")
FOLDERS = ("taken", "taken/x", ".", "..", "missing", "/dev/null", "/dev/null/x", "~nobody_here", "", "a b", "/proc/x")
RESUMES = ("missing", "../x", "/abs", "*", "**", "[x", "a**b", "", ".", "é", "a\nb")


def path(rng: random.Random, number: int) -> Case:
    long = "x" * 300
    small = SMALL.encode()
    files = {"small.yaml": small, "with a space.yaml": small, "été.yaml": small, "_x.yaml": small, "taken": b"a file"}
    files |= {"binary.yaml": rng.randbytes(300), ".yaml": small, "-x": small}
    config = rng.choice((*files, *CONFIGS, f"{long}.yaml"))
    folders = (*FOLDERS, long, f"a/{long}")
    folder = rng.choice(folders)
    options = rng.choice((
        (), ("--smoke",), ("--data-root", folder), ("--results", folder), ("--storage", folder),
        ("--set", f"data.root={folder!r}"), ("--set", "data.name=fashion_mnist", "--data-root", folder),
    ))  # fmt: skip
    arguments = (config, "--dry-run", *options)
    if rng.random() < 0.35:
        arguments = ("--resume", rng.choice((*RESUMES, long)), "--dry-run")
        arguments += rng.choice(((), ("--results", rng.choice(folders))))
    if any(argument.startswith("-x") for argument in arguments):  # the parser of options has its own messages
        arguments = ("./-x", *arguments[1:])
    return Case(number, "path", " ".join(argument[:40] for argument in arguments), arguments, files)


KINDS = (*(sweep_file,) * 10, *(override,) * 6, path)


def case(seed: int, number: int) -> Case:
    """Return the case of a seed and a number."""
    rng = random.Random(f"{seed}/{number}")
    return KINDS[number % len(KINDS)](rng, number)
