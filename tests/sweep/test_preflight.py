"""`hflray.sweep.preflight` builds every trial once before anything starts, resolves paths, and estimates the time."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from hflray.errors import ConfigError, DataError
from hflray.sweep import expand, load_sweep, preflight
from hflray.sweep.preflight import check_metrics, check_trials, estimate
from tests.conftest import says

SMALL = [
    "fleet.num_devices=12", "scheduling.num_scheduled=4", "max_rounds=2", "training.local_iterations=1",
    "training.kernel=eager", "training.threads=1",
]  # fmt: skip


def test_each_data_set_is_loaded_once_and_described() -> None:
    trials = expand(
        load_sweep(None, [*SMALL, "sweep.seed={grid: [1, 2]}", "sweep.data.name={grid: [digits, synthetic]}"])
    )
    checked = check_trials(trials, "experiment")
    assert sorted(name for name, *_ in checked.datasets) == ["digits", "synthetic"]
    assert any(note.startswith("digits has") for note in checked.notes)
    described = checked.described(trials[0].config)
    assert described is not None
    assert described["name"] == "digits"
    assert re.fullmatch(r"[0-9a-f]{36}", described["digest"])
    assert set(checked.resolved) == {trial.name for trial in trials}
    assert checked.resolved[trials[0].name].training.kernel == "eager"


def test_data_sets_of_one_name_in_two_folders_are_refused_where_their_samples_differ(tmp_path) -> None:
    y = np.arange(600) % 10
    for folder, scale in {"a": 1, "copy": 1, "b": 2}.items():
        (tmp_path / folder).mkdir()
        x = np.arange(600 * 784, dtype=np.float32).reshape(600, 28, 28) % 17 * scale
        np.savez(tmp_path / folder / "fashion_mnist.npz", x_train=x, y_train=y, x_test=x[:60], y_test=y[:60])

    def checked(*folders: str, axis: str = "data.root", end: str = "") -> object:
        values = json.dumps([f"{tmp_path / folder}{end}" for folder in folders])
        return check_trials(
            expand(load_sweep(None, [*SMALL, "data.name=fashion_mnist", f"sweep.{axis}={{grid: {values}}}"])),
            "experiment",
        )

    checked("a", "copy")
    with pytest.raises(ConfigError, match=re.escape(f"'fashion_mnist' has other samples in {tmp_path / 'b'} than in")):
        checked("a", "b")
    checked("a", "b", axis="data.name", end="/fashion_mnist.npz")


def test_a_validation_part_is_described_and_takes_no_more_memory() -> None:
    (trial,) = expand(file := load_sweep(None, [*SMALL, "data.validation=200"]))
    checked = check_trials([trial], "experiment")
    described = checked.described(trial.config)
    assert described is not None
    profile = json.loads(described["profile"])
    assert (profile["train"], profile["validation"], profile["test"]) == (1238, 200, 359)
    (plain,) = expand(load_sweep(None, [*SMALL]))
    without = check_trials([plain], "experiment")
    texts = [estimate(file, [each], of, cpus=1) for each, of in ((trial, checked), (plain, without))]
    one, other = (text.partition(" and ")[2].partition(":")[0] for text in texts)
    assert one == other != ""  # the gigabytes
    with pytest.raises(DataError, match=r"data\.validation: got 1,430 for digits"):
        check_trials(expand(load_sweep(None, [*SMALL, "data.validation=1430"])), "experiment")


def test_mistakes_that_only_the_data_reveal_are_raised_before_anything_starts() -> None:
    trials = expand(load_sweep(None, [*SMALL, "data.samples_per_device=5000"]))
    with pytest.raises(DataError):
        check_trials(trials, "experiment")
    trials = expand(load_sweep(None, [*SMALL, "assignment.options={speed: 9}"]))
    with pytest.raises(ConfigError, match="speed"):
        check_trials(trials, "experiment")
    with pytest.raises(ConfigError, match="speed"):
        check_trials(trials, "assignment")


@pytest.mark.parametrize("section", ["early_stopping={metric: %s}", "population={metric: %s}", "stop={%s: 0.5}",
                                     "search={metric: %s}"])  # fmt: skip
def test_tune_compares_the_metric_that_the_data_have(section: str) -> None:
    data = ["data.name=friedman1", "model.name=mlp", "data.samples_per_device=[20, 30]"]
    drawn = ["sweep.training.learning_rate={uniform: [0.01, 0.1]}", "tune.samples=2"]
    for name in ("accuracy", "r2"):
        file = load_sweep(None, [*SMALL, *data, *drawn, f"tune.{section % name}"])
        checked = check_trials(expand(file)[:1], file.task, measure=False)
        if name == "r2":
            check_metrics(file, checked)
            continue
        with pytest.raises(ConfigError) as error:
            check_metrics(file, checked)
        key = section.partition("=")[0]
        where = "tune.stop.accuracy" if key == "stop" else f"tune.{key}.metric"
        assert says(str(error.value), f"{where}: ", "'accuracy'", "regression", "'r2'")


def test_an_assignment_study_needs_no_data() -> None:
    checked = check_trials(expand(load_sweep(None, [*SMALL, "data.name=fashion_mnist"])), "assignment")
    assert checked.datasets == {}


def test_an_estimate_grows_with_the_rounds() -> None:
    def seconds(rounds: int) -> float:
        file = load_sweep(None, [*SMALL, f"max_rounds={rounds}"])
        trials = expand(file)
        text = estimate(file, trials, check_trials(trials, "experiment", measure=False), cpus=2)
        amount, unit = re.match(r"about ([\d.]+) (s|min|h) and \d+\.\d GiB", text).groups()  # type: ignore[union-attr]
        return float(amount) * {"s": 1, "min": 60, "h": 3600}[unit]

    assert seconds(2) < 60 < seconds(200_000)


def test_the_estimate_measures_a_bounded_part_of_the_work(monkeypatch) -> None:
    """A device with many samples, or many local iterations, would take minutes."""
    trained: list[int] = []

    class Host(preflight.DeviceHost):
        def __init__(self, job, data) -> None:
            trained.append(job.local_iterations * int(data.offsets[1]))
            super().__init__(job, data)

    monkeypatch.setattr(preflight, "DeviceHost", Host)
    file = load_sweep(None, [*SMALL[2:], "fleet.num_devices=1", "scheduling.num_scheduled=1",
                             "scheduling.num_clusters=1", "data.samples_per_device=1400", "data.partition=iid",
                             "training.local_iterations=1000000"])  # fmt: skip
    trials = expand(file)
    text = estimate(file, trials, check_trials(trials, "experiment", measure=False), cpus=1)
    assert trained == [5 * 1000]
    assert re.match(r"about [\d.]+ h ", text)


def test_an_estimate_says_what_is_kept_between_rounds() -> None:
    def text(*overrides: str) -> str:
        file = load_sweep(None, [*SMALL, *overrides])
        trials = expand(file)
        return estimate(file, trials, check_trials(trials, "experiment", measure=False), cpus=1)

    assert "keep between rounds" not in text()
    kept = text("training.rule.name=scaffold", "fleet.num_devices=1000", "fleet.num_edges=2")
    assert re.match(
        r"about .* GiB \(4\d\d MiB of it for what devices, edges and the cloud keep between rounds\): at", kept
    )


@pytest.mark.parametrize("names", ["[fdma, measured]", "[measured, fdma]"])
def test_each_physics_is_checked_whatever_is_checked_before_it(names: str) -> None:
    trials = expand(load_sweep(None, [*SMALL, f"sweep.cost.access.name={{grid: {names}}}"]))
    with pytest.raises(ConfigError, match="measured"):
        check_trials(trials, "experiment", measure=False)
