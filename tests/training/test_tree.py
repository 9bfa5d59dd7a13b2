"""Rounds with regions and with gossip: worked examples, D-SGD by a plain loop, any number of actors, kills."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hflray.experiment import Experiment
from hflray.fleet.tree import Graph, Regions, Tree, metropolis, mix
from hflray.training.method import Spec
from tests.conftest import small_config
from tests.training import quadratics
from tests.training.rounds import Rounds

THREE = np.arange(3)
PATH = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=bool)
TWO_REGIONS = Tree(regions=Regions(np.array([0, 0, 1]), np.zeros((2, 2)), np.ones(3), 1e6, np.ones(2), np.ones(2)))
ALONG_A_PATH = Tree(graph=Graph(PATH, metropolis(PATH), np.ones((3, 3)), 1e6))


def rounds_of(monkeypatch, tree: Tree, iterations: int, samples=(1, 1, 1), minima=(1.0, -3.0, 2.0), **method) -> Rounds:
    """Return rounds of three devices with the gradients w − a, one at each of three edges, and steps of 0.5."""
    monkeypatch.setattr(quadratics, "RATE", 0.5)
    rounds = quadratics.hierarchy(
        monkeypatch, "sgd", minima, iterations, steps=1, samples=samples, num_edges=3, full_batch=True, **method
    )
    rounds.hierarchy.setting = replace(rounds.hierarchy.setting, tree=tree)
    return rounds


def test_three_tiers_by_hand(monkeypatch) -> None:
    """The regions' models are −0.5 and 1, then −0.75 and 1.5; the global model is 0.375."""
    rounds = rounds_of(monkeypatch, TWO_REGIONS, 2, samples=(1, 1, 2), region_iterations=2)
    begin = rounds.start(np.zeros(1, np.float32))
    once = replace(rounds.setting, method=replace(rounds.setting.method, region_iterations=1))
    assert rounds.result(1, begin, THREE, THREE).state.model == pytest.approx(0.375, rel=1e-6)
    rounds.hierarchy.setting = once
    first = rounds.result(1, begin, THREE, THREE, np.ones((1, 3), dtype=bool)).state
    assert first.model == pytest.approx((2 * -0.5 + 2 * 1) / 4, rel=1e-6)


def test_a_region_whose_edges_have_nobody_keeps_its_model_and_has_no_weight(monkeypatch) -> None:
    rounds = rounds_of(monkeypatch, TWO_REGIONS, 2, samples=(1, 1, 2), region_iterations=2)
    begin = rounds.start(np.zeros(1, np.float32))
    there = np.array([[True, True, False], [True, True, False]])
    assert rounds.result(1, begin, THREE, THREE, there).state.model == pytest.approx(-0.75, rel=1e-6)
    # Region 1 trains in the first iteration only: its 1 stays in the second.
    there = np.array([[True, True, True], [True, True, False]])
    assert rounds.result(1, begin, THREE, THREE, there).state.model == pytest.approx((2 * -0.75 + 2 * 1) / 4, rel=1e-6)
    nobody = rounds.result(1, begin, THREE, THREE, np.zeros((2, 3), dtype=bool)).state
    assert nobody.model.tolist() == [0.0]


def test_one_region_that_combines_once_is_the_cloud(monkeypatch) -> None:
    one = Tree(regions=replace(TWO_REGIONS.regions, parent=np.zeros(3, dtype=np.intp), power_w=np.ones(1)))
    ends = []
    for tree in (one, Tree()):
        rounds = rounds_of(monkeypatch, tree, 3, samples=(1, 3, 2))
        ends.append(rounds.train_round(1, np.zeros(1, np.float32), THREE, THREE))
    np.testing.assert_allclose(*ends, rtol=1e-6)


def test_a_compressed_edge_and_region_keep_their_residuals(monkeypatch) -> None:
    sign = Spec("compressor", "sign")
    parts = {"edge_compressor": sign, "region_compressor": sign}
    rounds = rounds_of(monkeypatch, TWO_REGIONS, 2, samples=(1, 1, 2), region_iterations=2, **parts)
    state = rounds.result(1, rounds.start(np.zeros(1, np.float32)), THREE, THREE).state
    assert sorted(state.residuals) == [0, 1, 2, 3, 4]  # three edges, then two regions
    assert state.model == pytest.approx(0.375, rel=1e-5)  # the sign of one number times its size is the number


