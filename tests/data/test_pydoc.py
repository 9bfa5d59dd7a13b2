"""Each input is a piece of one of Python's help topics, and its target is the character that follows."""

from __future__ import annotations

from pydoc_data.topics import topics

import numpy as np

from hflray.data import load_dataset


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


def test_groups_are_alike_in_size():
    sizes = np.bincount(load_dataset("pydoc_topics").strata)
    assert len(sizes) == 10
    assert sizes.max() < 1.5 * sizes.min()
