"""Owners and devices are joined by name, and a fleet without names takes the owners in their order."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.data import Dataset
from hflray.data.partition import OwnersPartition
from hflray.errors import ConfigError, DataError

OWNER = np.array(["b", "a", "b", "c"])


def parts(joined):
    return [part.tolist() for part in joined.parts()]


def test_by_name():
    joined = OwnersPartition().join(OWNER, ["a", "c", "b"], 3)
    assert (joined.devices.tolist(), parts(joined), joined.notes) == ([0, 1, 2], [[1], [3], [0, 2]], [])


def test_in_order_without_names():
    numbers = np.array(["10", "2", "10"])
    assert parts(OwnersPartition().join(numbers, None, 2)) == [[1], [0, 2]]
    assert parts(OwnersPartition().join(OWNER, None, 3)) == [[1], [0, 2], [3]]


def test_both_kinds_of_strangers_are_counted():
    with pytest.raises(DataError) as caught:
        OwnersPartition().join(OWNER, ["a", "x", "y"], 3)
    assert "2 of 3 devices of the fleet have no samples, such as 'x', 'y'" in str(caught.value)
    assert "2 of 3 owners of samples are no devices of the fleet, such as 'b', 'c'" in str(caught.value)
    joined = OwnersPartition("drop").join(OWNER, ["a", "x", "y"], 3)
    assert (joined.devices.tolist(), parts(joined), len(joined.notes)) == ([0], [[1]], 2)
    with pytest.raises(DataError, match="no device would be left"):
        OwnersPartition("drop").join(OWNER, ["x"], 1)


def test_wrong_arguments_are_one_line():
    with pytest.raises(ConfigError, match=r"data.options.unmatched: got 'ignore'; accepted: error, drop"):
        OwnersPartition("ignore")
    x, y = np.eye(4), [0, 1, 0, 1]
    with pytest.raises(DataError, match=r"owner has shape \(2,\)"):
        Dataset.of(x, y, x, y, owner=["a", "b"])
    with pytest.raises(DataError, match=r"owner\[1\] is an empty text"):
        Dataset.of(x, y, x, y, owner=["a", "", "c", "d"])
    with pytest.raises(DataError, match=r"test_owner was given without owner"):
        Dataset.of(x, y, x, y, test_owner=["a", "b", "c", "d"])
    with pytest.raises(DataError, match=r"class_names has 3 texts"):
        Dataset.of(x, y, x, y, class_names=["a", "b", "c"])


def test_labels_stay_labels():
    x, y = np.eye(4), [0, 1, 0, 1]
    data = Dataset.of(x, y, x, y, owner=[1, 1, 2, 2])
    assert data.labels.tolist() == data.strata.tolist() == y
    assert data.columns["owner"].tolist() == ["1", "1", "2", "2"]
