"""What the files of a sweep must hold: ``sweep.json``, the lines of a journal, a run's history and its tables.

A results folder may be a stranger's, or damaged in a way that keeps its checksums. What has a wrong type is therefore
found where it is read, and nothing that computes with it meets a text in place of a number. Keys that are not named
here are left alone, because another version of hflray may have written them.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from hflray.support.reader import UnfitError
from hflray.support.text import one_line, shorten

MOST = 2**53  # of a whole number, which is then exact as a float too
Count = Annotated[int, Field(ge=0, lt=MOST)]
_LISTS = {
    "devices": "iu", "edges": "iu", "bandwidth_hz": "iuf", "cpu_hz": "iuf", "share": "iuf", "polled": "iu",
}  # with NumPy's kinds # fmt: skip
_BESIDE = tuple(_LISTS)[:5]  # these lists of a round have a number for each scheduled device


class TrackedContent(BaseModel):
    """What a tracker needs of ``sweep.json``."""

    uri: str
    experiment: str
    sinks: list[str] | None = None
    references: list[dict[str, str | int | bool | None]] = []


class SweepContent(TrackedContent):
    """``sweep.json``, see `hflray.sweep.results.SweepFolder`."""

    version: int
    file: dict[str, Any]
    finished: bool
    storage: str | None = None
    inputs: list[dict[str, str]] = []
    started_ms: Count = 0
    by_loop: bool = False


class RunContent(BaseModel):
    """What is known of a run besides its configuration and its tables."""

    name: str
    status: str
    error: str | None
    environment: dict[str, str]
    values: dict[str, float]
    started_ms: Count
    ended_ms: Count
    stopped: str | None = None


class DevicesContent(BaseModel):
    """The devices of a run, see `hflray.experiment.Experiment.devices`."""

    samples: list[Count]
    class_counts: list[list[float]] = Field(min_length=1)
    clusters: list[Count] | None = None
    class_names: list[str] = []

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        columns = [self.samples] if self.clusters is None else [self.samples, self.clusters]
        widths, names = {*map(len, self.class_counts)}, self.class_names
        if len(widths) > 1 or any(len(column) != len(self.class_counts) for column in columns):
            raise ValueError("rows or columns differ in length")
        if names and not len(self.class_counts[0]) == len(names) == len({*names}):
            raise ValueError("the names of the classes are not one for each")
        return self


class JournalLine(BaseModel):
    """A line of a journal, see `hflray.tracking.journal`. No line has all of these keys."""

    start: Count = 0
    name: str = ""
    params: dict[str, Any] = {}
    tags: dict[str, str] = {}
    artifacts: dict[str, str] = {}
    dataset: dict[str, str] | None = None
    round: Count = 0
    time: float = 0.0
    metrics: dict[str, float] = {}
    schedule: dict[str, float | list[float]] = {}
    timeline: str = ""
    model_hash: str = ""
    devices: DevicesContent | None = None
    end: str = ""
    error: str | None = None
    artifact: str = ""
    path: str | None = None
    draw: Count = 0
    values: dict[str, Any] = {}
    exchange: Count = 0
    donor: str | None = Field(None, alias="from")
    among: list[str] = []

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        keys = self.model_fields_set
        if ("draw" in keys and "values" not in keys) or ("exchange" in keys and not keys >= {"values", "among"}):
            raise ValueError("the values of a draw or an exchange, or its members, are missing")
        if "devices" in keys and self.devices is None:
            raise ValueError("devices are missing")
        beside = [self.schedule[name] for name in _BESIDE if name in self.schedule]
        lengths = {len(values) if isinstance(values, list) else -1 for values in beside}
        if -1 in lengths or len(lengths) > 1:
            raise ValueError(f"the lists of {', '.join(_BESIDE)} differ in length")
        return self


def check_tables(rounds: Any, devices: Any | None, num_devices: int, num_edges: int) -> None:
    """Check the tables of a run, see `hflray.tracking.RunTables`.

    Args:
        rounds, devices: the tables.
        num_devices, num_edges: N and M of the run's configuration.

    Raises:
        UnfitError: a column lacks, or holds another thing than numbers; it names the column.
    """
    if rounds.columns.has_duplicates or (devices is not None and devices.columns.has_duplicates):
        raise UnfitError("two columns have one name")
    for name in rounds:
        if name not in _LISTS:
            _check_column("rounds", name, rounds[name])
    if len(rounds.columns):
        numbers = _check_column("rounds", "round", rounds.get("round"), whole=True)
        if len(numbers) and (numbers.min() < -1 or len(np.unique(numbers)) < len(numbers)):
            raise UnfitError("rounds: column round: a round is there twice, or negative")
    most = {"devices": num_devices, "edges": num_edges, "polled": num_devices}
    lengths = {name: [_check_cell(name, cell, most.get(name)) for cell in rounds[name]]
               for name in _LISTS if name in rounds}  # fmt: skip
    beside = [lengths[name] for name in _BESIDE if name in lengths]
    if any(column != beside[0] for column in beside):
        raise UnfitError(f"rounds: the lists of {', '.join(_BESIDE)} differ in length")
    if devices is not None:
        for name in dict.fromkeys(["device", "samples", *devices]):
            _check_column("devices", name, devices.get(name), whole=True)
        if list(devices["device"]) != list(range(num_devices)) or devices["samples"].min() < 0:
            raise UnfitError(f"devices: column device: accepted: 0 to {num_devices - 1}, each once, with its samples")


def _check_column(table: str, name: str, column: Any, whole: bool = False) -> Any:
    """Return a column's numbers, (n,). Raises UnfitError: it holds others, or is missing (None)."""
    values = np.array(None) if column is None else np.asarray(column)
    whole_ok = not whole or (values.dtype.kind in "iuf" and bool(np.isfinite(values).all() and (values % 1 == 0).all()))
    if values.dtype.kind not in "iufb" or not whole_ok or (whole and values.size and np.abs(values).max() >= MOST):
        got = "nothing" if column is None else f"{values.dtype}, as {shorten(values[0])}" if len(values) else "no row"
        raise UnfitError(f"{table}: column {one_line(name)[:80]}: got {got}; accepted: {'whole ' * whole}numbers")
    return values


def _check_cell(name: str, cell: Any, most: int | None) -> int | None:
    """Return the length of a list in a table of rounds; None if there is none. Raises UnfitError: it is another."""
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return None
    try:
        values = np.asarray(cell)
    except ValueError:
        values = np.array(None)
    fits = values.ndim == 1 and (values.dtype.kind in _LISTS[name] or not values.size)
    if not fits or (most is not None and values.size and not 0 <= values.min() <= values.max() < most):
        accepted = "numbers" if most is None else f"whole numbers from 0 to {most - 1}"
        raise UnfitError(f"rounds: column {name}: got {shorten(cell)}; accepted: lists of {accepted}")
    return len(values)
