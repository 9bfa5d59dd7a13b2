"""Fleets of a user's own arrays, checked where they enter (`Fleet.of`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hflray.config import FleetConfig
from hflray.errors import ConfigError, nearest
from hflray.fleet.fleet import Fleet
from hflray.fleet.random import complete
from hflray.support.arrays import FloatArray
from hflray.support.text import breaks_lines, shorten

PER_DEVICE = ("cycles_per_sample", "seconds_per_sample", "max_cpu_hz", "power_w", "capacitance", "battery_j")
PER_EDGE = ("edge_power_w", "edge_bandwidth_hz", "cloud_gain", "cloud_rate_bps")
NAMES = {"device_names": "n", "edge_names": "m"}
FORMS: dict[str, tuple[str, ...]] = {
    "position_m": ("n", "2"), "edge_position_m": ("m", "2"), "gain": ("n", "m"), "rate_bps": ("n", "m"),
    **dict.fromkeys(PER_DEVICE, ("n",)), **dict.fromkeys(PER_EDGE, ("m",)),
}  # fmt: skip
INSTEAD = {"seconds_per_sample": "cycles_per_sample", "cloud_rate_bps": "cloud_gain", "rate_bps": "gain"}
# What must be given if there is no generator to draw it from.
NEEDED = ("gain", "cycles_per_sample", "power_w", "max_cpu_hz", "edge_bandwidth_hz", "cloud_gain")


def fleet_of(config: FleetConfig | None, rng: np.random.Generator | None, values: Mapping[str, Any]) -> Fleet:
    """Return the fleet of `Fleet.of`."""
    values = {name: value for name, value in values.items() if value is not None}
    for name in values:
        if name not in FORMS and name not in NAMES:
            accepted = [*FORMS, *NAMES]
            raise ConfigError(
                f"Fleet.of: unknown array '{name}'{nearest(name, accepted)}; known: {', '.join(accepted)}"
            )
    arrays = {name: _array(name, value) for name, value in values.items() if name in FORMS}
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
    names = {name: _names(name, values[name], lengths[letter]) for name, letter in NAMES.items() if name in values}
    return complete(config, rng, arrays, **names)


def check_numbers(arrays: Mapping[str, FloatArray], area_m: float) -> None:
    """Raise ConfigError, naming the array and its first bad index, unless all numbers are possible ones; NaN is."""
    for name, array in arrays.items():
        if name.endswith("position_m"):
            bad, accepted = (array < 0) | (array > area_m), f"0 to {area_m:g} m, the area"
        elif name == "battery_j":
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
    for name, letters in {**FORMS, **{name: (letter,) for name, letter in NAMES.items()}}.items():
        shape = arrays[name].shape if name in arrays else (len(values[name]),) if name in values else ()
        for letter, length in zip(letters, shape, strict=False):
            counts.setdefault(letter, length)
    for letter, words in (("n", "device"), ("m", "edge")):
        if not counts.get(letter):
            raise ConfigError(f"Fleet.of: no array says how many {words}s there are; give one, or a config")
    sections = {"num_devices": counts["n"], "num_edges": counts["m"]}
    places = [arrays[name] for name in ("position_m", "edge_position_m") if name in arrays and arrays[name].size]
    largest_m = max((float(np.nanmax(each, initial=0.0)) for each in places), default=0.0)
    return FleetConfig(**sections, **({"area_km": max(largest_m, 0.1) / 1e3} if places else {}))


def _is_whole(arrays: Mapping[str, FloatArray], name: str, instead: Mapping[str, str]) -> bool:
    present = [~np.isnan(arrays[each]) for each in (name, instead.get(name, name)) if each in arrays]
    return bool(present) and bool(np.logical_or.reduce(present).all())


def _names(name: str, values: Sequence[object], count: int) -> tuple[str, ...]:
    texts = tuple(map(str, values))
    if len(texts) != count:
        raise ConfigError(f"{name}: got {len(texts)} texts; accepted: {count}, one for each; correct it")
    for text in texts:
        if not text or breaks_lines(text):
            raise ConfigError(
                f"{name}: got {shorten(text)}; accepted: a text of one line that is not empty; correct it"
            )
    if len(set(texts)) < count:
        again = next(text for text in texts if texts.count(text) > 1)
        raise ConfigError(f"{name}: {shorten(again)} is there twice; accepted: each once; rename one")
    return texts
