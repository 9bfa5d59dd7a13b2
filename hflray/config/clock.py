"""The section of the clock: when an edge iteration ends."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from hflray.config.base import Section


class EdgeClockConfig(Section):
    """When an edge stops waiting for its devices; limits combine, and without any it waits for all."""

    deadline_s: float | None = Field(None, gt=0, description="seconds after an edge iteration begins; null: no limit")
    deadline: float | None = Field(None, gt=0, description="multiple of the edge's planned iteration; null: no limit")
    first: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="number of arrivals, as an integer, or their share of the edge's devices, as a decimal fraction up "
        "to 1.0; null: all",
    )


class ClockConfig(Section):
    """When what has arrived is combined."""

    edge: EdgeClockConfig = EdgeClockConfig()
    cloud: Literal["synchronous"] = Field("synchronous", description="synchronous: the cloud waits for every edge")

    @property
    def is_on(self) -> bool:
        """Whether there is any limit."""
        return self.edge != EdgeClockConfig()

    @field_validator("edge", mode="before")
    @classmethod
    def _all_is_no_limit(cls, edge: Any) -> Any:
        return {} if edge == "all" else edge
