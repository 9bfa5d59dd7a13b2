"""What the tables of ``fleet: {name: table}`` say: devices, edges and links from CSV or Parquet, in SI units.

Rows of the files, and what a column means, are in ``docs/howto/system.md``. What a file lacks is NaN here and drawn
later (`hflray.fleet.build`). N, M and the area of the configuration follow from the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, repeat
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from hflray.config.base import Section
from hflray.config.explanations import validate
from hflray.errors import ConfigError
from hflray.support import pinned
from hflray.support.arrays import BoolArray, FloatArray
from hflray.support.tables import Table, match, read_table
from hflray.support.text import breaks_lines, one_line, shorten

FILES = ("devices", "edges", "links")
METRES_PER_DEGREE = 6_371_000 * np.pi / 180  # of a great circle on a sphere of the earth's mean radius
TRAINING_PASSES = 3.0  # FedScale's ``computation`` is a forward pass, and the backward pass takes twice as long
PLACES = {"metres": ("x_m", "y_m"), "degrees": ("longitude", "latitude")}
BOUNDS = {"longitude": (-180.0, 180.0), "latitude": (-90.0, 90.0), "x_m": (-1e9, 1e9), "y_m": (-1e9, 1e9)}
HINT = ", or give its name in the file with fleet.options.columns, as in {latitude: LATITUDE}"


class Column(NamedTuple):
    """A column of numbers: the field of `Fleet.of`, the accepted numbers, and how they become SI units."""

    field: str
    most: float
    least: float | None = None  # None: above 0
    si: Callable[[FloatArray], FloatArray] = lambda values: values


def _watts(dbm: FloatArray) -> FloatArray:
    return np.asarray(10.0 ** (dbm / 10.0) * 1e-3)


def _times(factor: float) -> Callable[[FloatArray], FloatArray]:
    return lambda values: values * factor


COLUMNS: dict[str, dict[str, Column]] = {
    "devices": {
        "cycles_per_sample": Column("cycles_per_sample", 1e15),
        "seconds_per_sample": Column("seconds_per_sample", 1e9),
        "computation": Column("seconds_per_sample", 1e12, si=_times(TRAINING_PASSES * 1e-3)),
        "max_cpu_ghz": Column("max_cpu_hz", 1e6, si=_times(1e9)),
        "power_dbm": Column("power_w", 200.0, -200.0, _watts),
        "capacitance": Column("capacitance", 1.0),
        "battery_j": Column("battery_j", 1e15, 0.0),
        "communication": Column("rate_bps", 1e12, si=_times(1e3)),
        "fixed_s": Column("fixed_s", 1e9, 0.0),
        "step_s": Column("step_s", 1e9, 0.0),
        "compute_w": Column("compute_w", 1e6),
        "upload_w": Column("upload_w", 1e6),
    },
    "edges": {
        "bandwidth_mhz": Column("edge_bandwidth_hz", 1e9, si=_times(1e6)),
        "power_dbm": Column("edge_power_w", 200.0, -200.0, _watts),
        "cloud_mbps": Column("cloud_rate_bps", 1e9, si=_times(1e6)),
    },
    "links": {
        "gain_db": Column("gain", 100.0, -400.0, lambda db: np.asarray(10.0 ** (db / 10.0))),
        "mbps": Column("rate_bps", 1e9, si=_times(1e6)),
        "latency_s": Column("latency_s", 1e6, 0.0),
    },
}  # fmt: skip
# What an empty cell means where nothing is drawn for it.
EMPTY = dict.fromkeys(("fixed_s", "step_s", "latency_s"), "stand for 0") | dict.fromkeys(
    ("compute_w", "upload_w"), "are not known"
)
KEYS = {"devices": ("device",), "edges": ("edge",), "links": ("device", "edge")}
PARENT = "parent"  # the column of edges that names the region of each
MEANINGS = sorted({*BOUNDS, PARENT, *(name for key in COLUMNS for name in (*KEYS[key], *COLUMNS[key]))})


@dataclass(frozen=True, eq=False)
class FleetTable:
    """What the files of a fleet say.

    Attributes:
        files: the names of the files, for messages.
        num_devices, num_edges: N and M; None: no file says it.
        area_m: the side of the square, m; None: no file has a place.
        is_area_exact: whether the files alone say `area_m`; else it is the least side, and the configuration may have a
            larger one.
        arrays: arrays as in `Fleet.of`.
        device_names, edge_names: what the files call devices and edges; None: nothing.
        edge_parents: the region of each edge (`hflray.fleet.tree`); None: no file says it.
        notes: remarks for the user.
    """

    files: str
    num_devices: int | None
    num_edges: int | None
    area_m: float | None
    is_area_exact: bool
    arrays: dict[str, FloatArray]
    device_names: tuple[str, ...] | None
    edge_names: tuple[str, ...] | None
    edge_parents: tuple[str, ...] | None
    notes: tuple[str, ...]


class TableOptions(Section):
    """The options of ``fleet: {name: table}``."""

    devices: str | None = Field(None, description="path of the file of devices")
    edges: str | None = Field(None, description="path of the file of edges")
    links: str | None = Field(None, description="path of the file of links")
    columns: dict[str, str] = Field({}, description="names in the file by known names, as in {latitude: LATITUDE}")
    area: dict[str, tuple[float, float]] | None = None
    """the box of the rows that are taken, {x_m: [low, high], …} or {latitude: [low, high], …}"""


def pinned_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked options with pinned names of files. Raises ConfigError: one is wrong or cannot be read."""
    checked = validate(TableOptions, options, "fleet.options.")
    for name in checked.columns:
        if name not in MEANINGS:
            raise ConfigError(
                f"fleet.options.columns: unknown column {shorten(name)}; known: {', '.join(MEANINGS)}; correct it"
            )
    pinned_files: dict[str, str] = {}
    for key in FILES:
        name = getattr(checked, key)
        try:  # the file of a pinned name is not looked for, since a stranger may have named it
            pinned_files |= {} if name is None else {key: name if pinned.is_pinned(name) else pinned.pin(name)}
        except ConfigError as error:
            raise ConfigError(f"fleet.options.{key}: got {shorten(pinned.plain(name))}; {error}") from error
    if not pinned_files:
        raise ConfigError("fleet.options: got no file; accepted: devices, edges or links; name one")
    return dict(options) | pinned_files


