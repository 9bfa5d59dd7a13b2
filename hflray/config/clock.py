"""The section of the clock: when an edge iteration ends, and when the cloud combines the edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from hflray.config.base import QuietSection, Section


class SemiSynchronousConfig(Section):
    """A cloud that combines the edges once in a period, in which fast edges train more often."""

    period_s: float = Field(gt=0, le=1e9)
    """P, s: an edge begins another edge iteration if it can send before this moment as planned; the cloud combines the
    edges then, or when the slowest edge has sent"""
    max_iterations: int | None = Field(None, ge=1, description="most edge iterations of a round; null: no limit")


class StalenessConfig(Section):
    """How an update that is τ versions old is damped: by (1 + τ)^−e, or by a hinge."""

    exponent: float = Field(0.5, ge=0, le=100, description="e")
    hinge: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(ge=0)]] | None = None
    """[a, b]: 1 up to τ = b, and 1 / (a (τ − b) + 1) above it; null: the exponent counts"""

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        return self.exponent if self.hinge is None else {"hinge": handler(self)["hinge"]}


def _of_number(value: Any) -> Any:
    return {"exponent": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


Staleness = Annotated[StalenessConfig, BeforeValidator(_of_number, json_schema_input_type=float | StalenessConfig)]


class AsynchronousEdgeConfig(Section):
    """An edge that takes each device's model when it arrives (Async-HFL)."""

    updates: int | None = Field(None, ge=1)
    """U, the arrivals that end an edge's turn, after which it sends to the cloud; null: as many as the plan gives it
    devices"""
    mixing: float = Field(0.6, gt=0, le=100, description="a, the share of a device's model that is not stale")
    staleness: Staleness = StalenessConfig()
    """e of the damping (1 + τ)^−e of a model that is τ versions of the edge old, or {hinge: [a, b]}"""

    @property
    def label(self) -> str:
        """The clock of an edge in words, with every setting that is not at its default."""
        return self.labelled("asynchronous edges")


class EdgeClockConfig(QuietSection):
    """When an edge stops waiting for its devices; limits combine, and without any it waits for all."""

    quiet: ClassVar[tuple[str, ...]] = ("asynchronous",)

    deadline_s: float | None = Field(None, gt=0, description="seconds after an edge iteration begins; null: no limit")
    deadline: float | None = Field(None, gt=0, description="multiple of the edge's planned iteration; null: no limit")
    first: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)] | None = None
    """number of arrivals, as an integer, or their share of the edge's devices, as a decimal fraction up to 1.0; null:
    all"""
    asynchronous: AsynchronousEdgeConfig | None = None
    """the edge takes each device's model when it arrives, and has no edge iterations; null: off"""

    def contradictions(self) -> Iterator[str]:
        for name in ("deadline_s", "deadline", "first"):
            if self.asynchronous is not None and (value := getattr(self, name)) is not None:
                yield (
                    f"{name}: got {value:g} with clock.edge.asynchronous, whose edges wait for nobody; accepted with "
                    "it: null; remove one of them"
                )


class AsynchronousConfig(Section):
    """A cloud that takes each edge's model when it arrives."""

    updates: int | None = Field(None, ge=1)
    """U, the updates of a round, after which the model is tested and devices are scheduled; null: M"""
    rule: Literal["mixing", "fedat"] = "mixing"
    """mixing: the global model moves towards the edge's (FedAsync, or FedBuff with a buffer); fedat: it is a mean of
    the newest models of all edges, in which edges that send seldom weigh more"""
    mixing: float | None = Field(None, gt=0, le=100)
    """a, the share of an edge's model that is not stale, or with a buffer the length of a step; null: 0.6, or 1 with a
    buffer"""
    staleness: Staleness = StalenessConfig()
    """e of the damping (1 + τ)^−e of an update that is τ versions old, or {hinge: [a, b]}"""
    weight: Literal["samples", "none"] = "samples"
    """samples: an edge's share grows with the samples that it has counted; none: it does not"""
    buffer: int = Field(1, ge=1, description="updates that the cloud collects before each step (FedBuff); 1: none")

    def contradictions(self) -> Iterator[str]:
        idle: tuple[str, ...]
        if self.rule == "fedat":
            idle, cause = ("mixing", "staleness", "weight", "buffer"), "rule: fedat, which has weights of its own"
        else:
            idle, cause = ("weight",) if self.buffer > 1 else (), f"buffer: {self.buffer}, whose steps are even"
        for name in idle:
            if getattr(self, name) != type(self).model_fields[name].default:
                yield f"{name} changes nothing with {cause}; accepted with it: the default; remove it"