def test_gossip_by_hand(monkeypatch) -> None:
    """Models 3, 0 and −3 become 2, 0 and −2 on a path, and their mean stays 0."""
    rounds = rounds_of(monkeypatch, ALONG_A_PATH, 1, minima=(6.0, 0.0, -6.0))
    state = rounds.result(1, rounds.start(np.zeros(1, np.float32)), THREE, THREE).state
    assert [state.edges[m].item() for m in THREE] == pytest.approx([2, 0, -2], rel=1e-6)
    assert state.model.item() == pytest.approx(0, abs=1e-6)


def test_gossip_follows_d_sgd(monkeypatch) -> None:
    """Lian et al., 2017: x ← W (x − β ∇f(x)), here with two edge iterations before each mixing."""
    rounds = rounds_of(monkeypatch, ALONG_A_PATH, 2)
    state = rounds.start(np.zeros(1, np.float32))
    models, weights = np.zeros((3, 1)), metropolis(PATH)
    for index in range(1, 7):
        state = rounds.result(index, state, THREE, THREE).state
        for _ in range(2):
            models = models - 0.5 * (models - np.array([[1.0], [-3.0], [2.0]]))
        by_hand = np.array([[sum(weights[m, n] * models[n, 0] for n in range(3))] for m in range(3)])
        models = np.array(mix(weights, models))
        np.testing.assert_allclose(models, by_hand, rtol=0, atol=1e-12)
        assert [state.edges[m].item() for m in THREE] == pytest.approx(models[:, 0].tolist(), rel=1e-6, abs=1e-6)
        assert state.model.item() == pytest.approx(models.mean(), rel=1e-6, abs=1e-6)


def test_an_edge_without_devices_mixes_and_one_that_is_down_keeps_its_model(monkeypatch) -> None:
    rounds = rounds_of(monkeypatch, ALONG_A_PATH, 1, minima=(6.0, 0.0, -6.0))
    begin = rounds.start(np.zeros(1, np.float32))
    two, alone = THREE[:2], np.ones((1, 2), dtype=bool)
    state = rounds.result(1, begin, two, two, alone).state
    assert [state.edges[m].item() for m in THREE] == pytest.approx([2, 1, 0], rel=1e-6)
    after = rounds.result(2, state, two[:1], two[:1], alone[:, :1]).state  # edge 0 goes to 4
    assert [after.edges[m].item() for m in THREE] == pytest.approx([3, 5 / 3, 1 / 3], rel=1e-6)
    from hflray.cost import Schedule
    from hflray.training.state import RoundTask

    task = RoundTask(2, Schedule(two[:1], two[:1]), alone[:, :1], mixes=np.array([True, True, False]))
    down = rounds.hierarchy.train_round(task, state).state
    # Edges 0 and 1 are neighbours with a weight of ½ now.
    assert [down.edges[m].item() for m in THREE] == pytest.approx([2.5, 2.5, 0], rel=1e-6)


TREES = {
    "region": ("tree.region={count: 2, iterations: 2, aggregation: {name: median}, compression: {name: sign}}",),
    "gossip": ("tree.gossip={graph: ring}",),
}


@pytest.mark.parametrize("name", TREES)
def test_a_saved_run_goes_on_with_the_same_bits(name: str) -> None:
    config = small_config(*TREES[name], "max_rounds=4", "fleet.num_edges=3", "world.compute_jitter.sigma=0.3")
    whole = [record.model_hash for record in Experiment(config)]
    first = Experiment(config)
    parts = [first.run_round().model_hash, first.run_round().model_hash]
    state = first.state_dict()
    second = Experiment(config)
    second.load_state_dict(state)
    parts += [record.model_hash for record in second]
    assert parts == whole
    assert len(set(whole)) == 4


@pytest.mark.parametrize("name", TREES)
def test_any_number_of_actors_gives_the_same_bits(name: str, ray_session) -> None:
    hashes = []
    for backend in (("training.backend=serial",), ("training.backend=ray", "training.num_actors=2")):
        with Experiment(small_config(*TREES[name], "max_rounds=2", "fleet.num_edges=3", *backend), cpus=2) as run:
            hashes.append([record.model_hash for record in run])
    assert hashes[0] == hashes[1]
