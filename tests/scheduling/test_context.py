"""hflray.scheduling.context: what decisions see, the history of each device, polls, and costs in advance."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, ClassVar

import numpy as np
import pytest

from hflray import registry
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.scheduling import DeviceHistory, Poll, RoundContext, Scheduler, choose_devices
from hflray.scheduling.base import highest, weighted_draw
from hflray.scheduling.context import best_edges, nominal_iteration
from tests.conftest import refusals, small_config
from tests.scheduling import toy

SEEN: list[tuple[str, Any]] = []


class Watcher(Scheduler):
    """Schedules the devices that counted least often, and keeps what it sees."""

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    observed = 0

    def schedule(self, context: RoundContext) -> np.ndarray:
        SEEN.append(("schedule", context))
        order = np.lexsort((context.rng.permutation(self.num_devices), context.participation))
        return order[: self.num_scheduled]

    def observe(self, record: Any) -> None:
        self.observed += 1
        SEEN.append(("observe", record))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"observed": self.observed}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.observed = state["observed"]


class Judge(Watcher):
    needs: ClassVar[frozenset[str]] = frozenset({"accuracy"})


class Echo(Watcher):
    """Schedules the devices of the round before, shifted by the energy of its first device."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def schedule(self, context: RoundContext) -> np.ndarray:
        SEEN.append(("schedule", context))
        if context.record is None:
            return np.arange(self.num_scheduled)
        shift = 1 + int(context.record.spent_j()[0] * 1e9) % 5
        return np.sort((context.record.devices + shift) % self.num_devices)


