"""The one door to fleets: `build_fleet` makes the fleet that the section ``fleet`` names."""

from __future__ import annotations

import numpy as np

from hflray import registry
from hflray.config import ExperimentConfig, FleetConfig
from hflray.errors import ConfigError
from hflray.fleet.fleet import Fleet
from hflray.fleet.own import check_numbers
from hflray.seeding import stream
from hflray.support.references import spoken
from hflray.support.returned import Contract, described

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
    try:
        fleet = make(config, rng, **config.options)
    except ConfigError as error:
        if registry.is_registered("fleet", config.name):
            raise
        raise ConfigError(f"fleet.name: {spoken(config.name)}: {error}") from error
    if registry.is_registered("fleet", config.name):
        assert isinstance(fleet, Fleet)
        return fleet
    n, m = config.num_devices, config.num_edges
    contract = Contract.of("fleet.name", config.name, f"a hflray.Fleet of {n} devices and {m} edges, as Fleet.of makes")
    if not isinstance(fleet, Fleet):
        raise contract.error(described(fleet))
    if (fleet.num_devices, fleet.num_edges) != (n, m):
        raise contract.error(
            f"{fleet.num_devices} devices and {fleet.num_edges} edges; set fleet.num_devices and num_edges to them"
        )
    try:
        arrays = {name: np.asarray(getattr(fleet, name)) for name in CHECKED}
        if any(np.isnan(array).any() for array in arrays.values()):
            raise ConfigError("an array has NaN; accepted: numbers, since only Fleet.of replaces NaN; correct it")
        check_numbers(arrays, config.area_m)
    except ConfigError as error:
        raise ConfigError(f"fleet.name: {spoken(config.name)}: {error}") from error
    return fleet
