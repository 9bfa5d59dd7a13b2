"""The physics of an edge iteration: how devices share an uplink (kind ``access``), how they compute (``compute``), and
how they get the model (``download``)."""

from __future__ import annotations

from hflray.physics.base import Access, Compute, Device, Download, Link, Work

__all__ = ["Access", "Compute", "Device", "Download", "Link", "Work"]
