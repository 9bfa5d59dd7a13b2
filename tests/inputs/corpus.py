"""Inputs that once ended in a traceback, in the wrong line, or not at all; most stand in corpus.yaml."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from tests.inputs.grammar import LAUGHS, SMALL, Case

FILE = "small.yaml"


class Mended(NamedTuple):
    """An input that is now handled: what it is, what its line has now (None: it is valid), and the call."""

    name: str
    now: str | None
    case: Case


def mended(
    name: str, now: str | None = None, file: str = SMALL, set: Sequence[str] = (), words: Sequence[str] = (FILE,),
    data: bytes = b"",
) -> Mended:  # fmt: skip
    """Return an input: a sweep file, overrides, arguments, or a data file."""
    overrides = [word for text in (*set, *(["data.name=mine.npz"] if data else [])) for word in ("--set", text)]
    files = {FILE: file.encode(), "été.yaml": SMALL.encode(), "mine.npz": data}
    return Mended(name, now, Case(-1, "mended", name, (*words, "--dry-run", *overrides), files))


def archive(*shape: int) -> bytes:
    """Return a data file of zeros with images of a shape."""
    buffer, counts = io.BytesIO(), {"train": 40, "test": 10}
    arrays = {f"x_{part}": np.zeros((count, *shape), np.uint8) for part, count in counts.items()}
    arrays |= {f"y_{part}": np.arange(count) % 10 for part, count in counts.items()}
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def encrypted() -> bytes:
    """Return a data file that marks every array as encrypted, in the directory and at the array."""
    content = archive(16, 16)
    for head, flags in ((rb"PK\x01\x02", 8), (rb"PK\x03\x04", 6)):
        content = re.sub(rb"(?s)(%s.{%d})." % (head, flags - 4), lambda match: match[1] + b"\x01", content)
    return content


MENDED = (
    *(mended(**entry) for entry in yaml.safe_load(Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8"))),
    mended("aliases that make 10⁹ values", "100,000 values", LAUGHS + "experiment: {assignment: {options: {x: *a9}}}"),
    mended("3,000 levels", "nested too deeply", "experiment: " + "{a: " * 3000 + "1" + "}" * 3000),
    mended("a number of 5,000 digits", "digits", f"experiment: {{seed: {'9' * 5000}}}\n"),
    mended("a long file", "200,000 characters", "- [a, b, c]\n" * 100_000),
    mended("a file whose name begins with another letter", words=["été.yaml"]),
    mended("a data file's name of 300 letters", "no such file", set=[f"data.name={'x' * 300}.npz"]),
    mended("a sweep's name of 300 letters", "at most 100", set=[f"name={'x' * 300}"]),
    mended("an encrypted data file", "cannot be read as plain arrays", data=encrypted()),
    mended("images of 2,000 × 2,000", "parameters", data=archive(2000, 2000)),
)
