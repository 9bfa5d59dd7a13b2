"""What lies above the edges of a fleet: regions between them and the cloud, or links among them in its place."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hflray.config import FleetConfig
from hflray.config.system import GossipConfig, RegionConfig, TreeConfig
from hflray.errors import ConfigError
from hflray.fleet.links import path_gain
from hflray.seeding import stream
from hflray.support import pinned
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.tables import match, read_table

ROW_TOLERANCE = 1e-9  # of the sums of a row and of a column of W


@dataclass(frozen=True, eq=False)
class Regions:
    """R regions between the edges and the cloud.

    Attributes:
        parent: the region of each edge, (M,).
        position_m: their places, (R, 2), m.
        edge_gain: linear power gain of each edge's link to its region, (M,).
        bandwidth_hz: bandwidth of each edge's hop to its region, Hz.
        power_w: their transmit power, (R,), W.
        cloud_gain: linear power gain of their links to the cloud, (R,).
        names: what the user calls them; None: their indices.
    """

    parent: IntArray
    position_m: FloatArray
    edge_gain: FloatArray
    bandwidth_hz: float
    power_w: FloatArray
    cloud_gain: FloatArray
    names: tuple[str, ...] | None = None

    @property
    def count(self) -> int:
        """R."""
        return len(self.power_w)

    def take_edges(self, edges: IntArray) -> Regions:
        """Return the same regions with these edges only."""
        return replace(self, parent=self.parent[edges], edge_gain=self.edge_gain[edges])


@dataclass(frozen=True, eq=False)
class Graph:
    """The links among the edges, in place of a cloud.

    Attributes:
        linked: whether two edges are neighbours, (M, M), symmetric, without a diagonal.
        weights: W, (M, M), doubly stochastic.
        gain: linear power gain of the links, (M, M).
        bandwidth_hz: bandwidth with which an edge sends, in equal shares for its neighbours, Hz.
        metropolis: whether W follows from the neighbours, so that it is made anew when an edge fails.
    """

    linked: BoolArray
    weights: FloatArray
    gain: FloatArray
    bandwidth_hz: float
    metropolis: bool = True

    def take_edges(self, edges: IntArray) -> Graph:
        """Return the links among these edges only, with W over them (`weights_among`)."""
        up = np.zeros(len(self.linked), dtype=bool)
        up[edges] = True
        pairs = np.ix_(edges, edges)
        return replace(self, linked=self.linked[pairs], weights=self.weights_among(up)[pairs], gain=self.gain[pairs])

    def weights_among(self, up: BoolArray) -> FloatArray:
        """Return W over the edges that are up, (M, M); the others keep their models."""
        if up.all():
            return self.weights
        linked = self.linked & up & up[:, None]
        if self.metropolis:
            return metropolis(linked)
        weights = np.where(linked, (self.weights + self.weights.T) / 2, 0.0)  # else columns would not add up to 1
        return weights + np.diag(1.0 - weights.sum(axis=1))


def metropolis(linked: BoolArray) -> FloatArray:
    """Return the Metropolis weights of a graph, (M, M): 1/(1 + max(deg i, deg j)) a link, and the rest of 1 oneself."""
    degree = linked.sum(axis=1)
    weights = np.where(linked, 1.0 / (1.0 + np.maximum(degree, degree[:, None])), 0.0)
    return np.asarray(weights + np.diag(1.0 - weights.sum(axis=1)))


def mix(weights: FloatArray, models: Sequence[NDArray[np.floating]]) -> list[FloatArray]:
    """Return the model of each edge after gossip, Σ_j W_ij w_j, (P,) float64 each, given W, (M, M), and those before.

    The sum is taken in the order of the edges, so that its bits are the same everywhere.
    """
    return [
        functools.reduce(np.add, [row[j] * models[j].astype(np.float64) for j in np.flatnonzero(row).tolist()])
        for row in weights
    ]


@dataclass(frozen=True, eq=False)
class Tree:
    """What lies above the edges of a fleet: regions, or links among the edges; without both the cloud alone.

    Attributes:
        regions, graph: the regions, or the links.
        up: whether an edge sends its model in a round, (M,), as an edge that is down does not; None: all do.
    """

    regions: Regions | None = None
    graph: Graph | None = None
    up: BoolArray | None = None

    @property
    def is_cloud_alone(self) -> bool:
        """Whether each edge sends to the cloud."""
        return self.regions is None and self.graph is None

    def take_edges(self, edges: IntArray) -> Tree:
        """Return the tree over these edges only."""
        up = None if self.up is None else self.up[edges]
        return Tree(self.regions and self.regions.take_edges(edges), self.graph and self.graph.take_edges(edges), up)

    @classmethod
    def of(
        cls,
        tree: TreeConfig,
        config: FleetConfig,
        edge_position_m: FloatArray,
        seed: int,
        parents: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
    ) -> Tree:
        """Make the tree of a configuration.

        Args:
            tree, config: its sections ``tree`` and ``fleet``.
            edge_position_m: the places of the edges, (M, 2), m.
            seed: draws the shadowing of the links; ``fleet.deployment_seed`` goes before it.
            parents: the region of each edge, as its table names it; None: the nearest.
            names: what a file of links calls the edges; None: 0, 1 and so on.

        Raises:
            ConfigError: a region has no edge, a graph is not connected, or W is not doubly stochastic.
        """
        rng = stream(seed if config.deployment_seed is None else config.deployment_seed, "tree")
        if parents is not None and tree.region is None:
            raise ConfigError(
                "tree.region: got null with a table of edges that has the column parent; accepted with it: a level of "
                "regions; set tree.region.count, or leave the column out"
            )
        if tree.region is not None:
            return cls(regions=_regions(tree.region, config, edge_position_m, rng, parents))
        if tree.gossip is not None:
            return cls(graph=_graph(tree.gossip, config, edge_position_m, rng, names))
        return CLOUD_ALONE


def _regions(
    region: RegionConfig,
    config: FleetConfig,
    edge_position_m: FloatArray,
    rng: np.random.Generator,
    parents: Sequence[str] | None,
) -> Regions:
    count, num_edges = region.count, len(edge_position_m)
    names: tuple[str, ...] | None = None
    if parents is not None:
        names = tuple(dict.fromkeys(parents))
        if len(names) != count:
            raise ConfigError(
                f"tree.region.count: got {count} with a table whose edges have {len(names)} parents; accepted: "
                f"{len(names)}; correct the one or the other"
            )
        parent = np.array([names.index(name) for name in parents], dtype=np.intp)
    elif count > num_edges:
        raise ConfigError(
            f"tree.region.count: got {count} for {num_edges} edges, and a region would have no edge; accepted: 1 to "
            f"{num_edges}; lower it, or raise fleet.num_edges"
        )
    else:
        parent = _clusters(edge_position_m, count)
    position_m = np.array([edge_position_m[parent == r].mean(axis=0) for r in range(count)])
    distance_m = np.linalg.norm(edge_position_m - position_m[parent], axis=1)
    edge_gain = path_gain(distance_m, config, rng.normal(0.0, config.shadowing_db, num_edges))
    cloud_distance_m = np.linalg.norm(position_m - config.area_m / 2, axis=1)
    cloud_gain = path_gain(cloud_distance_m, config, rng.normal(0.0, config.shadowing_db, count))
    power_dbm = config.edge_power_dbm if region.power_dbm is None else region.power_dbm
    bandwidth_mhz = config.cloud_bandwidth_mhz if region.bandwidth_mhz is None else region.bandwidth_mhz
    power_w = np.full(count, 10.0 ** (power_dbm / 10.0) * 1e-3)
    return Regions(parent, position_m, edge_gain, bandwidth_mhz * 1e6, power_w, cloud_gain, names)


def _clusters(position_m: FloatArray, count: int) -> IntArray:
    """Return the region of each edge, (M,): the nearest of `count` places that Lloyd's algorithm finds, none empty.

    It begins with the edge that is nearest to the middle, and each time with the edge that is farthest from all before.
    """
    first = int(np.linalg.norm(position_m - position_m.mean(axis=0), axis=1).argmin())
    centres, nearest_m = [first], np.linalg.norm(position_m - position_m[first], axis=1)
    while len(centres) < count:
        nearest_m[centres] = -1.0  # two edges may stand at one place
        centres.append(int(nearest_m.argmax()))
        nearest_m = np.minimum(nearest_m, np.linalg.norm(position_m - position_m[centres[-1]], axis=1))
    places, parent = position_m[centres], np.full(len(position_m), -1)
    for _ in range(100):
        distance_m = np.linalg.norm(position_m[:, None] - places, axis=-1)
        now = distance_m.argmin(axis=1)
        for empty in np.setdiff1d(np.arange(count), now):  # it takes the farthest edge of a region that has several
            shared = np.bincount(now, minlength=count)[now] > 1
            now[np.where(shared, distance_m[np.arange(len(now)), now], -1.0).argmax()] = empty
        if (now == parent).all():
            break
        parent = now
        places = np.array([position_m[parent == r].mean(axis=0) for r in range(count)])
    order = {int(r): number for number, r in enumerate(dict.fromkeys(parent.tolist()))}  # by their first edges
    return np.array([order[int(r)] for r in parent], dtype=np.intp)


def _graph(
    gossip: GossipConfig,
    config: FleetConfig,
    position_m: FloatArray,
    rng: np.random.Generator,
    names: Sequence[str] | None,
) -> Graph:
    count = len(position_m)
    if count < 2:
        raise ConfigError(
            f"tree.gossip.graph: got {gossip.graph} for fleet.num_edges = {count}, which has no neighbour; accepted: "
            "2 edges or more; raise fleet.num_edges"
        )
    linked = _linked(gossip.graph, count, names)
    apart = _apart(linked)
    if apart is not None:
        raise ConfigError(
            f"tree.gossip.graph: {pinned.plain(gossip.graph)} does not connect edge {apart} with edge 0; accepted: a "
            "connected graph; add a link"
        )
    is_metropolis = gossip.weights == "metropolis"
    weights = metropolis(linked) if is_metropolis else _weights(gossip.weights, linked, names)
    distance_m = np.linalg.norm(position_m[:, None] - position_m, axis=-1)
    shadowing_db = np.triu(rng.normal(0.0, config.shadowing_db, (count, count)), 1)
    gain = path_gain(distance_m, config, shadowing_db + shadowing_db.T)
    return Graph(linked, weights, gain, gossip.links_mhz * 1e6, is_metropolis)


def _linked(graph: str, count: int, names: Sequence[str] | None) -> BoolArray:
    """Return which of M edges are neighbours, (M, M)."""
    if graph == "complete":
        return ~np.eye(count, dtype=bool)
    linked = np.zeros((count, count), dtype=bool)
    if graph in ("ring", "path"):
        pairs = [(m, m + 1) for m in range(count - 1)] + ([(count - 1, 0)] if graph == "ring" else [])
    elif pinned.plain(graph).lower().endswith(pinned.TABLES):
        pairs = [(m, other) for m, other, _ in _links(graph, "graph", count, names)]
    else:
        raise ConfigError(
            f"tree.gossip.graph: got {graph!r}; accepted: ring, complete, path, or a CSV file with the columns "
            "edge,neighbour"
        )
    for m, other in pairs:
        linked[m, other] = linked[other, m] = m != other
    return linked


def _links(path: str, setting: str, count: int, names: Sequence[str] | None) -> list[tuple[int, int, float]]:
    """Return edge, neighbour and weight of each row of a file; without the column, a weight is NaN.

    Raises:
        ConfigError: it cannot be read, names an edge that does not exist, or a column is misspelt.
    """
    file, content = pinned.content_of(path if pinned.is_pinned(path) else pinned.pin(path))
    table = read_table(f"tree.gossip.{setting}: {file}", file, content)
    columns, _ = match(table, ("edge", "neighbour", "weight"), {})
    ends: list[list[int]] = []
    for name in ("edge", "neighbour"):
        if name not in columns:
            raise ConfigError(f"{table.name}: lacks the column {name}; accepted: edge,neighbour,weight; add it")
        ends.append(table.members(columns[name], "edge", names, count).tolist())
    weight = table.numbers(columns["weight"]) if "weight" in columns else np.full(len(table), np.nan)
    return list(zip(ends[0], ends[1], weight.tolist(), strict=True))


def _weights(path: str, linked: BoolArray, names: Sequence[str] | None) -> FloatArray:
    """Return W of a file, (M, M). Raises ConfigError: it is not doubly stochastic over the graph's links."""
    count = len(linked)
    weights = np.zeros((count, count))
    for m, other, weight in _links(path, "weights", count, names):
        weights[m, other] = weight
    for words, sums in (("row", weights.sum(axis=1)), ("column", weights.sum(axis=0))):
        bad = np.flatnonzero(~(np.abs(sums - 1.0) <= ROW_TOLERANCE))
        if bad.size:
            raise ConfigError(
                f"tree.gossip.weights: {pinned.plain(path)}: {words} {bad[0]} of W sums to {sums[bad[0]]:g}; accepted: "
                "1, as W is doubly stochastic; correct it"
            )
    wrong = np.argwhere((weights < 0) | ((weights != 0) & ~linked & ~np.eye(count, dtype=bool)))
    if len(wrong):
        m, other = wrong[0]
        raise ConfigError(
            f"tree.gossip.weights: {pinned.plain(path)}: the weight of edges {m} and {other} is {weights[m, other]:g}; "
            "accepted: 0 or more, and 0 where the graph has no link; correct it"
        )
    return weights


def _apart(linked: BoolArray) -> int | None:
    """Return an edge to which no path leads from edge 0; None: the graph is connected."""
    from scipy.sparse.csgraph import connected_components

    component = connected_components(linked)[1]
    apart = np.flatnonzero(component != component[0])
    return int(apart[0]) if len(apart) else None


CLOUD_ALONE = Tree()
