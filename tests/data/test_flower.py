"""Flower's partitioners deal out our samples. Most of these tests need the extra ``flwr``, in any environment."""

from __future__ import annotations

import sys
import types
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from hflray import errors, registry
from hflray.data.flower import FlowerPartition
from hflray.data.partition import build_partition
from hflray.errors import ConfigError
from tests.conftest import refusal, refusals

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 100))
flwr = pytest.mark.skipif(find_spec("flwr_datasets") is None, reason="needs the extra flwr (flwr-datasets)")


def parts_of(name: str, devices: int = 8, **options: Any) -> list[np.ndarray]:
    partition = build_partition(f"flwr:{name}", **options)
    return partition(LABELS, devices, np.full(devices, 20), np.random.default_rng(1))


@pytest.mark.skipif(find_spec("flwr_datasets") is not None, reason="flwr-datasets is installed here")
def test_without_the_package_the_error_says_what_to_install() -> None:
    assert registry.check("partition", "flwr:ShardPartitioner") == "flwr:ShardPartitioner"
    with pytest.raises(ConfigError, match=r"^data\.partition: flwr:ShardPartitioner needs the package flwr-datasets"):
        FlowerPartition("ShardPartitioner")


@flwr
@pytest.mark.parametrize(
    "name, options",
    [
        ("IidPartitioner", {}),
        ("ShardPartitioner", {"num_shards_per_partition": 2}),
        ("DirichletPartitioner", {"alpha": 0.5, "min_partition_size": 1}),
        ("PathologicalPartitioner", {"num_classes_per_partition": 2}),
        ("InnerDirichletPartitioner", {"alpha": 0.5}),
        ("SizePartitioner", {}),
    ],
)
def test_parts_are_disjoint_and_the_same_again(name: str, options: dict[str, Any]) -> None:
    parts = parts_of(name, **options)
    indices = np.concatenate(parts)
    assert len(parts) == 8
    assert len(np.unique(indices)) == len(indices)
    assert (indices.min() >= 0, indices.max() < len(LABELS)) == (True, True)
    assert all(np.array_equal(a, b) for a, b in zip(parts, parts_of(name, **options), strict=True))
    if name in ("InnerDirichletPartitioner", "SizePartitioner"):
        assert [len(part) for part in parts] == [20] * 8
    if name == "PathologicalPartitioner":
        assert max(len(np.unique(LABELS[part])) for part in parts) <= 2


@flwr
def test_an_experiment_runs_on_flowers_shards() -> None:
    from hflray.experiment import Experiment
    from tests.conftest import small_config

    config = small_config(
        "data.partition=flwr:ShardPartitioner", "data.partition_options={num_shards_per_partition: 2}"
    )
    experiment = Experiment(config)
    sizes = experiment.scenario.class_counts.sum(axis=1)
    assert np.array_equal(experiment.scenario.fleet.samples, sizes)
    assert experiment.run_round().accuracy > 0


@flwr
@pytest.mark.parametrize("name, options, kind, text", refusals("data/flower"))
def test_a_mistake_is_one_line(name: str, options: dict[str, Any], kind: str, text: str) -> None:
    with refusal(getattr(errors, kind), text):
        parts_of(name, **options)


def test_a_partitioner_sees_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's package is replaced by one whose partitioner deals by an identifier, as NaturalIdPartitioner does."""

    class NaturalIdPartitioner:
        def __init__(self, partition_by: str) -> None:
            self.partition_by = partition_by

        @property
        def num_partitions(self) -> int:
            return len(set(self.dataset[self.partition_by].tolist()))  # type: ignore[attr-defined]

        def load_partition(self, number: int) -> dict[str, Any]:
            chosen = np.flatnonzero(self.dataset[self.partition_by] == number)  # type: ignore[attr-defined]
            return {name: column[chosen] for name, column in self.dataset.items()}  # type: ignore[attr-defined]

    fake = types.ModuleType("flwr_datasets.partitioner")
    fake.__dict__.update({"__all__": ["NaturalIdPartitioner"], "NaturalIdPartitioner": NaturalIdPartitioner})
    tables = types.ModuleType("datasets")
    tables.__dict__["Dataset"] = types.SimpleNamespace(from_dict=lambda table: table)
    tables.__dict__["disable_progress_bars"] = lambda: None
    for name, module in {"flwr_datasets": fake, "flwr_datasets.partitioner": fake, "datasets": tables}.items():
        monkeypatch.setitem(sys.modules, name, module)
    sites = np.arange(400) // 50
    columns = {"label": LABELS, "target": LABELS, "group": sites}

    def parts(devices: int, given: dict[str, Any] | None, **options: Any) -> list[np.ndarray]:
        partition = FlowerPartition("NaturalIdPartitioner", **options)
        return partition(sites if given else LABELS, devices, np.full(devices, 20), np.random.default_rng(1), given)

    assert [sites[part].tolist() for part in parts(8, columns)] == [[site] * 50 for site in range(8)]
    by_label = [np.unique(LABELS[part]).tolist() for part in parts(4, columns, partition_by="label")]
    assert by_label == [[0], [1], [2], [3]]
    assert [np.unique(LABELS[part]).tolist() for part in parts(4, None)] == by_label
