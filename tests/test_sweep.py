"""`hflray.sweep`: the sweep file, its trials, and the mistakes that it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hflray.config import flatten, load_config, set_dotted, validate
from hflray.errors import ConfigError
from hflray.support.shipped import sweep_files
from hflray.sweep import (
    Axis,
    SweepFile,
    assigner_label,
    expand,
    load_sweep,
    prolong,
    smoke,
    with_absolute_paths,
    with_data_root,
)  # fmt: skip
from hflray.sweep.tasks import TASKS, find_task
from hflray.sweep.trials import run_name
from tests.conftest import cases, refusal

CONFIGS = Path(__file__).parents[1] / "tune_configs"
SHIPPED = sweep_files()
POPULATION = "tune: {samples: 4, population: {every: 2}}\n"
GOOD = Path(__file__).with_name("good_sweep.yaml").read_text(encoding="utf-8")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
@pytest.mark.parametrize(
    "key",
    ["allocation.limits.device_delay_s", "allocation.limits.device_energy_j", "cost.delay_weight", "target_accuracy",
     "training.learning_rate", "fleet.area_km", "world.dropout.rate_per_s", "cost.model_kb"],
)  # fmt: skip
def test_what_is_no_finite_number_is_refused_as_it_is_written(key: str, value: str, tmp_path: Path) -> None:
    section, _, name = key.rpartition(".")
    inner = f"{{{name}: {value}}}"
    for part in reversed(section.split(".") if section else []):
        inner = f"{{{part}: {inner}}}"
    for text in (f"experiment: {inner}", f"sweep: {{{key}: {{grid: [{value}]}}}}"):
        with refusal(ConfigError, f"{key}: got {value.replace('.', '')}", "a number"):
            expand(with_absolute_paths(load_sweep(write(tmp_path, text))))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_is_valid_described_and_has_a_smoke_version(path: Path) -> None:
    file = load_sweep(path)
    assert file.name == path.stem
    assert file.description
    assert expand(file)
    trials = expand(smoke(file))
    assert len(trials) == 1
    name = file.experiment.get("data", {}).get("name", "digits")
    small = name if name in ("friedman1", "pydoc_topics") else "synthetic"
    assert trials[0].config.data.name == (small if find_task(file.task).needs_data else "digits")


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if not task.needs_data])
def test_a_task_without_data_takes_its_sizes_from_the_named_data_set(tmp_path, task) -> None:
    text = f"task: {task}\nsweep: {{data.name: {{grid: [digits, fashion_mnist, cifar10]}}}}\n"
    file = load_sweep(write(tmp_path, text))
    trials = expand(file)
    sizes = [(trial.config.cost.model_kb, trial.config.fleet.samples) for trial in trials]
    assert sizes == [(None, (400, 700)), (448.0, (400, 700)), (882.0, (300, 600))]
    assert [trial.name.rpartition("=")[2] for trial in trials] == ["digits", "fashion_mnist", "cifar10"]
    # A resume reads the saved file and must make the same trials.
    again = validate(SweepFile, json.loads(json.dumps(file.model_dump(mode="json", exclude_unset=True))))
    assert [(trial.name, trial.config) for trial in expand(again)] == [(trial.name, trial.config) for trial in trials]
    assert expand(smoke(load_sweep(write(tmp_path, text), ["data.name=cifar10"])))[0].config.cost.model_kb == 882.0
    with pytest.raises(ConfigError, match=r"data.name: got 'synthetic' for a task that loads no data"):
        expand(load_sweep(write(tmp_path, text), ["data.name=synthetic"]))


def test_grids_multiply_and_zips_move_together(tmp_path) -> None:
    trials = expand(load_sweep(write(tmp_path, GOOD)))
    points = [
        " ".join(map(str, (t.config.data.name, t.config.target_accuracy, t.config.scheduling.name))) for t in trials
    ]
    assert points == ["digits 0.9 ikc", "digits 0.9 fedavg", "synthetic 0.5 ikc", "synthetic 0.5 fedavg"]
    assert trials[0].name == "digits-H5-λ1-ikc-d3qn-s0-target_accuracy=0.9"


@pytest.mark.parametrize("sweep, short, whole", cases("sweep/names"))
def test_trials_whose_short_names_are_equal_have_their_values_in_full(tmp_path, sweep, short, whole) -> None:
    for name in ("v1.py", "v2.py"):
        (tmp_path / name).write_text(f"class Net:\n    name = '{name}'\n")
    file = load_sweep(write(tmp_path, f"sweep: {sweep}"))
    trials = expand(file)
    assert [trial.name.rpartition("-")[2] for trial in trials] == whole
    older = [trial.name for trial in expand(file, numbered=True)]
    assert older[0].startswith("0-"), "a sweep that an older hflray began goes on under its names"
    assert older[1].startswith("1-")
    assert all(name.endswith(short) for name in older)


def test_a_run_is_named_after_its_settings() -> None:
    (trial,) = expand(load_sweep(None, ["data.name=fashion_mnist", "cost.delay_weight=0.1", "assignment.name=random"]))
    assert run_name(trial.config, {}) == "fashion-H50-λ0.1-ikc-random-s0"


def test_overrides_reach_the_configuration_the_axes_and_the_sections(tmp_path) -> None:
    path = write(tmp_path, GOOD)
    axis = "sweep.seed={grid: [1, 2]}"
    file = load_sweep(path, ["scheduling.name=vkc", axis, "tune.max_concurrent=1", "name=other", "max_rounds=7"])
    assert (file.name, file.tune.max_concurrent) == ("other", 1)
    configs = [trial.config for trial in expand(file)]
    assert {(c.scheduling.name, c.seed, c.max_rounds) for c in configs} == {("vkc", 1, 7), ("vkc", 2, 7)}


def test_the_tracking_section_reaches_every_trial(tmp_path) -> None:
    text = GOOD + "tracking: {experiment: paper}\n"
    assert {trial.config.tracking.experiment for trial in expand(load_sweep(write(tmp_path, text)))} == {"paper"}


@pytest.mark.parametrize("mistake", yaml.safe_load(Path(__file__).with_name("sweep_mistakes.yaml").read_text("utf-8")))
def test_mistakes_are_one_line_each(tmp_path, mistake: dict[str, Any]) -> None:
    path = write(tmp_path, mistake["text"]) if "text" in mistake else None
    with pytest.raises(ConfigError, match=mistake["message"]) as error:
        expand(load_sweep(path, mistake.get("overrides", [])))
    assert len(str(error.value).splitlines()) == 1


def test_an_axis_takes_the_place_of_the_experiments_value(tmp_path) -> None:
    text = "experiment: {seed: 7, training: {batch_size: 8}}\nsweep: {seed: {grid: [1]}, training: {grid: [%s]}}"
    (trial,) = expand(load_sweep(write(tmp_path, text % "{batch_size: 16, learning_rate: 0.1}")))
    assert (trial.config.seed, trial.config.training.batch_size) == (1, 16)


def test_an_override_of_a_section_replaces_the_axes_that_it_sets_and_none_goes_lost(tmp_path) -> None:
    path = write(tmp_path, "sweep: {training.batch_size: {grid: [8, 16]}, training.learning_rate: {grid: [0.1, 0.2]}}")
    file = load_sweep(path, ["training={batch_size: 4}"])
    assert list(file.sweep) == ["training.learning_rate"]
    assert {trial.config.training.batch_size for trial in expand(file)} == {4}
    with pytest.raises(ConfigError, match=r"the axes training and training.batch_size"):
        load_sweep(path, ["sweep.training={grid: [{batch_size: 4}]}"])
    whole = write(tmp_path, "sweep: {training: {grid: [{batch_size: 8}, {batch_size: 16}]}}")
    with pytest.raises(ConfigError, match=r"training.learning_rate beside the axis sweep.training"):
        load_sweep(whole, ["training.learning_rate=0.1"])
    with pytest.raises(ConfigError, match=r"training.batch_size beside the axis sweep.training"):
        load_sweep(whole, ["training.batch_size=4"])


def test_an_empty_section_sweeps_nothing(tmp_path) -> None:
    assert len(expand(load_sweep(write(tmp_path, "sweep:\n")))) == 1


def test_a_population_has_a_trial_for_every_draw(tmp_path) -> None:
    text = POPULATION + "sweep: {training.learning_rate: {loguniform: [0.001, 0.1]}}\n"
    trials = expand(load_sweep(write(tmp_path, text)))
    assert [trial.name for trial in trials] == [f"digits-H50-λ1-ikc-d3qn-s0-p{number}" for number in range(4)]
    assert len({trial.config.training.learning_rate for trial in trials}) == 4
    assert expand(smoke(load_sweep(write(tmp_path, text))))


def test_literal_figure_5_sets_what_the_paper_prints() -> None:
    trials = expand(load_sweep(CONFIGS / "fig5_literal.yaml"))
    assert len(trials) == 2
    for trial in trials:
        learning, teacher = trial.config.learning, trial.config.learning.teacher
        assert (learning.features, learning.architecture, learning.hidden) == ("paper", "bilstm", 256)
        assert (teacher.name, teacher.exchanges, teacher.start) == ("hfel", 300, "geographic")
        assert (learning.replay, learning.train_batch, learning.update_every) == ("transitions", 128, 1)
        assert learning.learning_starts == learning.train_batch + 1  # the paper: "if more than O are there"
        assert (learning.td_loss, learning.double_q, learning.gamma) == ("squared", False, 0.99)
        assert learning.learning_rate == learning.final_learning_rate == 1e-3
        assert (learning.grad_clip, learning.td, learning.ce, learning.reward) == (None, 1.0, 0.0, "teacher")
        assert (trial.config.fleet.deployment_seed, trial.config.fleet.num_edges) == (0, 5)
        assert (learning.minutes, learning.env_steps) == (None, 30_000)
    longer = expand(load_sweep(CONFIGS / "fig5_literal.yaml", ["learning.env_steps=300000"]))
    assert [trial.config.learning.env_steps for trial in longer] == [300_000] * 2


def test_figure_6_has_each_row_on_five_deployments_and_the_policies_of_algorithm_5_on_one() -> None:
    seeds_by_label: dict[str, list[int | None]] = {}
    for trial in expand(load_sweep(CONFIGS / "fig6_assignment.yaml")):
        seeds_by_label.setdefault(assigner_label(trial.config), []).append(trial.config.fleet.deployment_seed)
    assert seeds_by_label.pop("d3qn paper_literal") == [0]
    assert seeds_by_label.pop("d3qn paper_best") == [0]
    rows = ["geographic", "best_gain", "hfel-100", "hfel-300", "hfel-100 best_gain", "hfel-300 best_gain"]
    rows += ["local_search", "local_search joint"]
    polished = ["d3qn 5 ms", "d3qn optimum", "d3qn optimum joint"]
    assert list(seeds_by_label) == [*rows, "hfel-300 joint", "d3qn", *polished, "d3qn paper_db"]
    assert all(seeds == [0, 1, 2, 3, 4] for seeds in seeds_by_label.values())


def test_a_policys_name_is_in_the_trials_name() -> None:
    file = load_sweep(None, ["task=assignment", "assignment.name=d3qn"])
    file = file.model_copy(
        update={"sweep": {"assignment.policy": Axis(zip=[None, "paper_db", "runs/mine.safetensors"])}}
    )
    names = [trial.name for trial in expand(file)]
    assert names == ["H50-λ1-d3qn-s0", "H50-λ1-d3qn_paper_db-s0", "H50-λ1-d3qn_mine-s0"]


def test_a_long_name_of_a_trial_is_cut_and_stays_unique(tmp_path) -> None:
    roots = ["é" * 300 + ending for ending in "ab"]
    trials = expand(load_sweep(write(tmp_path, json.dumps({"sweep": {"data.root": {"grid": roots}}}))))
    assert len({trial.name for trial in trials}) == 2
    for trial in trials:
        assert len(trial.name.encode()) <= 200
        assert re.fullmatch(r"digits-H50-λ1-ikc-d3qn-s0-root=é+-[0-9a-f]{8}", trial.name)


def test_a_file_without_a_name_is_named_after_itself(tmp_path) -> None:
    for stem, name in {"my sweep": "my_sweep", "été": "sweep_t_", "_x": "sweep_x", "x" * 200: "x" * 95}.items():
        path = tmp_path / f"{stem}.yaml"
        path.write_text("experiment: {seed: 1}")
        assert load_sweep(path).name == name


def test_the_smoke_test_keeps_the_kind_of_the_data(tmp_path: Path) -> None:
    text = "experiment: {data: {name: friedman1}, model: {name: mlp}, target: {metric: r2, value: 0.5}}"
    (trial,) = expand(smoke(load_sweep(write(tmp_path, text))))
    assert (trial.config.data.name, trial.config.max_rounds) == ("friedman1", 2)


@pytest.fixture
def own_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text("def recall(outputs, targets):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)


BY_SWEEP = "sweep.target.metric={grid: ['own.py:recall', null]}"


@pytest.mark.usefixtures("own_metric")
@pytest.mark.parametrize("given", ["target.metric=own.py:recall", BY_SWEEP])
@pytest.mark.parametrize("key", ["tune.stop={recall: 0.5}", "tune.early_stopping={metric: recall}"])
def test_a_metric_of_the_users_own_may_stop_trials(given: str, key: str) -> None:
    assert "recall" in str(load_sweep(CONFIGS / "quickstart.yaml", [given, key]).tune)


@pytest.mark.usefixtures("own_metric")
def test_another_name_than_that_of_the_users_own_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tune.stop.recal: unknown metric 'recal'; did you mean 'recall'"):
        load_sweep(CONFIGS / "quickstart.yaml", ["target.metric=own.py:recall", "tune.stop={recal: 0.5}"])


@pytest.mark.usefixtures("own_metric")
@pytest.mark.parametrize("key", ["tune.search={metric: recall, mode: max}", "tune.population={metric: recall}"])
def test_a_metric_of_the_users_own_may_choose_values(key: str, tmp_path: Path) -> None:
    path = tmp_path / "drawn.yaml"
    path.write_text(
        "experiment: {target: {metric: 'own.py:recall'}}\nsweep: {training.learning_rate: {uniform: [0.01, 0.1]}}\n"
        "tune: {samples: 4}\n"
    )
    assert "recall" in str(load_sweep(path, [key]).tune)


# The settings that hold a path, each with a file or folder that a sweep file names.
PATHS = {
    "data.name": "mine.npz", "data.root": "sets", "learning.cache": "fleets", "tracking.uri": "sqlite:///runs.db",
    "world.availability.options.path": "a.csv", "world.mobility.options.path": "b.csv",
    "world.edge_failure.trace": "c.csv", "assignment.policy": "p.safetensors",
    "scheduling.options.policy": "q.safetensors",
}  # fmt: skip


def of(file: SweepFile, key: str, form: str) -> str:
    """Return the only value of a setting in a sweep file."""
    if form == "axis":
        return str(file.sweep[key].grid[-1]).partition("@")[0]  # type: ignore[index]
    return str(flatten(file.experiment)[key]).partition("@")[0]


FORMS = [(form, key, name) for form in ("setting", "axis") for key, name in PATHS.items()
         if (form, key) != ("axis", "tracking.uri")]  # fmt: skip


@pytest.mark.parametrize("form, key, name", FORMS)
def test_a_path_in_a_sweep_file_is_relative_to_the_file_and_in_an_override_to_the_present_folder(
    tmp_path, monkeypatch, key: str, name: str, form: str
) -> None:
    sweeps, here = tmp_path / "sweeps", tmp_path / "here"
    start, plain = ("sqlite:///" if "sqlite" in name else ""), name.removeprefix("sqlite:///")
    for place in (sweeps, here):
        place.mkdir()
        (place / plain).touch()
    monkeypatch.chdir(here)
    tree: dict[str, Any] = {}
    set_dotted(tree, key, name)
    text = {"experiment": tree} if form == "setting" else {"sweep": {key: {"grid": [None, name]}}}
    (sweeps / "my.yaml").write_text(json.dumps(text))
    assert of(with_absolute_paths(load_sweep("../sweeps/my.yaml")), key, form) == f"{start}{sweeps / plain}"
    if "policy" not in key and form == "setting" and key != "tracking.uri":
        override = with_absolute_paths(load_sweep("../sweeps/my.yaml", [f"{key}={name}"]))
        assert of(override, key, form) == str(here / name)
    (sweeps / plain).unlink()
    with refusal(ConfigError, f"{key}: got '{name}'", str(sweeps), str(here), "--set"):
        load_sweep("../sweeps/my.yaml")


def test_a_data_set_that_is_not_beside_its_sweep_file_may_lie_in_the_folder_of_data_sets(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = with_absolute_paths(load_sweep(write(tmp_path, "experiment: {data: {name: mine.npz}}")))
    assert file.experiment["data"]["name"] == "mine.npz"


def test_a_configuration_in_python_has_the_paths_of_its_file(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.npz").touch()
    assert load_config(write(tmp_path, "data: {name: mine.npz}")).data.name == str(tmp_path / "mine.npz")


def test_the_folder_of_data_sets_of_the_command_line_replaces_an_axis_of_it(tmp_path) -> None:
    file = with_data_root(load_sweep(None, ["sweep.data.root={grid: [a, b]}"]), tmp_path)
    assert (list(file.sweep), file.experiment["data"]["root"]) == ([], str(tmp_path))
    file = with_data_root(load_sweep(None, ["sweep.data={grid: [{name: digits}, {name: synthetic}]}"]), tmp_path)
    assert [trial.config.data.root for trial in expand(file)] == [str(tmp_path)] * 2


def test_a_bound_is_compared_with_the_validation_part_where_there_is_one(tmp_path):
    tune = load_sweep(None, ["tune.stop={accuracy: 0.8, round/delay_s: 5}"]).tune
    assert tune.bound({"accuracy": 0.8}) == "accuracy"
    assert tune.bound({"accuracy": 0.8, "validation_accuracy": 0.7}) is None
    assert tune.bound({"accuracy": 0.1, "validation_accuracy": 0.9, "round/delay_s": 5.0}) == "accuracy"
    assert tune.bound({"r2": 1.0, "round/delay_s": 5.0}) == "round/delay_s"
    losses = load_sweep(None, ["tune.stop={test_loss: 0.3}"]).tune
    assert (losses.bound({"test_loss": 2.3}), losses.bound({"test_loss": 0.2})) == (None, "test_loss")


@pytest.mark.parametrize("metric, mode", [("accuracy", "max"), ("test_loss", "min"), ("total/energy_j", "min")])
def test_without_a_mode_the_metric_says_what_is_better(metric, mode):
    words = "sweep.training.learning_rate={uniform: [0, 1]}", "tune.samples=4"
    for section in ("search", "early_stopping", "population"):
        tune = load_sweep(None, [*words, f"tune.{section}.metric={metric}"]).tune
        assert getattr(tune, section).mode == mode
        tune = load_sweep(None, [*words, f"tune.{section}={{metric: {metric}, mode: max}}"]).tune
        assert getattr(tune, section).mode == "max"


def test_a_sweep_over_both_image_data_sets_takes_the_official_split_and_its_smoke_run_none(tmp_path):
    words = ["data.split=official", "data.validation=2000", "sweep.data.name={grid: [fashion_mnist, cifar10]}"]
    file = load_sweep(None, words)
    assert [(t.config.data.name, t.config.data.split) for t in expand(file)] == [
        ("fashion_mnist", "official"), ("cifar10", "official"),
    ]  # fmt: skip
    (trial,) = expand(smoke(file))
    data = trial.config.data
    assert (data.name, data.split, data.validation) == ("synthetic", "stratified", 100)
    with pytest.raises(ConfigError, match="digits', which has one split only"):
        expand(load_sweep(None, [*words[:2], "sweep.data.name={grid: [fashion_mnist, digits]}"]))


@pytest.mark.parametrize("text, overrides, fact", cases("sweep/more_rounds"))
def test_a_sweep_gets_more_rounds_where_no_trial_was_judged_by_fewer(tmp_path, text, overrides, fact) -> None:
    (tmp_path / "mine.yaml").write_text(f"experiment: {{max_rounds: 9}}\n{text}\n")
    file = load_sweep(tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match=re.escape(fact)):
        prolong(file, overrides)
    if not text:
        (trial,) = expand(prolong(file, ["max_rounds=12"]))
        assert trial.config.max_rounds == 12
        assert trial.name == expand(file)[0].name
