"""The data sets that need no files."""

from __future__ import annotations

from pydoc_data.topics import topics

import numpy as np
import pytest

from hflray.data import load_dataset


def test_breast_cancer_is_that_of_scikit_learn():
    from sklearn.datasets import load_breast_cancer

    data, theirs = load_dataset("breast_cancer"), load_breast_cancer()
    assert (data.kind, data.num_classes, data.x_train.shape, data.x_test.shape) == (
        "classification", 2, (456, 30), (113, 30),
    )  # fmt: skip
    ours = np.concatenate([data.y_train, data.y_test])
    assert np.bincount(ours).tolist() == np.bincount(theirs.target).tolist()
    assert np.bincount(data.y_test).tolist() == [42, 71]
    # Each row of ours is a row of theirs, standardised by our training rows.
    together = np.concatenate([data.x_train, data.x_test])
    spread = theirs.data.std(axis=0) / together.std(axis=0)
    back = together * spread + (theirs.data.mean(axis=0) - together.mean(axis=0) * spread)
    np.testing.assert_allclose(np.sort(back, axis=0), np.sort(theirs.data, axis=0), rtol=1e-4, atol=1e-5)


def test_diabetes_is_that_of_scikit_learn():
    from sklearn.datasets import load_diabetes

    data, theirs = load_dataset("diabetes"), load_diabetes(scaled=False)
    targets = np.concatenate([data.y_train, data.y_test]) * data.target_std + data.target_mean
    assert (data.kind, data.x_train.shape, data.x_test.shape) == ("regression", (354, 10), (88, 10))
    np.testing.assert_allclose(np.sort(targets), np.sort(theirs.target), rtol=1e-5)


def test_friedman1_follows_friedmans_function():
    data = load_dataset("friedman1")
    assert (data.kind, data.x_train.shape, data.x_test.shape) == ("regression", (16_000, 10), (4_000, 10))
    # The features are uniform on 0..1, whose deviation is 1 / √12; undo the standardisation.
    x = data.x_test / np.sqrt(12) + 0.5
    y = data.y_test * data.target_std + data.target_mean
    signal = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    assert 1 - np.var(y - signal) / np.var(y) == pytest.approx(0.96, abs=0.01)
    assert np.array_equal(load_dataset("friedman1").y_test, data.y_test)
    assert not np.array_equal(load_dataset("friedman1", seed=1).y_test, data.y_test)


def test_windows_are_pieces_of_the_topics_followed_by_their_target():
    data = load_dataset("pydoc_topics")
    alphabet = sorted(set("".join(topics.values())))
    assert (data.kind, data.num_tokens, data.num_classes) == ("next_token", len(alphabet), len(alphabet))
    rng = np.random.default_rng(0)
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        for i in rng.integers(0, len(y), 20):
            window = "".join(alphabet[code] for code in [*x[i], y[i]])
            assert any(window in text for text in topics.values())


def test_no_test_window_occurs_in_the_training_texts():
    data = load_dataset("pydoc_topics")
    alphabet = sorted(set("".join(topics.values())))
    training = "\0".join(text[: len(text) * 4 // 5] for text in topics.values())
    for i in range(0, len(data.y_test), 10):
        assert "".join(alphabet[code] for code in [*data.x_test[i], data.y_test[i]]) not in training