def is_pinned(options: object) -> bool:
    """Return whether the names of all files among the options are pinned."""
    named = _named(options)
    return any(named) and all(name is None or pinned.is_pinned(name) for name in named)


def is_at_hand(options: object) -> bool:
    """Return whether this process holds all files among the options, whose names are pinned."""
    return all(pinned.inputs_of([name]) for name in _named(options) if name)


def _named(options: object) -> list[Any]:
    return [options.get(key) for key in FILES] if isinstance(options, Mapping) else []


def fleet_table(options: Mapping[str, Any]) -> FleetTable:
    """Return what the files among the options of ``fleet`` say; equal options are read once.

    Raises:
        ConfigError: an option or a file is wrong; the message names the file, the row and the column.
    """
    return _read(json.dumps(pinned_options(options), sort_keys=True))


@lru_cache(maxsize=4)
def _read(options_json: str) -> FleetTable:
    options: dict[str, Any] = json.loads(options_json)
    renamed: dict[str, str] = options.get("columns") or {}
    tables: dict[str, Table] = {}
    for key in FILES:
        if options.get(key):
            file, content = pinned.content_of(options[key])
            tables[key] = read_table(f"fleet.options.{key}: {file}", file, content)
    notes: list[str] = []
    columns = _matched(tables, renamed, notes)
    names = {key: _names(tables[key], columns[key].get(KEYS[key][0])) for key in ("devices", "edges") if key in tables}
    places_m, area_m, chosen, is_exact = _places(tables, columns, options.get("area"), notes)
    arrays = dict[str, FloatArray]()
    for key in ("devices", "edges"):
        if key in places_m:
            arrays["position_m" if key == "devices" else "edge_position_m"] = places_m[key][chosen[key]]
        for name, column in columns.get(key, {}).items():
            if name in COLUMNS[key]:
                _give(arrays, key, name, _numbers(tables[key], key, name, column, notes)[chosen[key]], tables[key])
    every = {key: names.get(key) for key in ("devices", "edges")}
    if "links" in tables:
        _give_links(arrays, tables["links"], columns["links"], every, chosen, notes)
    sizes = {key: len(named) for key, named in every.items() if named}
    sizes |= {key: int(rows.sum()) for key, rows in chosen.items()}
    if "rate_bps" in arrays and arrays["rate_bps"].ndim == 1:  # FedScale's rate of a device, to whichever edge
        arrays["rate_bps"] = arrays["rate_bps"][:, None]
    if "gain" in arrays and "rate_bps" in arrays:
        arrays["rate_bps"] = np.where(np.isnan(arrays["gain"]), arrays["rate_bps"], np.nan)
    called = dict[str, tuple[str, ...]]()
    for key, all_names in every.items():
        if all_names is not None and (key not in tables or KEYS[key][0] in columns[key]):
            called[key] = tuple(compress(all_names, chosen.get(key, repeat(True))))
    return FleetTable(
        files=", ".join(pinned.plain(options[key]) for key in tables),
        num_devices=sizes.get("devices"),
        num_edges=sizes.get("edges"),
        area_m=area_m,
        is_area_exact=is_exact,
        arrays=arrays,
        device_names=called.get("devices"),
        edge_names=called.get("edges"),
        edge_parents=_parents(tables, columns, chosen),
        notes=tuple(notes),
    )


