"""How devices and edges shorten what they send (kind ``compressor``): the contract, and the compressors."""

from __future__ import annotations

from hflray.compression.base import Compressor, Whole

__all__ = ["Compressor", "Whole"]
