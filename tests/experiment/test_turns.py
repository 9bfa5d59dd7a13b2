"""hflray.world.turns: runs of clouds and edges that do not wait, on actors, killed, in a living world."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hflray import metrics, registry
from hflray.aggregation.fixed_point import fraction_bits, mean
from hflray.config import ExperimentConfig
from hflray.cost import round_cost
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.scheduling.ucb import UCB
from hflray.training.local import DeviceHost
from hflray.training.rules import LocalRule
from hflray.world import World
from hflray.world.turns import PlannedTurns, UnderWay, timeline_of
from tests.conftest import refusal, small_config
from tests.training.rounds import exact_sums, task_of

LIVING = (
    "world.compute_jitter.sigma=0.5", "world.dropout.rate_per_s=1", "world.fading.name=rayleigh",
    "world.edge_failure={mtbf_s: 1.5, mttr_s: 0.2}", "world.battery.capacity_j=[0.2, 0.9]", "clock.edge.deadline=2",
    "world.mobility={name: random_waypoint, links: iteration, options: {v_min_m_per_s: 5, v_max_m_per_s: 15}}",
)  # fmt: skip
BASE = (
    "fleet.num_devices=16", "fleet.num_edges=3", "scheduling.num_scheduled=8", "scheduling.name=fedavg", "max_rounds=5",
    "model.name=logistic",
)  # fmt: skip
INSIDE = ("training.rule.name=scaffold", "compression.device.name=sign", "compression.edge.name=sign")
PERIODIC = ("training.rule.name=mtgc", *INSIDE[1:])  # vectors that go up once a round do not go with a period
INSIDE_OF_EDGES = ("compression.device.name=sign", "compression.edge.name=sign", "training.momentum=0.5")
CLOUDS = {
    "semi": ("clock.cloud={semi_synchronous: {period_s: 0.4}}",),
    "fedasync": ("clock.cloud=asynchronous",),
    "fedbuff": ("clock.cloud={asynchronous: {buffer: 2, updates: 3}}",),
    "fedat": ("clock.cloud={asynchronous: {rule: fedat, updates: 2}}",),
}
EDGES = ("clock.edge=asynchronous",)
WHERE = {"synchronous": (), **{name: cloud for name, cloud in CLOUDS.items() if name != "semi"}}  # with such edges
LIVES = tuple(setting for setting in LIVING if not setting.startswith("clock.edge"))
WAYS = {  # the settings, and the same in a living world
    **{name: ((*cloud, *INSIDE), (*cloud, *INSIDE, *LIVING)) for name, cloud in CLOUDS.items()},
    "semi": ((*CLOUDS["semi"], *PERIODIC), (*CLOUDS["semi"], *PERIODIC, *LIVING)),
    **{
        f"edges, {name}": ((*cloud, *EDGES, *INSIDE_OF_EDGES), (*cloud, *EDGES, *INSIDE_OF_EDGES, *LIVES))
        for name, cloud in WHERE.items()
    },
}
WORLDS = pytest.mark.parametrize("world", [(), LIVES], ids=["still", "living"])


def config(*overrides: str) -> ExperimentConfig:
    return small_config(*BASE, *overrides)


def run(*overrides: str) -> list[RoundRecord]:
    with Experiment(config(*overrides), cpus=2) as experiment:
        return list(experiment)


def facts(records: list[RoundRecord]) -> list[object]:
    """Return hash, bill, schedule and rows of each round."""
    return [
        (r.model_hash, {k: v for k, v in r.metrics().items() if not k.startswith("wall/")}, r.schedule(),
         r.timeline.table())
        for r in records
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("way", "actors"),
    [
        ("edges, fedasync", 2),
        *(pytest.param(way, actors, marks=pytest.mark.slow)
          for way, actors in (("semi", 2), ("fedasync", 8), ("fedbuff", 2), ("fedat", 2), ("edges, synchronous", 2))),
    ],
)  # fmt: skip
def test_any_number_of_actors_gives_the_same_bits(way: str, actors: int, ray_session) -> None:
    settings = (*WAYS[way][1], "max_rounds=3")
    expected = facts(run(*settings))
    assert facts(run(*settings, "training.backend=ray", f"training.num_actors={actors}")) == expected


@pytest.mark.parametrize(
    ("way", "lives"), [*((way, True) for way in WAYS), ("fedasync", False), ("edges, synchronous", False)]
)
def test_a_run_goes_on_after_any_round_with_the_same_bits(way: str, lives: bool) -> None:
    """The turns and passes under way, their versions, the buffer and the newest models are in the state."""
    settings = WAYS[way][lives]
    expected = facts(run(*settings))
    under_way = 0
    for stop in (1, 3):
        with Experiment(config(*settings), cpus=2) as first:
            for _ in range(stop):
                first.run_round()
            under_way += len(first.under_way.waiting) + len(first.under_way.turns)
            state = {key: value if isinstance(value, np.ndarray) else json.loads(json.dumps(value))
                     for key, value in first.state_dict().items()}  # fmt: skip
        with Experiment(config(*settings), cpus=2) as second:
            second.load_state_dict(state)
            assert facts(list(second)) == expected[stop:]
    assert under_way or way == "semi"


def test_an_evaluation_changes_no_arrival() -> None:
    """Rounds of one update and rounds of three have the same updates, if every device is always at the same edge."""
    once = ("fleet.num_devices=6", "scheduling.num_scheduled=6", "assignment.once=true", "assignment.name=geographic")

    def arrivals(updates: int, rounds: int) -> list[tuple[int, float]]:
        clock_s, moments = 0.0, []
        for record in run(f"clock.cloud={{asynchronous: {{updates: {updates}}}}}", *once, f"max_rounds={rounds}"):
            assert record.timeline.updates is not None
            moments += [(int(row[0]), clock_s + row[4]) for row in record.timeline.updates]
            clock_s += record.cost.delay_s
        return moments

    short, whole = arrivals(1, 3), arrivals(3, 1)
    assert [edge for edge, _ in short] == [edge for edge, _ in whole]
    assert [at for _, at in short] == pytest.approx([at for _, at in whole])


def test_the_model_is_that_of_updates_mixed_by_hand() -> None:
    """A fast edge fetches what it has changed."""
    settings = (
        "clock.cloud={asynchronous: {mixing: 0.5, staleness: 0, weight: none}}", "fleet.num_devices=3",
        "scheduling.num_scheduled=3", "assignment.name=geographic", "training.edge_iterations=1", "max_rounds=1",
    )  # fmt: skip
    with Experiment(config(*settings), cpus=1) as experiment:
        models = [experiment.global_model.astype(np.float64)]
        record = experiment.run_round()
        task = experiment._task(record.plan, False)
        host = DeviceHost(experiment.job(), experiment.scenario.device_data())
        turns = [update.turn for update in task.played.updates]
        for turn in turns:
            devices = turn.happens.devices
            samples = int(experiment.scenario.fleet.samples[devices].sum())
            bits = fraction_bits(samples)
            fetched = models[turn.position].astype(np.float32)
            (part,) = exact_sums(host, task_of(1, turn.first, bits, [tuple(devices.tolist())]), fetched)
            models.append(0.5 * models[-1] + 0.5 * mean(part, samples, bits))
        assert {turn.position for turn in turns} == {0, 1, 2}
        np.testing.assert_allclose(experiment.global_model, models[-1], atol=1e-6)


def test_metrics_exist_with_their_clock_only() -> None:
    own = {metrics.CLOCK_S, metrics.ROUND_UPDATES, metrics.ROUND_STALENESS}
    assert own.isdisjoint(run("max_rounds=1")[0].metrics())
    assert own & set(run(*CLOUDS["semi"], "max_rounds=1")[0].metrics()) == {metrics.CLOCK_S}
    first, second = run(*CLOUDS["fedasync"], "max_rounds=2")
    assert own <= set(second.metrics())
    assert second.metrics()[metrics.CLOCK_S] == pytest.approx(first.cost.delay_s + second.cost.delay_s)
    assert second.metrics()[metrics.ROUND_UPDATES] == 3
    assert {"staleness", "share"} <= set(second.timeline.table())


def test_fast_edges_do_more_in_a_period() -> None:
    """The cloud's round is the period, and what an edge does in it is billed."""
    record = run("clock.cloud={semi_synchronous: {period_s: 0.5}}", "max_rounds=1")[0]
    iterations = [
        int(record.timeline.participates[:, record.assignment == edge].any(axis=1).sum())
        for edge in np.unique(record.assignment)
    ]
    assert record.cost.delay_s >= 0.5
    assert len(set(iterations)) > 1
    assert max(iterations) > 2  # Q = 2 counts no more