def _parents(
    tables: Mapping[str, Table], columns: Mapping[str, Mapping[str, str]], chosen: Mapping[str, BoolArray]
) -> tuple[str, ...] | None:
    """Return the region of each edge that is taken; None: the file of edges has no column `PARENT`."""
    column = columns.get("edges", {}).get(PARENT)
    if column is None:
        return None
    texts = tables["edges"].texts(column)
    if "" in texts:
        raise tables["edges"].error(texts.index(""), column, "is empty; accepted: the name of a region; give it")
    return tuple(compress(texts, chosen["edges"]))


def _matched(tables: Mapping[str, Table], renamed: Mapping[str, str], notes: list[str]) -> dict[str, dict[str, str]]:
    """Return the columns of each file that mean something, by their known names; what nothing uses becomes a note.

    Raises:
        ConfigError: a column is misspelt, a file has none that means something, or a renamed one is in no file.
    """
    columns = dict[str, dict[str, str]]()
    for key, table in tables.items():
        places = () if key == "links" else (*PLACES["metres"], *PLACES["degrees"])
        names = (*KEYS[key], *((PARENT,) if key == "edges" else ()), *places, *COLUMNS[key])
        columns[key], unused = match(table, names, renamed, HINT)
        if not columns[key]:
            raise ConfigError(
                f"{table.name}, row 1: none of the columns {', '.join(map(one_line, unused[:4]))} means anything; "
                f"accepted: names such as {', '.join((*KEYS[key], *places[:2], *COLUMNS[key]))}; add them{HINT}"
            )
        if unused:
            listed = ", ".join(map(one_line, unused[:8])) + ", …" * (len(unused) > 8)
            notes.append(f"{table.name}: nothing uses the columns {listed}")
    for name, file_name in renamed.items():
        if not any(of_file.get(name, "").lower() == file_name.lower() for of_file in columns.values()):
            raise ConfigError(
                f"fleet.options.columns.{name}: got '{one_line(file_name)}', which no file has; correct the name"
            )
    return columns


def _names(table: Table, column: str | None) -> tuple[str, ...]:
    """Return what a file calls its rows; without such a column, their numbers from 0."""
    if column is None:
        return tuple(map(str, range(len(table))))
    rows = dict[str, int]()
    for row, text in enumerate(table.texts(column)):
        if not text or breaks_lines(text):
            raise table.error(row, column, f"got {shorten(text)}; accepted: a text of one line; name the row")
        if text in rows:
            first = table.row(rows[text])
            raise table.error(row, column, f"'{one_line(text)}' is in row {first} too; accepted: each once; rename one")
        rows[text] = row
    return tuple(rows)


