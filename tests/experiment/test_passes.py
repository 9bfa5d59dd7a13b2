"""hflray.experiment.passes: whole runs with asynchronous edges, on actors, killed, and in a living world."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hflray import metrics
from hflray.aggregation.fixed_point import fraction_bits, mean
from hflray.cost import round_cost
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.experiment.turns import PlannedTurns
from hflray.training.local import DeviceHost
from hflray.world import World
from hflray.world.turns import UnderWay, timeline_of
from tests.experiment.test_turns import CLOUDS, LIVING, config, facts, run
from tests.training.rounds import exact_sums, task_of

EDGES = ("clock.edge=asynchronous",)
LIVES = tuple(each for each in LIVING if not each.startswith("clock.edge"))
INSIDE = ("compression.device.name=sign", "compression.edge.name=sign", "training.momentum=0.5")
WHERE = {"synchronous": (), **{name: each for name, each in CLOUDS.items() if name != "semi"}}
WORLDS = pytest.mark.parametrize("world", [(), LIVES], ids=["still", "living"])


@pytest.mark.parametrize("actors", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("cloud", ["synchronous", pytest.param("fedasync", marks=pytest.mark.slow)])
def test_any_number_of_actors_gives_the_same_bits(cloud: str, actors: int, ray_session) -> None:
    settings = (*WHERE[cloud], *EDGES, *INSIDE, *LIVES, "max_rounds=3")
    expected = facts(run(*settings))
    assert facts(run(*settings, "training.backend=ray", f"training.num_actors={actors}")) == expected


@WORLDS
@pytest.mark.parametrize("cloud", WHERE)
def test_a_run_goes_on_after_any_round_with_the_same_bits(cloud: str, world: tuple[str, ...]) -> None:
    """The passes under way, their versions and what they hold are in the state."""
    settings = (*WHERE[cloud], *EDGES, *INSIDE, *world)
    expected = facts(run(*settings))
    under_way = 0
    for stop in (1, 2, 4):
        with Experiment(config(*settings), cpus=2) as first:
            for _ in range(stop):
                first.run_round()
            under_way += len(first.under_way.waiting)
            state = {key: value if isinstance(value, np.ndarray) else json.loads(json.dumps(value))
                     for key, value in first.state_dict().items()}  # fmt: skip
        with Experiment(config(*settings), cpus=2) as second:
            second.load_state_dict(state)
            assert facts(list(second)) == expected[stop:]
    assert under_way


@WORLDS
@pytest.mark.parametrize("cloud", ["synchronous", "fedasync"])
def test_joules_and_bits_are_billed_once(cloud: str, world: tuple[str, ...]) -> None:
    """What rounds bill is what passes that have ended took, and the part of those under way that is over."""
    records = run(*WHERE[cloud], *EDGES, *world, "max_rounds=8")
    turns = {(turn.edge, turn.number): turn for record in records for turn in _played(record).turns}
    end_s = _played(records[-1]).end_s
    spent = [turn.spent(end_s) for turn in turns.values()]
    billed_j = sum(record.cost.energy_j for record in records)
    assert billed_j == pytest.approx(sum(each.devices_j.sum() + each.hop_j for each in spent))
    assert sum(record.cost.message_bits for record in records) == pytest.approx(sum(each.bits for each in spent))
    ended_j = sum(record.timeline.energy_j.sum() for record in records)
    devices_j = sum(record.timeline.spent_j.sum() for record in records)
    begun_j = sum(turn.happens.energy_j.sum() for turn in turns.values())
    assert ended_j < devices_j * (1 + 1e-12)
    assert devices_j < begun_j * (1 + 1e-12)
    going_j = sum(turn.happens.energy_j[turn.begin_s + turn.happens.end_s > end_s].sum() for turn in turns.values())
    assert ended_j + going_j == pytest.approx(begun_j)


def _played(record: RoundRecord):
    assert record.plan.played is not None
    return record.plan.played


@WORLDS
@pytest.mark.parametrize("cloud", ["synchronous", "fedasync", "fedat"])
def test_no_device_does_two_passes_at_once(cloud: str, world: tuple[str, ...]) -> None:
    """Passes of a device follow each other, none has the draws of another, and bandwidth suffices at every moment."""
    records = run(*WHERE[cloud], *EDGES, *world, "max_rounds=12")
    spans: dict[int, list[tuple[float, float]]] = {}
    turns = {(turn.edge, turn.number): turn for record in records for turn in _played(record).turns}
    for turn in turns.values():
        for column, device in enumerate(turn.happens.devices.tolist()):
            rows = np.isfinite(turn.happens.start_s[:, column])
            spans.setdefault(device, []).extend(
                zip(turn.begin_s + turn.happens.start_s[rows, column], turn.begin_s + turn.happens.end_s[rows, column],
                    strict=True)
            )  # fmt: skip
    assert len(spans) > 8
    for each in spans.values():
        for (_, end_s), (begin_s, _) in zip(sorted(each), sorted(each)[1:], strict=False):
            assert begin_s >= end_s - 1e-9
    mixes = [(mix.arrival.device, mix.arrival.round, mix.arrival.number, turn.edge, turn.number)
             for turn in turns.values() for mix in turn.mixed]  # fmt: skip
    assert len({each[:3] for each in mixes}) == len(mixes)


def test_devices_under_way_keep_their_bandwidth() -> None:
    with Experiment(config(*EDGES), cpus=1) as experiment:
        whole_hz = experiment.scenario.fleet.edge_bandwidth_hz
        records = [experiment.run_round()]
        held_hz = experiment.under_way.held_hz(len(whole_hz))
        busy = set(experiment.under_way.busy.tolist())
        records.append(experiment.run_round())
    assert (held_hz > 0).any()
    assert busy.isdisjoint(records[1].devices.tolist())
    given_hz = np.bincount(records[1].assignment, records[1].allocation.bandwidth_hz, len(whole_hz))
    assert (given_hz + held_hz <= whole_hz * (1 + 1e-9)).all()
    np.testing.assert_allclose((given_hz + held_hz)[given_hz > 0], whole_hz[given_hz > 0])


@pytest.mark.parametrize("cloud", ["synchronous", "fedasync"])
def test_the_models_are_those_mixed_by_hand(cloud: str) -> None:
    """Every arrival of two rounds is trained from the version that it fetched, and mixed in with its share."""
    settings = ("clock.edge={asynchronous: {updates: 3}}", "max_rounds=2")
    if cloud == "fedasync":
        settings = (*settings, "clock.cloud={asynchronous: {updates: 4, staleness: 1}}")
    with Experiment(config(*settings), cpus=1) as experiment:
        host = DeviceHost(experiment.job(), experiment.scenario.device_data())
        model = experiment.global_model.astype(np.float64)
        samples, versions = experiment.scenario.fleet.samples, {}
        history, fetched = [model], {}
        stale = carried = 0
        for index in (1, 2):
            record = experiment.run_round()
            task = experiment._task(record.plan, False)
            edges, first = {}, len(history) - 1
            for number, turn in enumerate(task.turns):
                source = turn.source
                if source is not None:
                    begun = history[first + source] if cloud == "fedasync" else model
                else:
                    begun = fetched[turn.edge]
                versions[turn.edge, turn.version] = begun
                version = turn.version
                for mix in turn.mixes:
                    device, count = mix.arrival.device, int(samples[mix.arrival.device])
                    bits = fraction_bits(count)
                    start = versions[turn.edge, mix.arrival.version].astype(np.float32)
                    job = task_of(mix.arrival.round, mix.arrival.number, bits, [(device,)])
                    (part,) = exact_sums(host, job, start)
                    assert mix.staleness == version - mix.arrival.version
                    stale, carried = stale + mix.staleness, carried + (mix.arrival.round < index)
                    old = versions[turn.edge, version]
                    versions[turn.edge, version + 1] = (1 - mix.share) * old + mix.share * mean(part, count, bits)
                    version += 1
                edges[number] = versions[turn.edge, version]
                if cloud == "fedasync":
                    history.append((1 - turn.share) * history[-1] + turn.share * edges[number])
            if cloud == "fedasync":
                model, fetched = history[-1], {
                    edge: history[first + source] if source is not None else fetched[edge]
                    for edge, source in task.under_way.items()
                }  # fmt: skip
            else:
                model = sum(turn.share * edges[number] for number, turn in enumerate(task.turns))
            np.testing.assert_allclose(experiment.global_model, model, atol=1e-6)
        assert stale > 0
        assert carried > 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("aggregation.edge.name=median",), "aggregation.edge.name: got median with clock.edge.asynchronous"),
        (("training.rule.name=scaffold",), "training.rule.name: got scaffold with clock.edge.asynchronous"),
        (("training.rule.name=mtgc",), "training.rule.name: got mtgc with clock.edge.asynchronous"),
        (("training.rule.name=fednova",), "training.rule.name: got fednova with clock.edge.asynchronous"),
        (("training.rule.name=feddyn", "aggregation.weights=uniform"), "training.rule.name: got feddyn with clock"),
        (
            ("privacy={clip: 1, noise_multiplier: 1}", "aggregation.weights=uniform"),
            "privacy.clip: got 1 with clock.edge.asynchronous",
        ),
        (
            ("cost.secure_aggregation={key_bits: 256, shares: 3}",),
            "cost.secure_aggregation.shares: got a number with clock.edge.asynchronous",
        ),
    ],
)  # fmt: skip
def test_what_needs_all_devices_of_an_edge_at_once_is_refused(settings: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        Experiment(config(*EDGES, *settings))
    assert line in str(error.value)


@pytest.mark.parametrize("scheduler", ["energy_aware", "ucb", "oort", "ikc", "power_of_choice", "joint_cost"])
def test_schedulers_that_look_back_see_each_turn(scheduler: str) -> None:
    records = run(*EDGES, f"scheduling.name={scheduler}", "max_rounds=4")
    assert len({record.model_hash for record in records}) == 4
    for record in records:
        assert record.spent_j().shape == record.device_delay_s().shape == record.devices.shape
        assert set(record.timeline.devices) == set(record.observed().devices)


def test_the_table_tells_of_each_arrival() -> None:
    (record,) = run(*EDGES, "max_rounds=1")
    table, logged = record.timeline.table(), record.metrics()
    assert logged[metrics.ROUND_ARRIVALS] == 8
    assert logged[metrics.ROUND_DEVICE_STALENESS] > 0
    assert metrics.ROUND_UPDATES not in logged
    known = [(device, staleness) for device, staleness in zip(table["device"], table["staleness"], strict=True)
             if device is not None]  # fmt: skip
    assert {staleness for _, staleness in known if staleness is not None} >= {0, 1}
    assert len(known) == 8


@WORLDS
@pytest.mark.parametrize("cloud", ["synchronous", "fedasync"])
def test_rounds_follow_again_from_what_is_logged(cloud: str, world: tuple[str, ...]) -> None:
    """A report bills rounds again from their schedules, without the models."""
    with Experiment(config(*WHERE[cloud], *EDGES, *world), cpus=1) as experiment:
        living, before = World(experiment.config, experiment.scenario.fleet), UnderWay.first(3)
        turns = PlannedTurns.of(experiment.config, experiment.work)
        assert turns is not None
        for record in experiment:
            outlook, logged = living.outlook(record.round, experiment.scenario.fleet), record.plan
            cost = round_cost(outlook.fleet, experiment.work, *logged.schedule, logged.allocation)
            played = turns.play(living, outlook, logged.schedule, logged.allocation, cost, before)
            happens = timeline_of(played, 3, experiment.work.device_bits)
            assert happens.table() == record.timeline.table()
            assert happens.total_j == record.cost.energy_j
            living, before = living.after(happens.delay_s, happens), played.after
