"""hflray.world.world: the loop in a living world: bills, bits, states, empty rounds, and off is off."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from hflray import metrics
from hflray.cost import rate_bps, round_cost
from hflray.errors import ConfigError
from hflray.report.detail import Replay, sentences
from hflray.support import checkpoint
from hflray.support.arrays import FloatArray
from tests.world.living import as_run, living, results

HALF = "world.availability={name: bernoulli, options: {probability: 0.4}}"
SPELLS = "world.availability={name: markov, options: {mean_on_s: 3, mean_off_s: 2}}"
JITTER = "world.compute_jitter.sigma=0.5"
FADING = "world.fading={name: rayleigh, coherence_s: 0.1}"
DROPOUT = "world.dropout.rate_per_s=0.1"
FAILURE = "world.edge_failure={mtbf_s: 9, mttr_s: 4}"
MILD = "world.edge_failure={mtbf_s: 40, mttr_s: 5}"
BATTERY = "world.battery={capacity_j: [0.1, 0.9], initial: 0.5, reserve_j: 0.02, harvest_w: 0.01, idle_w: 0.001}"
MOBILITY = "world.mobility={name: gauss_markov, options: {speed_m_per_s: 20}, slot_s: 0.1}"
EVERYTHING = (SPELLS, JITTER, FADING, DROPOUT, MILD, BATTERY, MOBILITY, "clock.edge.deadline=1.5", "world.wait_s=1")


def test_a_world_that_is_off_changes_nothing() -> None:
    """No state, no metric and no timeline; the golden test compares bits with those of the first version."""
    experiment = living("max_rounds=1", "world.wait_s=5")
    record = experiment.run_round()
    assert not record.deviates
    assert record.timeline.participates.all()
    assert not {*metrics.names_logged("clock"), *metrics.names_logged("world")} & set(record.metrics())
    assert not [name for name in experiment.state_dict() if name.startswith("world")]


def test_a_world_in_which_nothing_happens_has_the_bits_of_none() -> None:
    plain = living("max_rounds=2")
    sure = living("max_rounds=2", "world.availability={name: bernoulli, options: {probability: 1.0}}")
    for still, moving in zip(results(plain), results(sure), strict=True):
        assert still[0] == moving[0]
        for name, value in still[1].items():
            assert moving[1][name] == pytest.approx(value, rel=1e-12)
        assert set(moving[1]) - set(still[1]) == {*metrics.names_logged("clock"), *metrics.names_logged("world")}


def test_jitter_is_billed_and_not_seen_by_decisions() -> None:
    plain, jittery = living("max_rounds=1").run_round(), living(JITTER, "max_rounds=1").run_round()
    np.testing.assert_array_equal(plain.devices, jittery.devices)
    np.testing.assert_array_equal(plain.allocation.cpu_hz, jittery.allocation.cpu_hz)
    happens = jittery.timeline
    compute_s = happens.computed_s - happens.start_s
    factor = compute_s / jittery.cost.compute_delay_s
    assert factor.std() > 0.1
    computing_j = factor * jittery.cost.compute_energy_j
    np.testing.assert_allclose(happens.energy_j, computing_j + jittery.cost.upload_energy_j)
    assert jittery.cost.delay_s != plain.cost.delay_s
    assert jittery.model_hash == plain.model_hash  # all arrive, as the edges wait


def test_fading_discards_what_comes_late_and_changes_the_model() -> None:
    settings = ("world.fading.name=rayleigh", "clock.edge.deadline=1.2", "max_rounds=1")
    plain, faded = living("max_rounds=1").run_round(), living(*settings).run_round()
    np.testing.assert_array_equal(plain.allocation.bandwidth_hz, faded.allocation.bandwidth_hz)
    happens = faded.timeline
    assert 0 < happens.discarded < 1
    assert faded.metrics()[metrics.ROUND_WASTED_J] > 0
    assert faded.model_hash != plain.model_hash  # a discarded row is not trained
    assert faded.samples_trained < plain.samples_trained


def test_schedulers_are_told_the_delays_that_happened() -> None:
    """`last_delay_s` and the record have the rows' mean, UCB gives others the reward 0, and the plan is another."""
    experiment = living(
        "scheduling.name=ucb", "scheduling.num_scheduled=12", "max_rounds=1", "world.fading.name=rayleigh",
        "world.dropout.rate_per_s=0.3", "clock.edge.deadline=1.1",
    )  # fmt: skip
    record = experiment.run_round()
    happens, scheduler = record.timeline, experiment.scheduler
    took_s = happens.end_s - happens.start_s
    started = np.isfinite(took_s)
    rows, stays = len(took_s), np.zeros(took_s.shape, dtype=bool)  # who lives when its row ends
    stays[:-1] = started[1:]
    stays[-1] = ~happens.vanished
    heard = happens.participates | (started & ~happens.arrived & stays)
    sums_s, times = np.where(heard, took_s, 0.0).sum(axis=0), heard.sum(axis=0)
    known = times > 0
    assert 0 < known.sum() < len(known)  # some vanish in their first row
    assert (heard & ~happens.participates).any()  # some are stopped
    assert (times[known] < rows).any()
    np.testing.assert_allclose(record.device_delay_s()[known], sums_s[known] / times[known])
    assert np.isnan(record.device_delay_s()[~known]).all()
    assert not np.isclose(record.device_delay_s(), record.cost.iteration_delay_s).any()
    assert scheduler.times[record.devices].tolist() == [1] * 12
    credited_s = np.where(known, record.device_delay_s(), record.device_delay_s()[known].max())  # else the reward is 0
    np.testing.assert_array_equal(scheduler.total_delay_s[record.devices], credited_s)
    counted = happens.participates.any(axis=0)
    last_s = experiment.history.last_delay_s
    np.testing.assert_array_equal(last_s[record.devices[counted]], record.device_delay_s()[counted])
    assert np.isfinite(last_s).sum() == counted.sum()


