"""hflray.experiment.study: every assigner gets the same fleets, and the bill is that of a round."""

from __future__ import annotations

import pytest

from hflray.assignment import bounds
from hflray.config import ExperimentConfig, load_config, to_yaml
from hflray.errors import ConfigError
from hflray.experiment.study import run_study, sized_by_data
from hflray.sweep.tasks import find_task
from tests.conftest import cases


def config(*overrides: str) -> ExperimentConfig:
    small = ("max_rounds=4", "fleet.num_devices=15", "fleet.num_edges=3", "scheduling.num_scheduled=8")
    return load_config(None, [*small, *overrides])


def test_better_assigners_cost_less_on_the_same_fleets() -> None:
    names = ("geographic", "hfel", "local_search")
    means = {}
    for name in names:
        records = list(run_study(config(f"assignment.name={name}")))
        assert [record.fleet for record in records] == [1, 2, 3, 4]
        means[name] = sum(record.objective for record in records)
        for record in records:
            assert record.objective == pytest.approx(record.energy_j + record.delay_s)
            assert 0 <= record.gap < 1
    assert max(means["local_search"], means["hfel"]) < means["geographic"]


def test_a_study_repeats_and_depends_on_the_seed() -> None:
    def objectives(*overrides: str) -> list[float]:
        return [record.objective for record in run_study(config("assignment.name=hfel", "max_rounds=2", *overrides))]

    assert objectives() == objectives()
    assert objectives() != objectives("seed=1")


def bills(*overrides: str) -> list[tuple[float, float]]:
    records = run_study(config("assignment.name=geographic", "max_rounds=1", *overrides))
    return [(record.delay_s, record.energy_j) for record in records]


def test_the_data_set_decides_the_sizes_of_models_and_devices() -> None:
    default = bills()
    assert default == bills("data.name=digits") == bills("data.name=fashion_mnist")
    assert default == bills("cost.model_kb=448", "fleet.samples=[400, 700]")
    assert bills("data.name=cifar10") == bills("cost.model_kb=882", "fleet.samples=[300, 600]")
    assert bills("data.name=cifar10") != default


@pytest.mark.parametrize("overrides, model_kb, samples", cases("experiment/sizes"))
def test_explicit_sizes_stay_also_after_writing_and_reading(overrides, model_kb, samples, tmp_path) -> None:
    sized = sized_by_data(config(*overrides))
    assert [sized.cost.model_kb, [*sized.fleet.samples]] == [model_kb, samples]
    assert sized_by_data(sized) is sized
    path = tmp_path / "whole.yaml"
    path.write_text(to_yaml(sized), encoding="utf-8")
    assert sized_by_data(load_config(path)) == sized


@pytest.mark.parametrize("overrides", [[], ["cost.model_kb=5"], ["fleet.samples=[1, 2]"]])
def test_another_data_set_is_refused_and_the_message_names_the_settings(overrides) -> None:
    message = r"data\.name: got 'synthetic' .*accepted: fashion_mnist, cifar10.*set cost\.model_kb and fleet\.samples"
    with pytest.raises(ConfigError, match=message):
        next(run_study(config("data.name=synthetic", *overrides)))


def test_a_study_on_one_deployment_redraws_devices_only(monkeypatch) -> None:
    fleets = []
    monkeypatch.setattr(bounds, "lower_bound", lambda fleet, *_: fleets.append(fleet) or 0.0)
    list(run_study(config("assignment.name=random", "fleet.deployment_seed=4")))
    assert len({fleet.edge_bandwidth_hz.tobytes() + fleet.cloud_gain.tobytes() for fleet in fleets}) == 1
    assert len({fleet.position_m.tobytes() for fleet in fleets}) == len(fleets) == 4


@pytest.mark.parametrize(
    "setting",
    ["compression.device.name=qsgd", "compression.edge.name=sign", "training.rule.name=scaffold",
     "cost.secure_aggregation.shares=3", "allocation.limits={device_delay_s: 90, drop: true}"],
)  # fmt: skip
def test_what_a_study_does_not_bill_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting.partition('={')[0].partition('=')[0]}.*the task assignment"):
        find_task("assignment").check(config(setting))