def test_each_edge_has_a_last_edge_iteration_of_its_own_in_a_period(monkeypatch) -> None:
    """A device hands up one at its edge's last one, so that the sum is the number of devices."""

    class Lasts(LocalRule):
        vectors, extra = (1, 1), ("s",)

        def finish(self, received, trained, rate, memory):
            return memory, {"s": np.ones_like(trained)} if received.last else {}

        def cloud(self, report, state):
            return None, dict(report.extra)

    monkeypatch.setitem(registry._ADDED, ("local_rule", "lasts"), Lasts)
    settings = "training.rule.name=lasts", "clock.cloud={semi_synchronous: {period_s: 0.5}}", "max_rounds=1"
    with Experiment(config(*settings)) as experiment:
        record = experiment.run_round()
    assert len(set(record.timeline.last_iterations())) > 1
    assert set(experiment.training.rule["s"]) == {8.0}


@pytest.mark.parametrize(
    ("way", "scheduler"),
    [(CLOUDS["fedasync"], name) for name in ("energy_aware", "ucb", "oort", "ikc", "power_of_choice", "joint_cost")]
    + [(EDGES, name) for name in ("oort", "joint_cost")],
)
def test_schedulers_that_look_back_see_each_turn(way: tuple[str, ...], scheduler: str) -> None:
    """What a record says of its devices has a number for each, although turns have columns of their own."""
    records = run(*way, f"scheduling.name={scheduler}", "max_rounds=4")
    assert len({record.model_hash for record in records}) == 4
    for record in records:
        assert record.spent_j().shape == record.device_delay_s().shape == record.devices.shape
        seen = record.observed()
        assert seen.spent_j().shape == seen.device_delay_s().shape == seen.devices.shape
        assert seen.spent_j().sum() == pytest.approx(record.timeline.spent_j.sum())
        assert set(record.timeline.devices) == set(seen.devices)
    assert any(np.isfinite(record.device_delay_s()).any() for record in records)