def _numbers(table: Table, key: str, name: str, column: str, notes: list[str]) -> FloatArray:
    """Return a column in SI units, NaN where a cell is empty, which becomes a note."""
    form = COLUMNS[key][name]
    above = 0.0 if form.least is None else None
    numbers = table.numbers(column, -np.inf if form.least is None else form.least, form.most, above)
    empty = int(np.isnan(numbers).sum())
    if empty:
        meaning = EMPTY.get(name, "are drawn")
        notes.append(f"{table.name}: {empty} of {len(table)} cells of {one_line(column)} are empty and {meaning}")
    return form.si(numbers)


def _give(arrays: dict[str, FloatArray], key: str, name: str, values: FloatArray, table: Table) -> None:
    """Add the numbers of a column to the arrays. Raises ConfigError: another column gives the same."""
    field = COLUMNS[key][name].field
    twins = [other for other, form in COLUMNS[key].items() if other != name and form.field == field]
    twins += {"cycles_per_sample": ["seconds_per_sample"], "seconds_per_sample": ["cycles_per_sample"]}.get(field, [])
    if any(field_name in arrays for field_name in (field, *twins)):
        raise ConfigError(f"{table.name}, column {name}: says the same as {' or '.join(twins)}; keep one of them")
    arrays[field] = values


def _places(
    tables: Mapping[str, Table],
    columns: Mapping[str, Mapping[str, str]],
    box: Mapping[str, Any] | None,
    notes: list[str],
) -> tuple[dict[str, FloatArray], float | None, dict[str, BoolArray], bool]:
    """Return the places, (n, 2), m, of each file that has them, the side of the square, m, the rows that are taken, and
    whether the side is exact.
    """
    chosen = {key: np.ones(len(tables[key]), dtype=bool) for key in ("devices", "edges") if key in tables}
    unit, raw = "", dict[str, FloatArray]()
    for key in chosen:
        units = [name for name, pair in PLACES.items() if any(column in columns[key] for column in pair)]
        for name in units:
            if unit not in ("", name) or len(units) > 1:
                raise ConfigError(
                    f"{tables[key].name}: has places in {' and '.join(units) if len(units) > 1 else name}"
                    + (f", and another file in {unit}" if len(units) == 1 else "")
                    + "; accepted: x_m and y_m, or latitude and longitude, in all files; keep one of the two"
                )
            unit = name
            raw[key] = _pair(tables[key], columns[key], PLACES[name])
    if not raw:
        if box is not None:
            raise ConfigError("fleet.options.area: no file has places; remove it")
        return {}, None, chosen, False
    pair = PLACES[unit]
    if unit == "degrees":
        _unwrap(raw)
    corners = _box(box, pair)
    if corners is not None:
        for key, array in raw.items():
            with np.errstate(invalid="ignore"):
                inside = np.isnan(array[:, 0]) | ((array >= corners[0]) & (array <= corners[1])).all(axis=1)
            if not inside.any():
                raise ConfigError(f"fleet.options.area: no row of {tables[key].name} lies in it; correct it")
            if not inside.all():
                notes.append(
                    f"{tables[key].name}: {int((~inside).sum())} of {len(inside)} rows lie outside of the area"
                )
            chosen[key] = inside
    points = np.concatenate([array[chosen[key]] for key, array in raw.items()])
    points = points[~np.isnan(points[:, 0])]
    if not len(points):
        return raw, None, chosen, False
    ends = np.array([points.min(axis=0), points.max(axis=0)]) if corners is None else corners
    if unit == "metres" and corners is None:
        for key, array in raw.items():
            for row, axis in np.argwhere(array < 0):
                column = columns[key][pair[axis]]
                raise tables[key].error(
                    int(row),
                    column,
                    f"got {array[row, axis]:g}; accepted: at least 0, or a box in fleet.options.area",
                )
        return raw, max(float(ends[1].max()), 0.1), chosen, False
    scale = np.ones(2)
    if unit == "degrees":
        middle = np.deg2rad(ends[:, 1].mean())
        scale = METRES_PER_DEGREE * np.array([np.cos(middle), 1.0])
    sides_m = (ends[1] - ends[0]) * scale
    area_m = max(float(sides_m.max()), 0.1)
    # Rounding must not put the last place outside.
    return {key: np.clip((array - ends[0]) * scale, 0.0, area_m) for key, array in raw.items()}, area_m, chosen, True


