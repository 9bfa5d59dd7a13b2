"""Inputs that once ended in a traceback, in the wrong line, or not at all. Each is a test."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.inputs.grammar import LAUGHS, SMALL, Case

FILE = "small.yaml"


@dataclass(frozen=True)
class Mended:
    """An input that is now handled.

    Attributes:
        name: what the input is.
        before: how the command ended before.
        now: a regular expression that its line matches now; None if the input is valid.
        case: the call of the command.
    """

    name: str
    before: str
    now: str | None
    case: Case


def overrides(name: str, before: str, now: str | None, *texts: str, file: str = SMALL) -> Mended:
    """Return an input that consists of overrides of a small sweep."""
    words = [word for text in texts for word in ("--set", text)]
    return Mended(name, before, now, Case(-1, "override", name, (FILE, "--dry-run", *words), {FILE: file.encode()}))


def file(name: str, before: str, now: str | None, text: str | bytes, called: str = FILE) -> Mended:
    """Return an input that is a sweep file."""
    content = text.encode() if isinstance(text, str) else text
    return Mended(name, before, now, Case(-1, "sweep file", name, (called, "--dry-run"), {called: content}))


def words(name: str, before: str, now: str | None, *arguments: str) -> Mended:
    """Return an input that consists of arguments, beside a small sweep."""
    return Mended(name, before, now, Case(-1, "path", name, (*arguments, "--dry-run"), {FILE: SMALL.encode()}))


def data(name: str, before: str, now: str | None, content: bytes) -> Mended:
    """Return an input that is a data file."""
    arguments = (FILE, "--dry-run", "--set", "data.name=mine.npz")
    return Mended(
        name, before, now, Case(-1, "data file", name, arguments, {FILE: SMALL.encode(), "mine.npz": content})
    )


def archive(shape: tuple[int, ...] = (16, 16), **changes: Any) -> bytes:
    """Return a data file of zeros with images of a shape."""
    buffer = io.BytesIO()
    arrays = {
        "x_train": np.zeros((40, *shape), np.uint8), "y_train": np.arange(40) % 10,
        "x_test": np.zeros((10, *shape), np.uint8), "y_test": np.arange(10) % 10,
    }  # fmt: skip
    np.savez_compressed(buffer, **(arrays | changes))
    return buffer.getvalue()


def encrypted() -> bytes:
    """Return a data file whose directory marks every array as encrypted."""
    content = bytearray(archive())
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        content[place + 8] |= 1
        place = content.find(b"PK\x01\x02", place + 1)
    place = content.find(b"PK\x03\x04")
    while place >= 0:
        content[place + 6] |= 1
        place = content.find(b"PK\x03\x04", place + 1)
    assert zipfile.is_zipfile(io.BytesIO(content))
    return bytes(content)


def nested(levels: int) -> str:
    return "experiment: " + "{a: " * levels + "1" + "}" * levels


TRACE = "a traceback"
MENDED = (
    overrides("a swept text that is markup, `[/]`", TRACE, None, "sweep.data.root={grid: ['[/]', '[bold]x[/]']}"),
    file(
        "aliases that make 10⁹ values",
        "no end",
        "100,000 values",
        LAUGHS + "experiment: {assignment: {options: {x: *a9}}}",
    ),
    file("an alias inside its own list", TRACE, "contains itself", "experiment: &a {data: *a}\n"),
    file("3,000 levels", TRACE, "nested too deeply", nested(3000)),
    file("an empty key", "a line that names no setting", "'': unknown key", "'': 1\n"),
    file("the date 2026-13-45", TRACE, "month must be", "description: 2026-13-45\n"),
    file("the number `0x_`", TRACE, "cannot be read", "experiment: {seed: 0x_}\n"),
    file("a number of 5,000 digits", TRACE, "at most 19 digits", f"experiment: {{seed: {'9' * 5000}}}\n"),
    file("half a character, `\\ud800`", "valid", "half a character", 'description: "\\ud800"\n'),
    file("a long file", "over 20 s", "200,000 characters", "- [a, b, c]\n" * 100_000),
    file(
        "a file whose name begins with another letter", "refused for a name that nobody gave", None, SMALL, "été.yaml"
    ),
    overrides(
        "a list as `sweep:` and an override of an axis",
        TRACE,
        "sweep: got",
        "sweep.seed={grid: [1]}",
        file="sweep: [1]",
    ),
    overrides(
        "the whole section `sweep` as an override",
        "refused as a key without a name",
        None,
        "sweep={seed: {grid: [1, 2]}}",
    ),
    overrides("a line break in a text", "valid", "without line breaks", 'data.root="a\\nb"'),
    overrides("a line break in a key", "a line cut in two", "control character", 'assignment.options={"a\\nb": 1}'),
    overrides(
        "noise of 10³⁰⁸ dBm",
        "valid",
        "fleet.noise_dbm_per_hz: got 1e",
        "fleet.noise_dbm_per_hz=1e308",
        "task=assignment",
    ),
    overrides(
        "10⁹ threads", "the process was ended by a library", "training.threads: got", "training.threads=1000000000"
    ),
    overrides(
        "10⁹ local iterations", "no end", "training.local_iterations: got", "training.local_iterations=1000000000"
    ),
    overrides(
        "10¹² trials", "no end", "at most 1,000,000", "tune.samples=1000000000000", "sweep.seed={randint: [0, 9]}"
    ),
    overrides(
        "a million trials", "over 20 s", "at most 10,000", "tune.samples=1000000", "sweep.seed={randint: [0, 9]}"
    ),
    overrides("a draw beyond 64 bits", TRACE, "randint: got", "sweep.seed={randint: [0, 9999999999999999999]}"),
    overrides("a draw between ±10³⁰⁸", TRACE, "uniform: got", "sweep.cost.delay_weight={uniform: [-1e308, 1e308]}"),
    overrides("10¹⁸ devices", TRACE, "fleet.num_devices: got", "fleet.num_devices=1000000000000000000"),
    overrides("10⁹ edges", TRACE, "fleet.num_edges: got", "fleet.num_edges=1000000000"),
    overrides(
        "a Dirichlet partition with α = 10³⁰⁸",
        "valid",
        "data.dirichlet_alpha: got",
        "data.partition=dirichlet",
        "data.dirichlet_alpha=1e308",
    ),
    overrides("the home of nobody", TRACE, "which is no path", "data.root=~nobody_here/x"),
    overrides(
        "a data file's name of 300 letters", "an advice about the results", "no such file", f"data.name={'x' * 300}.npz"
    ),
    overrides(
        "a sweep's name of 300 letters",
        "valid",
        "at most 100",
        f"name={'x' * 300}",
    ),
    words("a text as `data` and `--data-root`", TRACE, "data: got", FILE, "--set", "data=x", "--data-root", "."),
    words("a file whose name is a space", "a line that names no file", "' ': cannot read", " "),
    words("an endless file", "the memory fills", "200,000 characters", "/dev/zero"),
    words("`--resume` with an absolute path", TRACE, "no unfinished sweep", "--resume", "/nowhere/x"),
    words("`--resume 'a**b'`", TRACE, "no unfinished sweep", "--resume", "a**b"),
    data("an encrypted data file", TRACE, "cannot be read as plain arrays", encrypted()),
    data("images of 2,000 × 2,000", TRACE, "parameters", archive((2000, 2000))),
)