@pytest.mark.parametrize("scheduler", ["oort", "ucb"])
def test_feedback_has_the_bits_of_the_plan_where_nothing_is_random(scheduler: str) -> None:
    """A limit that nobody passes and a world in which everybody answers choose the same devices by the same state."""
    limit, answers = "clock.edge.deadline_s=1e6", "world.availability={name: bernoulli, options: {probability: 1.0}}"
    states = []
    for overrides in ((), (limit,), (answers,)):
        experiment = living(f"scheduling.name={scheduler}", "max_rounds=3", *overrides)
        with experiment:
            seen = [(record.devices.tolist(), record.device_delay_s().tolist()) for record in experiment]
            last_s = experiment.history.last_delay_s.tolist() if scheduler == "oort" else []  # UCB does not look back
        states.append(json.dumps([seen, last_s, experiment.scheduler.state_dict()]))
    assert states[0] == states[1] == states[2]


def test_fading_that_is_known_is_decided_upon_and_goes_as_planned() -> None:
    settings = ("world.fading={name: rayleigh, known: true}", "max_rounds=1", "assignment.name=best_gain")
    experiment = living(*settings)
    outlook = experiment.world.outlook(1, experiment.scenario.fleet)
    record = experiment.run_round()
    factor = np.asarray(outlook.fleet.gain) / np.asarray(experiment.scenario.fleet.gain)
    assert factor.min() < 0.5 < 1.5 < factor.max()
    np.testing.assert_array_equal(record.assignment, np.asarray(outlook.fleet.gain)[record.devices].argmax(axis=1))
    planned = round_cost(outlook.fleet, experiment.work, record.devices, record.assignment, record.allocation)
    assert record.cost.objective == pytest.approx(planned.objective, rel=1e-12)
    assert record.timeline.participates.all()