@pytest.fixture(autouse=True)
def register(monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    table = dict(registry._table("scheduler"))
    table |= {name.lower(): f"{__name__}:{name}" for name in ("Watcher", "Judge", "Liar", "Echo", "Both")}
    monkeypatch.setattr(registry, "_table", lambda kind: table if kind == "scheduler" else _tables[kind])


_tables = {kind: registry._table(kind) for kind in registry.GROUPS}


def watched(*overrides: str) -> Experiment:
    return Experiment(small_config("scheduling.name=watcher", *overrides))


def test_a_scheduler_sees_the_rounds_before() -> None:
    experiment = watched("max_rounds=3")
    records = list(experiment)
    contexts = [seen for kind, seen in SEEN if kind == "schedule"]
    assert [context.round for context in contexts] == [1, 2, 3]
    first, second, third = contexts
    assert first.clock_s == 0
    assert first.record is None
    assert second.clock_s == records[0].cost.delay_s
    assert third.clock_s == records[0].cost.delay_s + records[1].cost.delay_s
    assert second.record.model_hash == records[0].model_hash
    assert math.isnan(second.record.accuracy)  # the next round may be planned while this one is evaluated
    devices = records[0].devices
    assert not first.participation.any()
    assert np.flatnonzero(second.participation).tolist() == devices.tolist()
    assert second.last_round[devices].tolist() == [1] * 6
    assert second.edge_of[devices].tolist() == records[0].assignment.tolist()
    delay_s = records[0].cost.compute_delay_s + records[0].cost.upload_delay_s
    assert second.last_delay_s[devices].tolist() == delay_s.tolist()
    assert np.isfinite(second.last_loss[devices]).all()
    assert (second.last_utility[devices] > second.last_loss[devices]).all()
    assert np.isnan(np.delete(second.last_loss, devices)).all()
    assert (np.delete(second.edge_of, devices) == -1).all()
    assert third.participation.sum() == 12
    with pytest.raises(ValueError, match="read-only"):
        second.participation[0] = 5


def test_losses_cost_nothing_unless_they_are_needed() -> None:
    experiment = Experiment(small_config("scheduling.name=judge", "max_rounds=2"))
    records = list(experiment)
    second = [seen for kind, seen in SEEN if kind == "schedule"][1]
    assert np.isnan(second.last_loss).all()
    assert second.record.accuracy == records[0].accuracy
    assert [seen.accuracy for kind, seen in SEEN if kind == "observe"] == [record.accuracy for record in records]


def test_resuming_changes_no_bit() -> None:
    hashes = [record.model_hash for record in watched()]
    first = watched()
    first.run_round()
    resumed = resume(first, watched())
    assert [record.model_hash for record in resumed] == hashes[1:]
    assert resumed.scheduler.observed == 3


def resume(experiment: Experiment, other: Experiment) -> Experiment:
    """Load an experiment's state, as a checkpoint would have written it, into another one; return that one."""
    rest = {name: value for name, value in experiment.state_dict().items() if name != "global_model"}
    other.load_state_dict(json.loads(json.dumps(rest, allow_nan=False)) | {"global_model": experiment.global_model})
    return other


def bits(value: Any) -> Any:
    """Return a value with every float and array by its bits; wall-clock times are left out."""
    if dataclasses.is_dataclass(value):
        return {part.name: bits(getattr(value, part.name)) for part in dataclasses.fields(value) if part.name != "wall"}
    if isinstance(value, dict):
        return {name: bits(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    return float(value).hex() if isinstance(value, float) else value


@pytest.mark.parametrize(
    "more", [(), ("allocation.method=equal", "clock.edge.deadline=0.9", "training.edge_iterations=3")]
)
@pytest.mark.parametrize("name", ["echo", "judge"])
def test_the_record_is_the_same_after_a_resume(name: str, more: tuple[str, ...]) -> None:
    """A scheduler that reads the record chooses the same devices, and every field of the record has the same bits."""
    overrides = (f"scheduling.name={name}", *more)
    unbroken = list(Experiment(small_config(*overrides)))
    seen = [bits(context.record) for kind, context in SEEN if kind == "schedule"]
    assert seen[2]["deviates"] == bool(more)
    first = Experiment(small_config(*overrides))
    first.run_round()
    first.run_round()
    SEEN.clear()
    records = list(resume(first, Experiment(small_config(*overrides))))
    assert records[0].devices.tolist() == unbroken[2].devices.tolist()
    assert [bits(context.record) for kind, context in SEEN if kind == "schedule"] == [seen[2]]


def test_a_record_of_another_version_is_refused() -> None:
    experiment = Experiment(small_config("scheduling.name=echo", "max_rounds=1"))
    state = next(iter(experiment)).state_dict()
    del state["cost"]["delay_s"]
    with pytest.raises(ConfigError, match=r"another hflray .*delay_s"):
        RoundRecord.of_state(state)


def test_a_record_that_lacks_the_delays_of_its_timeline_does_not_know_them() -> None:
    experiment = Experiment(small_config("scheduling.name=echo", "max_rounds=1", "clock.edge.deadline=2"))
    record = next(iter(experiment))
    state = record.state_dict()
    assert RoundRecord.of_state(state).device_delay_s().tolist() == record.device_delay_s().tolist()
    del state["timeline"]["device_delay_s"]
    assert np.isnan(RoundRecord.of_state(state).device_delay_s()).tolist() == [True] * 6


@pytest.mark.parametrize("name", ["fedavg", "ikc", "ucb"])
def test_nothing_is_kept_for_schedulers_that_never_look_back(name: str) -> None:
    experiment = Experiment(small_config(f"scheduling.name={name}", "max_rounds=1"))
    list(experiment)
    assert experiment.record is None
    assert all(array.strides == (0,) for array in experiment.history.arrays().values())  # one value for all devices
    assert experiment.history.participation.shape == (12,)
    assert not {"history", "record"} & set(experiment.state_dict())
    assert {"history", "record"} <= set(_after_a_round("oort").state_dict())


def _after_a_round(name: str) -> Experiment:
    experiment = Experiment(small_config(f"scheduling.name={name}"))
    experiment.run_round()
    return experiment


def test_a_history_survives_json() -> None:
    history = DeviceHistory(5)
    one = history.after(1, np.array([1, 3]), np.array([0, 2]), np.array([1.5, 2.5]), {3: (0.5, 9.0)})
    two = one.after(2, np.array([3]), np.array([1]), np.array([4.0]), {})
    # Its turn is open, so that the last delay that is known stays.
    open_turn = two.after(3, np.array([3]), np.array([1]), np.array([np.nan]), {})
    assert (open_turn.last_delay_s[3], open_turn.last_round[3]) == (4.0, 3)
    assert not history.participation.any()
    assert two.participation.tolist() == [0, 1, 0, 2, 0]
    assert two.last_round.tolist() == [0, 1, 0, 2, 0]
    assert two.edge_of.tolist() == [-1, 0, -1, 1, -1]
    assert two.last_delay_s[[1, 3]].tolist() == [1.5, 4.0]
    assert (two.last_loss[3], two.last_utility[3]) == (0.5, 9.0)
    restored = DeviceHistory(5)
    restored.load_state_dict(json.loads(json.dumps(two.state_dict())))
    for name, array in two.arrays().items():
        np.testing.assert_array_equal(getattr(restored, name), array)
        assert getattr(restored, name).dtype == array.dtype
    with pytest.raises(ConfigError, match="device 3"):
        DeviceHistory(2).load_state_dict(two.state_dict())


class Liar(Scheduler):
    answer: ClassVar[Any] = None

    def schedule(self, context: RoundContext) -> Any:
        return self.answer


class Both(Liar):
    def schedule(self, context: RoundContext) -> Any:
        raise AssertionError("schedule_and_assign is asked instead")

    def schedule_and_assign(self, context: RoundContext) -> Any:
        return self.answer


@pytest.mark.parametrize("devices, edges, fact", refusals("scheduling/choices"))
def test_a_choice_that_cannot_be_is_the_schedulers_error(devices: Any, edges: Any, fact: str) -> None:
    Liar.answer = Both.answer = np.array(devices) if edges is None else (devices, edges)
    name = "liar" if edges is None else "both"
    with pytest.raises(ConfigError, match=fact) as error:
        Experiment(small_config(f"scheduling.name={name}")).run_round()
    assert ("Liar" if edges is None else "schedule_and_assign") in str(error.value)


def test_an_unavailable_device_is_the_schedulers_error() -> None:
    context = toy.context(toy.fleet(np.ones((4, 1))), available=[True, False, True, True])
    scheduler = Liar(num_devices=4, num_scheduled=2)
    Liar.answer = np.array([0, 1])
    with pytest.raises(ConfigError, match=r"^scheduling.name: Liar returned device 1, which is not available") as error:
        choose_devices(scheduler, context)
    assert "\n" not in str(error.value)
    Liar.answer = np.array([3, 0])
    assert choose_devices(scheduler, context).tolist() == [0, 3]


def test_a_scheduler_that_assigns_is_asked_instead_of_the_assigner(monkeypatch: pytest.MonkeyPatch) -> None:
    Both.answer = ([11, 1, 3, 5, 7, 9], [0, 1, 2, 0, 1, 2])
    experiment = Experiment(small_config("scheduling.name=both", "max_rounds=1"))
    monkeypatch.setattr(experiment, "assigner", None)
    record = experiment.run_round()
    assert record.devices.tolist() == [1, 3, 5, 7, 9, 11]
    assert record.assignment.tolist() == [1, 2, 0, 1, 2, 0]  # the edges stay those of their devices


FLEET = toy.fleet(np.ones((3, 1)), samples=[300, 600, 300], max_cpu_hz=[1e9, 1e9, 0.5e9])
LOSS = np.array([0.5, 2.0, 1.0])


def poll(available: Any = (True, True, True)) -> Poll:
    return Poll(FLEET, np.array(available), lambda devices: LOSS[devices])


def test_the_bill_by_hand() -> None:
    # A third of 10⁴ cycles times 300, 600 and 300 samples takes 1, 2 and 2 ms. α/2 · f² · cycles is 10⁻²⁸ times 10¹⁸
    # · 10⁶, 10¹⁸ · 2·10⁶ and 0.25·10¹⁸ · 10⁶: 0.1, 0.2 and 0.025 mJ.
    one = poll()
    assert one([0, 2]).tolist() == [0.5, 1.0]
    assert (one.cost.delay_s, one.cost.energy_j) == pytest.approx((2e-3, 1.25e-4))
    assert one([1]).tolist() == [2.0]  # a second poll follows the first
    assert (one.cost.delay_s, one.cost.energy_j) == pytest.approx((4e-3, 3.25e-4))
    assert one.spent_j == pytest.approx([1e-4, 2e-4, 2.5e-5])
    assert one(np.array([], dtype=np.intp)).tolist() == []
    assert one.cost.delay_s == pytest.approx(4e-3)


@pytest.mark.parametrize(
    "candidates, named",
    [([0, 1], "device 1 is not available"), ([0, 0], "twice"), ([3], "0 to 2"), ([-1], "0 to 2"), ([0.5], "float64")],
)
def test_a_poll_that_cannot_be_is_refused_and_not_billed(candidates: list[Any], named: str) -> None:
    one = poll([True, False, True])
    with pytest.raises(ConfigError, match=named):
        one(candidates)
    assert one.cost.delay_s == 0


def test_a_scheduler_must_say_that_it_polls() -> None:
    with pytest.raises(ConfigError, match="needs"):
        toy.context(FLEET).poll_loss([0])


def test_the_highest_scores_and_ties_by_chance() -> None:
    devices = np.array([3, 5, 8, 9])
    assert set(highest(np.array([1.0, 4.0, 2.0, 3.0]), devices, 2, np.random.default_rng(0))) == {5, 9}
    ties = {int(highest(np.zeros(4), devices, 1, np.random.default_rng(seed))[0]) for seed in range(40)}
    assert ties == {3, 5, 8, 9}
    assert len(highest(np.zeros(4), devices, 9, np.random.default_rng(0))) == 4


def test_draws_follow_the_weights() -> None:
    devices, rng = np.arange(3), np.random.default_rng(1)
    first = [int(weighted_draw(np.array([1.0, 3.0, 0.0]), devices, 1, rng)[0]) for _ in range(4000)]
    shares = np.bincount(first, minlength=3) / 4000
    assert shares == pytest.approx([0.25, 0.75, 0.0], abs=0.03)
    assert sorted(weighted_draw(np.array([1.0, 3.0, 0.0]), devices, 3, rng).tolist()) == [0, 1, 2]


def test_the_nominal_iteration_by_hand() -> None:
    # 5 local iterations of 100 samples and 1e4 cycles at 1 GHz take 5 ms. Each of two devices gets 1e6·2/2 Hz, and a
    # signal-to-noise ratio of 3 gives 2 bits per Hz: 4e6 bits in 2 s.
    gain = 3 * 1e-18 * 1e6 / 0.1
    context = toy.context(toy.fleet([[gain, 1e-20], [1e-20, gain]]))
    delay_s, energy_j = nominal_iteration(context, 2)
    assert delay_s == pytest.approx([2.005, 2.005])
    compute_j = 2e-28 / 2 * 5 * 1e18 * 1e4 * 100
    assert energy_j == pytest.approx([compute_j + 0.2] * 2)
    assert best_edges(context).tolist() == [0, 1]
    down = toy.context(context.fleet, edges_up=[False, True])
    assert best_edges(down).tolist() == [1, 1]
    assert nominal_iteration(down, 1)[0][1] == pytest.approx(2.005)
    # One device at two edges has one edge's 1e6 Hz, as alone at one.
    assert nominal_iteration(context, 1)[0].tolist() == [nominal_iteration(down, 1)[0][1]] * 2
