"""`Dataset.of` takes images, features and tokens, and refuses wrong arrays with one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hflray import registry
from hflray.data import Dataset, load_dataset
from hflray.errors import DataError
from tests.conftest import says


def features(n: int = 40, width: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(5, 2, (n, width))


def given(**changes: Any) -> dict[str, Any]:
    """Return arguments of `Dataset.of` for a classification of 40 and 20 rows, with changes."""
    labels = np.arange(40) % 4
    arrays = {"x_train": features(), "y_train": labels, "x_test": features(20), "y_test": labels[:20]}
    return arrays | changes


def message(**changes: Any) -> str:
    with pytest.raises(DataError) as error:
        Dataset.of(**given(**changes))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_features_are_standardised_by_the_training_set_alone():
    data = Dataset.of(**given())
    x = features()
    assert data.x_train.dtype == data.x_test.dtype == np.float32
    np.testing.assert_allclose(data.x_train, (x - x.mean(axis=0)) / x.std(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.x_test, (features(20) - x.mean(axis=0)) / x.std(axis=0), rtol=1e-5, atol=1e-6)
    assert (data.num_classes, data.num_tokens, data.kind, data.input_shape) == (4, None, "classification", (3,))
    assert not data.has_images


def test_signals_are_standardised_by_channel():
    signals = np.random.default_rng(1).normal([[3.0], [-8.0]], [[1.0], [5.0]], (40, 2, 50))
    data = Dataset.of(**given(x_train=signals, x_test=signals[:20]))
    np.testing.assert_allclose(data.x_train.mean(axis=(0, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(data.x_train.std(axis=(0, 2)), 1, rtol=1e-5)
    assert data.x_train.shape == (40, 2, 50)


def test_a_row_of_one_number_is_one_feature():
    data = Dataset.of(**given(x_train=features()[:, 0], x_test=features(20)[:, 0]))
    assert data.input_shape == (1,)


def test_constant_features_become_zero_and_are_noted():
    x = features(width=8)
    x[:, [1, 2, 3, 4, 5, 6]] = 0.1
    data = Dataset.of(**given(x_train=x, x_test=x[:20] + 7))
    assert np.all(data.x_train[:, 1:7] == 0)
    assert np.all(data.x_test[:, 1:7] == 0)
    (note,) = data.notes
    assert says(note, "6 of 8 features", "constant", "1, 2, 3, 4, 5, …")


def test_images_stay_bytes_with_their_channels_first():
    images = np.random.default_rng(0).integers(0, 256, (40, 20, 18, 3), dtype=np.uint8)
    data = Dataset.of(**given(x_train=images, x_test=images[:20]))
    assert data.x_train.dtype == np.uint8
    assert data.image_shape == (3, 20, 18)
    assert data.has_images
    np.testing.assert_array_equal(data.x_train[7, 2], images[7, :, :, 2])
    np.testing.assert_allclose(data.channel_mean, images.mean(axis=(0, 1, 2)) / 255, rtol=1e-5)


def test_a_regression_keeps_the_moments_of_its_targets():
    y = np.linspace(-3, 40, 40)
    data = Dataset.of(**given(y_train=y, y_test=y[:20, None], kind="regression"))
    assert data.y_train.dtype == data.y_test.dtype == np.float32
    assert (data.y_test.shape, data.num_classes) == ((20,), 1)
    np.testing.assert_allclose(data.y_train * data.target_std + data.target_mean, y, rtol=1e-5, atol=1e-5)


def test_images_may_have_numbers_as_targets():
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16), dtype=np.uint8)
    data = Dataset.of(**given(x_train=images, x_test=images[:20], y_train=np.arange(40.0), kind="regression"))
    assert (data.image_shape, data.num_classes, data.y_train.dtype) == ((1, 16, 16), 1, np.float32)


def test_tokens_are_counted_over_all_arrays():
    tokens = np.arange(40 * 5).reshape(40, 5) % 7
    data = Dataset.of(tokens, np.full(40, 9), tokens[:20], np.full(20, 3), kind="next_token")
    assert (data.num_tokens, data.num_classes, data.x_train.dtype, data.y_train.dtype) == (10, 10, np.int32, np.int64)
    classified = Dataset.of(**given(x_train=tokens, x_test=tokens[:20]))
    assert (classified.num_tokens, classified.num_classes) == (7, 4)


def test_strata_are_groups_labels_deciles_or_the_tokens_that_follow():
    assert Dataset.of(**given()).strata.tolist() == given()["y_train"].tolist()
    names = np.array(["b", "a"])[np.arange(40) % 2]
    grouped = Dataset.of(**given(groups=names))
    assert (grouped.strata.tolist(), grouped.num_strata) == ([1, 0] * 20, 2)
    assert (grouped.labels.tolist(), grouped.num_labels) == (given()["y_train"].tolist(), 4)
    assert {name: column.tolist() for name, column in grouped.columns.items()} == {
        "label": grouped.y_train.tolist(), "target": grouped.y_train.tolist(), "group": [1, 0] * 20,
    }  # fmt: skip
    y = np.random.default_rng(2).permutation(np.arange(40.0))
    regression = Dataset.of(**given(y_train=y, y_test=y[:20], kind="regression"))
    assert regression.num_strata == 10
    assert np.bincount(regression.strata).tolist() == [4] * 10
    assert np.all(np.diff(regression.strata[np.argsort(y)]) >= 0)
    tokens = np.ones((40, 2), int)
    following = Dataset.of(tokens, np.array([5, 8] * 20), tokens[:3], [5, 5, 8], kind="next_token")
    assert (following.strata.tolist(), following.num_strata) == ([0, 1] * 20, 2)


def test_a_target_with_few_values_has_fewer_strata():
    y = np.array([0.0] * 35 + [1.0, 2.0, 3.0, 4.0, 5.0])
    data = Dataset.of(**given(y_train=y, y_test=y[-20:], kind="regression"))
    counts = np.bincount(data.strata, minlength=data.num_strata)
    assert data.num_strata == len(counts) < 10
    assert np.all(counts > 0)


WRONG = [
    ({"kind": "classify"}, "kind: got 'classify'; did you mean 'classification'?; accepted: classification, "
     "regression, next_token"),
    ({"x_train": np.where(np.arange(120).reshape(40, 3) == 7, np.nan, features())},
     "x_train[2, 1] is nan; accepted: finite numbers; remove or replace it"),
    ({"x_test": np.full((20, 3), np.inf)}, "x_test[0, 0] is inf; accepted: finite numbers; remove or replace it"),
    ({"y_test": np.arange(19) % 4}, "x_test holds 20 samples but y_test 19; give one target for each sample"),
    ({"x_train": features()[:0], "y_train": []}, "x_train is empty, shape (0, 3); accepted: one row for each sample"),
    ({"y_train": np.arange(40) % 4 * 1.0}, "y_train has type float64; accepted: integers 0..classes-1; convert it, "
     "for example to int64"),
    ({"y_train": np.arange(40) % 4 * 2}, "y_train labels out of range: y_train[1] is 2, but class 1 has no sample"),
    ({"y_train": np.arange(40) % 4 - 1}, "y_train[0] is -1; accepted: integers from 0; labels out of range"),
    ({"y_test": np.full(20, 4)}, "y_test labels out of range: y_test[0] is 4; accepted: the training labels 0..3"),
    ({"x_train": features() > 5}, "x_train has type bool; accepted: integers or floats; convert it to float32 if it"),
    ({"y_train": np.array(["no", "yes"] * 20)}, "y_train has type <U3; accepted: integers or floats; number the values "
     "0, 1, 2, …, as numpy.unique(VALUES, return_inverse=True)[1] does"),
    ({"y_train": np.array(["no", None] * 20)}, "y_train has type object; accepted: integers or floats; number the"),
    ({"y_train": np.arange(40) % 2 == 0}, "y_train has type bool; accepted: integers or floats; convert it, for "
     "example to int64"),
    ({"x_train": [["a"]] * 40}, "x_train has type <U1; accepted: integers or floats; convert it"),
    ({"x_train": [[1, 2], [3]] * 20}, "x_train is no array ("),
    ({"x_test": features(20, 4)}, "x_train holds samples of shape (3,) but x_test of (4,); give both one shape"),
    ({"x_train": features().astype(np.uint8), "x_test": features(20).astype(np.uint8)},
     "x_train has shape (40, 3); accepted: (n, height, width) or"),
    ({"x_train": np.zeros((40, 2, 2), int), "x_test": np.zeros((20, 2, 2), int)},
     "x_train has type int64, which stands for tokens, and shape (40, 2, 2); accepted: (n, length)"),
    ({"x_train": np.full((40, 3), -1), "x_test": np.zeros((20, 3), int)}, "x_train[0, 0] is -1; accepted: tokens"),
    ({"x_train": np.zeros((40, 16, 16), np.uint8), "x_test": np.zeros((20, 16, 16), int)},
     "x_train has type uint8 but x_test int64; give both in one type"),
    ({"groups": np.zeros(39, int)}, "groups has shape (39,), but there are 40 training samples; give one group for "
     "each"),
    ({"groups": np.zeros(40)}, "groups has type float64; accepted: integers or texts; convert it"),
    ({"kind": "regression", "y_train": np.full(40, 2)}, "y_train is 2 throughout; accepted: numbers that differ"),
    ({"kind": "regression", "y_test": np.full(20, 2)}, "y_test is 2 throughout; accepted: numbers that differ"),
    ({"kind": "regression", "x_test": features(1), "y_test": [3.5]}, "y_test is 3.5 throughout; accepted: numbers"),
    ({"kind": "regression", "y_train": np.zeros((40, 2))}, "y_train has shape (40, 2); accepted: (n,), one number"),
    ({"kind": "regression", "y_train": np.full(40, np.nan)}, "y_train[0] is nan; accepted: finite numbers"),
    ({"kind": "next_token"}, "x_train has type float64, and kind next_token needs tokens; accepted: integers of"),
    ({"x_train": features() * 1e300}, "x_train[0, 0] is 5.25146044"),
    ({"owner": ["a", "b"]}, "owner has shape (2,)"), ({"owner": ["a", ""] * 20}, "owner[1] is an empty text"),
    ({"test_owner": ["a"] * 20}, "test_owner was given without owner"),
    ({"class_names": ["a", "b", "c"]}, "class_names has 3 texts"),
]  # fmt: skip


@pytest.mark.parametrize("changes, text", WRONG, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_wrong_array_is_one_line(changes: dict[str, Any], text: str):
    assert text in message(**changes)


def test_features_with_large_numbers_are_standardised():
    data = Dataset.of(**given(x_train=features() * 1e29, x_test=features(20) * 1e29))
    np.testing.assert_allclose(data.x_train, Dataset.of(**given()).x_train, rtol=1e-5, atol=1e-6)


def test_a_function_that_returns_arrays_is_a_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setitem(registry._ADDED, ("dataset", "mine"), lambda root: Dataset.of(**given()))
    assert load_dataset("mine", tmp_path).name == "mine"
    monkeypatch.setitem(registry._ADDED, ("dataset", "wrong"), lambda root: Dataset.of(**given(y_test=[0])))
    with pytest.raises(DataError, match=r"^data\.name: wrong: x_test holds 20 samples but y_test 1; give one"):
        load_dataset("wrong", tmp_path)
