"""The sections: defaults, rules that combine settings, and one line with the facts for each mistake."""

from __future__ import annotations

import base64
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from hflray.config import (
    CostConfig,
    EdgeClockConfig,
    ExperimentConfig,
    FleetConfig,
    Section,
    WorldConfig,
    dbm_to_w,
    load_config,
    to_yaml,
    validate,
)
from hflray.config.options import between, one_of, positive, whole
from hflray.errors import ConfigError
from hflray.fleet import sample_fleet
from hflray.report.runs import RunRecord
from hflray.rl.fleets import FleetSpec
from tests.conftest import cases, refusals, says, small_config

# Commit 5eed14e, in which hflray.config was one file, wrote overrides, the pickled configuration and its fleets' hash.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "configs.json").read_text(encoding="utf-8"))

# Overrides, separated by blanks that follow a semicolon, and the facts that their one line tells in this order.


def line_of(*overrides: str) -> str:
    """Return the message that these overrides give, which is one line and not pydantic's own."""
    with pytest.raises(ConfigError) as error:
        load_config(overrides=overrides)
    message = str(error.value)
    assert "\n" not in message
    assert "input should" not in message.lower()
    return message


@pytest.mark.parametrize("overrides, facts", refusals("config"))
def test_a_mistake_gives_one_line_with_the_facts(overrides: str, facts: list[str]) -> None:
    message = line_of(*overrides.split("; "))
    assert says(message, *facts), message


def test_every_mistake_has_a_line() -> None:
    with pytest.raises(ConfigError) as error:
        load_config(overrides=["sead=1", "cost.delay_weight=0", "fleet.num_edges=0", "data.name=mnist"])
    lines = str(error.value).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["cost.delay_weight", "data.name", "fleet.num_edges", "sead"]


def test_other_models_can_reuse_section_and_validate() -> None:
    """`validate` puts a prefix before each setting, as the sections of a sweep file need it."""

    class Sweep(Section):
        smoke: bool = False
        experiment: ExperimentConfig = ExperimentConfig()

    assert validate(Sweep, {"smoke": True}).smoke
    with pytest.raises(ConfigError, match=r"^sweep\.experiment\.seed: got -1; accepted"):
        validate(Sweep, {"experiment": {"seed": -1}}, "sweep.")
    with pytest.raises(ConfigError, match=r"^sweep\.smok: unknown key \(got 1\); did you mean 'smoke'"):
        validate(Sweep, {"smok": 1}, "sweep.")


@pytest.mark.parametrize("name", FleetConfig.model_fields)
def test_extreme_numbers_are_refused(name: str) -> None:
    for value in ("1e308", "-1e308", "[1, 1e308]"):
        message = line_of(f"fleet.{name}={value}")
        assert f"fleet.{name}" in message
        assert "accepted" in message


@pytest.mark.parametrize(
    "fleet",
    [
        {"area_km": 1e6, "path_loss_db": 500, "path_loss_slope_db": 100, "shadowing_db": 50},
        {"area_km": 1e-4, "min_distance_m": 1e-3, "path_loss_db": -200, "path_loss_slope_db": 100, "shadowing_db": 50},
        {"power_dbm": (-200, 200), "edge_power_dbm": 200, "noise_dbm_per_hz": -400},
        {"edge_power_dbm": -200, "noise_dbm_per_hz": 200, "power_law": "watt", "power_dbm": (-200, 200)},
    ],
)
def test_the_ends_of_what_is_accepted_give_finite_fleets(fleet: dict[str, Any]) -> None:
    config = FleetConfig(**fleet)
    drawn = sample_fleet(config, np.random.default_rng(0))
    for values in (drawn.gain, drawn.cloud_gain, drawn.power_w, drawn.edge_power_w, drawn.distance_m):
        assert np.isfinite(values).all()
        assert (np.asarray(values) > 0).all()
    assert 0 < config.noise_w_per_hz < np.inf


