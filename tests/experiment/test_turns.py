"""hflray.experiment.turns: whole runs under the clouds that do not wait, on actors, killed, and in a living world."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hflray import metrics
from hflray.aggregation.fixed_point import fraction_bits, mean
from hflray.config import ExperimentConfig
from hflray.cost import Schedule
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.timeline import Durations, Hops, timeline
from hflray.training.exchange import Version
from hflray.training.local import DeviceHost
from hflray.world import World
from tests.conftest import small_config
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
MATRIX = (("semi", 2), ("fedasync", 1), ("fedasync", 8), ("fedbuff", 2), ("fedat", 2))
TIMES = ("compute_s", "compute_j", "upload_s", "upload_j")
CLOUDS = {
    "semi": ("clock.cloud={semi_synchronous: {period_s: 0.4}}",),
    "fedasync": ("clock.cloud=asynchronous",),
    "fedbuff": ("clock.cloud={asynchronous: {buffer: 2, updates: 3}}",),
    "fedat": ("clock.cloud={asynchronous: {rule: fedat, updates: 2}}",),
}


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
    ("cloud", "actors"),
    [("fedasync", 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX)],
)  # fmt: skip
def test_any_number_of_actors_gives_the_same_bits(cloud: str, actors: int, ray_session) -> None:
    settings = (*CLOUDS[cloud], *INSIDE, *LIVING, "max_rounds=3")
    expected = facts(run(*settings))
    assert facts(run(*settings, "training.backend=ray", f"training.num_actors={actors}")) == expected


@pytest.mark.parametrize("world", [(), LIVING], ids=["still", "living"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_run_goes_on_after_any_round_with_the_same_bits(cloud: str, world: tuple[str, ...]) -> None:
    """The turns under way, their versions, the buffer and the newest models are in the state."""
    settings = (*CLOUDS[cloud], *INSIDE, *world)
    expected = facts(run(*settings))
    for stop in (1, 2, 4):
        with Experiment(config(*settings), cpus=2) as first:
            for _ in range(stop):
                first.run_round()
            state = first.state_dict()
            state = {key: value if isinstance(value, np.ndarray) else json.loads(json.dumps(value))
                     for key, value in state.items()}  # fmt: skip
        with Experiment(config(*settings), cpus=2) as second:
            second.load_state_dict(state)
            assert facts(list(second)) == expected[stop:]


@pytest.mark.parametrize("world", [(), LIVING], ids=["still", "living"])
@pytest.mark.parametrize("cloud", ["fedasync", "fedat"])
def test_no_device_is_at_two_edges_at_once(cloud: str, world: tuple[str, ...]) -> None:
    rows: dict[int, list[tuple[float, float, int]]] = {}
    clock_s = 0.0
    for record in run(*CLOUDS[cloud], *world, "max_rounds=12"):
        table = record.timeline.table()
        for edge, device, begin_s, end_s in zip(
            *(table[name] for name in ("edge", "device", "start_s", "end_s")), strict=True
        ):
            if device is not None:
                rows.setdefault(device, []).append((clock_s + begin_s, clock_s + end_s, edge))
        clock_s += record.cost.delay_s
    assert len(rows) > 8
    for spans in rows.values():
        for (_, end_s, _), (begin_s, _, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert begin_s >= end_s - 1e-9


def test_an_evaluation_changes_no_arrival() -> None:
    """Rounds of one update and rounds of three have the same updates, if every device is always at the same edge."""
    once = ("fleet.num_devices=6", "scheduling.num_scheduled=6", "assignment.once=true", "assignment.name=geographic")

    def arrivals(updates: int, rounds: int) -> list[tuple[int, float]]:
        clock_s, moments = 0.0, []
        for record in run(f"clock.cloud={{asynchronous: {{updates: {updates}}}}}", *once, f"max_rounds={rounds}"):
            happened = record.timeline.runs
            assert happened is not None
            moments += [(int(row[0]), clock_s + row[4]) for row in happened.updates]
            clock_s += record.cost.delay_s
        return moments

    short, whole = arrivals(1, 3), arrivals(3, 1)
    assert [edge for edge, _ in short] == [edge for edge, _ in whole]
    assert [at for _, at in short] == pytest.approx([at for _, at in whole])


@pytest.mark.parametrize("equal", [True, False])
def test_the_model_is_that_of_updates_mixed_by_hand(equal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges that are equally fast all begin with the first model; otherwise a fast one fetches what it has changed."""
    settings = (
        "clock.cloud={asynchronous: {mixing: 0.5, staleness: 0, weight: none}}", "fleet.num_devices=3",
        "scheduling.num_scheduled=3", "assignment.name=geographic", "training.edge_iterations=1", "max_rounds=1",
    )  # fmt: skip
    if equal:
        ones = Durations(np.ones(1), np.ones(1), np.ones(1), np.ones(1))

        def turn(world, outlook, work, schedule, allocation, planned, rule, **_):
            count = len(schedule.devices)
            each = Durations(*(np.repeat(getattr(ones, name), count) for name in TIMES))
            alone = Schedule(schedule.devices, np.zeros(count, dtype=np.intp))
            return timeline(alone, outlook.fleet.samples[schedule.devices], work, each, Hops.none(1))

        monkeypatch.setattr(World, "turn", turn)
    with Experiment(config(*settings), cpus=1) as experiment:
        models = [experiment.global_model.astype(np.float64)]
        record = experiment.run_round()
        task = experiment._task(record.plan, False)
        host = DeviceHost(experiment.job(), experiment.scenario.device_data())
        for turn_task in task.turns:
            samples = int(experiment.scenario.fleet.samples[turn_task.devices].sum())
            bits = fraction_bits(samples)
            fetched = models[turn_task.source].astype(np.float32)
            (part,) = exact_sums(host, task_of(1, turn_task.first, bits, [tuple(turn_task.devices.tolist())]), fetched)
            models.append(0.5 * models[-1] + 0.5 * mean(part, samples, bits))
        assert {turn_task.source for turn_task in task.turns} == ({0} if equal else {0, 1, 2})
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


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("training.rule.name=mtgc",), "training.rule.name: got mtgc with an asynchronous clock.cloud"),
        (("training.rule.name=fednova",), "training.rule.name: got fednova"),
        (("training.rule.name=feddyn", "aggregation.weights=uniform"), "training.rule.name: got feddyn"),
        (("aggregation.cloud.name=fedadam",), "aggregation.cloud.name: got fedadam with an asynchronous"),
    ],
)
def test_what_needs_all_edges_at_once_is_refused(settings: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        Experiment(config("clock.cloud=asynchronous", *settings))
    assert line in str(error.value)
    Experiment(config(*CLOUDS["semi"], *settings))


def test_what_an_edge_fetched_is_kept_until_its_update() -> None:
    with Experiment(config(*CLOUDS["fedasync"]), cpus=1) as experiment:
        experiment.run_round()
        under_way = {turn.edge for turn in experiment.under_way.turns}
        assert under_way
        assert set(experiment.training.fetched) == under_way
        assert all(isinstance(version, Version) for version in experiment.training.fetched.values())


@pytest.mark.parametrize("scheduler", ["energy_aware", "ucb", "oort", "ikc", "power_of_choice", "joint_cost"])
def test_schedulers_that_look_back_see_each_turn(scheduler: str) -> None:
    """What a record says of its devices has a number for each, although turns have columns of their own."""
    records = run(*CLOUDS["fedasync"], f"scheduling.name={scheduler}", "max_rounds=4")
    assert len({record.model_hash for record in records}) == 4
    for record in records:
        assert record.spent_j().shape == record.device_delay_s().shape == record.devices.shape
        seen = record.observed()
        assert seen.spent_j().shape == seen.device_delay_s().shape == seen.devices.shape
        assert seen.spent_j().sum() == pytest.approx(record.timeline.spent_j.sum())
        assert set(record.timeline.devices) == set(seen.devices)
    assert any(np.isfinite(record.device_delay_s()).any() for record in records)
