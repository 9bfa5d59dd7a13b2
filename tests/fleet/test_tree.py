"""hflray.fleet.tree: regions, graphs and mixing weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hflray import Scenario, load_config
from hflray.config import FleetConfig, inputs_in
from hflray.config.system import TreeConfig
from hflray.errors import ConfigError
from hflray.experiment.fleets import packed, unpacked
from hflray.fleet import Fleet, sample_fleet
from hflray.fleet.tree import CLOUD_ALONE, Graph, metropolis, mix
from hflray.support import pinned
from hflray.sweep import load_sweep
from tests.conftest import refusal, refusals

SIX = ("fleet.num_devices=6", "scheduling.num_scheduled=3", "scheduling.num_clusters=3")
PATH = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=bool)


def fleet_of(tree: dict, edges: int = 5, **of_fleet) -> Fleet:
    config = FleetConfig(num_devices=6, num_edges=edges, **of_fleet)
    fleet = sample_fleet(config, np.random.default_rng(0))
    return fleet.with_tree(TreeConfig.model_validate(tree), config, 0)


def test_without_a_tree_the_cloud_stands_alone() -> None:
    assert fleet_of({}).tree.regions is None
    assert fleet_of({}).tree.is_cloud_alone
    assert CLOUD_ALONE.take_edges(np.array([0])).is_cloud_alone


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5))
def test_each_region_has_an_edge_and_each_edge_the_nearest_region(edges: int, count: int, seed: int) -> None:
    if count > edges:
        return
    config = FleetConfig(num_devices=2, num_edges=edges)
    fleet = sample_fleet(config, np.random.default_rng(seed))
    regions = fleet.with_tree(TreeConfig.model_validate({"region": {"count": count}}), config, seed).tree.regions
    assert np.unique(regions.parent).tolist() == list(range(count))
    distance_m = np.linalg.norm(fleet.edge_position_m[:, None] - regions.position_m, axis=-1)
    assert (distance_m.argmin(axis=1) == regions.parent).all()
    assert regions.edge_gain.shape == (edges,)
    assert regions.cloud_gain.shape == regions.power_w.shape == (count,)


def test_regions_follow_from_the_seed_and_from_the_deployment() -> None:
    gains = []
    for seed, deployment in ((0, None), (0, None), (1, None), (0, 7), (1, 7)):
        config = FleetConfig(num_devices=2, num_edges=4, deployment_seed=deployment)
        fleet = sample_fleet(config, np.random.default_rng(0))
        made = fleet.with_tree(TreeConfig.model_validate({"region": {"count": 2}}), config, seed)
        gains.append(made.tree.regions.edge_gain.tolist())
    assert gains[0] == gains[1] != gains[2]
    assert gains[3] == gains[4]


def test_the_metropolis_weights_of_a_path() -> None:
    """A third a link; models 3, 0 and −3 become 2, 0 and −2, whose mean stays 0."""
    weights = metropolis(PATH)
    np.testing.assert_allclose(weights, [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]], rtol=1e-15)
    np.testing.assert_allclose(mix(weights, np.array([[3.0], [0.0], [-3.0]])), [[2], [0], [-2]], rtol=0, atol=1e-12)


def test_an_asymmetric_w_stays_doubly_stochastic_without_an_edge() -> None:
    next_one = np.roll(np.eye(4), 1, axis=1)
    graph = Graph((next_one + next_one.T) > 0, (np.eye(4) + next_one) / 2, np.ones((4, 4)), 1e6, metropolis=False)
    weights = graph.weights_among(np.array([True, True, True, False]))
    expected = [[0.75, 0.25, 0, 0], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.75, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(weights, expected)


@given(st.integers(2, 7), st.randoms())
def test_w_is_doubly_stochastic_over_any_edges_that_are_up(count: int, random) -> None:
    linked = np.zeros((count, count), dtype=bool)
    for m in range(count):
        for other in range(m):
            linked[m, other] = linked[other, m] = random.random() < 0.5
    up = np.array([random.random() < 0.7 for _ in range(count)])
    for is_metropolis in (True, False):
        graph = Graph(linked, metropolis(linked), np.ones((count, count)), 1e6, is_metropolis)
        weights = graph.weights_among(up)
        np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=1e-12)
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
        assert (weights >= 0).all()
        assert (weights[~up] == np.eye(count)[~up]).all()
        assert not weights[~(linked | np.eye(count, dtype=bool))].any()


@pytest.mark.parametrize(("graph", "links"), [("ring", 5), ("path", 4), ("complete", 10)])
def test_graphs(graph: str, links: int) -> None:
    made = fleet_of({"gossip": {"graph": graph}}).tree.graph
    assert made.linked.sum() == 2 * links
    assert (made.linked == made.linked.T).all()
    np.testing.assert_array_equal(made.gain, made.gain.T)


def test_a_graph_and_w_of_files(tmp_path) -> None:
    links, weights = tmp_path / "links.csv", tmp_path / "w.csv"
    links.write_text("edge,neighbour\n0,1\n1,2\n")
    rows = [(m, n, w) for m, row in enumerate([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]) for n, w in enumerate(row)]
    weights.write_text("edge,neighbour,weight\n" + "".join(f"{m},{n},{w}\n" for m, n, w in rows))
    made = fleet_of({"gossip": {"graph": str(links), "weights": str(weights)}}, edges=3).tree.graph
    np.testing.assert_array_equal(made.linked, PATH)
    assert made.weights[1].tolist() == [0.5, 0, 0.5]
    links.write_text("edge,neighbour\nsouth,2\n2,0\n")
    tree = TreeConfig.model_validate({"gossip": {"graph": str(links)}})
    named = Fleet.of(FleetConfig(num_devices=3, num_edges=3), np.random.default_rng(0), edge_names=["south", "2", "0"])
    np.testing.assert_array_equal(named.with_tree(tree, FleetConfig(num_edges=3), 0).tree.graph.linked, PATH)


@pytest.mark.parametrize("tree, files, facts", refusals("fleet/tree"))
def test_what_is_no_tree_is_refused(tree, files, facts, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with refusal(ConfigError, *facts):
        fleet_of(tree)


def test_a_table_names_the_region_of_each_edge(tmp_path) -> None:
    table = tmp_path / "edges.csv"
    table.write_text("edge,parent,x_m,y_m\na,north,10,10\nb,south,20,20\nc,north,30,30\n")
    options = f"fleet={{name: table, options: {{edges: {table}}}}}"
    scenario = Scenario.build(load_config(None, [*SIX, options, "tree.region={count: 2}"]))
    regions = scenario.fleet.tree.regions
    assert (regions.parent.tolist(), regions.names) == ([0, 1, 0], ("north", "south"))
    assert regions.position_m.tolist() == [[20, 20], [20, 20]]
    for tree, facts in (
        ("tree.region={count: 3}", ("tree.region.count: got 3", "2 parents")),
        ("max_rounds=3", ("tree.region: got null", "parent")),
    ):
        with refusal(ConfigError, *facts):
            Scenario.build(load_config(None, [*SIX, options, tree]))
    table.write_text("edge,parent\na,north\nb,\n")
    with pytest.raises(ConfigError, match=r"row 3, column parent: is empty"):
        load_config(None, [*SIX, options])


def test_parents_of_arrays_outlive_a_stored_fleet() -> None:
    config = FleetConfig(num_devices=3, num_edges=2)
    fleet = Fleet.of(config, np.random.default_rng(0), edge_parents=["x", "y"])
    assert unpacked(packed(fleet), config).edge_parents == ("x", "y")


def test_a_graph_of_a_file_is_pinned_and_travels(tmp_path, monkeypatch) -> None:
    (tmp_path / "links.csv").write_text("edge,neighbour\n0,1\n1,2\n")
    (tmp_path / "sweep.yaml").write_text(
        "name: s\ntask: experiment\nexperiment: {fleet: {num_edges: 3}, tree: {gossip: {graph: links.csv}}}\n"
    )
    file = load_sweep(tmp_path / "sweep.yaml", [])
    (tmp_path / "links.csv").unlink()
    tree = file.model_dump(mode="json", exclude_unset=True)
    (graph,) = (name for key, name in inputs_in(tree) if key == "tree.gossip.graph")
    assert pinned.is_pinned(graph)
    assert "edge,neighbour" in pinned.content_of(graph)[1].decode()
    assert inputs_in({"experiment": {"tree": {"gossip": {"graph": "ring"}}}}) == []