def _unwrap(places: Mapping[str, FloatArray]) -> None:
    """Let longitudes on both sides of the date line be neighbours, in place."""
    longitudes = np.concatenate([array[:, 0] for array in places.values()])
    if np.nanmax(longitudes, initial=-180.0) - np.nanmin(longitudes, initial=180.0) > 180.0:
        for array in places.values():
            array[:, 0] = np.where(array[:, 0] < 0, array[:, 0] + 360.0, array[:, 0])


def _pair(table: Table, columns: Mapping[str, str], pair: tuple[str, str]) -> FloatArray:
    lacking = [name for name in pair if name not in columns]
    if lacking:
        raise ConfigError(f"{table.name}: has no column {lacking[0]}; accepted: {' and '.join(pair)}; add it")
    values = [table.numbers(columns[name], *BOUNDS[name]) for name in pair]
    lone = np.flatnonzero(np.isnan(values[0]) != np.isnan(values[1]))
    if len(lone):
        name = pair[0] if np.isnan(values[0][lone[0]]) else pair[1]
        raise table.error(int(lone[0]), columns[name], f"is empty beside {' and '.join(pair)}; fill it, or empty both")
    return np.stack(values, axis=-1)


def _box(box: Mapping[str, Any] | None, pair: tuple[str, str]) -> FloatArray | None:
    """Return the corners of the box, (2, 2), of the option ``area``; None if it is not set."""
    if box is None:
        return None
    accepted = f"{{{pair[0]}: [low, high], {pair[1]}: [low, high]}}"
    corners = np.array([box[name] for name in pair if name in box], dtype=np.float64).T
    if set(box) != set(pair) or not (corners[0] < corners[1]).all():
        raise ConfigError(f"fleet.options.area: got {shorten(box)}; accepted: {accepted}; correct it")
    return corners


def _give_links(
    arrays: dict[str, FloatArray],
    table: Table,
    columns: Mapping[str, str],
    every: dict[str, tuple[str, ...] | None],
    chosen: dict[str, BoolArray],
    notes: list[str],
) -> None:
    """Add what links say, (N, M), to the arrays; without other files, devices and edges are those of the links."""
    ends = []
    for key, name in (("devices", "device"), ("edges", "edge")):
        if name not in columns:
            raise ConfigError(f"{table.name}: has no column {name}; accepted: device and edge of each link; add it")
        if every[key] is None:
            every[key] = tuple(dict.fromkeys(table.texts(columns[name])))
        ends.append(table.indices(columns[name], every[key] or (), f"no row of the {key}"))
    shape = len(every["devices"] or ()), len(every["edges"] or ())
    flat = ends[0] * shape[1] + ends[1]
    order = np.argsort(flat, kind="stable")
    again = np.flatnonzero(np.diff(flat[order]) == 0)
    if len(again):
        first, second = sorted((int(order[again[0]]), int(order[again[0] + 1])))
        raise table.error(second, columns["device"], f"the link is in row {table.row(first)} too; keep one of them")
    fields = [name for name in COLUMNS["links"] if name in columns]
    if not fields:
        raise ConfigError(f"{table.name}: has neither gain_db nor mbps; accepted: one of the two, or both; add it")
    has_both = "gain_db" in fields and "mbps" in fields
    values = {name: _numbers(table, "links", name, columns[name], [] if has_both else notes) for name in fields}
    if has_both:
        both = np.flatnonzero(~np.isnan(values["gain_db"]) & ~np.isnan(values["mbps"]))
        if len(both):
            raise table.error(int(both[0]), columns["mbps"], "stands beside gain_db; empty one of the two cells")
    rows, edges = (chosen.get(key, np.ones(size, bool)) for key, size in zip(("devices", "edges"), shape, strict=True))
    for name in fields:
        matrix, field = np.full(shape, np.nan), COLUMNS["links"][name].field
        matrix[ends[0], ends[1]] = values[name]
        matrix = matrix[rows][:, edges]
        if field in arrays:  # FedScale's rate of a device holds where no link says otherwise
            matrix = np.where(np.isnan(matrix), arrays[field][:, None], matrix)
        arrays[field] = matrix
