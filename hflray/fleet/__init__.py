"""The physical system: devices, edges, their links and one cloud, drawn, read from tables, or a user's own."""

from __future__ import annotations

from hflray.config import FleetConfig
from hflray.fleet.build import build_fleet, given_fleet
from hflray.fleet.fleet import Fleet
from hflray.fleet.links import LinkArray, Links, path_gain
from hflray.fleet.random import sample_fleet

__all__ = ["Fleet", "FleetConfig", "LinkArray", "Links", "build_fleet", "given_fleet", "path_gain", "sample_fleet"]
