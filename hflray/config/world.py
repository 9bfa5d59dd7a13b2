"""The section of the world: what changes around devices and edges while an experiment runs."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from hflray.config.base import Section, registered


class AvailabilityConfig(Section):
    """Which devices answer when a round is planned."""

    name: str = Field("always", description="always | bernoulli | markov | diurnal | trace")
    options: dict[str, Any] = Field({}, description="arguments of the class, such as probability of bernoulli")

    @field_validator("name")
    @classmethod
    def _is_an_availability(cls, name: str) -> str:
        return registered("availability", name)


class ComputeJitterConfig(Section):
    """How much longer or shorter than planned devices compute."""

    sigma: float = Field(
        0.0,
        ge=0,
        le=5,
        description="standard deviation of the logarithm of a factor of mean 1 on seconds and joules; 0: no jitter",
    )


class WorldConfig(Section):
    """What changes around devices and edges; every part is off by default."""

    wait_s: float = Field(60.0, gt=0, le=1e9, description="duration of a round in which nobody is available")
    availability: AvailabilityConfig = AvailabilityConfig()
    compute_jitter: ComputeJitterConfig = ComputeJitterConfig()

    @property
    def is_on(self) -> bool:
        """Whether any part is on."""
        still = WorldConfig()
        return any(getattr(self, name) != getattr(still, name) for name in type(self).model_fields if name != "wait_s")
