"""Fleets by the section ``fleet`` (`build_fleet`), of a user's arrays (`Fleet.of`), and of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hflray import registry
from hflray.config import ExperimentConfig, FleetConfig
from hflray.config.fleet_table import fleet_table
from hflray.errors import ConfigError, blaming, nearest
from hflray.fleet.fleet import AXES, Fleet
from hflray.fleet.random import complete
from hflray.seeding import stream
from hflray.support.arrays import FloatArray
from hflray.support.contract import described
from hflray.support.references import spoken
from hflray.support.text import breaks_lines, shorten

ARGUMENTS = ("config", "rng")  # with which each is called
CHECKED = (
    "position_m", "edge_position_m", "cycles_per_sample", "samples", "max_cpu_hz", "power_w", "edge_power_w",
    "edge_bandwidth_hz", "cloud_gain",
)  # fmt: skip


def given_fleet(config: FleetConfig, seed: int) -> Fleet | None:
    """Return the one fleet of a run whose fleet is not drawn alone; None: every draw of a random fleet is another one.

    Args:
        config: the section ``fleet``.
        seed: the run's root seed.

    Raises:
        ConfigError: see `build_fleet`.
    """
    return None if config.name == "random" else build_fleet(config, stream(seed, "fleet"))


def build_fleet(config: FleetConfig | ExperimentConfig, rng: np.random.Generator) -> Fleet:
    """Make the fleet that ``fleet.name`` and ``fleet.options`` describe.

    Args:
        config: the section ``fleet``, or the whole configuration.
        rng: the only source of randomness. An experiment's is ``stream(seed, "fleet")``.

    Raises:
        ConfigError: the name or an option is unknown, a file is wrong, or a function of the user's own returned
            something else than N devices and M edges.

    Examples:
        >>> import numpy as np
        >>> from hflray import FleetConfig, build_fleet
        >>> build_fleet(FleetConfig(num_devices=3), np.random.default_rng(0)).num_devices
        3
    """
    config = config.fleet if isinstance(config, ExperimentConfig) else config
    make = registry.resolve("fleet", registry.check("fleet", config.name, "fleet.name"))
    registry.check_options("fleet", config.name, make, config.options, ARGUMENTS)
    if registry.is_registered("fleet", config.name):
        made: Fleet = make(config, rng, **config.options)
        return made
    try:
        fleet = make(config, rng, **config.options)
        _check_made(fleet, config)
    except ConfigError as error:
        raise ConfigError(f"fleet.name: {spoken(config.name)}: {error}") from error
    assert isinstance(fleet, Fleet)
    return fleet


def _check_made(fleet: object, config: FleetConfig) -> None:
    """Raise ConfigError if what a function of the user's own has made is no fleet of the configuration's size."""
    n, m = config.num_devices, config.num_edges
    accepted = f"a hflray.Fleet of {n} devices and {m} edges, as Fleet.of makes"
    if not isinstance(fleet, Fleet):
        raise ConfigError(f"returned {described(fleet)}; accepted: {accepted}; correct it")
    if (fleet.num_devices, fleet.num_edges) != (n, m):
        raise ConfigError(
            f"returned {fleet.num_devices} devices and {fleet.num_edges} edges; accepted: {accepted}; set "
            "fleet.num_devices and num_edges to them"
        )
    arrays = {name: np.asarray(getattr(fleet, name)) for name in CHECKED}
    if any(np.isnan(array).any() for array in arrays.values()):
        raise ConfigError("an array has NaN; accepted: numbers, since only Fleet.of replaces NaN; correct it")
    check_numbers(arrays, config.area_m)


FROM_0 = ("battery_j", "fixed_s", "step_s", "latency_s")  # these may be 0
INSTEAD = {"seconds_per_sample": "cycles_per_sample", "cloud_rate_bps": "cloud_gain", "rate_bps": "gain"}
NAMES = ("device_names", "edge_names", "edge_parents")
# The axes of what can be given.
FORMS = {name: axes for name, axes in AXES.items() if name not in ("samples", "distance_m", "downlink_hz")}
FORMS |= {other: AXES[name] for other, name in INSTEAD.items()}
# What must be given if there is no generator to draw it from.
NEEDED = ("gain", "cycles_per_sample", "power_w", "max_cpu_hz", "edge_bandwidth_hz", "cloud_gain")


def fleet_of(config: FleetConfig | None, rng: np.random.Generator | None, values: Mapping[str, Any]) -> Fleet:
    """Return the fleet of `Fleet.of`."""
    values = {name: value for name, value in values.items() if value is not None}
    for name in values:
        if name not in FORMS:
            raise ConfigError(f"Fleet.of: unknown array '{name}'{nearest(name, FORMS)}; known: {', '.join(FORMS)}")
    arrays = {name: _array(name, value) for name, value in values.items() if name not in NAMES}
    config = _config_of(arrays, values) if config is None else config
    lengths = {"n": config.num_devices, "m": config.num_edges, "2": 2}
    for name, array in arrays.items():
        shape = tuple(lengths[letter] for letter in FORMS[name])
        if array.shape != shape:
            raise ConfigError(
                f"{name}: got shape {array.shape}; accepted: {shape} for {config.num_devices} devices and "
                f"{config.num_edges} edges; correct it, or fleet.num_devices and fleet.num_edges"
            )
    for other, name in INSTEAD.items():
        if other in arrays and name in arrays and bool((~np.isnan(arrays[other]) & ~np.isnan(arrays[name])).any()):
            raise ConfigError(f"{other}: got it beside {name}, in whose place it stands; give one of the two")
    if rng is None:
        instead = {name: other for other, name in INSTEAD.items()}
        lacking = [name for name in NEEDED if not _is_whole(arrays, name, instead)]
        if lacking:
            raise ConfigError(
                f"Fleet.of: got no rng to draw {', '.join(lacking)} from; accepted: a generator, or these arrays; "
                "pass the rng that your function gets"
            )
        rng = np.random.default_rng(0)
    check_numbers(arrays, config.area_m)
    names = {name: _names(name, values[name], lengths[FORMS[name][0]]) for name in NAMES if name in values}
    return complete(config, rng, arrays, **names)


def check_numbers(arrays: Mapping[str, FloatArray], area_m: float) -> None:
    """Raise ConfigError, naming the array and its first bad index, unless all numbers are possible ones; NaN is."""
    for name, array in arrays.items():
        if name.endswith("position_m"):
            bad, accepted = (array < 0) | (array > area_m), f"0 to {area_m:g} m, the area"
        elif name in FROM_0:
            bad, accepted = ~(array >= 0) | np.isinf(array), "a finite number of at least 0"
        else:
            bad, accepted = ~(array > 0) | np.isinf(array), "a finite number above 0"
        places = np.argwhere(bad & ~np.isnan(array))
        if len(places):
            where = ", ".join(map(str, places[0]))
            raise ConfigError(f"{name}[{where}]: got {array[tuple(places[0])]:g}; accepted: {accepted}; correct it")


def _array(name: str, value: ArrayLike) -> FloatArray:
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "uif":
            raise ValueError(f"numbers are needed, and it has type {array.dtype}")
        return array.astype(np.float64)
    except (ValueError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{name}: no array ({reason}); accepted: shape ({', '.join(FORMS[name])})") from error


def _config_of(arrays: Mapping[str, FloatArray], values: Mapping[str, Any]) -> FleetConfig:
    """Return the section ``fleet`` that arrays without one stand for."""
    counts: dict[str, int] = {}
    for name, letters in FORMS.items():
        shape = arrays[name].shape if name in arrays else (len(values[name]),) if name in values else ()
        for letter, length in zip(letters, shape, strict=False):
            counts.setdefault(letter, length)
    for letter, words in (("n", "device"), ("m", "edge")):
        if not counts.get(letter):
            raise ConfigError(f"Fleet.of: no array says how many {words}s there are; give one, or a config")
    sections = {"num_devices": counts["n"], "num_edges": counts["m"]}
    places = [arrays[name] for name in ("position_m", "edge_position_m") if name in arrays and arrays[name].size]
    largest_m = max((float(np.nanmax(array, initial=0.0)) for array in places), default=0.0)
    return FleetConfig(**sections, **({"area_km": max(largest_m, 0.1) / 1e3} if places else {}))


def _is_whole(arrays: Mapping[str, FloatArray], name: str, instead: Mapping[str, str]) -> bool:
    present = [~np.isnan(arrays[key]) for key in (name, instead.get(name, name)) if key in arrays]
    return bool(present) and bool(np.logical_or.reduce(present).all())


def _names(name: str, values: Sequence[object], count: int) -> tuple[str, ...]:
    texts = tuple(map(str, values))
    if len(texts) != count:
        raise ConfigError(f"{name}: got {len(texts)} texts; accepted: {count}, one for each; correct it")
    for text in texts:
        if not text or breaks_lines(text):
            raise blaming(f"{name}: got {shorten(text)}", "a text of one line that is not empty")
    if len(set(texts)) < count:
        again = next(text for text in texts if texts.count(text) > 1)
        raise ConfigError(f"{name}: {shorten(again)} is there twice; accepted: each once; rename one")
    return texts


def table_fleet(
    config: FleetConfig,
    rng: np.random.Generator,
    *,
    devices: str | None = None,
    edges: str | None = None,
    links: str | None = None,
    columns: Any = None,
    area: Any = None,
) -> Fleet:
    """Return the fleet of ``fleet.options``; what the files lack is drawn by `rng` as the random fleet draws it.

    Args:
        config: the section ``fleet``, whose N, M and area are those of the files.
        rng: the only source of randomness.
        devices, edges, links: pinned names of the files; None: there is no such file.
        columns: the names that columns have in the files, by the names that hflray gives them.
        area: the box of the rows that are taken, ``{x_m: [low, high], …}`` or ``{latitude: [low, high], …}``.

    Raises:
        ConfigError: a file is wrong; the message names its row and column.
    """
    table = fleet_table(config.options)
    try:
        names = {name: getattr(table, name) for name in NAMES}
        return complete(config, rng, table.arrays, **names)
    except ConfigError as error:
        raise ConfigError(f"fleet.options: {table.files}: {error}") from error