@pytest.mark.parametrize("clocks", [(*CLOUDS["fedbuff"], *EDGES), EDGES, CLOUDS["fedbuff"]])
def test_a_turn_tells_of_each_device_once(clocks: tuple[str, ...]) -> None:
    """What schedulers learn of a device's turn is credited in one round, although passes outlast turns."""
    settings = (*clocks, "world.compute_jitter.sigma=0.8", "max_rounds=10", "scheduling.name=ucb")
    with Experiment(config(*settings), cpus=2) as experiment:
        records = list(experiment)
    tables = [record.timeline for record in records]
    told = [(each.edges[at], each.turn[at], each.devices[at])
            for each in tables for at in np.flatnonzero(np.isfinite(each.device_delay_s))]  # fmt: skip
    assert len(set(told)) == len(told) > 30
    learnt = [len(set(each.devices[np.isfinite(each.device_delay_s)])) for each in tables]
    assert isinstance(experiment.scheduler, UCB)
    assert experiment.scheduler.times.sum() == sum(learnt)


@pytest.mark.parametrize(
    ("clocks", "least"), [(("clock.cloud={asynchronous: {updates: 9}}",), 5), ((*CLOUDS["fedasync"], *EDGES), 0)]
)
def test_a_device_vanishes_once(clocks: tuple[str, ...], least: int) -> None:
    """A turn that begins after a device of its plan has vanished does not count it again."""
    records = run(*clocks, "world.dropout.rate_per_s=1", "max_rounds=6")
    begun = {(turn.edge, turn.number): turn.round for record in records for turn in _played(record).turns}
    gone = [(begun[each.edges[at], each.turn[at]], each.devices[at])
            for each in (record.timeline for record in records) for at in np.flatnonzero(each.vanished)]  # fmt: skip
    assert len(set(gone)) == len(gone) > least


UNIFORM = "aggregation.weights=uniform"
REFUSED = [
    *((CLOUDS["fedasync"], "training.rule.name", name) for name in ("mtgc", "fednova", "feddyn")),
    (CLOUDS["fedasync"], "aggregation.cloud.name", "fedadam"),
    *((EDGES, "training.rule.name", name) for name in ("scaffold", "mtgc", "fednova", "feddyn")),
    (EDGES, "aggregation.edge.name", "median"),
    (EDGES, "privacy.clip", "1"),
    (EDGES, "cost.secure_aggregation.shares", "3"),
]
MORE = {
    "feddyn": (UNIFORM,),
    "1": (UNIFORM, "privacy.noise_multiplier=1"),
    "3": ("cost.secure_aggregation.key_bits=256",),
}


