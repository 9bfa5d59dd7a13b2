"""The sections of the physical system, of its costs and of its tree, with the defaults of the paper's Table I.

The tree is what lies between the edges and the cloud, or in place of the cloud. Without it the edges are the only
level, and the cloud combines them.

Configuration files hold customary units (``power_dbm``, ``bandwidth_mhz``, ``model_kb``). The properties below, whose
names end in SI units, convert them, and no other code does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hflray.config.base import MOST_SAMPLES, Named, QuietSection, Range, Section
from hflray.config.training import AggregatorConfig, CompressorConfig

# The bounds are far beyond any system and keep numbers finite.
Megahertz = Annotated[float, Field(gt=0, le=1e9)]
BITS_PER_KB = 8 * 1024  # a KB has 1024 bytes (docs/design.md, "Vocabulary")


def dbm_to_w(dbm: float) -> float:
    """Convert a power in dBm to watts."""
    return float(10.0 ** (dbm / 10.0) * 1e-3)


class FleetConfig(Section):
    """The physical system, as in Table I and the first paragraph of the paper's section VI.

    Examples:
        >>> from hflray import FleetConfig
        >>> FleetConfig(num_devices=20, max_cpu_ghz=1.5).max_cpu_ghz  # a number stands for a range of one value
        (1.5, 1.5)
    """

    name: Annotated[str, Named("fleet")] = Field("random", description="what makes it; see docs/howto/system.md")
    options: dict[str, Any] = Field({}, description="arguments of the fleet, such as devices and edges of table")
    num_devices: int = Field(100, ge=1, le=10_000_000, description="N, the devices of the fleet")
    num_edges: int = Field(5, ge=1, le=1_000_000, description="M, the edge servers")
    area_km: float = Field(1.0, ge=1e-4, le=1e6, description="side of the square area; the cloud is at its centre")
    min_distance_m: float = Field(1.0, ge=1e-3, le=1e9, description="shorter distances are raised to this one")
    path_loss_db: float = Field(128.1, ge=-200, le=500, description="path loss at 1 km")
    path_loss_slope_db: float = Field(37.6, gt=0, le=100, description="path loss per decade of distance")
    shadowing_db: float = Field(8.0, ge=0, le=50)
    """standard deviation of the shadowing, drawn once per link"""
    noise_dbm_per_hz: float = Field(-174.0, ge=-400, le=200)
    """N_0; the paper prints dBm/MHz (docs/design.md, D1)"""
    cycles_per_sample: Range[Annotated[float, Field(gt=0, le=1e15)]] = (1e4, 1e5)
    """u_n, CPU cycles for one sample"""
    samples: Range[Annotated[int, Field(ge=1, le=MOST_SAMPLES)]] = (400, 700)
    """D_n where no data are loaded; if it is not set, Table I's range for data.name; an experiment uses its partition's
    sizes"""
    power_dbm: Range[Annotated[float, Field(ge=-200, le=200)]] = (0.0, 23.0)
    """lowest and highest transmit power p_n"""
    power_law: Literal["dbm", "watt"] = "dbm"
    """scale on which p_n is uniform between the ends of power_dbm; the paper does not say which"""
    edge_power_dbm: float = Field(23.0, ge=-200, le=200, description="p^m, transmit power of an edge server")
    edge_bandwidth_mhz: Range[Megahertz] = Field((0.5, 3.0), description="B_m, bandwidth of an edge server")
    edge_bandwidths_mhz: tuple[Megahertz, ...] | None = None
    """B_m of each edge server; null: drawn from edge_bandwidth_mhz"""
    deployment_seed: int | None = Field(None, ge=0)
    """seed of the edges' positions, B_m and cloud links, so that fleets differ in their devices only;
    edge_bandwidths_mhz replaces its B_m; null: drawn anew for every fleet"""
    cloud_bandwidth_mhz: float = Field(10.0, gt=0, le=1e9)
    """B, bandwidth of each edge server's link to the cloud"""
    max_cpu_ghz: Range[Annotated[float, Field(gt=0, le=1e6)]] = (2.0, 2.0)
    """f_n^max, highest CPU frequency"""
    slow_share: float = Field(0.0, ge=0, le=1)
    """share of the devices whose f_n^max is divided by slow_factor, drawn last; 0: none"""
    slow_factor: float = Field(10.0, ge=1, le=1e6, description="how many times slower those devices are")
    capacitance: float = Field(2e-28, gt=0, le=1, description="α of the paper; the energy formula has the factor ½")
    dense: bool | None = None
    """true: store every link's gain; false: compute it when needed; null: store up to 5 million (N·M)"""

    @model_validator(mode="before")
    @classmethod
    def _sized_by_its_table(cls, tree: Any) -> Any:
        """Take N, M and the area from the files of a table, whose names are then pinned."""
        if not isinstance(tree, dict) or tree.get("name") != "table" or not isinstance(tree.get("options"), dict):
            return tree
        # Few configurations need PyArrow.
        from hflray.config.fleet_table import fleet_table, is_at_hand, is_pinned, pinned_options

        sizes = ("num_devices", "num_edges", "area_km")
        is_written = is_pinned(tree["options"]) and all(name in tree for name in sizes)  # by hflray, or so it looks
        if is_written and not is_at_hand(tree["options"]):
            return tree
        tree = tree | {"options": pinned_options(tree["options"])}
        table = fleet_table(tree["options"])
        of_files: dict[str, float | None] = {"num_devices": table.num_devices, "num_edges": table.num_edges}
        if is_written and tree["num_devices"] in range(table.num_devices or 0):  # without devices that own no samples
            of_files["num_devices"] = None
        if table.area_m is not None and (table.is_area_exact or tree.get("area_km") is None):
            of_files["area_km"] = table.area_m / 1e3
        for name, value in of_files.items():
            if value is not None and tree.get(name) is None:
                tree[name] = value
            elif value is not None and tree[name] != value:
                raise ValueError(
                    f"{name}: got {tree[name]!r}, and {table.files} say {value!r}; accepted beside a table: nothing or "
                    "the same; remove it"
                )
        side_km = tree.get("area_km")
        if table.area_m is not None and isinstance(side_km, int | float) and side_km * 1e3 < table.area_m:
            raise ValueError(
                f"area_km: got {side_km!r}, and {table.files} have places up to {table.area_m:g} m; accepted: "
                f"{table.area_m / 1e3:g} or more, or a box in options.area; raise it, or remove it"
            )
        return tree

    def contradictions(self) -> Iterator[str]:
        count = None if self.edge_bandwidths_mhz is None else len(self.edge_bandwidths_mhz)
        if count is not None and count != self.num_edges:
            yield (
                f"edge_bandwidths_mhz: {count} values for num_edges = {self.num_edges}; accepted: one for each edge; "
                "correct the one or the other"
            )

    @property
    def noise_w_per_hz(self) -> float:
        """N_0 in W/Hz."""
        return dbm_to_w(self.noise_dbm_per_hz)

    @property
    def edge_power_w(self) -> float:
        """p^m in W."""
        return dbm_to_w(self.edge_power_dbm)

    @property
    def cloud_bandwidth_hz(self) -> float:
        """B in Hz."""
        return self.cloud_bandwidth_mhz * 1e6

    @property
    def area_m(self) -> float:
        """Side of the square in m."""
        return self.area_km * 1e3


