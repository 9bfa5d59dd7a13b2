"""Inputs that once ended in a traceback, in the wrong line, or not at all. Each is a test."""

from __future__ import annotations

import io
import re
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
        now: a regular expression that its line matches now; None if the input is valid.
        case: the call of the command.
    """

    name: str
    now: str | None
    case: Case


def overrides(name: str, now: str | None, *texts: str, file: str = SMALL) -> Mended:
    """Return an input that consists of overrides of a small sweep."""
    words = [word for text in texts for word in ("--set", text)]
    return Mended(name, now, Case(-1, "override", name, (FILE, "--dry-run", *words), {FILE: file.encode()}))


def file(name: str, now: str | None, text: str, called: str = FILE) -> Mended:
    """Return an input that is a sweep file."""
    return Mended(name, now, Case(-1, "sweep file", name, (called, "--dry-run"), {called: text.encode()}))


def words(name: str, now: str | None, *arguments: str) -> Mended:
    """Return an input that consists of arguments, beside a small sweep."""
    return Mended(name, now, Case(-1, "path", name, (*arguments, "--dry-run"), {FILE: SMALL.encode()}))


def data(name: str, now: str | None, content: bytes) -> Mended:
    """Return an input that is a data file."""
    arguments, files = (FILE, "--dry-run", "--set", "data.name=mine.npz"), {FILE: SMALL.encode(), "mine.npz": content}
    return Mended(name, now, Case(-1, "data file", name, arguments, files))


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
    """Return a data file that marks every array as encrypted, in the directory and at the array."""
    content = archive()
    for head, flags in ((rb"PK\x01\x02", 8), (rb"PK\x03\x04", 6)):
        content = re.sub(rb"(?s)(%s.{%d})." % (head, flags - 4), lambda match: match[1] + b"\x01", content)
    assert zipfile.is_zipfile(io.BytesIO(content))
    return content


def nested(levels: int) -> str:
    return "experiment: " + "{a: " * levels + "1" + "}" * levels


MENDED = (
    overrides("a swept text that is markup, `[/]`", None, "sweep.data.root={grid: ['[/]', '[bold]x[/]']}"),
    file("aliases that make 10⁹ values", "100,000 values", LAUGHS + "experiment: {assignment: {options: {x: *a9}}}"),
    file("an alias inside its own list", "contains itself", "experiment: &a {data: *a}\n"),
    file("3,000 levels", "nested too deeply", nested(3000)),
    file("an empty key", "'': unknown key", "'': 1\n"),
    file("the date 2026-13-45", "month must be", "description: 2026-13-45\n"),
    file("the number `0x_`", "cannot be read", "experiment: {seed: 0x_}\n"),
    file("a number of 5,000 digits", "digits", f"experiment: {{seed: {'9' * 5000}}}\n"),
    file("half a character, `\\ud800`", "surrogates not allowed", 'description: "\\ud800"\n'),
    file("a long file", "200,000 characters", "- [a, b, c]\n" * 100_000),
    file("a file whose name begins with another letter", None, SMALL, "été.yaml"),
    overrides(
        "a list as `sweep:` and an override of an axis", "sweep: got", "sweep.seed={grid: [1]}", file="sweep: [1]"
    ),
    overrides("the whole section `sweep` as an override", None, "sweep={seed: {grid: [1, 2]}}"),
    overrides("a line break in a text", "without line breaks", 'data.root="a\\nb"'),
    overrides("a line break in a key", "control character", 'assignment.options={"a\\nb": 1}'),
    overrides(
        "noise of 10³⁰⁸ dBm", "fleet.noise_dbm_per_hz: got 1e", "fleet.noise_dbm_per_hz=1e308", "task=assignment"
    ),
    overrides("10⁹ threads", "training.threads: got", "training.threads=1000000000"),
    overrides("10⁹ local iterations", "training.local_iterations: got", "training.local_iterations=1000000000"),
    overrides("10¹² trials", "at most 1,000,000", "tune.samples=1000000000000", "sweep.seed={randint: [0, 9]}"),
    overrides("a million trials", "at most 10,000", "tune.samples=1000000", "sweep.seed={randint: [0, 9]}"),
    overrides("a draw beyond 64 bits", "randint: got", "sweep.seed={randint: [0, 9999999999999999999]}"),
    overrides("a draw between ±10³⁰⁸", "uniform: got", "sweep.cost.delay_weight={uniform: [-1e308, 1e308]}"),
    overrides("10¹⁸ devices", "fleet.num_devices: got", "fleet.num_devices=1000000000000000000"),
    overrides("10⁹ edges", "fleet.num_edges: got", "fleet.num_edges=1000000000"),
    overrides(
        "a Dirichlet partition with α = 10³⁰⁸",
        "data.dirichlet_alpha: got",
        "data.partition=dirichlet",
        "data.dirichlet_alpha=1e308",
    ),
    overrides("the home of nobody", "which is no path", "data.root=~nobody_here/x"),
    overrides("a data file's name of 300 letters", "no such file", f"data.name={'x' * 300}.npz"),
    overrides("a sweep's name of 300 letters", "at most 100", f"name={'x' * 300}"),
    words("a text as `data` and `--data-root`", "data: got", FILE, "--set", "data=x", "--data-root", "."),
    words("a file whose name is a space", "' ': cannot read", " "),
    words("an endless file", "200,000 characters", "/dev/zero"),
    words("`--resume` with an absolute path", "no unfinished sweep", "--resume", "/nowhere/x"),
    words("`--resume 'a**b'`", "no unfinished sweep", "--resume", "a**b"),
    data("an encrypted data file", "cannot be read as plain arrays", encrypted()),
    data("images of 2,000 × 2,000", "parameters", archive((2000, 2000))),
)
