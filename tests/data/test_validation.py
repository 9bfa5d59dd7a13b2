"""hflray.data.datasets: which training samples are the validation part, and that no device has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hflray.data import Dataset, load_dataset
from hflray.data.datasets import validation_rows
from hflray.errors import DataError

N = 300


def dataset(labels: np.ndarray, **columns: object) -> Dataset:
    x = np.arange(float(len(labels)))[:, None]
    return Dataset.of(x, labels, x[:4], labels[:4], **columns)  # type: ignore[arg-type]


def test_the_part_has_the_shares_of_the_classes() -> None:
    labels = np.repeat([0, 1, 2], [180, 90, 30])
    for count in (10, 57, 100, 200):
        rows = validation_rows(dataset(labels), count, seed=3)
        assert len(rows) == count == len(set(rows.tolist()))
        assert rows.tolist() == sorted(rows.tolist())
        shares = np.array([180, 90, 30]) / N * count
        assert np.abs(np.bincount(labels[rows], minlength=3) - shares).max() <= 1


def test_it_is_a_function_of_the_seed_and_a_smaller_one_lies_within_a_larger_one() -> None:
    data = dataset(np.arange(N) % 3)
    rows = validation_rows(data, 60, seed=1)
    np.random.default_rng(0).random(5)  # draws in between change nothing
    assert np.array_equal(validation_rows(data, 60, seed=1), rows)
    assert not np.array_equal(validation_rows(data, 60, seed=2), rows)
    assert set(validation_rows(data, 30, seed=1)) < set(rows)


def test_nothing_is_drawn_by_default() -> None:
    assert validation_rows(dataset(np.arange(N) % 3), 0, seed=1).tolist() == []


def test_each_class_group_and_owner_keeps_a_sample() -> None:
    labels, owner, groups = np.arange(N) % 3, np.arange(N) % 50, np.arange(N) % 7
    data = dataset(labels, owner=owner, test_owner=owner[:4], groups=groups)
    with pytest.raises(DataError) as error:
        validation_rows(data, N, seed=0)
    most = int(str(error.value).partition(" to ")[2].partition(",")[0])
    rest = np.delete(np.arange(N), validation_rows(data, most, seed=0))
    assert len(rest) == N - most < 60
    for column in (labels, owner, groups):
        assert set(column[rest]) == set(column)


@pytest.mark.parametrize("count", [1, 9, 1429, 5000])
def test_too_few_or_too_many_are_refused_in_one_line(count) -> None:
    with pytest.raises(DataError) as error:
        validation_rows(load_dataset("digits"), count, seed=0)
    text = str(error.value)
    assert text.startswith(f"data.validation: got {count:,} for digits, whose 1,438 training samples have 10 classes; ")
    assert "accepted: 0, or 10 to 1,428" in text
    assert "\n" not in text


def test_deciles_and_tokens_take_the_place_of_classes() -> None:
    numbers = load_dataset("friedman1")
    rows = validation_rows(numbers, 100, seed=0)
    assert np.bincount(numbers.labels[rows]).tolist() == [10] * 10
    tokens = replace(load_dataset("pydoc_topics"), notes=())
    assert len(set(tokens.labels[validation_rows(tokens, 1000, seed=0)])) == 10