def test_a_device_that_vanishes_is_not_trained_from_then_on() -> None:
    plain, lost = living("max_rounds=1").run_round(), living(DROPOUT, "max_rounds=1").run_round()
    happens, values = lost.timeline, lost.metrics()
    assert 0 < values[metrics.ROUND_VANISHED] == happens.vanished.sum() < 6
    assert (~happens.participates[-1] == happens.vanished).all()
    assert values[metrics.ROUND_WASTED_J] > 0
    assert lost.cost.energy_j < plain.cost.energy_j
    assert lost.model_hash != plain.model_hash
    experiment = living(DROPOUT, "max_rounds=3")
    gone, returned = set(), set()
    for record in experiment:
        returned |= gone & set(record.devices.tolist())
        gone |= set(record.devices[record.timeline.vanished].tolist())
    assert returned  # at the next planning


def test_devices_go_to_other_edges_and_a_failed_edge_loses_its_share() -> None:
    experiment = living(FAILURE, "max_rounds=8", "scheduling.num_scheduled=4")
    down, failed = 0, 0
    world, fleet = experiment.world, experiment.scenario.fleet
    for record in experiment:
        outlook, values, happens = world.outlook(record.round, fleet), record.metrics(), record.timeline
        world = experiment.world
        if outlook.is_empty:
            assert len(record.devices) == 0
            continue
        assert outlook.edges_up[record.assignment].all()
        assert values[metrics.ROUND_EDGES_DOWN] == (~outlook.edges_up).sum()
        assert (record.cost.edge_energy_j[~outlook.edges_up] == 0).all()  # no hop is billed
        lost = outlook.edges_up & ~happens.reached
        assert values[metrics.ROUND_EDGES_FAILED] == lost.sum()
        assert not happens.participates[:, lost[record.assignment]].any()
        down, failed = down + (~outlook.edges_up).sum(), failed + lost.sum()
    assert down > 0 < failed


CLOCKS = ["", "cloud: asynchronous", "edge: asynchronous", "edge: asynchronous, cloud: asynchronous"]


@pytest.mark.parametrize("clock", CLOCKS)
def test_an_edge_that_is_down_or_fails_before_its_first_arrival_is_not_waited_for(clock: str, tmp_path) -> None:
    """Under clocks that do not wait, it was counted as idle, and the failure was not counted."""
    (tmp_path / "edges.csv").write_text("time_s,edge,up\n0,0,0\n0.02,1,0\n")
    trace = f"world.edge_failure.trace={tmp_path / 'edges.csv'}"
    (record,) = living(trace, f"clock={{{clock}}}", "max_rounds=1", "fleet.num_edges=3", "assignment.name=even_gain")
    values = record.metrics()
    assert (values[metrics.ROUND_EDGES_DOWN], values[metrics.ROUND_EDGES_FAILED]) == (1, 1)
    assert record.timeline.reached.tolist() == [False, False, True]
    assert values[metrics.ROUND_EDGE_IDLE_S] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("clock", CLOCKS)
def test_downloads_over_links_of_a_trace_that_plans_do_not_see_take_what_the_links_have(clock: str, tmp_path) -> None:
    """They took what the plan said."""
    rows = [f"0,{device},{edge},-125" for device in range(12) for edge in range(3)]
    (tmp_path / "links.csv").write_text("\n".join(["time_s,device,edge,gain_db", *rows]))
    trace = f"name: trace, options: {{path: {tmp_path / 'links.csv'}}}"

    def downloads(fading: str) -> FloatArray:
        common = (f"clock={{{clock}}}", "max_rounds=1", "cost.download.name=unicast", "assignment.name=geographic")
        happens = living(*common, f"world.fading={{{fading}}}").run_round().timeline
        assert happens.download_j is not None
        return np.stack([(happens.fetched_s - happens.start_s)[0], happens.download_j[0]])

    known, unknown = downloads(f"{trace}, known: true"), downloads(f"{trace}, known: false")
    both = np.isfinite(known + unknown).all(axis=0)  # in asynchronous rounds, not all devices begin
    assert both.sum() >= 3
    np.testing.assert_allclose(known[:, both], unknown[:, both])
    assert (unknown > 1.05 * downloads("name: none")).any()


