"""LEAF's files: samples by user, in training and test files, of numbers, images and texts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hflray.data import load_dataset
from hflray.errors import HflrayError


def write(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    path.write_text(
        json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})
    )
    return str(path)


def load(**options):
    return load_dataset("leaf", options=options)


def test_training_and_test_samples_by_user(tmp_path):
    users = {"ann": ([[0.0, 1.0], [1.0, 0.5]], [3, 7]), "bob": ([[0.5, 0.5]], [3])}
    write(tmp_path / "train" / "a.json", users)
    write(tmp_path / "train" / "b.json", {"cy": ([[0.1, 0.2]], [7])})
    test = write(tmp_path / "test.json", {"ann": ([[0.0, 0.9]], [7]), "bob": ([[0.2, 0.2]], [5])})
    data = load(train=str(tmp_path / "train"), test=test)
    assert data.owner.tolist() == ["ann", "ann", "bob", "cy"]
    assert data.y_train.tolist() == [0, 1, 0, 1]
    assert data.class_names == ("3", "7")
    assert data.test_owner.tolist() == ["ann"]  # class 5 is not trained


def test_femnists_images(tmp_path):
    rng = np.random.default_rng(0)
    users = {f"f{u}": (rng.uniform(size=(10, 784)).tolist(), [0, 1] * 5) for u in range(3)}
    data = load(train=write(tmp_path / "t.json", users), shape=[28, 28])
    assert (data.x_train.shape, str(data.x_train.dtype)) == ((24, 1, 28, 28), "uint8")
    assert set(data.owner) == set(data.test_owner) == {"f0", "f1", "f2"}


def test_shakespeares_texts(tmp_path):
    users = {"lear": (["abab", "baba", "abba"] * 3, list("aba") * 3), "juliet": (["bbaa"] * 6, list("b") * 6)}
    data = load(train=write(tmp_path / "t.json", users))
    assert (data.kind, data.num_tokens, data.x_train.shape[1]) == ("next_token", 2, 4)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("[]", {}, "t.json: is not LEAF's JSON"),
        ("[" * 3000, {}, "t.json: is not LEAF's JSON"),
        ('{"users": ["a"], "user_data": {}}', {}, "user 'a': has no x and y"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": []}}}', {}, "user 'a': 1 x but 0 y"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 1]}}}', {}, "'a': a sample is no list"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [0]}}}', {"shape": [2, 2]}, "shape: got [2, 2]"),
        ('{"users": [], "user_data": {}}', {}, "has no sample"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(content, options, message, tmp_path):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(HflrayError) as caught:
        load(train=str(tmp_path / "t.json"), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
