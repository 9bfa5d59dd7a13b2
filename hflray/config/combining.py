"""The sections of what is sent and how it is combined: aggregation, compression and privacy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hflray.config.base import Named, Section


class AggregatorConfig(Section):
    """How models are combined at one place."""

    name: Annotated[str, Named("aggregator")] = Field(
        "mean",
        description="mean | your own, as in mine.py:Half; at the edge also median | trimmed_mean | krum | multi_krum | "
        "geometric_median; at the cloud also fedavgm | fedadagrad | fedadam | fedyogi",
    )
    options: dict[str, Any] = Field({}, description="arguments of the aggregator")


class AggregationConfig(Section):
    """How an edge combines its devices, and the cloud the edges."""

    edge: AggregatorConfig = AggregatorConfig()
    cloud: AggregatorConfig = AggregatorConfig()
    weights: Literal["samples", "uniform"] = Field(
        "samples", description="weight of a device's model; samples: its D_n; uniform: 1"
    )


class CompressorConfig(Section):
    """How updates are shortened on one hop."""

    name: Annotated[str, Named("compressor")] = Field(
        "none", description="none | qsgd | top_k | sign | your own, as in mine.py:Half"
    )
    options: dict[str, Any] = Field({}, description="arguments of the compressor")


class CompressionConfig(Section):
    """How a device shortens what it sends to its edge, and an edge to the cloud."""

    device: CompressorConfig = CompressorConfig()
    edge: CompressorConfig = CompressorConfig()


class PrivacyConfig(Section):
    """Differential privacy of devices (`hflray.training.privacy`)."""

    clip: float | None = Field(
        None,
        gt=0,
        le=1e30,
        description="largest L2 norm of the update that a device sends in an edge iteration; null: no privacy",
    )
    noise_multiplier: float = Field(
        1.0,
        gt=0,
        le=1e9,
        description="standard deviation of the noise in an edge's sum of updates, in multiples of clip",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ for which ε is computed")
