"""The section of the world: what changes around devices and edges while an experiment runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from hflray.config.base import Named, Range, Section, Share

Amount = Annotated[float, Field(ge=0, le=1e15)]


class AvailabilityConfig(Section):
    """Which devices answer when a round is planned."""

    name: Annotated[str, Named("availability")] = Field("always", description="the rule")
    options: dict[str, Any] = Field({}, description="arguments of the class, such as probability of bernoulli")


class ComputeJitterConfig(Section):
    """How much longer or shorter than planned devices compute."""

    sigma: float = Field(0.0, ge=0, le=5)
    """standard deviation of the logarithm of a factor of mean 1 on seconds and joules; 0: no jitter"""


class FadingConfig(Section):
    """How the power gain of the devices' links varies about its mean."""

    name: Annotated[str, Named("fading")] = Field("none", description="the law")
    options: dict[str, Any] = Field({}, description="arguments of the class, such as k_db of rician")
    coherence_s: float | None = Field(None, ge=1e-6, le=1e9)
    """time after which a factor is drawn anew; null: one for each upload"""
    known: bool = Field(False, description="one factor of a link for the whole round, which decisions see")

    def contradictions(self) -> Iterator[str]:
        if self.known and self.coherence_s is not None:
            yield (
                f"known: got true with coherence_s = {self.coherence_s:g}; accepted: false, because a factor that is "
                "known holds for a round; or set coherence_s to null"
            )


class DropoutConfig(Section):
    """How often devices vanish during a round."""

    rate_per_s: float = Field(0.0, ge=0, le=1e9)
    """mean number of times that a device vanishes a second; 0: never"""
    noticed_after_s: float = Field(0.0, ge=0, le=1e9)
    """time for which an edge still waits for a device that vanished or ran out of charge; 0: it knows at once"""


class EdgeFailureConfig(Section):
    """How often edge servers fail, and for how long."""

    mtbf_s: float | None = Field(None, gt=0, le=1e12)
    """mean time for which an edge server works; null: always"""
    mttr_s: float | None = Field(None, gt=0, le=1e12, description="mean time until it works again")
    trace: str | None = Field(None, description="path of a CSV file time_s,edge,up in place of both; null: none")

    def contradictions(self) -> Iterator[str]:
        for name, other in (("mtbf_s", "mttr_s"), ("mttr_s", "mtbf_s")):
            if getattr(self, name) is None and getattr(self, other) is not None:
                yield f"{name}: got null with {other} = {getattr(self, other):g}; accepted: both or none"
        if self.trace is not None and self.mtbf_s is not None:
            yield f"trace: got '{self.trace}' with mtbf_s = {self.mtbf_s:g}; accepted: one of them"


class BatteryConfig(Section):
    """The batteries of devices; ranges are those of a uniform draw by device."""

    capacity_j: Range[Amount] | None = Field(None, description="largest charge; null: no batteries")
    initial: Range[Share] = Field((1.0, 1.0), description="charge at the start as a share of the capacity")
    harvest_w: Range[Amount] = Field((0.0, 0.0), description="power with which batteries are charged, at all times")
    reserve_j: float = Field(0.0, ge=0, le=1e15, description="a device with less charge is not available")
    idle_w: float = Field(0.0, ge=0, le=1e9)
    """power that a device draws while it neither computes nor sends; no part of E"""


class MobilityConfig(Section):
    """Where devices are; decisions see their positions when a round is planned."""

    name: Annotated[str, Named("mobility")] = Field("static", description="the motion")
    options: dict[str, Any] = Field({}, description="arguments of the class, such as speed_m_per_s of gauss_markov")
    slot_s: float = Field(1.0, gt=0, le=1e9, description="duration of a step of the motion")
    links: Literal["round", "iteration"] = "round"
    """round: gains hold from the planning of a round to its end; iteration: uploads have the gains of the positions at
    the start of their edge iteration"""
    correlation_m: float = Field(50.0, gt=0, le=1e9)
    """distance at which the correlation of a moving device's shadowing is 1/e"""


class FaultyConfig(Section):
    """Devices that send something else in place of what they have learned; nobody knows them."""

    share: Share = Field(0.0, description="share of the devices that is faulty, drawn once; 0: none")
    kind: Literal["noise", "sign_flip", "zero"] = "noise"
    """noise: an update in a random direction; sign_flip: the update backwards; zero: nothing new"""
    strength: float = Field(1.0, ge=0, le=1e6)
    """length of a faulty update in multiples of the true one; zero has none"""


class WorldConfig(Section):
    """What changes around devices and edges; every part is off by default."""

    wait_s: float = Field(60.0, gt=0, le=1e9, description="duration of a round in which nobody is available")
    availability: AvailabilityConfig = AvailabilityConfig()
    compute_jitter: ComputeJitterConfig = ComputeJitterConfig()
    fading: FadingConfig = FadingConfig()
    dropout: DropoutConfig = DropoutConfig()
    edge_failure: EdgeFailureConfig = EdgeFailureConfig()
    battery: BatteryConfig = BatteryConfig()
    mobility: MobilityConfig = MobilityConfig()
    faulty: FaultyConfig = FaultyConfig()

    @property
    def is_on(self) -> bool:
        """Whether any part is on."""
        still = WorldConfig()
        return any(getattr(self, name) != getattr(still, name) for name in type(self).model_fields if name != "wait_s")