class CloudClockConfig(Section):
    """When the cloud combines the edges: when all have sent, unless one of these is given."""

    semi_synchronous: SemiSynchronousConfig | None = Field(None, description="once in a period")
    asynchronous: AsynchronousConfig | None = Field(None, description="each edge's model when it arrives")

    @property
    def kind(self) -> str:
        """The word for the clock."""
        if self.asynchronous is not None:
            return "asynchronous"
        return "synchronous" if self.semi_synchronous is None else "semi_synchronous"

    @property
    def label(self) -> str:
        """The clock in words, with every setting that is not at its default, so that two clocks differ in it."""
        if self.semi_synchronous is not None:
            most = self.semi_synchronous.max_iterations
            period = f"semi-synchronous, P = {str(self.semi_synchronous.period_s).removesuffix('.0')} s"
            return period if most is None else f"{period}, at most {most} iterations"
        if self.asynchronous is None:
            return "synchronous"
        name = "FedBuff" if self.asynchronous.buffer > 1 else "FedAsync"
        return self.asynchronous.labelled("FedAT" if self.asynchronous.rule == "fedat" else name, "rule")

    def contradictions(self) -> Iterator[str]:
        if self.semi_synchronous is not None and self.asynchronous is not None:
            yield "got semi_synchronous and asynchronous; accepted: one of them; remove the other"

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        return {name: value for name, value in handler(self).items() if value is not None} or "synchronous"


def _of_word(cloud: Any) -> Any:
    """Return the section that a word stands for."""
    if isinstance(cloud, str):
        if cloud not in ("synchronous", "asynchronous"):
            raise ValueError(
                "accepted: synchronous, asynchronous, {semi_synchronous: {period_s: SECONDS}} or {asynchronous: {…}}; "
                "give one of them"
            )
        return {"asynchronous": {}} if cloud == "asynchronous" else {}
    return _unless_empty(cloud, "synchronous")


def _unless_empty(level: Any, word: str) -> Any:
    """Return a level whose only entry is not ``asynchronous`` left empty, which some read as on and others as off."""
    if level == {"asynchronous": None}:
        raise ValueError(
            f"asynchronous: got nothing; accepted: {{}} for on, and '{word}' in place of the level for off"
        )
    return level


class ClockConfig(Section):
    """When what has arrived is combined."""

    edge: EdgeClockConfig = EdgeClockConfig()
    cloud: Annotated[
        CloudClockConfig,
        BeforeValidator(_of_word, json_schema_input_type=Literal["synchronous", "asynchronous"] | CloudClockConfig),
    ] = CloudClockConfig()
    """synchronous: the cloud waits for every edge; {semi_synchronous: {period_s: …}}: it combines them once in a
    period; asynchronous, or {asynchronous: {…}}: it takes each edge's model when it arrives"""

    @property
    def is_on(self) -> bool:
        """Whether a round may go otherwise than with a synchronous cloud and edges that wait for all."""
        return self != ClockConfig()

    @field_validator("edge", mode="before")
    @classmethod
    def _of_word_of_edges(cls, edge: Any) -> Any:
        if edge == "asynchronous":
            return {"asynchronous": {}}
        return {} if edge == "all" else _unless_empty(edge, "all")

    def contradictions(self) -> Iterator[str]:
        if self.edge.asynchronous is not None and self.cloud.semi_synchronous is not None:
            yield (
                f"cloud.semi_synchronous.period_s: got {self.cloud.semi_synchronous.period_s:g} with "
                "clock.edge.asynchronous, whose edges have no iterations to fit into a period; accepted with it: "
                "synchronous or asynchronous; take one of them, or remove clock.edge.asynchronous"
            )
