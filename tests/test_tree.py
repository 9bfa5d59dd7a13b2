"""Bills of rounds with regions and with gossip: equations (13) and (14) over hops, failures, searches."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest

from hflray import Workload, allocate_round, load_config, metrics, round_cost, sample_fleet
from hflray.assignment import assign_among, configured_assigner
from hflray.config import FleetConfig
from hflray.config.system import TreeConfig
from hflray.cost import Schedule, cloud_hop, edge_hops, gossip_hops, hops, message_bits, rate_bps, region_hops
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.study import Instance
from hflray.report.page import _above
from hflray.rl.fleets import FleetSpec
from hflray.rl.scheduling_env import environment
from hflray.timeline import Durations, Ends, Hops, timeline
from tests.conftest import small_config

CONFIG = FleetConfig(num_devices=12, num_edges=4)
WORK = Workload(model_bits=1e6, edge_iterations=6, region_iterations=3, region_bits=2e6)
DEVICES, EDGES = np.arange(8), np.array([0, 0, 1, 1, 2, 2, 3, 3])
SCHEDULE = Schedule(DEVICES, EDGES)


def fleet_of(tree: dict):
    fleet = sample_fleet(CONFIG, np.random.default_rng(3))
    return fleet.with_tree(TreeConfig.model_validate(tree), CONFIG, 0)


TWO = fleet_of({"region": {"count": 2, "bandwidth_mhz": 5, "power_dbm": 40}})
RING = fleet_of({"gossip": {"graph": "ring", "links_mhz": 4}})


def test_an_edge_pays_its_hops_up_to_the_root() -> None:
    """T_m = R(Qτ_m + h_m) + h_r, and E = Σ_m R(Q e_m + j_m) + Σ_r j_r."""
    cost = round_cost(TWO, WORK, DEVICES, EDGES, allocate_round(TWO, WORK, DEVICES, EDGES))
    (up_s, up_j), (top_s, top_j) = edge_hops(TWO, WORK), region_hops(TWO, WORK)
    parent = TWO.tree.regions.parent
    rate = rate_bps(np.asarray(5e6), TWO.tree.regions.edge_gain, TWO.edge_power_w, TWO.noise_w_per_hz)
    np.testing.assert_allclose(up_s, 1e6 / rate, rtol=1e-12)
    np.testing.assert_allclose(top_j, 10.0 * top_s, rtol=1e-12)  # 40 dBm
    slowest = np.array([cost.iteration_delay_s[m == EDGES].max() for m in range(4)])
    spent = np.bincount(EDGES, cost.compute_energy_j + cost.upload_energy_j)
    np.testing.assert_allclose(cost.edge_delay_s, 3 * (2 * slowest + up_s) + top_s[parent], rtol=1e-12)
    assert cost.energy_j == pytest.approx((3 * (2 * spent + up_j)).sum() + top_j.sum(), rel=1e-12)
    assert cost.delay_s == cost.edge_delay_s.max()
    assert cost.message_bits == 8 * 6 * 1e6 + 4 * 3 * 1e6 + 2 * 2e6


@pytest.mark.parametrize("fleet", [TWO, RING], ids=["regions", "gossip"])
def test_a_round_that_goes_as_planned_has_the_planned_bill(fleet) -> None:
    work = WORK if fleet is TWO else replace(WORK, region_iterations=1)
    cost = round_cost(fleet, work, DEVICES, EDGES, allocate_round(fleet, work, DEVICES, EDGES))
    happens = timeline(SCHEDULE, fleet.samples[DEVICES], work, Durations.of(cost), Hops.of(fleet, work))
    bill = happens.bill(cost, work.delay_weight)
    for name in ("energy_j", "delay_s", "objective", "message_bits", "edge_energy_j", "edge_delay_s"):
        np.testing.assert_allclose(getattr(bill, name), getattr(cost, name), rtol=1e-12, err_msg=name)
    assert happens.participates.all()
    if fleet is TWO:
        assert happens.region_delay_s.max() == pytest.approx(cost.delay_s, rel=1e-12)
        assert happens.region_energy_j.sum() == pytest.approx(cost.energy_j, rel=1e-12)


def test_gossip_sends_to_each_neighbour_with_a_share_of_the_bandwidth() -> None:
    delay_s, energy_j = gossip_hops(RING, 1e6)
    graph, power_w = RING.tree.graph, RING.edge_power_w
    links_s = 1e6 / rate_bps(np.asarray(2e6), graph.gain, power_w[:, None], RING.noise_w_per_hz)
    for m in range(4):
        both = links_s[m, graph.linked[m]]
        assert len(both) == 2
        assert delay_s[m] == pytest.approx(both.max(), rel=1e-12)
        assert energy_j[m] == pytest.approx(power_w[m] * both.sum(), rel=1e-12)
    up = np.array([True, True, False, True])
    for hop, billed in zip(hops(RING.with_edges_up(up), WORK), gossip_hops(RING, WORK.edge_bits, up), strict=True):
        np.testing.assert_array_equal(hop, billed)
    alone_s, _ = gossip_hops(RING, 1e6, up)
    assert alone_s[2] == 0
    assert alone_s[1] == pytest.approx(
        1e6 / rate_bps(np.asarray(4e6), graph.gain[1, 0], power_w[1], RING.noise_w_per_hz)
    )


def test_a_region_waits_for_its_slowest_edge_each_time() -> None:
    """Edges 0 and 1 of one region take turns in being slow; each waits for the other."""
    parent = np.array([0, 0])
    work = Workload(model_bits=1.0, edge_iterations=2, region_iterations=2)
    compute_s = np.array([[1.0, 5.0], [4.0, 2.0]])
    zero = np.zeros((2, 2))
    above = Hops(
        np.array([0.5, 0.5]), np.array([1.0, 2.0]), np.ones(2, bool), None, parent, np.array([3.0]), np.array([4.0])
    )
    both = Schedule(np.arange(2), np.arange(2))
    happens = timeline(both, [1, 1], work, Durations(compute_s, compute_s, zero, zero), above)
    assert happens.start_s.tolist() == [[0, 0], [5.5, 5.5]]
    assert happens.delay_s == 5.5 + 4.5 + 3
    assert happens.edge_delay_s.tolist() == [1 + 4 + 2 * 0.5 + 3, 5 + 2 + 2 * 0.5 + 3]  # without waiting
    assert happens.edge_energy_j.tolist() == [5 + 2 + 2, 7 + 4 + 2]
    assert happens.message_bits == 4 + 4 + 1


def test_an_edge_that_fails_is_lost_from_then_on_and_its_region_goes_on() -> None:
    parent = np.array([0, 0])
    work = Workload(model_bits=1.0, edge_iterations=2, region_iterations=2)
    one = np.ones((2, 2))
    above = Hops(np.zeros(2) + 0.5, np.ones(2), np.ones(2, bool), None, parent, np.array([3.0]), np.array([4.0]))
    ends = replace(Ends.never(2, 2), fail_s=np.array([2.0, np.inf]))  # in its second edge iteration
    both = Schedule(np.arange(2), np.arange(2))
    happens = timeline(both, [1, 1], work, Durations(one, one, 0 * one, 0 * one), above, ends=ends)
    assert happens.participates.tolist() == [[True, True], [False, True]]
    assert happens.reached.tolist() == [False, True]
    assert happens.edge_delay_s[0] == 2.0 + 3.0  # its region's model still arrives
    assert happens.delay_s == 6.0
    assert happens.energy_j.tolist() == [[1, 1], [0.5, 1]]
    # An edge that fails while it waits for another has taken what it took until then.
    slow = Durations(np.array([[1.0, 9.0], [1.0, 1.0]]), one, 0 * one, 0 * one)
    happens = timeline(both, [1, 1], work, slow, above, ends=ends)
    assert happens.edge_delay_s[0] == 1.5 + 3.0
    # A region sends the model that it has of an edge that has failed since.
    above = replace(above, parent=np.array([0, 1]), region_delay_s=np.full(2, 3.0), region_energy_j=np.full(2, 7.0))
    happens = timeline(both, [1, 1], work, Durations(one, one, 0 * one, 0 * one), above, ends=ends)
    assert happens.region_delay_s.tolist() == [2.0 + 3.0, 3.0 + 3.0]
    assert happens.region_energy_j.tolist() == [1 + 0.5 + 1 + 7, 2 + 2 + 7]


def test_an_edge_that_is_down_has_no_part_of_its_regions_hop() -> None:
    up = np.array([True, False, True, True])
    happens = Hops.of(TWO, WORK, up)
    ends = replace(Ends.never(6, 4), fail_s=np.where(up, np.inf, 0.0))
    one, rows = np.ones(6), EDGES != 1
    schedule = Schedule(DEVICES[rows], EDGES[rows])
    found = timeline(schedule, one, WORK, Durations(one, one, one, one), happens, ends=ends)
    assert found.edge_delay_s[1] == found.edge_energy_j[1] == 0
    spent_j = np.bincount(schedule.edges, minlength=4) * 2.0 * WORK.edge_iterations
    _, planned_j = hops(TWO.with_edges_up(up), WORK)
    np.testing.assert_allclose(found.edge_energy_j, spent_j + planned_j, rtol=1e-12)
    _, top_j = region_hops(TWO, WORK)
    assert planned_j.sum() == pytest.approx((3 * edge_hops(TWO, WORK)[1] * up).sum() + top_j.sum(), rel=1e-12)


def test_searches_and_assigners_price_the_hop_up_to_the_root() -> None:
    """The best assignment by the exact objective takes regions with a weak link to the cloud into account."""
    far = replace(TWO.tree, regions=replace(TWO.tree.regions, cloud_gain=TWO.tree.regions.cloud_gain * [1.0, 1e-4]))
    fleet = replace(TWO, tree=far)
    delay_s, _ = hops(fleet, WORK)
    assert delay_s[far.regions.parent == 1].min() > 100 * delay_s[far.regions.parent == 0].max()
    config = load_config(
        None,
        ["assignment.name=local_search", "fleet.num_devices=12", "fleet.num_edges=4", "scheduling.num_scheduled=3"],
    )
    three = DEVICES[:3]

    def objective(answer) -> float:
        return round_cost(fleet, WORK, three, answer, allocate_round(fleet, WORK, three, answer)).objective

    answer = assign_among(
        configured_assigner(config), np.ones(4, dtype=bool), fleet, WORK, three, np.random.default_rng(0)
    )
    best = min(objective(np.array(every)) for every in itertools.product(range(4), repeat=3))
    assert objective(answer) == pytest.approx(best, rel=1e-9)


def test_regions_and_edges_have_metrics_of_their_own() -> None:
    with Experiment(small_config("tree.region={count: 2}", "fleet.num_edges=3")) as run:
        values = run.run_round().metrics()
    assert values[metrics.ROUND_DELAY_S] == max(values[metrics.region_metric(r, "delay_s")] for r in (0, 1))
    assert sum(values[metrics.region_metric(r, "energy_j")] for r in (0, 1)) == pytest.approx(
        values[metrics.ROUND_ENERGY_J]
    )
    with Experiment(small_config("tree.gossip={graph: ring}", "fleet.num_edges=3")) as run:
        values = run.run_round().metrics()
    assert all(0 <= values[metrics.edge_metric(m, "accuracy")] <= 1 for m in range(3))


def test_one_level_is_what_it_was() -> None:
    flat = pickle.loads(pickle.dumps(fleet_of({})))
    odd = Workload(model_bits=882.1 * 8192, edge_iterations=5)
    assert message_bits(3, flat, odd) == (3 * 5 + 4) * odd.device_bits  # to the last bit
    work = Workload(model_bits=1e6, edge_iterations=6)
    np.testing.assert_array_equal(hops(flat, work)[0], cloud_hop(flat, 1e6)[0])


def test_the_map_of_a_report_draws_what_lies_above_the_edges() -> None:
    drawn = {name: _above(fleet, 1000.0) for name, fleet in (("flat", fleet_of({})), ("two", TWO), ("ring", RING))}
    lines = {name: len(of["x"]) // 3 for name, of in drawn.items()}
    assert lines == {"flat": 0, "two": 4 + 2, "ring": 4}
    assert drawn["two"]["names"] == ["region 0", "region 1"]
    assert [drawn[name]["cloud"] for name in ("flat", "two", "ring")] == [True, True, False]
    assert drawn["two"]["x"][2::3] == [None] * 6


@pytest.mark.parametrize("tree", ["tree.region={count: 2, iterations: 3}", "tree.gossip={}"])
def test_a_study_of_assignments_has_the_tree(tree: str) -> None:
    small = ["fleet.num_devices=12", "fleet.num_edges=4", "scheduling.num_scheduled=6", "assignment.name=local_search"]
    flat, above = (Instance.of(load_config(None, [*small, *more]), 1) for more in ((), (tree,)))
    assert not above.fleet.tree.is_cloud_alone
    np.testing.assert_array_equal(flat.devices, above.devices)
    np.testing.assert_array_equal(flat.fleet.gain, above.fleet.gain)
    assert above.work.edge_iterations == flat.work.edge_iterations * above.work.region_iterations


@pytest.mark.parametrize("of", [FleetSpec.of, environment])
def test_the_training_of_a_policy_refuses_a_tree(of) -> None:
    with pytest.raises(ConfigError, match=r"tree: got 2 regions, iterations 3 for .*accepted: no tree"):
        of(load_config(None, ["tree.region={count: 2, iterations: 3}"]))


@pytest.mark.parametrize("setting", ["tree.region={count: 2}", "tree.gossip={}", "clock.edge=asynchronous"])
def test_a_level_that_was_on_in_a_saved_run_is_a_difference(setting: str) -> None:
    plain = small_config("fleet.num_edges=3")
    with Experiment(small_config("fleet.num_edges=3", setting)) as run:
        state = run.state_dict()
    with Experiment(plain) as run, pytest.raises(ConfigError, match="the saved state was made with"):
        run.load_state_dict(state)
