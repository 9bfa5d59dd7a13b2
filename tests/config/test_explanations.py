"""Each mistake gives one line that names the setting, its value, what is accepted and the fix."""

from __future__ import annotations

import pytest

from hflray.config import ExperimentConfig, Section, load_config, validate
from hflray.errors import ConfigError
from tests.config.mistake import line_of

# For each mistake: the override, and words that its line must contain (setting, value, accepted, fix).
MISTAKES = [
    (
        "scheduling.num_schedule=30",
        ["scheduling.num_schedule", "30", "did you mean 'num_scheduled'?", "num_clusters", "correct"],
    ),
    ("sheduling.name=ikc", ["sheduling", "did you mean 'scheduling'?"]),
    ("num_devices=30", ["num_devices", "30", "did you mean 'fleet.num_devices'?"]),
    (
        "scheduling.num_scheduled=101",
        ["scheduling.num_scheduled", "101", "fleet.num_devices = 100", "1 to 100", "lower"],
    ),
    ("scheduling.num_scheduled=0", ["scheduling.num_scheduled", "got 0", "integer at least 1", "default 50"]),
    ("scheduling.num_clusters=101", ["scheduling.num_clusters", "101", "fleet.num_devices = 100", "1 to 100"]),
    ("scheduling.num_clusters=0", ["scheduling.num_clusters", "got 0", "at least 1, or null"]),
    ("fleet.num_edges=0", ["fleet.num_edges", "got 0", "integer at least 1", "default 5"]),
    ("cost.delay_weight=0", ["cost.delay_weight", "got 0", "above 0", "λ", "default 1.0"]),
    ("cost.delay_weight=-2", ["cost.delay_weight", "got -2", "above 0"]),
    ("cost.delay_weight=.nan", ["cost.delay_weight", "got nan", "a number above 0"]),
    ("cost.delay_weight=.inf", ["cost.delay_weight", "got inf", "a number above 0"]),
    ("cost.delay_weight=lots", ["cost.delay_weight", "got 'lots'", "a number above 0"]),
    ("fleet.edge_bandwidth_mhz=-1", ["fleet.edge_bandwidth_mhz", "got -1", "above 0", "correct"]),
    ("fleet.edge_bandwidth_mhz=[-1, 3]", ["fleet.edge_bandwidth_mhz", "got [-1, 3]", "above 0"]),
    ("fleet.edge_bandwidth_mhz=[3, 1]", ["fleet.edge_bandwidth_mhz", "[3, 1]", "[low, high]", "swap"]),
    ("fleet.edge_bandwidth_mhz=[1, 2, 3]", ["fleet.edge_bandwidth_mhz", "[1, 2, 3]", "[low, high]", "correct"]),
    ("fleet.edge_bandwidth_mhz=[1, .nan]", ["fleet.edge_bandwidth_mhz", "got nan", "a number"]),
    ("fleet.cloud_bandwidth_mhz=-10", ["fleet.cloud_bandwidth_mhz", "got -10", "above 0", "default 10.0"]),
    ("fleet.samples=[true, 3]", ["fleet.samples", "True", "an integer"]),
    ("fleet.power_dbm=loud", ["fleet.power_dbm", "'loud'", "a number, or a range [low, high]", "[0.0, 23.0]"]),
    ("scheduling.name=ick", ["scheduling.name", "'ick'", "fedavg, ikc, ", "did you mean 'ikc'?", "use one"]),
    ("assignment.name=nearest", ["assignment.name", "'nearest'", "known: best_gain, ", "geographic", "hfel", "random"]),
    (
        "data.name=mnist",
        ["data.name", "'mnist'", "did you mean 'fashion_mnist'?", "breast_cancer, cifar10, ", "synthetic"],
    ),
    (
        "data.partition=skewed",
        [
            "data.partition",
            "'skewed'",
            "known: dirichlet, edge_dirichlet, edge_iid, edge_noniid, flwr:NAME, iid, majority, owners, resampled",
        ],
    ),
    ("data.samples_per_device=0", ["data.samples_per_device", "got 0", "1 sample or more", "raise"]),
    ("data.majority_fraction=1.5", ["data.majority_fraction", "got 1.5", "above 0 and at most 1", "default 0.8"]),
    ("target_accuracy=1.2", ["target_accuracy", "got 1.2", "above 0 and at most 1, or null", "default null"]),
    ("target_accuracy=85", ["target_accuracy", "got 85", "at most 1"]),
    ("fleet.power_law=watts", ["fleet.power_law", "'watts'", "'dbm' or 'watt'", "did you mean 'watt'?", "default dbm"]),
    ("scheduling.clustering_bill.edge_iterations=5", ["edge_iterations", "got 5", "1 or 'Q'", "default 1"]),
    ("scheduling.clustering_bill.edge_iterations=true", ["scheduling.clustering_bill.edge_iterations", "got True"]),
    (
        "scheduling.clustering_bill.cpu=min",
        ["clustering_bill.cpu", "'min'", "'allocated' or 'max'", "default allocated"],
    ),
    ("scheduling.clustering_bill.gpu=1", ["scheduling.clustering_bill.gpu", "unknown key", "edge_iterations, cpu"]),
    ("scheduling.clustering_bill=Q", ["scheduling.clustering_bill", "got 'Q'", "a section"]),
    (
        "allocation.method=newtn",
        ["allocation.method", "'newtn'", "'newton' or 'cvxpy' or 'equal' or 'fixed_cpu'", "did you mean 'newton'?"],
    ),
    ("seed=true", ["seed", "True", "an integer at least 0"]),
    ("seed=-1", ["seed", "got -1", "at least 0"]),
    ("max_rounds=2.5", ["max_rounds", "2.5", "an integer at least 1"]),
    ("max_rounds=null", ["max_rounds", "null", "an integer at least 1"]),
    ("scheduling=3", ["scheduling", "got 3", "a section", "scheduling.KEY"]),
    ("seed.x=3", ["seed", "{'x': 3}", "an integer"]),
    ("tracking.experiment=''", ["tracking.experiment", "''", "not empty"]),
    ("tracking.sinks=[csv, wandb]", ["tracking.sinks", "unknown sink 'wandb'", "known: csv, mlflow", "hflray.sinks"]),
    ("tracking.sinks=[csv, csv]", ["tracking.sinks", "'csv' is listed twice"]),
    ("tracking.sinks=csv", ["tracking.sinks", "'csv'", "a list [a, b]"]),
    ("data.name=3", ["data.name", "got 3", "a text"]),
    ("scheduling.num_scheduled", ["'scheduling.num_scheduled'", "KEY=VALUE", "scheduling.num_scheduled=30"]),
    ("=3", ["'=3'", "KEY=VALUE"]),
    ("a..b=3", ["'a..b=3'", "KEY=VALUE", "dotted"]),
    ("seed=[1", ["'seed=[1'", "not valid YAML"]),
]


@pytest.mark.parametrize("override, words", MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_gives_one_line_with_the_fix(override, words):
    message = line_of(override)
    assert all(word in message for word in words), message


def test_every_mistake_has_a_line():
    with pytest.raises(ConfigError) as error:
        load_config(overrides=["sead=1", "cost.delay_weight=0", "fleet.num_edges=0", "data.name=mnist"])
    lines = str(error.value).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["cost.delay_weight", "data.name", "fleet.num_edges", "sead"]


def test_other_models_can_reuse_section_and_validate():
    """`validate` puts a prefix before each setting, as the sections of a sweep file need it."""

    class Sweep(Section):
        smoke: bool = False
        experiment: ExperimentConfig = ExperimentConfig()

    assert validate(Sweep, {"smoke": True}).smoke
    with pytest.raises(ConfigError, match=r"^sweep\.experiment\.seed: got -1; accepted"):
        validate(Sweep, {"experiment": {"seed": -1}}, "sweep.")
    with pytest.raises(ConfigError, match=r"^sweep\.smok: unknown key \(got 1\); did you mean 'smoke'"):
        validate(Sweep, {"smok": 1}, "sweep.")
