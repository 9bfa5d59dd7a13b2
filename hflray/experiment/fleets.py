"""The fleets of a sweep: each is made once for its setting, and every later reader takes that one.

A random fleet is a function of its seed, which never changes, and is not stored. Others come from a user's files or
functions, so they lie below ``fleets/`` in the sweep's folder, or in its storage, by a hash of their settings: a
resume, a report and an export take them from there. A file holds the SHA-256 of the rest, and then safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hflray.config import ExperimentConfig, FleetConfig
from hflray.errors import ConfigError, DamagedError
from hflray.fleet import Fleet
from hflray.fleet.fleet import MEASURED
from hflray.fleet.links import Links, on_demand
from hflray.support.checksum import digest
from hflray.support.reader import parse_json
from hflray.support.store import Store

FOLDER = "fleets"
ARRAYS = (
    "position_m", "edge_position_m", "cloud_gain", "cycles_per_sample", "samples", "power_w", "max_cpu_hz",
    "edge_power_w", "edge_bandwidth_hz",
)  # fmt: skip
NUMBERS = ("cloud_bandwidth_hz", "noise_w_per_hz")
NAMES = ("device_names", "edge_names", "edge_parents")
FLAGS = ("fixed_gain", "is_placed", "has_rates")
OPTIONAL = ("battery_j", "capacitance", "latency_s", *MEASURED)  # arrays of some fleets
UNKNOWN = ("battery_j", "compute_w", "upload_w")  # those in which a number may be missing


def is_stored(config: ExperimentConfig) -> bool:
    """Return whether the fleet of a configuration is stored, because it is not drawn alone."""
    return config.fleet.name != "random" or config.data.partition == "owners"


def key_of(config: ExperimentConfig) -> str:
    """Return the name under which the fleet of a configuration is stored."""
    fleet = config.fleet.model_dump(mode="json")
    if config.data.partition == "owners":  # devices without an owner are left out
        del fleet["num_devices"]
    data = config.data.model_dump(mode="json", exclude={"root"}) if config.data.partition == "owners" else None
    return digest(json.dumps([fleet, data, config.seed], sort_keys=True).encode())[:32]


class Fleets:
    """The fleets of a sweep.

    Args:
        place: the sweep's folder, or its folder in a storage (`hflray.sweep.results.SweepFolder.place`); None: this
            process alone, for a sweep that has no folder yet.
    """

    def __init__(self, place: str | None = None) -> None:
        self._place = place
        self._made: dict[str, bytes] = {}  # without a place
        self._counts: dict[str, int] = {}  # N of the configuration that asked for a key first

    @cached_property
    def _store(self) -> Store | None:
        """The place, which only a fleet that is stored opens."""
        return None if self._place is None else Store(self._place)

    def get(self, config: ExperimentConfig, make: Callable[[], Fleet]) -> Fleet:
        """Return the stored fleet of a configuration, or what `make` returns, which is then stored.

        Raises:
            ConfigError: trials differ in N alone, where devices without an owner are left out.
            DamagedError: the file is damaged.
            OSError: it cannot be read or written.
        """
        if not is_stored(config):
            return make()
        count = config.fleet.num_devices
        if (first := self._counts.setdefault(key_of(config), count)) != count:
            raise ConfigError(
                f"fleet.num_devices: got {first} and {count} with data.partition = owners, where both stand for one "
                "fleet; accepted: one number in a sweep; make a sweep for each"
            )
        content = self.read(config)
        if content is None:
            content = packed(make())
            self._write(key_of(config), content)
        try:
            return unpacked(content, config.fleet)
        except DamagedError as error:
            raise DamagedError(f"{self._place}/{FOLDER}/{key_of(config)}: {error}") from error

    def read(self, config: ExperimentConfig) -> bytes | None:
        """Return the file of a configuration's fleet; None: there is none. Raises OSError: it cannot be read."""
        name = f"{FOLDER}/{key_of(config)}"
        if self._store is None:
            return self._made.get(key_of(config))
        return self._store.read(name) if self._store.has(name) else None

    def copy(self, config: ExperimentConfig, target: Fleets) -> None:
        """Copy the file of a configuration's fleet to another place that has none. Raises OSError: it cannot."""
        if is_stored(config) and target.read(config) is None and (content := self.read(config)) is not None:
            target._write(key_of(config), content)

    def _write(self, key: str, content: bytes) -> None:
        if self._store is None:
            self._made[key] = content
        else:
            self._store.write(f"{FOLDER}/{key}", content)


def packed(fleet: Fleet) -> bytes:
    """Return a fleet as the bytes of a file."""
    arrays = {name: np.ascontiguousarray(np.asarray(getattr(fleet, name), np.float64)) for name in ARRAYS}
    about: dict[str, Any] = {name: float(getattr(fleet, name)) for name in NUMBERS}
    about |= {name: getattr(fleet, name) for name in (*NAMES, *FLAGS)} | {"key": None}
    arrays |= {name: np.ascontiguousarray(array) for name in OPTIONAL if np.ndim(array := getattr(fleet, name))}
    about["capacitance"] = None if "capacitance" in arrays else fleet.capacitance
    if fleet.links is None:
        arrays |= {name: np.ascontiguousarray(np.asarray(getattr(fleet, name))) for name in ("distance_m", "gain")}
    else:
        about["key"] = fleet.links.key
        arrays |= {name: getattr(fleet.links, name).astype(np.int64) for name in ("number", "edge_number")}
    content: bytes = save(arrays, metadata={"about": json.dumps(about)})
    return digest(content).encode() + b"\n" + content


def unpacked(content: bytes, config: FleetConfig) -> Fleet:
    """Return the fleet of `packed`; `config` has the path loss. Raises DamagedError: the bytes are damaged."""
    sha256, _, body = content.partition(b"\n")
    if digest(body).encode() != sha256:
        raise DamagedError("a stored fleet: its checksum differs; remove it, or begin anew with --fresh")
    try:
        arrays = load(body)
        length = int.from_bytes(body[:8], "little")
        about = parse_json(parse_json(body[8 : 8 + length])["__metadata__"]["about"])
        if not all(np.isfinite(array).all() for name, array in arrays.items() if name not in UNKNOWN):
            raise ValueError("a number is not finite")
        fields: dict[str, Any] = {name: arrays[name] for name in ARRAYS} | {
            name: float(about[name]) for name in NUMBERS
        }
        fields |= {name: None if about.get(name) is None else tuple(map(str, about[name])) for name in NAMES}
        capacitance = about["capacitance"]
        fields["capacitance"] = arrays["capacitance"] if capacitance is None else float(capacitance)
        if about["key"] is None:
            fields |= {name: arrays[name] for name in ("distance_m", "gain")}
        else:
            number, edge_number = (arrays[name].astype(np.intp) for name in ("number", "edge_number"))
            places = arrays["position_m"], arrays["edge_position_m"]
            fields |= on_demand(Links(config, int(about["key"]), number, edge_number, *places))
        fields |= {name: bool(about.get(name)) for name in FLAGS}
        return Fleet(**fields, **{name: arrays.get(name) for name in OPTIONAL if name != "capacitance"})
    except (SafetensorError, ConfigError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedError(f"a stored fleet cannot be read ({error}); remove it, or begin anew with --fresh") from error
