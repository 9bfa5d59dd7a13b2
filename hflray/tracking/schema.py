"""What the files of a sweep must hold: ``sweep.json``, the lines of a journal, a run's history and its tables.

A results folder may be a stranger's, or damaged in a way that keeps its checksums. What has a wrong type is therefore
found where it is read, and nothing that computes with it meets a text in place of a number. Keys that are not named
here are left alone, because another version of hflray may have written them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

from hflray.support.reader import UnfitError
from hflray.support.text import one_line, shorten

MOST = 2**53  # of a whole number, which is then exact as a float too
Count = Annotated[int, Field(ge=0, lt=MOST)]
_LISTS = {"devices": "iu", "edges": "iu", "bandwidth_hz": "iuf", "cpu_hz": "iuf", "polled": "iu"}  # with NumPy's kinds
_BESIDE = tuple(_LISTS)[:4]  # these lists of a round have a number for each scheduled device


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


class RunContent(BaseModel):
    """What is known of a run besides its configuration and its tables."""

    name: str
    status: str
    error: str | None
    environment: dict[str, str]
    values: dict[str, float]
    started_ms: Count
    ended_ms: Count


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < MOST)


def _are_numbers(values: Any) -> bool:
    kinds = {*map(type, values)}
    return kinds <= {float} or (kinds <= {int, float} and all(map(_is_number, values)))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_text_or_none(value: object) -> bool:
    return value is None or type(value) is str


def _are_texts(value: object) -> bool:
    return isinstance(value, dict) and {*map(type, value.values())} <= {str}


def _are_texts_or_none(value: object) -> bool:
    return value is None or _are_texts(value)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _are_metrics(value: object) -> bool:
    return isinstance(value, dict) and _are_numbers(value.values())


def _are_names(value: object) -> bool:
    return isinstance(value, list) and {*map(type, value)} <= {str}


def _is_schedule(value: object) -> bool:
    if not isinstance(value, dict) or not all(_is_number(each) or isinstance(each, list) for each in value.values()):
        return False
    lists = [each for each in value.values() if isinstance(each, list)]
    beside = [value[name] for name in _BESIDE if name in value]
    return all(map(_are_numbers, lists)) and all(map(_is_list, beside)) and len({*map(len, beside)}) < 2


def _are_devices(value: object) -> bool:
    """Return whether a value is that of `hflray.experiment.Experiment.devices`."""
    if not isinstance(value, dict) or not {"samples", "class_counts"} <= value.keys():
        return False
    counts = value["class_counts"]
    if not isinstance(counts, list) or not counts or not all(isinstance(row, list) for row in counts):
        return False
    names = value.get("class_names", [])
    if not _are_names(names) or (names and not len(counts[0]) == len(names) == len({*names})):
        return False
    columns = [value[name] for name in ("samples", "clusters") if name in value]
    return len({*map(len, counts)}) == 1 and all(map(_are_numbers, counts)) and all(
        isinstance(column, list) and len(column) == len(counts) and all(map(_is_count, column)) for column in columns
    )  # fmt: skip


# The keys by which a kind of line is known, the keys that it must have, and those that it may have.
_NEEDED: dict[str, dict[str, Callable[[Any], bool]]] = {
    "start": {"start": _is_count, "name": _is_text, "params": _is_mapping, "tags": _are_texts,
              "artifacts": _are_texts, "dataset": _are_texts_or_none},
    "round": {"round": _is_count, "time": _is_number, "metrics": _are_metrics},
    "devices": {"devices": _are_devices},
    "end": {"end": _is_text, "error": _is_text_or_none},
    "draw": {"draw": _is_count, "values": _is_mapping},
    "exchange": {"exchange": _is_count, "values": _is_mapping, "among": _are_names},
    "artifact": {"artifact": _is_text},
    "void_from": {"void_from": _is_count},
}  # fmt: skip
_WHOLE = ("devices", "draw", "exchange")  # whose readers need all keys; a shorter line of others is no such event
_ALLOWED: dict[str, Callable[[Any], bool]] = {
    "schedule": _is_schedule, "timeline": _is_text, "model_hash": _is_text, "tags": _are_texts,
    "path": _is_text_or_none, "from": _is_text_or_none,
}  # fmt: skip


def wrong_key(entry: Mapping[str, Any]) -> str | None:
    """Return a key of a journal's entry that is missing or has a value of a wrong type; None if there is none."""
    for kind, needed in _NEEDED.items():
        if kind in entry:
            for key, is_right in needed.items():
                if not is_right(entry[key]) if key in entry else kind in _WHOLE:
                    return key
    for key, is_right in _ALLOWED.items():
        if key in entry and not is_right(entry[key]):
            return key
    return None


def check_tables(rounds: Any, devices: Any | None, num_devices: int, num_edges: int) -> None:
    """Check the tables of a run, see `hflray.tracking.Tables`.

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
    if any(each != beside[0] for each in beside):
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
