"""hflray.experiment.observers: a user's own log, end a run and resume; idle ones change nothing; and the accountant."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hflray import metrics
from hflray.config import ExperimentConfig, load_config, references_in, to_yaml
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.observers import Accountant
from hflray.experiment.parts_check import check_parts
from hflray.experiment.record import RoundRecord
from hflray.report.runs import RunRecord
from hflray.support import checkpoint
from hflray.support.references import short
from hflray.sweep.tasks import Job, find_task
from hflray.training.privacy import epsilon_of
from tests.blocks import blocks
from tests.conftest import own_module, refusal, refusals, says, small_config

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "observers.md"
(BUDGET,) = [block.text for block in blocks(PAGE.read_text(encoding="utf-8")) if block.comment == "<!-- own.py -->"]
OWN = BUDGET + "\n\n" + own_module("observers")


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


def watched(observers: str, *overrides: str) -> ExperimentConfig:
    return small_config("scheduling.name=round_robin", f"observers={observers}", *overrides)


def values(records: list[RoundRecord], name: str) -> list[float]:
    return [record.metrics()[name] for record in records]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_observer_cannot_change_a_plan(tmp_path: Path, when: str) -> None:
    """It would train other devices than were billed, or turn hertz into megahertz in the record."""
    text = "from hflray import Observer\nclass Mine(Observer):\n    def {}(self, seen):\n        x = seen.{}; x {} 1\n"
    for number, (array, change) in enumerate([("schedule.devices", "+="), ("allocation.bandwidth_hz", "/=")]):
        path = tmp_path / f"mine{number}.py"
        path.write_text(text.format(when, array if when == "before" else f"plan.{array}", change))
        with Experiment(watched(f"[{path}:Mine]")) as experiment, pytest.raises(ValueError, match="read-only"):
            experiment.run_round()


def test_an_idle_observer_changes_no_bit_and_none_changes_no_hash(own: str) -> None:
    plain, idle = (list(Experiment(watched(observers))) for observers in ("[]", f"[{own}:Idle]"))
    for one, other in zip(plain, idle, strict=True):
        assert one.model_hash == other.model_hash
        assert one.schedule() == other.schedule()
        values = [
            {name: value for name, value in each.metrics().items() if not name.startswith("wall/")}
            for each in (one, other)
        ]
        assert list(values[0].items()) == list(values[1].items())
    assert "observers" not in ExperimentConfig().model_dump()
    assert "observers" not in Experiment(watched("[]")).state_dict()["config"]


def test_a_name_and_a_mapping_are_the_same_and_are_written_and_pinned(own: str) -> None:
    config = watched(f"[{own}:Idle]")
    assert config == watched(f"[{{name: {own}:Idle}}]")
    (name,) = references_in(config.model_dump(mode="json"))["observers"]
    assert says(name, "own.py:Idle@sha256:")
    path = Path(own).with_name("again.yaml")
    path.write_text(to_yaml(config))
    assert load_config(path) == config
    assert Experiment(watched(f"[{own}:Observer]"))  # the base class itself watches nothing
    named = watched(f"[{own}:Idle, {{name: {own}:Counter, options: {{most: 9}}}}]")
    assert short(RunRecord.settings_of(named)["observers"]) == "Idle; Counter, most 9"


@pytest.mark.parametrize("observers, facts", refusals("experiment/observers"))
def test_a_wrong_entry_is_one_line(observers: str, facts: tuple[str, ...], own: str) -> None:
    with refusal(ConfigError, *facts):
        Experiment(watched(observers.replace("OWN", own)))


def test_a_counting_observer_resumes_equal(own: str, tmp_path: Path) -> None:
    config = watched(f"[{own}:Counter, {own}:Budget]")
    whole = list(Experiment(config))
    assert values(whole, "counted") == [6, 12, 18]
    assert values(whole, "spent_j") == values(whole, metrics.TOTAL_ENERGY_J)
    first = Experiment(config)
    first.run_round()
    checkpoint.save(tmp_path / "state", first.state_dict())
    resumed = Experiment(config)
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    records = list(resumed)
    assert [record.model_hash for record in records] == [record.model_hash for record in whole[1:]]
    for name in ("counted", "most_seen", "spent_j"):
        assert values(records, name) == values(whole[1:], name)


def test_a_state_with_other_observers_is_refused(own: str) -> None:
    plain, counted = (watched(observers) for observers in ("[]", f"[{own}:Counter]"))
    for config, saved in ((plain, counted), (counted, plain)):
        with pytest.raises(ConfigError, match=r"observers: the saved state was made with .*start anew"):
            Experiment(config).load_state_dict(Experiment(saved).state_dict())


def test_a_record_of_before_there_were_observers_is_read() -> None:
    record = Experiment(small_config("scheduling.name=fedavg")).run_round()
    state = json.loads(json.dumps(record.state_dict()))
    state["class_balance"] = state["conditions"].pop(metrics.CLASS_BALANCE)
    assert RoundRecord.of_state(state).metrics() == record.metrics()


def test_an_end_after_a_round_is_the_end_of_the_run_and_of_a_resumed_one(own: str) -> None:
    config = watched(f"[{{name: {own}:Counter, options: {{most: 7}}}}]", "max_rounds=5")
    results = list(find_task("experiment").run(Job(config)))
    assert [(result.step, result.last, result.due) for result in results] == [(1, False, True), (2, True, True)]
    assert results[-1].note == "observers: own.py:Counter ends the run after round 2"
    assert metrics.ROUNDS_TO_TARGET not in results[-1].metrics
    ended = Experiment(config)
    assert len(list(ended)) == 2
    resumed = Experiment(config)
    resumed.load_state_dict(json.loads(json.dumps(listed(ended.state_dict()))))
    assert resumed.finished
    assert list(resumed) == []


def listed(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in state.items()}


def test_an_end_before_a_round_is_foreseen_from_its_plan(own: str) -> None:
    free = values(list(Experiment(watched("[]", "scheduling.name=vkc"))), metrics.TOTAL_ENERGY_J)
    for limit, rounds in ((free[1], 2), (math.nextafter(free[1], 0), 1)):
        config = watched(f"[{{name: {own}:Budget, options: {{energy_j: {limit!r}}}}}]", "scheduling.name=vkc")
        experiment = Experiment(config)
        assert values(list(experiment), metrics.TOTAL_ENERGY_J) == free[:rounds]
        assert experiment.ended_by == "observers: own.py:Budget"
        resumed = Experiment(config)
        resumed.load_state_dict(experiment.state_dict())
        assert resumed.finished


@pytest.mark.parametrize(
    "observer", ["{name: OWN:Budget, options: {energy_j: 0}}", "{name: OWN:Counter, options: {most: 0}}"]
)
def test_an_end_before_round_1_is_one_line(observer: str, own: str) -> None:
    experiment = Experiment(watched(f"[{observer.replace('OWN', own)}]"))
    with pytest.raises(ConfigError, match=r"observers: own.py:\w+ ends the run before round 1, .*; accepted: .*; corr"):
        list(experiment)


def test_an_observer_that_cannot_be_copied_is_refused_only_if_it_foresees_an_end(tmp_path: Path) -> None:
    text = "from hflray import Observer\nclass Mine(Observer):\n"
    text += "    def __init__(self):\n        self.file = open(__file__)\n"
    ends = "    def before(self, plan):\n        pass\n    def stops(self):\n        return False\n"
    for name, more in (("reads.py", ""), ("ends.py", ends)):
        (tmp_path / name).write_text(text + more)
    reads, foresees = (
        Experiment(watched(f"[{tmp_path / name}:Mine]", "max_rounds=1")) for name in ("reads.py", "ends.py")
    )
    check_parts(reads)
    assert len(list(reads)) == 1
    with pytest.raises(
        ConfigError, match=r"observers: ends.py:Mine returned .* cannot be copied \(TypeError: .*; open"
    ):
        list(foresees)


# The accountant of privacy


def config_of(**changes: object) -> ExperimentConfig:
    privacy = {"clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-5}
    return ExperimentConfig.model_validate({"privacy": privacy, "fleet": {"num_devices": 50}, **changes})


def tell(accountant: Accountant, devices: list[int], arrived: list[list[bool]]) -> bool:
    """Tell of the plan of a round, and return whether it would exceed the limit."""
    happens = SimpleNamespace(devices=np.array(devices), arrived=np.array(arrived))
    accountant.before(cast("Any", SimpleNamespace(timeline=happens)))
    return accountant.stops()


def test_every_row_that_arrived_counts_and_the_largest_device_decides() -> None:
    accountant = Accountant(config_of())
    tell(accountant, [4, 7, 9], [[True, False, True], [True, False, False]])
    assert accountant.releases.sum() == 0
    accountant.after(cast("Any", None))
    tell(accountant, [4, 9], [[True, True]])
    assert accountant.after(cast("Any", None)) == {metrics.PRIVACY_EPSILON: epsilon_of(math.sqrt(3) / 2, 1e-5)}
    assert accountant.releases[[4, 7, 9]].tolist() == [3, 0, 2]
    assert accountant.releases.sum() == 5


def test_a_limit_that_does_not_allow_one_round_is_refused() -> None:
    cost = epsilon_of(math.sqrt(5) / 2, 1e-5)  # Q = 5
    with pytest.raises(ConfigError, match=rf"target\.epsilon: got 1, but one round of 5 .* ε = {cost:.4g} .* raise it"):
        Accountant(config_of(target={"epsilon": 1.0}))
    accountant = Accountant(config_of(target={"epsilon": cost}))
    assert not tell(accountant, [0], [[True]] * 5)
    accountant.after(cast("Any", None))
    assert tell(accountant, [0], [[True]])
