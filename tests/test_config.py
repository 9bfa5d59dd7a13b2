"""Configuration: Table I as the defaults, files and overrides in, and one helpful line for each mistake."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hflray.config import (
    CostConfig,
    ExperimentConfig,
    FleetConfig,
    Section,
    dbm_to_w,
    flatten,
    load_config,
    parse_yaml,
    to_yaml,
    validate,
)
from hflray.errors import ConfigError


def line_of(*overrides):
    """The one line that these overrides earn."""
    with pytest.raises(ConfigError) as error:
        load_config(overrides=overrides)
    message = str(error.value)
    assert "\n" not in message
    assert "input should" not in message.lower()  # pydantic's own words have no place here
    return message


def write(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_table_i():
    config = load_config()
    fleet, training = config.fleet, config.training
    assert (fleet.num_devices, fleet.num_edges, fleet.area_km) == (100, 5, 1.0)
    assert (fleet.path_loss_db, fleet.path_loss_slope_db, fleet.shadowing_db) == (128.1, 37.6, 8.0)
    assert fleet.cycles_per_sample == (1e4, 1e5)
    assert fleet.edge_bandwidth_mhz == (0.5, 3.0)
    assert fleet.cloud_bandwidth_mhz == 10.0
    assert fleet.power_dbm == (0.0, 23.0)
    assert fleet.edge_power_dbm == 23.0
    assert fleet.max_cpu_ghz == (2.0, 2.0)
    assert fleet.noise_dbm_per_hz == -174.0
    assert fleet.samples == (400, 700)
    assert (training.learning_rate, training.local_iterations, training.edge_iterations) == (0.01, 5, 5)
    assert config.scheduling.num_clusters == 10
    # The design's decisions where the table is silent.
    assert fleet.capacitance == 2e-28
    assert config.cost.delay_weight == 1.0
    assert (config.allocation.method, config.allocation.coupling) == ("newton", "per_edge")
    assert (training.batch_size, training.local_iteration) == (64, "epoch")
    assert config.data.majority_fraction == 0.8
    assert config.data.name == "digits"


def test_units_are_converted_once():
    fleet = FleetConfig(edge_bandwidth_mhz=(0.5, 3), max_cpu_ghz=1.5, power_dbm=(0, 30))
    assert dbm_to_w(30.0) == pytest.approx(1.0)
    assert dbm_to_w(23.0) == pytest.approx(0.1995262, rel=1e-6)
    assert fleet.power_w_range == pytest.approx((1e-3, 1.0))
    assert fleet.edge_power_w == pytest.approx(0.1995262, rel=1e-6)
    assert fleet.noise_w_per_hz == pytest.approx(3.981072e-21, rel=1e-6)
    assert fleet.edge_bandwidth_hz_range == (0.5e6, 3e6)
    assert fleet.cloud_bandwidth_hz == 1e7
    assert fleet.max_cpu_hz_range == (1.5e9, 1.5e9)
    assert fleet.area_m == 1000.0
    assert CostConfig(model_kb=448).model_bits == 448 * 1024 * 8
    assert CostConfig().model_bits is None


def test_overrides_go_over_the_file_in_order(tmp_path):
    path = write(tmp_path, "seed: 3\nscheduling: {num_scheduled: 20}\nfleet:\n  # everything commented out\n")
    config = load_config(path, ["scheduling.num_scheduled=30", "scheduling.name=vkc", "scheduling.num_scheduled=40"])
    assert (config.seed, config.scheduling.num_scheduled, config.scheduling.name) == (3, 40, "vkc")
    assert config.fleet == FleetConfig()
    assert load_config(write(tmp_path, "")) == load_config()


@pytest.mark.parametrize(
    "override, key, value",
    [
        ("fleet.edge_bandwidth_mhz=2", "fleet.edge_bandwidth_mhz", (2.0, 2.0)),
        ("fleet.edge_bandwidth_mhz=[1, 2]", "fleet.edge_bandwidth_mhz", (1.0, 2.0)),
        ("fleet.cycles_per_sample=1e4", "fleet.cycles_per_sample", (1e4, 1e4)),  # YAML 1.1 reads 1e4 as a text
        ("cost.delay_weight=1e-3", "cost.delay_weight", 1e-3),
        ("fleet.capacitance=4E-28", "fleet.capacitance", 4e-28),
        ("target_accuracy=null", "target_accuracy", None),
        ("target_accuracy=", "target_accuracy", None),
        (" data.root =/tmp/a=b", "data.root", "/tmp/a=b"),
        ("tracking.uri=sqlite:///x.db", "tracking.uri", "sqlite:///x.db"),
        ("data.name=/some/where.npz", "data.name", "/some/where.npz"),
        ("assignment.options={exchanges: 5}", "assignment.options.exchanges", 5),
    ],
)
def test_override_values_are_yaml(override, key, value):
    assert flatten(load_config(overrides=[override]).model_dump())[key] == value


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["seed=7", "target_accuracy=0.8", "fleet.num_devices=60", "fleet.power_dbm=[3, 9]", "cost.model_kb=448"],
        ["fleet.capacitance=1.25e-28", "data.samples_per_device=[10, 20]", "scheduling.options={a: 1, b: [2, x]}"],
        ["tracking.experiment='1e3'", "data.root='été: #1'", "scheduling.num_clusters=null"],
    ],
)
def test_yaml_round_trip(tmp_path, overrides):
    config = load_config(overrides=overrides)
    assert load_config(write(tmp_path, to_yaml(config))) == config


def test_a_sweep_file_gives_its_experiment(tmp_path):
    path = write(
        tmp_path, "name: s\ntask: experiment\nexperiment: {seed: 5}\nsweep: {seed: {grid: [1, 2]}}\ntracking: {}\n"
    )
    assert load_config(path).seed == 5
    assert load_config(path, ["seed=6"]).seed == 6
    assert load_config(write(tmp_path, "name: s\nsweep: {}\n")) == load_config()
    with pytest.raises(ConfigError, match=r"experiment: got \[1\]; accepted: a mapping"):
        load_config(write(tmp_path, "experiment: [1]\n"))
    # A setting beside the sections would be ignored.
    with pytest.raises(
        ConfigError, match=r"max_rounds: got 3 beside the sections of a sweep file.*under 'experiment:'"
    ):
        load_config(write(tmp_path, "experiment: {seed: 5}\nmax_rounds: 3\n"))


def test_yaml_merge_keys_work(tmp_path):
    text = "experiment: {seed: 5, fleet: &base {num_edges: 3, num_devices: 70}}\n"
    tree = parse_yaml(f"{text}other: {{<<: *base, num_edges: 4}}\n", "f")
    assert tree["other"] == {"num_edges": 4, "num_devices": 70}


# Each mistake: the override, and what its one line must hold: setting, value, accepted, fix.
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
    ("scheduling.name=ick", ["scheduling.name", "'ick'", "known: fedavg, ikc, vkc", "did you mean 'ikc'?", "use one"]),
    ("assignment.name=nearest", ["assignment.name", "'nearest'", "known: best_gain, ", "geographic", "hfel", "random"]),
    ("data.name=mnist", ["data.name", "'mnist'", "did you mean 'fashion_mnist'?", "cifar10, digits", "synthetic"]),
    ("data.partition=skewed", ["data.partition", "'skewed'", "known: dirichlet, iid, majority"]),
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
    ("allocation.method=newtn", ["allocation.method", "'newtn'", "'newton' or 'cvxpy'", "did you mean 'newton'?"]),
    ("seed=true", ["seed", "True", "an integer at least 0"]),
    ("seed=-1", ["seed", "got -1", "at least 0"]),
    ("max_rounds=2.5", ["max_rounds", "2.5", "an integer at least 1"]),
    ("max_rounds=null", ["max_rounds", "null", "an integer at least 1"]),
    ("scheduling=3", ["scheduling", "got 3", "a section", "scheduling.KEY"]),
    ("seed.x=3", ["seed", "{'x': 3}", "an integer"]),
    ("tracking.experiment=''", ["tracking.experiment", "''", "not empty"]),
    ("data.name=3", ["data.name", "got 3", "a text"]),
    ("scheduling.num_scheduled", ["'scheduling.num_scheduled'", "KEY=VALUE", "scheduling.num_scheduled=30"]),
    ("=3", ["'=3'", "KEY=VALUE"]),
    ("a..b=3", ["'a..b=3'", "KEY=VALUE", "dotted"]),
    ("seed=[1", ["'seed=[1'", "not valid YAML"]),
]


@pytest.mark.parametrize("override, words", MISTAKES, ids=[m[0] for m in MISTAKES])
def test_one_line_for_a_mistake(override, words):
    message = line_of(override)
    assert all(word in message for word in words), message


def test_rules_over_several_settings():
    message = line_of("training.devices_per_actor=2", "training.num_actors=4")
    assert all(w in message for w in ("training", "devices_per_actor = 2", "num_actors = 4", "one of", "remove"))
    assert "fleet.num_devices = 20" in line_of("fleet.num_devices=20")  # the default H does not fit: say so
    # FedAvg has no clusters, so the default K is no mistake.
    small = ["fleet.num_devices=5", "scheduling.num_scheduled=2"]
    assert load_config(overrides=[*small, "scheduling.name=fedavg"]).scheduling.num_clusters == 10
    assert "10 clusters cannot be made" in line_of(*small)
    assert "'seed' is a value" in line_of("seed=1", "seed.x=2")


def test_how_clustering_is_billed():
    assert load_config().scheduling.clustering_bill.model_dump() == {"edge_iterations": 1, "cpu": "allocated"}
    overrides = ["scheduling.clustering_bill.edge_iterations=Q", "scheduling.clustering_bill.cpu=max"]
    assert load_config(overrides=overrides).scheduling.clustering_bill.model_dump() == {
        "edge_iterations": "Q",
        "cpu": "max",
    }


def test_every_mistake_has_its_line():
    with pytest.raises(ConfigError) as error:
        load_config(overrides=["sead=1", "cost.delay_weight=0", "fleet.num_edges=0", "data.name=mnist"])
    lines = str(error.value).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["cost.delay_weight", "data.name", "fleet.num_edges", "sead"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("- seed: 0\n", ["c.yaml", "list", "mapping", "seed: 0"]),
        ("just words\n", ["c.yaml", "str", "mapping"]),
        ("seed: 1\nmax_rounds: 2\nseed: 2\n", ["c.yaml", "line 3", "'seed'", "twice", "keep one"]),
        ("fleet:\n  num_edges: 1\n  num_edges: 2\n", ["c.yaml", "line 3", "'num_edges'", "twice"]),
        ("seed: [1\n", ["c.yaml", "not valid YAML", "line"]),
        ("seed: 1\n---\nseed: 2\n", ["c.yaml", "not valid YAML"]),
        ("? [1, 2]\n: 3\n", ["c.yaml", "not valid YAML"]),
        ("seed: !!python/object:os.system x\n", ["c.yaml", "not valid YAML"]),
        ("1: 2\n", ["1: ", "unknown key"]),
    ],
)
def test_bad_files(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, text))
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot read the configuration .*give the path"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"data: {root: \xe9}\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(path)


def test_prefix_and_sections_of_others():
    """Other files' sections (a sweep file's) reuse `Section` and `validate`."""

    class Sweep(Section):
        smoke: bool = False
        experiment: ExperimentConfig = ExperimentConfig()

    assert validate(Sweep, {"smoke": True}).smoke
    with pytest.raises(ConfigError, match=r"^sweep\.experiment\.seed: got -1; accepted"):
        validate(Sweep, {"experiment": {"seed": -1}}, "sweep.")
    with pytest.raises(ConfigError, match=r"^sweep\.smok: unknown key \(got 1\); did you mean 'smoke'"):
        validate(Sweep, {"smok": 1}, "sweep.")


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError):
        load_config().seed = 3


def test_flatten_uses_the_dotted_names():
    flat = flatten(load_config().model_dump())
    assert flat["scheduling.num_scheduled"] == 50
    assert flat["seed"] == 0
    assert not any(isinstance(value, dict) for value in flat.values())


@pytest.mark.parametrize(
    "override, parts",
    [
        ("fleet.edge_bandwidths_mhz=[1, 2]", ["edge_bandwidths_mhz: 2 values for num_edges = 5", "one for each edge"]),
        ("fleet.edge_bandwidths_mhz=[1, 2, 0, 1, 1]", ["fleet.edge_bandwidths_mhz", "above 0, one an edge"]),
        ("learning.teacher.name=hefl", ["learning.teacher.name", "unknown assigner 'hefl'", "did you mean 'hfel'"]),
        ("learning.num_edges=[2, 8]", ["num_edges: got [2, 8] for the bilstm network", "architecture: shared"]),
        ("learning.num_scheduled=[0, 8]", ["learning.num_scheduled", "above 0"]),
        ("learning={architecture: shared, features: paper}", ["needs each edge's bandwidth", "features: db"]),
        ("learning.td=0", ["td, ce: both weights are 0"]),
        ("learning.minutes=null", ["minutes, env_steps: both are null"]),
        ("learning.epsilon=[1, 2]", ["learning.epsilon", "from 0 to 1"]),
        ("learning.model_kb=[]", ["learning.model_kb", "a list of numbers above 0"]),
        ("learning.reward=profit", ["learning.reward: got 'profit'", "'teacher' or 'cost'"]),
    ],
)
def test_learning_that_cannot_be(override, parts):
    with pytest.raises(ConfigError) as error:
        load_config(None, [override])
    for part in parts:
        assert part in str(error.value)


def test_lists_are_no_ranges():
    config = load_config(
        None, ["fleet.num_edges=2", "fleet.edge_bandwidths_mhz=[3, 0.5]", "learning.model_kb=[882, 10]"]
    )
    assert config.fleet.edge_bandwidths_mhz == (3.0, 0.5)
    assert config.learning.model_kb == (882.0, 10.0)
    assert config.learning.epsilon == (1.0, 0.05)


@pytest.mark.parametrize("setting", ["precision=tf32", "cuda_graph=true"])
def test_what_is_for_gpus_is_refused_on_cpus(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting.partition('=')[0]}: .* is for GPUs, and device is 'cpu'"):
        load_config(None, [f"training.{setting}"])
    for device in ("cuda", "auto"):
        assert load_config(None, [f"training.{setting}", f"training.device={device}"]).training.device == device
    assert load_config(None, ["training.cuda_graph=false"]).training.cuda_graph is False
