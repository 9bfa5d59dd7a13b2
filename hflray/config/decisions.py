"""The sections of a round's decisions: scheduling, assignment and allocation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hflray.config.base import Named, QuietSection, Section


class ClusteringBillConfig(Section):
    """How the cost of clustering (Algorithm 2) is computed; the paper does not say."""

    edge_iterations: Literal[1, "Q"] = Field(1, description="number of edge iterations billed: 1, or Q as in a round")
    cpu: Literal["allocated", "max"] = "allocated"
    """CPU frequency billed: the allocated one, or f_n^max; bandwidth is always the allocated one"""


class SchedulingConfig(Section):
    """Which devices train in a round."""

    name: Annotated[str, Named("scheduler")] = Field("ikc", description="the scheduler")
    num_scheduled: int = Field(50, ge=1, description="H, the devices that train in a round")
    num_clusters: int | None = Field(10, ge=1, description="K; null: the number of classes of the data")
    auxiliary: Annotated[str | None, Named("model", keywords=("global",))] = None
    """network that ikc and vkc train on every device for the clustering: mini (IKC's small one: for images the paper's,
    otherwise an mlp or gru of 16 numbers), global (the network itself), or a model's name; null: mini for ikc, global
    for vkc"""
    clustering_bill: ClusteringBillConfig = ClusteringBillConfig()
    options: dict[str, Any] = Field({}, description="further arguments of the scheduler")


class AssignmentConfig(Section):
    """Which edge server each scheduled device uploads to."""

    name: Annotated[str, Named("assigner")] = Field("d3qn", description="the assigner")
    transfers: int = Field(100, ge=0, le=10_000_000, description="hfel: random transfers tried (the paper: 100)")
    exchanges: int = Field(300, ge=0, le=10_000_000, description="hfel: random exchanges tried (the paper: 100 or 300)")
    start: Literal["geographic", "best_gain", "random"] | None = None
    """first assignment of hfel and local_search; null: geographic for hfel, best_gain for local_search"""
    restarts: int = Field(0, ge=0, le=1_000_000)
    """local_search: number of further searches from perturbed starts"""
    budget_ms: float | None = Field(None, gt=0)
    """local_search: keep searching for this time; the result then depends on the machine"""
    policy: str | None = None
    """d3qn: any_deployment, paper_db, paper_literal, paper_best, or a path; null: any_deployment"""
    polish_ms: Annotated[float, Field(ge=0, le=3.6e6)] | Literal["optimum"] | None = None
    """d3qn: time for a local search from its assignment; optimum: until a local optimum; null: none"""
    once: bool = False
    """a device keeps the edge of its first round that counted, and cannot be scheduled while that edge is down; false:
    it is assigned anew in every round"""
    minimise: Literal["round", "mean_edge"] | None = None
    """what hfel, local_search, d3qn's polish and joint_cost minimise besides the joules: λ times the delay of the
    slowest edge (round), or the mean over edges with devices (mean_edge); null: mean_edge under an asynchronous cloud,
    where nobody waits for the slowest, else round"""
    options: dict[str, Any] = Field({}, description="further arguments of the assigner")


class LimitsConfig(Section):
    """What a device may take in a round: constraints of the allocation."""

    device_energy_j: float | None = Field(None, gt=0, le=1e15)
    """most joules of a device in a round, computing and uploads; null: no limit"""
    device_delay_s: float | None = Field(None, gt=0, le=1e15)
    """most seconds of a device in a round, downloads, computing and uploads; null: no limit"""
    drop: bool = False
    """leave out of the round a device that cannot meet them; false: it is an error that names it"""

    @property
    def are_set(self) -> bool:
        """Whether there is a limit."""
        return self.device_energy_j is not None or self.device_delay_s is not None

    def contradictions(self) -> Iterator[str]:
        if self.drop and not self.are_set:
            yield "drop: got true without a limit; accepted: device_energy_j or device_delay_s beside it; set one"


class AllocationConfig(QuietSection):
    """How bandwidth and CPU frequency are allocated within each edge."""

    quiet: ClassVar[tuple[str, ...]] = ("limits",)

    method: Literal["newton", "cvxpy", "equal", "fixed_cpu"] = "newton"
    """newton: exact and fast; cvxpy: the reference; baselines: equal (B_m/n and f_max) and fixed_cpu (f_max, optimal
    bandwidths), while assigners still weigh edges by the optimal allocation"""
    coupling: Literal["per_edge", "joint"] = "per_edge"
    """per_edge: as in the paper; joint: one deadline of all edges; hfel, local_search, d3qn's polish and joint_cost
    minimise the same objective"""
    limits: LimitsConfig = LimitsConfig()

    def contradictions(self) -> Iterator[str]:
        if self.limits.are_set and self.method != "newton":
            yield (
                f"limits: got limits with allocation.method = {self.method}, which does not weigh them; accepted with "
                "them: newton; remove one of the two"
            )
        if self.method == "equal" and self.coupling == "joint":
            yield (
                "coupling: got 'joint' with allocation.method = equal, which weighs no delay; accepted: "
                "per_edge; or set allocation.method to newton or fixed_cpu"
            )
