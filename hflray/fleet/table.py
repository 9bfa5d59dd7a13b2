"""A fleet from tables: CSV or Parquet files of devices, edges and links (`hflray.config.fleet_table` reads them)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hflray.config import FleetConfig
from hflray.config.fleet_table import fleet_table
from hflray.errors import ConfigError
from hflray.fleet.fleet import Fleet
from hflray.fleet.random import complete


def make(
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
        return complete(config, rng, table.arrays, table.device_names, table.edge_names)
    except ConfigError as error:
        raise ConfigError(f"fleet.options: {table.files}: {error}") from error