def test_a_policy_of_a_fixed_number_of_edges_is_refused_before_the_first_round() -> None:
    fixed = ("fleet.num_edges=5", "assignment.name=d3qn", "assignment.policy=paper_db")
    living(*fixed)
    with pytest.raises(ConfigError, match=r"is for M = 5 edges alone, and world\.edge_failure takes failed edges out;"):
        living(*fixed, FAILURE)


def test_batteries_empty_and_devices_without_charge_are_left_out() -> None:
    settings = ("world.battery={capacity_j: 0.2, reserve_j: 0.05}", "max_rounds=6", "scheduling.num_scheduled=12")
    experiment = living(*settings)
    charge_j, seen = np.full(12, 0.2), []
    for record in experiment:
        happens, values = record.timeline, record.metrics()
        assert values[metrics.ROUND_LOW_BATTERY] == (charge_j < 0.05).sum()
        assert values[metrics.CHARGE_MEDIAN_J] == pytest.approx(np.median(charge_j))
        assert values[metrics.CHARGE_LEAST_J] == pytest.approx(charge_j.min(), abs=1e-9)
        assert values[metrics.ROUND_AVAILABLE] == 12 - values[metrics.ROUND_LOW_BATTERY]
        assert (charge_j[record.devices] >= 0.05).all()
        assert (happens.spent_j <= charge_j[record.devices] + 1e-9).all()
        charge_j[record.devices] = np.clip(charge_j[record.devices] - happens.spent_j, 0, None)
        assert experiment.world.battery is not None
        np.testing.assert_allclose(experiment.world.battery.charge_j, charge_j, atol=1e-9)
        seen.append(len(record.devices))
    assert seen[0] == 12 > seen[-1]
    np.testing.assert_array_equal(experiment.state_dict()["world.battery.charge_j"], experiment.world.battery.charge_j)


def test_positions_move_between_rounds_and_links_follow() -> None:
    experiment = living(MOBILITY, "max_rounds=3", "assignment.name=best_gain", "scheduling.num_scheduled=12")
    base, seen, delay_s = experiment.scenario.fleet, [], []
    for index in range(1, 4):
        fleet = experiment.world.outlook(index, base).fleet
        record = experiment.run_round()
        np.testing.assert_array_equal(record.assignment, np.asarray(fleet.gain).argmax(axis=1))
        offset_m = np.linalg.norm(fleet.position_m[:, None] - fleet.edge_position_m, axis=-1)
        np.testing.assert_allclose(fleet.distance_m, np.maximum(offset_m, 1.0))
        planned = round_cost(fleet, experiment.work, record.devices, record.assignment, record.allocation)
        assert record.cost.objective == pytest.approx(planned.objective, rel=1e-12)
        seen.append(fleet)
        delay_s.append(record.cost.delay_s)
    np.testing.assert_array_equal(seen[0].position_m, base.position_m)
    for before, after, passed_s in zip(seen, seen[1:], delay_s, strict=False):
        moved_m = np.linalg.norm(after.position_m - before.position_m, axis=1)
        assert 0 < moved_m.max() < 4 * 20 * passed_s  # four times the root mean square of the speed
        assert (np.asarray(after.gain) != np.asarray(before.gain)).all()
    assert (np.asarray(seen[0].gain) != np.asarray(base.gain)).all()  # the shadowing is a field of the position


FAST = "world.mobility={name: gauss_markov, options: {speed_m_per_s: 200}, slot_s: 0.1}"


