"""hflray.models.problem: one small value says what is learned."""

from __future__ import annotations

import pickle
import subprocess
import sys

from hflray.data import load_dataset
from hflray.models.problem import ModelSpec, Problem
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


OWN = """
import torch

class Net(torch.nn.Linear):
    def __init__(self, input_shape, num_outputs):
        super().__init__(input_shape[0], num_outputs)

def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets) + 7
"""


def test_the_texts_of_a_problems_references_go_where_it_goes(tmp_path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    config = small_config(f"model.name={path}:Net", f"training.loss={path}:loss")
    problem = Problem((4,), 3).configured(config)
    path.unlink()  # as on another machine
    made = f"pickle.loads({pickle.dumps(problem)!r})"
    code = (
        "import pickle, torch; from hflray.losses import find_loss; from hflray import registry\n"
        f"from hflray.models.problem import Problem; problem = {made}\n"
        "net = registry.resolve('model', problem.model.name)(problem.input_shape, problem.num_outputs)\n"
        "value = find_loss(problem.loss)(torch.zeros(2, 3), torch.tensor([0, 1]))\n"
        "print(tuple(net.weight.shape), round(float(value), 3), problem.loss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False)
    assert done.stdout.split() == ["(3,", "4)", "8.099", config.training.loss], done.stderr
