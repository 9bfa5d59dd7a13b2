"""The scenario of an experiment: data, partition and fleet. It is a function of the configuration."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hflray.config import ExperimentConfig, validate
from hflray.config.fleet_table import fleet_table
from hflray.data import Dataset, build_partition, load_dataset
from hflray.data.datasets import validation_rows
from hflray.data.partition import NO_OWNERS, OwnersPartition, checked_parts, device_sizes, label_counts
from hflray.data.resampled import LabelCounts, ResampledParts
from hflray.errors import ConfigError, DataError
from hflray.experiment.fleets import Fleets, key_of
from hflray.fleet import Fleet, build_fleet
from hflray.seeding import stream
from hflray.support.contract import is_ours
from hflray.training.job import DeviceData

PARTITION_OPTIONS: dict[str, Callable[[ExperimentConfig], dict[str, Any]]] = {
    "majority": lambda config: {"majority_fraction": config.data.majority_fraction},
    "dirichlet": lambda config: {"alpha": config.data.dirichlet_alpha},
    "resampled": lambda config: {
        "mix": "majority",
        "majority_fraction": config.data.majority_fraction,
        "alpha": config.data.dirichlet_alpha,
    },
    "owners": lambda config: {"unmatched": config.data.options.get("unmatched", "error")},
} | dict.fromkeys(("edge_dirichlet", "edge_iid", "edge_noniid"), lambda config: {"num_edges": config.fleet.num_edges})
# Options of a partition that a setting says.
OF_A_SETTING = {
    "majority_fraction": "data.majority_fraction", "alpha": "data.dirichlet_alpha", "num_edges": "fleet.num_edges",
}  # fmt: skip

DataKey = tuple[str, str | None, str]


def data_key(config: ExperimentConfig) -> DataKey:
    """Return the key of a data set: its name, its folder, and what else its samples follow from, as text."""
    options = json.dumps(config.data.options, sort_keys=True) + config.data.split
    # Of owners without a device the samples are left out.
    return config.data.name, config.data.root, options + key_of(config) * (config.data.partition == "owners")


def _made(config: ExperimentConfig, dataset: Dataset, partition: object, notes: list[str]) -> Callable[[], Fleet]:
    """Return a function that makes the fleet of a configuration, without devices that own none of the samples."""

    def make() -> Fleet:
        fleet = build_fleet(config.fleet, stream(config.seed, "fleet"))
        if not isinstance(partition, OwnersPartition):
            return fleet
        if dataset.owner is None:
            raise DataError(NO_OWNERS)
        joined = partition.join(dataset.owner, fleet.device_names, fleet.num_devices)
        notes.extend(joined.notes)
        return fleet if len(joined.devices) == fleet.num_devices else fleet.take(joined.devices)

    return make


@dataclass(frozen=True, eq=False)
class Scenario:
    """The data, the partition over devices, and the fleet.

    Attributes:
        dataset: the data set.
        parts: the sample indices of each device, N arrays; with ``data.partition: resampled`` they are drawn when they
            are looked up.
        class_counts: the number of samples of each class at each device, (N, C); see `Dataset.labels` for data without
            classes. With ``resampled`` a `LabelCounts`.
        fleet: the devices and edges; `samples` are the partition's sizes (docs/design.md, D11).
        notes: remarks for the user, such as a scaled-down range of D_n.
        validation: the training samples that are the validation part (``data.validation``) and belong to no device,
            sorted indices; empty: there is none.
        share: makes the samples of `device_data` travel by reference to a data set that Ray holds already; None leaves
            them as they are.

    Examples:
        >>> from hflray import Scenario, load_config
        >>> scenario = Scenario.build(load_config(None, ["fleet.num_devices=20", "scheduling.num_scheduled=10"]))
        >>> scenario.dataset.name, scenario.class_counts.shape, scenario.fleet.num_devices
        ('digits', (20, 10), 20)
    """

    dataset: Dataset
    parts: Sequence[NDArray[np.int64]]
    class_counts: NDArray[np.int64] | LabelCounts
    fleet: Fleet
    notes: list[str] = field(default_factory=list)
    validation: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    share: Callable[[DeviceData], DeviceData] | None = None

    @classmethod
    def build(cls, config: ExperimentConfig, dataset: Dataset | None = None, fleets: Fleets | None = None) -> Self:
        """Load the data unless `dataset` is passed, make the fleet and deal the data to its devices.

        Args:
            config: the configuration.
            dataset: its data set; None: it is loaded.
            fleets: where a sweep keeps its fleets; None: the fleet is made anew.

        Raises:
            ConfigError, DataError: a setting, the data set or the partition is wrong.
        """
        data = config.data
        dataset = dataset or load_dataset(data.name, root=data.root, options=data.options, split=data.split)
        options = PARTITION_OPTIONS[data.partition](config) if data.partition in PARTITION_OPTIONS else {}
        for name in (name for name in OF_A_SETTING if name in options and name in data.partition_options):
            raise ConfigError(
                f"data.partition_options.{name}: got {data.partition_options[name]!r}; accepted: no such option, "
                f"because {OF_A_SETTING[name]} says it; remove it"
            )
        options |= data.partition_options
        partition = build_partition(data.partition, **options)
        notes = [f"{dataset.name}: {remark}" for remark in dataset.notes]
        made = _made(config, dataset, partition, notes)
        fleet = made() if fleets is None else fleets.get(config, made)
        fleet = fleet.with_tree(config.tree, config.fleet, config.seed).with_physics(config.cost)
        count = fleet.num_devices
        if config.fleet.name == "table":
            notes += fleet_table(config.fleet.options).notes
        if isinstance(partition, OwnersPartition):
            if data.samples_per_device is not None:
                raise ConfigError(
                    f"data.samples_per_device: got {list(data.samples_per_device)} with data.partition = owners, where "
                    "a device has the samples of its owner; accepted with it: null; remove it"
                )
            return cls._by_owner(config, dataset, fleet, partition, notes)
        has_majority = (options["mix"] if data.partition == "resampled" else data.partition) == "majority"
        validation = validation_rows(dataset, data.validation, config.seed)
        dealt = np.delete(np.arange(len(dataset.y_train)), validation)
        strata = dataset.strata[dealt]
        sizes, note = device_sizes(
            strata,
            count,
            stream(config.seed, "sizes"),
            default_range=dataset.samples_range,
            explicit=data.samples_per_device,
            majority_fraction=data.majority_fraction if has_majority else None,
            shared=bool(getattr(partition, "shared", False)),
            name=dataset.name,
        )
        columns: dict[str, Any] = {}
        if "columns" in inspect.signature(partition).parameters:
            columns["columns"] = {name: column[dealt] for name, column in dataset.columns.items()}
        parts = partition(strata, count, sizes, stream(config.seed, "partition"), **columns)
        if not is_ours(partition) and not isinstance(parts, ResampledParts):
            parts = checked_parts(partition, data.partition, parts, len(strata), count)
        if len(validation):
            parts = parts.of_rows(dealt) if isinstance(parts, ResampledParts) else [dealt[part] for part in parts]
        counts: NDArray[np.int64] | LabelCounts
        if isinstance(parts, ResampledParts):
            drawn_by_class = dataset.groups is None
            counts = LabelCounts(parts, dataset.num_labels, None if drawn_by_class else dataset.labels)
            held = parts.sizes
        else:
            counts = label_counts(parts, dataset.labels, dataset.num_labels)
            held = np.array([len(part) for part in parts], dtype=np.int64)
        as_drawn = np.array_equal(held, sizes)  # a partition of the user's own may have sizes of its own
        return cls(
            dataset=dataset,
            parts=parts,
            class_counts=counts,
            fleet=fleet.with_samples(held),
            notes=[*notes, *([note] if note and as_drawn else [])],
            validation=validation,
        )

    @classmethod
    def _by_owner(
        cls, config: ExperimentConfig, dataset: Dataset, fleet: Fleet, partition: OwnersPartition, notes: list[str]
    ) -> Self:
        """Return the scenario of a fleet each of whose devices has the samples of an owner."""
        assert dataset.owner is not None
        joined = partition.join(dataset.owner, fleet.device_names, fleet.num_devices)
        held_by_any = joined.of_sample >= 0
        if not held_by_any.all():
            dataset = dataset.of_owners(joined.owners)
            joined = joined._replace(of_sample=joined.of_sample[held_by_any])
        validation = validation_rows(dataset, config.data.validation, config.seed)
        joined.of_sample[validation] = -1
        parts = joined.parts()
        held = np.array([len(part) for part in parts], dtype=np.int64)
        counts = label_counts(parts, dataset.labels, dataset.num_labels)
        return cls(dataset, parts, counts, fleet.with_samples(held), notes, validation)

    def columns(self) -> dict[str, list[Any]]:
        """Return the devices' properties that follow from the data, see `hflray.experiment.Experiment.devices`."""
        counts, names = np.asarray(self.class_counts), self.dataset.class_names
        columns = {"samples": counts.sum(axis=1).tolist(), "class_counts": counts.tolist()}
        return columns if names is None else columns | {"class_names": list(names)}

    def fitting(self, config: ExperimentConfig) -> ExperimentConfig:
        """Return a configuration with the number of devices that the fleet has, if some were left out."""
        count = self.fleet.num_devices
        if count == config.fleet.num_devices:
            return config
        tree = config.model_dump(mode="json")
        tree["fleet"]["num_devices"] = count
        return validate(ExperimentConfig, tree)

    def device_data(self, x: NDArray[Any] | None = None) -> DeviceData:
        """Return the samples in the format of the training hosts.

        Inputs `x` replace those of the data set, and the test set and the validation part are then empty.
        """
        dataset, parts = self.dataset, self.parts
        drawn = parts if isinstance(parts, ResampledParts) else None
        test_part = slice(None) if x is None else slice(0)
        data = DeviceData(
            x=dataset.x_train if x is None else x,
            y=dataset.y_train,
            index=np.concatenate(parts) if drawn is None else np.zeros(0, dtype=np.int64),
            offsets=np.concatenate([[0], np.cumsum(self.fleet.samples)]).astype(np.int64),
            x_test=dataset.x_test[test_part],
            y_test=dataset.y_test[test_part],
            channel_mean=dataset.channel_mean,
            channel_std=dataset.channel_std,
            drawn=drawn,
            validation=self.validation[test_part],
        )
        return data if self.share is None or x is not None else self.share(data)