@pytest.mark.parametrize(("clock", "setting", "value"), REFUSED)
def test_what_needs_all_edges_or_devices_at_once_is_refused(clock: tuple[str, ...], setting: str, value: str) -> None:
    settings = (f"{setting}={value}", *MORE.get(value, ()))
    with refusal(ConfigError, f"{setting}: got ", "asynchronous", "accepted"):
        Experiment(config(*clock, *settings))
    if clock is not EDGES:
        Experiment(config(*CLOUDS["semi"], *settings))


def test_a_turn_that_has_settled_has_spent_all_that_it_takes_with_downloads_for_devices_that_never_begin() -> None:
    records = run(*CLOUDS["fedbuff"], *LIVING, "cost.download.name=broadcast", "max_rounds=8")
    turns = {(turn.edge, turn.number): turn for record in records for turn in _played(record).turns}
    spent = [turn.spent(turn.settled_s) for turn in turns.values()]
    took_j = [float(turn.happens.edge_energy_j[0]) for turn in turns.values()]
    assert [each.devices_j.sum() + each.hop_j for each in spent] == pytest.approx(took_j)
    assert any((turn.happens.download_j[np.isnan(turn.happens.start_s)] > 0).any() for turn in turns.values())


def test_a_broadcast_is_billed_in_one_round() -> None:
    """Its devices may end on both sides of a round's end, and those that never begin have a part of its joules."""
    lost = ("world.dropout={rate_per_s: 2, noticed_after_s: 0.1}", "world.compute_jitter.sigma=0.6", "max_rounds=8")
    records = run(*CLOUDS["fedasync"], "cost.download.name=broadcast", *lost)
    turns = {(turn.edge, turn.number): turn for record in records for turn in _played(record).turns}
    end_s = _played(records[-1]).end_s
    sent, joules, parts = 0, 0.0, 0.0
    for turn in turns.values():
        over = turn.begin_s + np.fmin.reduce(turn.happens.end_s, axis=1) <= end_s
        sent += int(over.sum())
        if turn.settled_s <= end_s:
            parts += turn.happens.download_j[np.isnan(turn.happens.start_s)].sum()
    for record in records:
        each = record.timeline.downloads(1.0, together=True)
        assert each[metrics.ROUND_DOWNLOAD_BITS] == record.timeline.broadcasts
        sent, joules = sent - each[metrics.ROUND_DOWNLOAD_BITS], joules + each[metrics.ROUND_DOWNLOAD_J]
    assert sent == 0
    rows_j = [turn.happens.download_j[turn.begin_s + turn.happens.end_s <= end_s].sum() for turn in turns.values()]
    assert joules >= sum(rows_j) + parts * (1 - 1e-9)
    assert parts > 0


# Edges that do not wait.


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
@pytest.mark.parametrize(
    "clocks",
    [CLOUDS["fedasync"], CLOUDS["fedat"], *((*WHERE[cloud], *EDGES) for cloud in ("synchronous", "fedasync", "fedat"))],
)
def test_no_device_does_two_passes_at_once(clocks: tuple[str, ...], world: tuple[str, ...]) -> None:
    """Passes of a device follow each other, at whichever edges, and none has the draws of another."""
    records = run(*clocks, *world, "max_rounds=12")
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
             for turn in turns.values() for mix in turn.mixes]  # fmt: skip
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
            for number, update in enumerate(task.played.updates):
                turn = update.turn
                if turn.round == index:
                    begun = history[first + turn.position] if cloud == "fedasync" else model
                else:
                    begun = fetched[turn.edge]
                versions[turn.edge, turn.fetched] = begun
                version = turn.fetched
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
                    history.append((1 - update.share) * history[-1] + update.share * edges[number])
            if cloud == "fedasync":
                model, fetched = history[-1], {
                    turn.edge: history[first + turn.position] if turn.round == index else fetched[turn.edge]
                    for turn in task.played.after.turns
                }  # fmt: skip
            else:
                model = sum(update.share * edges[number] for number, update in enumerate(task.played.updates))
            np.testing.assert_allclose(experiment.global_model, model, atol=1e-6)
        assert stale > 0
        assert carried > 0


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
            happens = timeline_of(played, np.ones(3, dtype=bool), experiment.work.device_bits)
            assert happens.table() == record.timeline.table()
            assert happens.total_j == record.cost.energy_j
            living, before = living.after(happens.delay_s, happens), played.after
