"""hflray.problem: one small value says what is learned."""

from __future__ import annotations

import json
import pickle

from hflray.data import load_dataset
from hflray.problem import ModelSpec, Problem
from tests.conftest import small_config

DIGITS = Problem((1, 28, 28), 10)


def test_a_data_set_poses_a_problem() -> None:
    config = small_config("data.name=digits")
    assert Problem.of(load_dataset("digits"), config) == DIGITS
    assert (DIGITS.kind, DIGITS.model.name, DIGITS.loss) == ("classification", "paper_cnn", "cross_entropy")


def test_equal_problems_are_one_key_and_travel_small() -> None:
    other = Problem((1, 28, 28), 10, model=ModelSpec.of("mlp", {"hidden": [64, 32], "dropout": 0.5}))
    same = Problem((1, 28, 28), 10, model=ModelSpec.of("mlp", {"dropout": 0.5, "hidden": [64, 32]}))
    assert len({DIGITS, other, same}) == 2
    assert other.model.options == {"hidden": [64, 32], "dropout": 0.5}
    for problem in (DIGITS, other):
        assert len(pickle.dumps(problem)) < 500
        assert pickle.loads(pickle.dumps(problem)) == problem
        assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


def test_the_papers_network_is_measured_under_its_old_key() -> None:
    assert DIGITS.measured_as == [1, 28, 28, 10]
    other = Problem((1, 28, 28), 10, model=ModelSpec.of("mlp"))
    assert other.measured_as == [1, 28, 28, 10, "classification", "mlp", "{}", "cross_entropy"]
