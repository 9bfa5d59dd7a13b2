"""The section of the tree: what lies between the edges and the cloud, or in place of the cloud.

Without it the edges are the only level, and the cloud combines them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from hflray.config.base import QuietSection, Section
from hflray.config.training import AggregatorConfig, CompressorConfig


class RegionConfig(Section):
    """A level of regions: each combines its edges several times in a round, and then sends to the cloud."""

    count: int = Field(ge=1, le=1_000_000, description="number of regions; an edge belongs to the nearest one")
    iterations: int = Field(1, ge=1, le=1_000_000)
    """how often a region combines its edges in a round; each time they train Q edge iterations"""
    bandwidth_mhz: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """bandwidth of each edge's hop to its region; null: fleet.cloud_bandwidth_mhz"""
    power_dbm: Annotated[float, Field(ge=-200, le=200)] | None = None
    """transmit power of a region; null: fleet.edge_power_dbm"""
    aggregation: AggregatorConfig = AggregatorConfig()
    compression: CompressorConfig = CompressorConfig()


class GossipConfig(Section):
    """Edges without a cloud: after its edge iterations each sends its model to its neighbours, and mixes theirs in."""

    graph: str = Field("ring", min_length=1)
    """ring | complete | path | a CSV file with the columns edge,neighbour"""
    weights: str = Field("metropolis", min_length=1)
    """metropolis: 1/(1 + the larger degree) a link; or a CSV file of edge,neighbour,weight"""
    links_mhz: float = Field(10.0, gt=0, le=1e6)
    """bandwidth with which an edge sends, in equal shares for its neighbours"""


class TreeConfig(QuietSection):
    """What lies above the edges: regions below the cloud, or links among the edges in its place."""

    quiet: ClassVar[tuple[str, ...]] = ("region", "gossip")

    region: RegionConfig | None = Field(None, description="a level of regions between the edges and the cloud")
    gossip: GossipConfig | None = Field(None, description="links among the edges in place of the cloud")

    def contradictions(self) -> Iterator[str]:
        if self.region is not None and self.gossip is not None:
            yield "got region and gossip; accepted: one of them, as gossip has no cloud; remove the other"

    @property
    def iterations(self) -> int:
        """How often the level above the edges combines them in a round."""
        return 1 if self.region is None else self.region.iterations

    @property
    def label(self) -> str:
        """The tree in words, with every setting that is not at its default; empty: the cloud alone."""
        if self.region is not None:
            return self.region.labelled(f"{self.region.count} regions", "count")
        return "" if self.gossip is None else self.gossip.labelled("gossip")
