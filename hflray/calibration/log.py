"""The log of real devices: who computed and sent how much when, and how long it took."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hflray.errors import ConfigError
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.files import write
from hflray.support.tables import Table, match, open_table
from hflray.support.text import breaks_lines, one_line, shorten

NEEDED = ("device", "round", "samples", "steps", "train_s", "bytes", "send_s")
OPTIONAL = ("train_j", "send_j", "edge", "batch")
MOST = {"round": 1e9, "samples": 1e15, "steps": 1e12, "batch": 1e9, "bytes": 1e15, "train_s": 1e9, "send_s": 1e9,
        "train_j": 1e15, "send_j": 1e15}  # fmt: skip
LEAST = {"train_s": 1e-9, "send_s": 1e-9, "train_j": 1e-12, "send_j": 1e-12}  # less was not measured
MOST_ROWS = 1_000_000
MOST_LISTED = 12  # names of columns in a message
HINT = ", or give its name in the file with --columns, as in --columns train_s=fit_seconds"


@dataclass(frozen=True, eq=False)
class Log:
    """The rows of a log; quantities that a row lacks are NaN.

    Attributes:
        devices, edges: their names; edges are empty without that column.
        device, edge: the place of each row's device and edge among them, (n,); the edge is 0 without names.
        numbers: ``round``, ``samples``, ``steps``, ``batch``, ``bytes``, and the seconds and joules, each (n,).
        notes: remarks for the user.
    """

    devices: tuple[str, ...]
    edges: tuple[str, ...]
    device: IntArray
    edge: IntArray
    numbers: Mapping[str, FloatArray]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.device)

    def has(self, name: str) -> bool:
        """Return whether any row has this number, above 0."""
        return bool((self.numbers[name] > 0).any())


def renamed_columns(texts: Sequence[str]) -> dict[str, str]:
    """Return the names in the file by known names, from ``known=file_names,…``. Raises ConfigError: a text is wrong."""
    renamed: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        known_name, is_pair, in_file = (piece.strip() for piece in part.partition("="))
        is_again = known_name in renamed or in_file.lower() in map(str.lower, renamed.values())
        if not (is_pair and in_file) or known_name not in (*NEEDED, *OPTIONAL) or is_again:
            raise ConfigError(
                f"--columns: got {shorten(part)}{', a name for the second time' * is_again}; accepted: "
                f"NAME=NAME_IN_THE_FILE, each once, with one of {', '.join((*NEEDED, *OPTIONAL))}; correct it"
            )
        renamed[known_name] = in_file
    return renamed


def read_log(path: Path, renamed: Mapping[str, str]) -> Log:
    """Return the log in a CSV or Parquet file.

    Args:
        path: the file.
        renamed: names of columns in the file by our names.

    Raises:
        ConfigError: the file cannot be read, or a cell is wrong; the message names the row and the column.
    """
    table, _ = open_table("LOG", str(path))
    if len(table) > MOST_ROWS:
        raise ConfigError(f"{table.name}: has {len(table):,} rows; accepted: at most {MOST_ROWS:,}; cut the file")
    notes = _looked_at(table, renamed)
    columns, unused = match(table, (*NEEDED, *OPTIONAL), renamed, HINT)
    for name in (*renamed, *NEEDED):
        if name not in columns:
            raise ConfigError(
                f"{table.name}, row 1: has no column {one_line(renamed.get(name, name))}; accepted: "
                f"{', '.join(NEEDED)}; add it{HINT}"
            )
    if unused:
        notes.append(f"nothing uses the columns {', '.join(map(one_line, unused[:8]))}{', …' * (len(unused) > 8)}")
    numbers = {}
    for name, most in MOST.items():
        if name in columns:
            read = table.filled if name in ("round", "samples", "steps") else table.numbers
            numbers[name] = read(columns[name], 0.0, most)
        else:
            numbers[name] = np.full(len(table), np.nan)
    devices, device = _names(table, columns["device"])
    edges, edge = _names(table, columns["edge"]) if "edge" in columns else ((), np.zeros(len(table), np.intp))
    with np.errstate(invalid="ignore", divide="ignore"):
        by_steps = numbers["samples"] / numbers["steps"]
    for name, least in LEAST.items():
        numbers[name] = np.where(numbers[name] >= least, numbers[name], np.nan)
    numbers["batch"] = np.where(np.isnan(numbers["batch"]), by_steps, numbers["batch"])
    for name in ("device", "edge"):
        if name in columns and len(set(table.texts(columns[name], trim=False))) > len(set(table.texts(columns[name]))):
            notes.append(
                f"spaces around a name in column {one_line(columns[name])} are left out, which makes names one"
            )
    for name, fitted in (("train_s", "train_s"), ("send_s", "send_s"), ("bytes", "send_s")):
        lacks = np.isnan(numbers[name]) if name == "bytes" else ~(numbers[name] > 0)
        if empty := int(lacks.sum()):
            above = " above 0" * (name != "bytes")
            of = f"{empty:,} of {len(table):,} rows {'has' if empty == 1 else 'have'}"
            notes.append(f"{of} no {name}{above}: left out of the fit of {fitted}")
    every = pd.DataFrame({"device": device, "edge": edge, **numbers})
    again = every.duplicated().to_numpy()
    if again.any():
        second = int(np.flatnonzero(again)[0])
        first = int(
            np.flatnonzero((every == every.iloc[second]).to_numpy().sum(axis=1) == every.iloc[second].count())[0]
        )
        rows = f"row {table.row(second)} does row {table.row(first)}"
        repeat = "1 row repeats" if again.sum() == 1 else f"{again.sum():,} rows repeat"
        notes.append(f"{repeat} an earlier one, as {rows}, and count once")
        device, edge, numbers = device[~again], edge[~again], {name: values[~again] for name, values in numbers.items()}
    return Log(devices, edges, device, edge, numbers, tuple(notes))


def _looked_at(table: Table, renamed: Mapping[str, str]) -> list[str]:
    """Return notes on names of columns. Raises ConfigError: one is not in the file, or says another unit."""
    held, notes = {column.lower(): column for column in table.columns}, list[str]()
    for name in renamed.values():
        if name.lower() not in held and name not in table.left_out:
            listed = ", ".join(map(one_line, table.columns[:MOST_LISTED])) + ", …" * (len(held) > MOST_LISTED)
            raise ConfigError(
                f"--columns: {table.name} has no column {one_line(name)}; its columns are {listed}; correct it"
            )
    by_theirs = {name.lower(): field for field, name in renamed.items()}
    for lower, column in held.items():
        field = by_theirs.get(lower, re.sub(r"_m[sj]$", lambda end: f"_{end[0][-1]}", lower))
        is_small = field in LEAST and re.search(r"(^|_)m[sj]$|milli", lower)
        if is_small and lower in by_theirs:
            notes.append(f"column {one_line(column)}, used as {field}, looks like thousandths: check its unit")
        elif is_small and field not in held and field not in renamed:
            content, unit = ("milliseconds", "seconds") if field.endswith("_s") else ("millijoules", "joules")
            raise ConfigError(
                f"{table.name}, column {one_line(column)}: looks like {content}; accepted: {unit}, in a column "
                f"{field}; divide by 1,000"
            )
    return notes


def _names(table: Table, column: str) -> tuple[tuple[str, ...], IntArray]:
    """Return the different names of a column in their order, numbers by size, and the place of each row's name."""
    texts = table.texts(column)
    first = dict[str, int]()
    for row, text in enumerate(texts):
        first.setdefault(text, row)
    for text, row in first.items():
        if not text or breaks_lines(text):
            raise table.error(row, column, f"got {shorten(text)}; accepted: a name of one line; name it")
    is_number = all(re.fullmatch(r"\d{1,15}", text) for text in first)
    names = tuple(sorted(first, key=(lambda text: (int(text), text)) if is_number else None))
    place = {name: index for index, name in enumerate(names)}
    return names, np.array([place[text] for text in texts], dtype=np.intp)


def write_example(path: Path) -> Path:
    """Write a log of six devices at two edges, whose constants are in its last lines of code; return its path."""
    rng, lines = np.random.default_rng(62), [",".join((*NEEDED, "train_j", "send_j", "edge", "batch"))]
    for round_number in range(1, 25):
        for device in range(6):
            batch, steps = (int(rng.choice(sizes)) for sizes in ((8, 16, 32, 64), (10, 20, 40)))
            size, edge = int(rng.choice((250_000, 460_000))), int(rng.integers(2))
            noise = rng.lognormal(0, 0.04, 4)
            train_s = (0.3 + (0.01 + 0.0006 * batch) * (1 + 0.3 * device) * steps) * noise[0]
            send_s = (0.05 + 8e-6 * size / (4 + 2 * edge + device)) * noise[1]
            numbers = (train_s, size, send_s, 3 * train_s * noise[2], 1.2 * send_s * noise[3])
            cells = (f"device{device}", round_number, batch * steps, steps, *(f"{value:.6g}" for value in numbers))
            lines.append(",".join(map(str, (*cells, ("north", "south")[edge], batch))))
    return write(path, "\n".join(lines) + "\n")
