"""What a round decides: which devices train, which edge each talks to, and what each is allocated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from hflray.config.base import Section, registered


class ClusteringBillConfig(Section):
    """How Algorithm 2 is billed, which the paper does not say."""

    edge_iterations: Literal[1, "Q"] = Field(1, description="edge iterations billed: 1, or Q as in a round")
    cpu: Literal["allocated", "max"] = Field(
        "allocated", description="frequency billed: the allocated one, or f_n^max; the bandwidth stays as allocated"
    )


class SchedulingConfig(Section):
    """Which devices train."""

    name: str = Field("ikc", description="ikc | vkc | fedavg")
    num_scheduled: int = Field(50, ge=1, description="H")
    num_clusters: int | None = Field(10, ge=1, description="K; null: the data set's number of classes")
    clustering_bill: ClusteringBillConfig = ClusteringBillConfig()
    options: dict[str, Any] = Field({}, description="further arguments of a scheduler from outside")

    @field_validator("name")
    @classmethod
    def _known_scheduler(cls, name: str) -> str:
        return registered("scheduler", name)


class AssignmentConfig(Section):
    """Which edge each scheduled device talks to."""

    name: str = Field("d3qn", description="d3qn | local_search | hfel | best_gain | geographic | random")
    transfers: int = Field(100, ge=0, description="hfel: random transfers tried (the paper: 100)")
    exchanges: int = Field(300, ge=0, description="hfel: random exchanges tried (the paper: 100 or 300)")
    start: Literal["geographic", "best_gain", "random"] | None = Field(
        None, description="where hfel and local_search start; null: geographic for hfel, best_gain for local_search"
    )
    restarts: int = Field(0, ge=0, description="local_search: further searches from perturbed starts")
    budget_ms: float | None = Field(None, gt=0, description="local_search: go on for so long; depends on the machine")
    policy: str | None = Field(
        None, description="d3qn: any_deployment, paper_db, paper_literal, or a policy file; null: any_deployment"
    )
    polish_ms: Annotated[float, Field(ge=0)] | Literal["optimum"] | None = Field(
        None, description="d3qn: local search from its answer for so long; optimum: to a local optimum"
    )
    options: dict[str, Any] = Field({}, description="further arguments of the assigner")

    @field_validator("name")
    @classmethod
    def _known_assigner(cls, name: str) -> str:
        return registered("assigner", name)


class AllocationConfig(Section):
    """Bandwidth and CPU frequency within each edge."""

    method: Literal["newton", "cvxpy"] = Field("newton", description="newton: exact and fast; cvxpy: the reference")
    coupling: Literal["per_edge", "joint"] = Field(
        "per_edge",
        description="the paper's form, or one shared deadline; hfel, local_search and d3qn's polish lower the same",
    )
