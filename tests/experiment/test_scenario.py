"""hflray.experiment.scenario: the configuration determines data, partition and fleet."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hflray.config import load_config
from hflray.data import load_dataset
from hflray.data.partition import label_counts
from hflray.experiment import Experiment
from hflray.experiment.scenario import Scenario
from tests.conftest import own_module, small_config


def test_the_fleets_samples_are_the_partitions_sizes() -> None:
    scenario = Scenario.build(small_config())
    sizes = [len(part) for part in scenario.parts]
    np.testing.assert_array_equal(scenario.fleet.samples, sizes)
    np.testing.assert_array_equal(scenario.class_counts.sum(axis=1), sizes)
    assert len(np.unique(np.concatenate(scenario.parts))) == sum(sizes)
    assert scenario.notes
    assert "scaled" in scenario.notes[0]


def test_a_partition_with_sizes_of_its_own_has_no_note_on_others(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\n"
        "class Five:\n"
        "    def __call__(self, labels, num_devices, sizes, rng):\n"
        "        return np.arange(5 * num_devices).reshape(num_devices, 5)\n"
    )
    scenario = Scenario.build(small_config(f"data.partition={tmp_path}/mine.py:Five"))
    assert set(scenario.fleet.samples) == {5}
    assert scenario.notes == []


def test_a_scenario_is_a_function_of_the_configuration() -> None:
    one, two, other = (Scenario.build(small_config(f"seed={seed}")) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.fleet.gain, two.fleet.gain)
    assert all(np.array_equal(a, b) for a, b in zip(one.parts, two.parts, strict=True))
    assert not np.array_equal(one.fleet.gain, other.fleet.gain)
    # The devices must not depend on H and λ, so that a sweep over these compares the same fleets.
    swept = Scenario.build(small_config("seed=3", "scheduling.num_scheduled=2", "cost.delay_weight=9"))
    np.testing.assert_array_equal(one.fleet.gain, swept.fleet.gain)


@pytest.mark.parametrize("name, strata", [("friedman1", 10), ("pydoc_topics", 10), ("breast_cancer", 2)])
def test_data_without_ten_classes_have_majorities_too(name: str, strata: int) -> None:
    scenario = Scenario.build(small_config(f"data.name={name}", "data.samples_per_device=[20, 30]"))
    assert scenario.class_counts.shape == (len(scenario.parts), strata)
    shares = scenario.class_counts.max(axis=1) / scenario.class_counts.sum(axis=1)
    assert shares.min() >= 0.75


def test_devices_that_draw_alone_may_be_more_than_the_samples() -> None:
    few, many = (
        Scenario.build(
            small_config("data.partition=resampled", "data.samples_per_device=[99, 160]", f"fleet.num_devices={count}")
        )
        for count in (20, 5000)
    )
    assert len(few.dataset.y_train) < 5000
    assert few.notes == many.notes == []
    scaled = Scenario.build(small_config("data.partition=resampled", "fleet.num_devices=5000"))
    assert "99..174" in scaled.notes[0]  # as much as the rarest class holds of one device
    assert scaled.fleet.samples.max() == 174
    for device in (0, 19):
        np.testing.assert_array_equal(few.parts[device], many.parts[device])
    assert many.fleet.samples[4999] == len(many.parts[4999]) == many.class_counts[4999].sum()
    shares = many.class_counts[:100].max(axis=1) / many.fleet.samples[:100]
    assert shares.min() >= 0.75
    mixed = Scenario.build(
        small_config("data.partition=resampled", "data.partition_options={mix: dirichlet}", "data.dirichlet_alpha=9")
    )
    assert (mixed.class_counts[:].max(axis=1) / mixed.fleet.samples).max() < 0.75


@pytest.mark.parametrize("kernel", ["channels_last", "batched"])
def test_training_on_drawn_samples_is_training_on_the_same_samples_held(kernel: str) -> None:
    config = small_config(
        "data.partition=resampled", "training.backend=serial", f"training.kernel={kernel}", "max_rounds=2"
    )
    drawn = Scenario.build(config)
    parts = list(drawn.parts)
    held = replace(drawn, parts=parts, class_counts=label_counts(parts, drawn.dataset.strata, 10))
    assert drawn.device_data().drawn is not None
    assert held.device_data().drawn is None
    hashes, balances = [], []
    for scenario in (drawn, held):
        with Experiment(config, scenario=scenario) as experiment:
            records = list(experiment)
        hashes.append([record.model_hash for record in records])
        balances.append([record.class_balance for record in records])
    assert hashes[0] == hashes[1]
    assert balances[0] == balances[1]


def test_a_round_of_few_devices_holds_no_samples_of_a_large_fleet() -> None:
    """Their indices alone would take 200,000 × 137 × 8 bytes, which are 219 MB, in the fleet and in the host."""
    config = small_config(
        "data.partition=resampled", "fleet.num_devices=200000", "scheduling.num_scheduled=20", "max_rounds=1",
        "scheduling.name=fedavg", "assignment.name=geographic", "training.backend=serial",
        "world.availability={name: markov, options: {mean_on_s: 600, mean_off_s: 300}}",
        "world.dropout.rate_per_s=0.001", "training.local_iterations=1", "training.edge_iterations=1",
    )  # fmt: skip
    tracemalloc.start()
    with Experiment(config) as experiment:
        (record,) = experiment
        largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(record.devices) == 20
    assert record.samples_trained > 0
    assert largest < 120e6


def test_device_data_hold_the_partition_and_the_test_set() -> None:
    dataset = load_dataset("digits")
    scenario = Scenario.build(small_config(), dataset=dataset)
    data = scenario.device_data()
    for device, part in enumerate(scenario.parts):
        np.testing.assert_array_equal(data.samples_of(device), part)
    assert len(data.x_test) == len(dataset.x_test)
    replaced = scenario.device_data(np.zeros((len(dataset.y_train), 1, 10, 10), np.float32))
    assert replaced.x.shape[1:] == (1, 10, 10)
    assert len(replaced.x_test) == 0


def test_the_papers_ranges_need_no_scaling(real_data) -> None:
    for name, low, high in (("fashion_mnist", 400, 700), ("cifar10", 300, 600)):
        overrides = (f"data.name={name}", f"data.root={real_data}", "fleet.num_devices=100")
        scenario = Scenario.build(small_config(*overrides))
        assert scenario.notes == []
        assert low <= scenario.fleet.samples.min() <= scenario.fleet.samples.max() <= high


GROUPED = own_module("grouped")


def grouped(folder: Path, partition: str, kind: str = "classification") -> Scenario:
    target = "rng.normal(size=600)" if kind == "regression" else "y"
    (folder / "own.py").write_text(
        GROUPED.replace("TARGET, x, TARGET", f"({target}), x, ({target})").replace("KIND", kind)
    )
    name = f"{folder / 'own.py'}:{partition}" if partition.startswith("By") else partition
    overrides = ["data.samples_per_device=[30, 40]", f"data.partition={name}", f"data.name={folder / 'own.py'}:load"]
    return Scenario.build(small_config(*overrides))


@pytest.mark.parametrize("partition", ["BySite", "majority", "dirichlet", "resampled", "shards"])
def test_labels_stay_labels_where_samples_are_dealt_by_groups(partition: str, tmp_path: Path) -> None:
    scenario = grouped(tmp_path, partition)
    counts, y = np.asarray(scenario.class_counts), scenario.dataset.y_train
    assert counts.shape == (12, 3)
    assert np.array_equal(counts, [np.bincount(y[part], minlength=3) for part in scenario.parts])
    assert np.array_equal(scenario.class_counts[np.array([3, 1])], counts[[3, 1]])
    sites = [np.bincount(scenario.dataset.groups[part], minlength=12).max() / len(part) for part in scenario.parts]
    assert min(sites) >= (0.7 if partition in ("BySite", "majority", "resampled") else 0)


def test_a_partition_sees_every_column_that_it_asks_for(tmp_path: Path) -> None:
    scenario = grouped(tmp_path, "ByColumns")
    assert np.array_equal(np.asarray(scenario.class_counts)[:, [0, 2]], np.zeros((12, 2)))


@pytest.mark.parametrize("partition", ["majority", "dirichlet", "iid", "shards", "edge_dirichlet", "resampled"])
def test_no_device_has_a_sample_of_the_validation_part(partition) -> None:
    config = small_config("data.validation=200", f"data.partition={partition}", "data.samples_per_device=[20, 30]")
    scenario = Scenario.build(config)
    held = np.concatenate(list(scenario.parts))
    assert len(scenario.validation) == 200
    assert not set(held.tolist()) & set(scenario.validation.tolist())
    counts = np.stack([np.bincount(scenario.dataset.labels[part], minlength=10) for part in scenario.parts])
    assert np.array_equal(np.asarray(scenario.class_counts), counts)
    data = scenario.device_data()
    assert data.evaluated("validation") == 200
    assert scenario.device_data(np.zeros((1438, 1, 10, 10), np.float32)).evaluated("validation") == 0


def test_the_sizes_are_those_without_a_validation_part() -> None:
    """The same streams are drawn from, so that runs with and without it have the same fleet."""
    sizes = [
        Scenario.build(small_config(f"data.validation={count}", "data.samples_per_device=[20, 30]")).fleet.samples
        for count in (0, 200)
    ]
    assert np.array_equal(*sizes)


def test_an_owner_keeps_what_is_not_in_the_validation_part(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{n % 5},{n % 3},{'abc'[n % 3]}" for n in range(300)]
    (tmp_path / "t.csv").write_text("\n".join(["x,label,site", *rows]))
    config = load_config(None, [
        "data={name: table, partition: owners, validation: 60, options: {file: t.csv, target: label, owner: site}}",
        "fleet.num_devices=3", "fleet.num_edges=1", "scheduling.num_scheduled=2", "model.name=mlp",
        "scheduling.num_clusters=2",
    ])  # fmt: skip
    scenario = Scenario.build(config)
    owner = scenario.dataset.owner
    assert owner is not None
    assert all(len(set(owner[part])) == 1 for part in scenario.parts)
    held = np.concatenate(list(scenario.parts))
    assert sorted([*held.tolist(), *scenario.validation.tolist()]) == list(range(len(owner)))
    assert len(scenario.validation) == 60
    assert scenario.fleet.samples.sum() == len(owner) - 60