def settings(section: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Return the settings that an object holds by dotted name; its class may have gained settings since."""
    flat: dict[str, Any] = {}
    for name, value in vars(section).items():
        flat |= settings(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {prefix + name: value}
    return flat


@pytest.mark.parametrize("case", GOLDEN)
def test_an_old_configuration_keeps_its_values(case: str) -> None:
    """An old pickle loads, values keep their order, and a cache of fleets keeps its name; new settings are allowed."""
    old = settings(pickle.loads(base64.b64decode(GOLDEN[case]["pickle"])))
    old.pop("training.autotune", None)  # nothing is measured any more
    config = load_config(overrides=GOLDEN[case]["overrides"])
    new = settings(config)
    assert [name for name in new if name in old] == list(old)
    assert {name: new[name] for name in old} == old
    assert {name: type(new[name]) for name in old} == {name: type(value) for name, value in old.items()}
    assert FleetSpec.of(config).hash == GOLDEN[case]["fleets"]
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert to_yaml(again) == to_yaml(config)


def test_defaults_are_table_i() -> None:
    """Where Table I is silent, the decisions of docs/design.md hold."""
    config = load_config()
    fleet = {
        "num_devices": 100, "num_edges": 5, "area_km": 1.0, "path_loss_db": 128.1, "path_loss_slope_db": 37.6,
        "shadowing_db": 8.0, "cycles_per_sample": (1e4, 1e5), "edge_bandwidth_mhz": (0.5, 3.0),
        "cloud_bandwidth_mhz": 10.0, "power_dbm": (0.0, 23.0), "edge_power_dbm": 23.0, "max_cpu_ghz": (2.0, 2.0),
        "noise_dbm_per_hz": -174.0, "samples": (400, 700), "capacitance": 2e-28,
    }  # fmt: skip
    assert {name: getattr(config.fleet, name) for name in fleet} == fleet
    training = config.training
    assert (training.learning_rate, training.local_iterations, training.edge_iterations) == (0.01, 5, 5)
    assert (training.batch_size, training.local_iteration, training.buffers) == (64, "epoch", "average")
    assert config.scheduling.num_clusters == 10
    assert config.scheduling.clustering_bill.model_dump() == {"edge_iterations": 1, "cpu": "allocated"}
    assert config.cost.delay_weight == 1.0
    assert (config.allocation.method, config.allocation.coupling) == ("newton", "per_edge")
    assert (config.data.majority_fraction, config.data.name) == (0.8, "digits")
    assert config.model.model_dump() == {"name": "paper_cnn", "options": {}}
    assert config.clock.edge == EdgeClockConfig(deadline_s=None, deadline=None, first=None)
    assert (config.world, config.world.is_on) == (WorldConfig(), False)


def test_units_are_converted_once() -> None:
    fleet = FleetConfig()
    assert dbm_to_w(30.0) == pytest.approx(1.0)
    assert dbm_to_w(23.0) == pytest.approx(0.1995262, rel=1e-6)
    assert fleet.edge_power_w == pytest.approx(0.1995262, rel=1e-6)
    assert fleet.noise_w_per_hz == pytest.approx(3.981072e-21, rel=1e-6)
    assert (fleet.cloud_bandwidth_hz, fleet.area_m) == (1e7, 1000.0)
    assert CostConfig(model_kb=448).model_bits == 448 * 1024 * 8
    assert CostConfig().model_bits is None


def test_a_setting_may_be_written_in_several_ways() -> None:
    lists = load_config(
        None, ["fleet.num_edges=2", "fleet.edge_bandwidths_mhz=[3, 0.5]", "learning.model_kb=[882, 10]"]
    )
    assert lists.fleet.edge_bandwidths_mhz == (3.0, 0.5)  # the values of a list need no order
    assert (lists.learning.model_kb, lists.learning.epsilon) == ((882.0, 10.0), (1.0, 0.05))
    assert load_config(None, ["clock.edge=all"]).clock == load_config().clock
    assert type(load_config(None, ["clock.edge.first=1"]).clock.edge.first) is int  # a number of arrivals
    assert type(load_config(None, ["clock.edge.first=1.0"]).clock.edge.first) is float  # a share
    clock = load_config(None, ["clock.edge=asynchronous"]).clock
    assert clock == load_config(None, ["clock.edge={asynchronous: {}}"]).clock
    assert type(clock).model_validate(clock.model_dump(mode="json")) == clock
    assert "asynchronous" not in EdgeClockConfig().model_dump()
    assert load_config(None, ["model.name=torchvision:resnet18"]).model.name == "torchvision:resnet18"
    fedavg = ["fleet.num_devices=5", "scheduling.num_scheduled=2", "scheduling.name=fedavg"]
    assert load_config(None, fedavg).scheduling.num_clusters == 10  # it has no clusters, and accepts the default K
    for setting in ("precision=tf32", "cuda_graph=true"):
        assert load_config(None, [f"training.{setting}", "training.device=auto"]).training.device == "auto"
    with pytest.raises(ValidationError):
        load_config().seed = 3  # type: ignore[misc]


def test_only_one_setting_paces_the_updates() -> None:
    by_step = load_config(overrides=["learning.update_every=2"])
    assert (by_step.learning.update_every, by_step.learning.training_intensity) == (2, None)
    # A saved configuration has all keys and loads again. So does one saved by a version without update_every.
    for config in (by_step, load_config(), load_config(overrides=["learning.training_intensity=16"])):
        tree = config.model_dump(mode="json")
        assert validate(ExperimentConfig, tree) == config
    del tree["learning"]["update_every"]
    assert validate(ExperimentConfig, tree).learning.training_intensity == 16


@pytest.mark.parametrize(
    "override",
    ["availability={name: bernoulli, options: {probability: 0.5}}", "compute_jitter.sigma=0.1", "fading.name=rayleigh",
     "dropout.rate_per_s=0.1", "edge_failure={mtbf_s: 9, mttr_s: 1}", "battery.capacity_j=5",
     "mobility.name=gauss_markov"],
)  # fmt: skip
def test_a_part_turns_the_world_on(override: str) -> None:
    assert load_config(None, [f"world.{override}"]).world.is_on
    assert not load_config(None, ["world.wait_s=5"]).world.is_on


@pytest.mark.parametrize("cloud, label", cases("config/clouds"))
def test_a_clouds_label_has_each_setting_that_is_not_a_default(cloud: str, label: str) -> None:
    config = load_config(None, [f"clock.cloud={cloud}"])
    assert config.clock.cloud.label == label
    assert RunRecord.settings_of(config)["clock.cloud"] == label


def test_an_edges_label_has_each_setting_that_is_not_a_default() -> None:
    config = load_config(None, ["clock.edge={asynchronous: {updates: 4, mixing: 0.3}}"])
    assert RunRecord.settings_of(config)["clock.edge.asynchronous"] == "asynchronous edges, updates 4, mixing 0.3"
    assert "clock.edge.asynchronous" not in RunRecord.settings_of(load_config(None, []))


@pytest.mark.parametrize("setting, others", cases("config/endless"))
def test_what_never_ends_is_refused_with_what_it_would_take(setting: str, others: tuple[str, ...]) -> None:
    for value in (10**9, 10**18):
        message = line_of(f"{setting}={value}", *others)
        assert says(message, f"{setting}: got {value:,}; a r", " would have ", "which take at least", "; lower it")
    most = int(message.rpartition("1 to ")[2].partition(";")[0].replace(",", ""))
    load_config(None, [f"{setting}={most}", *others])
    assert setting in line_of(f"{setting}={most + 1}", *others)


@pytest.mark.parametrize("overrides", cases("config/large"))
def test_large_experiments_are_accepted(overrides: tuple[str, ...]) -> None:
    load_config(None, list(overrides))


@pytest.mark.parametrize("setting", ["fleet.shadowing_db", "world.battery.reserve_j", "world.battery.harvest_w"])
def test_a_zero_has_no_sign(setting: str) -> None:
    assert small_config(f"{setting}=-0.0") == small_config(f"{setting}=0.0")
    value: Any = small_config(f"{setting}=-0.0")
    for name in setting.split("."):
        value = getattr(value, name)
    assert math.copysign(1.0, value if isinstance(value, float) else value[0]) == 1.0


def test_options_of_a_part() -> None:
    assert (positive("a.b", 3), positive("a.b", 1, 1.0), between("a.b", -3, -3.0, 3.0)) == (3.0, 1.0, -3.0)
    assert (whole("a.b", 1, 1), whole("a.b", 7, 1, 8), one_of("a.b", "x", ("x", "y"))) == (1, 7, "x")
    for value in (0, -1, 2, math.nan, math.inf, True, "1", None):
        with pytest.raises(ConfigError, match=r"a\.b: got .*; accepted: a number above 0 and at most 1, because x; c"):
            positive("a.b", value, 1.0, "x")
    with pytest.raises(ConfigError, match=r"a\.b: got -0.5; accepted: a number of at least 0"):
        between("a.b", -0.5, 0.0)
    for value in (0, 9, 1.0, True, "1", None):
        with pytest.raises(ConfigError, match=r"a\.b: got .*; accepted: a whole number from 1 to 8"):
            whole("a.b", value, 1, 8)
    for value in ("z", None, 1, ["x"]):
        with pytest.raises(ConfigError, match=r"a\.b: got .*; accepted: x, y"):
            one_of("a.b", value, ("x", "y"))
