"""Flower's partitioners (`flwr_datasets.partitioner`) as partitions: ``data.partition: flwr:ShardPartitioner``.

The package is the optional extra ``flwr``. A partitioner is built with ``data.partition_options``; the number of
devices, the column to deal by and the seed are ours, unless the options name them. Most partitioners deal out all
samples and decide D_n themselves; those that take ``partition_sizes`` get the drawn sizes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.data.partition import Ints
from hflray.errors import ConfigError, DataError, nearest
from hflray.support.text import one_line

PACKAGE = "flwr_datasets.partitioner"
INDEX, LABEL, GROUP = "index", "label", "group"  # columns of the table that is dealt out


class FlowerPartition:
    """A partition by one of Flower's partitioners.

    Args:
        name: the class in `flwr_datasets.partitioner`.
        **options: arguments of the class.

    Raises:
        ConfigError: the package is not installed, it has no such class, the class splits features instead of samples,
            or it does not take an option.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self._name, self._setting = name, f"data.partition: flwr:{name}"
        try:
            module = importlib.import_module(PACKAGE)
        except ImportError as error:
            raise ConfigError(
                f"{self._setting} needs the package flwr-datasets, which cannot be imported ({error}); install it with "
                "pip install 'hflray[flwr]', or set data.partition to majority, dirichlet or iid"
            ) from error
        names = [other for other in module.__all__ if other != "Partitioner" and not other.startswith("Vertical")]
        if name not in names:
            raise ConfigError(
                f"{self._setting}: no such partitioner of samples{nearest(name, names)}; accepted: {', '.join(names)}"
            )
        self._make, self._options = getattr(module, name), options
        accepted = list(inspect.signature(self._make).parameters)
        for option in options:
            if option not in accepted:
                raise ConfigError(
                    f"data.partition_options.{option}: flwr:{name} does not take it{nearest(option, accepted)}; "
                    f"accepted: {', '.join(accepted)}"
                )

    def __call__(
        self,
        labels: Ints,
        num_devices: int,
        sizes: Ints,
        rng: np.random.Generator,
        columns: Mapping[str, NDArray[Any]] | None = None,
    ) -> list[Ints]:
        """Deal samples to devices.

        The partitioner sees all `columns` (`hflray.data.Dataset.columns`), without which there is ``label`` alone.
        Unless ``partition_by`` is an option, it deals by ``group`` if there is one, else by ``label``.

        Raises:
            DataError: the partitioner fails, or does not give each device a sample.
        """
        from datasets import Dataset, disable_progress_bars

        disable_progress_bars()
        columns = columns or {LABEL: labels}
        ours = {
            "num_partitions": num_devices,
            "partition_by": GROUP if GROUP in columns else LABEL,
            "partition_sizes": [int(size) for size in sizes],
            "seed": int(rng.integers(2**31)),
        }
        taken = {name: value for name, value in ours.items() if name in inspect.signature(self._make).parameters}
        try:
            partitioner = self._make(**(taken | self._options))
            partitioner.dataset = Dataset.from_dict({INDEX: np.arange(len(labels)), **columns})
            count = partitioner.num_partitions
            parts = [self._part(partitioner, device) for device in range(min(count, num_devices))]
        except Exception as error:  # its checks raise many types
            reason = one_line((str(error).splitlines() or [""])[0])
            raise DataError(
                f"{self._setting}: {type(error).__name__}: {reason}; change data.partition_options or fleet.num_devices"
            ) from error
        if count != num_devices:
            raise DataError(
                f"{self._setting} makes {count} parts for {num_devices} devices; set fleet.num_devices to {count}"
            )
        empty = [device for device, part in enumerate(parts) if not len(part)]
        if empty:
            raise DataError(
                f"{self._setting} gives device {empty[0]} no sample; change data.partition_options, or lower "
                "fleet.num_devices"
            )
        return parts

    def _part(self, partitioner: Any, device: int) -> Ints:
        indices: NDArray[np.int64] = np.sort(np.asarray(partitioner.load_partition(device)[INDEX], dtype=np.int64))
        return indices