@pytest.mark.parametrize("fading", [(), ("world.fading.name=rayleigh",)])
def test_uploads_follow_the_positions_at_the_start_of_each_edge_iteration(fading: tuple[str, ...]) -> None:
    """Each row's upload has the gain of the place where its device is as the row starts, and the plan is the same."""
    roaming = living(FAST, *fading, "max_rounds=2", "world.mobility.links=iteration")
    before, record = roaming.run_round(), roaming.run_round()
    happens, clock_s = record.timeline, before.cost.delay_s
    fleet, devices, edges = roaming.scenario.fleet, record.devices, record.assignment
    noise, power_w = fleet.noise_w_per_hz, fleet.power_w[devices]
    for q in range(2):
        for edge in np.unique(edges):
            at = np.flatnonzero(edges == edge)
            world = living(FAST).world.after(0.0, None)
            assert world.mobility is not None
            world.mobility.advance(clock_s + happens.start_s[q, at[0]])
            there = world.outlook(2, fleet).fleet
            factor = roaming.world.fading.factor(2, devices[at], edge, q)
            gain = there.gain_of(devices[at], edges[at]) * factor
            rate = rate_bps(record.allocation.bandwidth_hz[at], gain, power_w[at], noise)
            np.testing.assert_allclose((happens.end_s - happens.computed_s)[q, at], roaming.work.model_bits / rate)
    if not fading:  # where the iterations begin at the planning, all goes as planned
        np.testing.assert_allclose((happens.end_s - happens.computed_s)[0], record.cost.upload_delay_s)
        assert not np.isclose((happens.end_s - happens.computed_s)[1], record.cost.upload_delay_s).any()


def test_links_that_follow_change_no_draw_and_nothing_for_devices_that_stand() -> None:
    slow = "world.mobility={name: gauss_markov, options: {speed_m_per_s: 1.0e-6}, slot_s: 0.1}"
    plain, follow = results(living(slow)), results(living(slow, "world.mobility.links=iteration"))
    assert [one[0] for one in plain] == [one[0] for one in follow]
    assert [one[2]["devices"] for one in plain] == [one[2]["devices"] for one in follow]
    for one, other in zip(plain, follow, strict=True):
        assert one[1] == pytest.approx(other[1], rel=1e-5)


def test_fairness_counts_the_rounds_in_which_a_device_counted() -> None:
    """Jain's index of the rounds that counted so far, of 12 devices; a device that vanished did not take part."""
    counted = np.zeros(12)
    for record in living(DROPOUT, "max_rounds=3"):
        counted[record.devices[record.timeline.participates.any(axis=0)]] += 1
        expected = counted.sum() ** 2 / (12 * (counted**2).sum())
        assert record.metrics()[metrics.FAIRNESS] == pytest.approx(expected)
    assert counted.sum() < 3 * 6


def test_a_round_in_which_nobody_is_available_is_empty_and_lasts() -> None:
    experiment = living("world.availability={name: bernoulli, options: {probability: 1e-9}}", "world.wait_s=7")
    before = experiment.global_model.copy()
    records = list(experiment)
    assert len(records) == 3  # they count towards max_rounds
    np.testing.assert_array_equal(experiment.global_model, before)
    for record in records:
        values = record.metrics()
        assert len(record.devices) == 0
        assert values[metrics.ROUND_DELAY_S] == 7
        assert values[metrics.ROUND_ENERGY_J] == values[metrics.ROUND_MESSAGE_BITS] == 0
        assert values[metrics.ROUND_OBJECTIVE] == 7 * experiment.work.delay_weight
        assert values[metrics.ROUND_AWAY] == 12
        assert values[metrics.FAIRNESS] == values[metrics.ROUND_DISCARDED] == values[metrics.CLASS_BALANCE] == 0
        assert values[metrics.ROUND_EDGE_IDLE_S] == 3 * 7
        assert json.dumps(record.schedule())
    assert experiment.totals["delay_s"] == 21 == experiment.world.clock_s


@cache
def of_everything() -> list[tuple[object, ...]]:
    return results(living(*EVERYTHING, "max_rounds=4"))