class SecureAggregationConfig(Section):
    """What devices send so that their edge learns their sum alone; only bits are billed (`hflray.cost.mask_bits`)."""

    key_bits: int = Field(256, ge=1, le=1_000_000, description="bits of a public key, and of a share of a secret")
    shares: int | None = Field(None, ge=1, le=1_000_000)
    """number of other devices that hold shares of a device's secrets; null: no secure aggregation"""


class AccessConfig(Section):
    """How the devices of an edge share its uplink."""

    name: Annotated[str, Named("access")] = Field("fdma", description="the access; see docs/howto/physics.md")
    options: dict[str, Any] = Field({}, description="arguments of the access, such as blocks of ofdma")


class ComputeConfig(Section):
    """How devices compute."""

    name: Annotated[str, Named("compute")] = Field("dvfs", description="the computing; see docs/howto/physics.md")
    options: dict[str, Any] = Field({}, description="arguments of the computing")


class DownloadConfig(Section):
    """How an edge sends the model to its devices before each edge iteration."""

    name: Annotated[str, Named("download")] = "none"
    """the download, of which none takes no time and no energy; see docs/howto/physics.md"""
    options: dict[str, Any] = Field({}, description="arguments of the download")


class CostConfig(QuietSection):
    """The physics of an edge iteration, the weight of delay against energy, and the size of a transmitted model."""

    quiet: ClassVar[tuple[str, ...]] = ("access", "compute", "download")

    delay_weight: float = Field(1.0, gt=0, le=1e12)
    """λ in J/s; at 0 the best plan would take infinitely long"""
    model_kb: float | None = Field(None, gt=0, le=1e12)
    """z in KB of 1024 bytes; null: 32 bits per parameter"""
    secure_aggregation: SecureAggregationConfig = SecureAggregationConfig()
    access: AccessConfig = AccessConfig()
    compute: ComputeConfig = ComputeConfig()
    download: DownloadConfig = DownloadConfig()

    @property
    def model_bits(self) -> float | None:
        """z in bits; None means 32 bits per parameter of the model."""
        return None if self.model_kb is None else self.model_kb * BITS_PER_KB


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