def test_the_bits_are_those_of_every_backend(ray_session) -> None:
    expected = of_everything()
    assert len({result[0] for result in expected}) == 4
    for actors in (1, 2):
        backend = ("training.backend=ray", f"training.num_actors={actors}")
        assert results(living(*EVERYTHING, "max_rounds=4", *backend)) == expected


def test_a_resumed_run_continues_bit_for_bit(tmp_path) -> None:
    expected = of_everything()
    first = living(*EVERYTHING, "max_rounds=4")
    for _ in range(2):
        first.run_round()
    checkpoint.save(tmp_path / "state", first.state_dict())
    resumed = living(*EVERYTHING, "max_rounds=4")
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    assert resumed.world.clock_s == first.totals["delay_s"]
    assert results(resumed) == expected[2:]


def test_a_state_without_the_world_is_refused() -> None:
    first = living(*EVERYTHING)
    first.run_round()
    state = {name: value for name, value in first.state_dict().items() if not name.startswith("world.")}
    with pytest.raises(ConfigError, match="the state is of another world or damaged"):
        living(*EVERYTHING).load_state_dict(state)


def test_a_report_replays_the_world() -> None:
    """The recomputed bill of each round equals the logged one, or `Replay` refuses it."""
    run = as_run(living(*EVERYTHING, "max_rounds=4"))
    replay, texts = Replay(run), []
    for number in (4, 2):  # in any order
        detail = replay.round(number)
        row = run.rounds[run.rounds["round"] == number].iloc[0]
        assert detail.cost.delay_s == pytest.approx(row[metrics.ROUND_DELAY_S], rel=1e-12)
        assert (~detail.outlook.answers).sum() == row[metrics.ROUND_AWAY]
        lines = sentences(run, detail, replay.names)
        fates = detail.devices.set_index("device")["fate"]
        assert [line for line in lines if line.startswith("device ")] == [
            f"device {device} {text}" for device, text in fates.items() if text
        ]
        texts.extend(text for text in fates if text)
    assert texts
    run.rounds = run.rounds.iloc[1:]
    with pytest.raises(ConfigError, match="follows from all rounds before it, and some were not logged"):
        Replay(run).round(3)


def test_a_report_replays_polls_that_drain_batteries() -> None:
    polling = ("scheduling.name=power_of_choice", "scheduling.num_scheduled=4", "world.wait_s=1", "max_rounds=5")
    run = as_run(living(*polling, "world.battery={capacity_j: [0.05, 0.3], reserve_j: 0.02, harvest_w: 0.001}"))
    assert run.rounds[metrics.ROUND_LOW_BATTERY].iloc[-1] > 0  # later rounds follow from the charges
    replay, rows = Replay(run), run.rounds.to_dict("records")
    for row in rows:
        assert replay.round(row["round"]).cost.energy_j == pytest.approx(row[metrics.ROUND_ENERGY_J], rel=1e-12)
    for position, row in enumerate(rows):
        charge_j = replay._happened(position).world.battery.charge_j
        assert np.median(charge_j) == pytest.approx(row[metrics.CHARGE_MEDIAN_J], rel=1e-12)
    run.rounds = run.rounds.drop(columns="polled")
    with pytest.raises(ConfigError, match="the polls of round 1 drained batteries, and an older hflray did not log"):
        Replay(run).round(1)


@pytest.mark.parametrize("settings", [("scheduling.name=power_of_choice",), (BATTERY,)])
def test_polled_devices_are_logged_only_where_polls_drain_batteries(settings: tuple[str, ...]) -> None:
    with living(*settings, "max_rounds=1") as experiment:
        assert "polled" not in experiment.run_round().schedule()


def test_a_report_explains_an_empty_round() -> None:
    run = as_run(living("world.availability={name: bernoulli, options: {probability: 1e-9}}", "max_rounds=1"))
    replay = Replay(run)
    assert sentences(run, replay.round(1), replay.names)[-1] == "nobody was available, and the cloud waited for 60.00 s"
