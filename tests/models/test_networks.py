"""The networks, the problems that data sets pose, and the vectors of weights that are sent."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hflray import errors, registry
from hflray.config import BITS_PER_KB
from hflray.data import Dataset, load_dataset
from hflray.errors import DataError, HflrayError
from hflray.models import auxiliary_problem, build, initial_vector
from hflray.models.paper import HflCnn, MiniCnn
from hflray.models.problem import ModelSpec, Problem
from hflray.models.vector import (
    BITS_PER_PARAMETER,
    kept_at_home,
    load_vector,
    num_parameters,
    num_statistics,
    to_vector,
)
from tests.conftest import own_module, refusal, refusals, small_config
from tests.models.samples import build_model, random_samples

GREY, COLOUR, WINDOW = (1, 28, 28), (3, 32, 32), (12,)
NAMES = [name for name in registry.BUILTIN["model"] if not name.endswith(":")]


def problem_of(name: str, shape: tuple[int, ...] | None = None, outputs: int = 10, **options: Any) -> Problem:
    shape = shape or {"gru": WINDOW, "mini": (1, 10, 10)}.get(name, GREY)
    tokens = {"kind": "next_token", "num_tokens": outputs} if name == "gru" else {}
    return Problem(shape, outputs, model=ModelSpec.of(name, options), **tokens)


@pytest.mark.parametrize("name", [*NAMES, "torchvision:squeezenet1_1"])
def test_a_network_maps_inputs_to_outputs_and_its_first_weights_follow_from_the_seed_alone(name: str) -> None:
    problem, before = problem_of(name, COLOUR if ":" in name else None, outputs=7), torch.get_rng_state()
    first = initial_vector(problem, 7)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, initial_vector(problem, 7))
    assert not np.array_equal(first, initial_vector(problem, 8))
    assert torch.equal(torch.get_rng_state(), before)
    module, (x, _) = build(problem), random_samples(problem, 3, np.random.default_rng(0))
    assert module.eval()(torch.from_numpy(x)).shape == (3, 7)
    load_vector(module, first)
    np.testing.assert_array_equal(to_vector(module), first)


def linear(*widths: int) -> int:
    return sum((before + 1) * after for before, after in pairwise(widths))


@pytest.mark.parametrize(
    "name, shape, count",
    [
        # each convolution and each linear layer, weights and biases
        ("paper_cnn", GREY, 390 + 10_528 + linear(448, 226, 10)),
        ("paper_cnn", COLOUR, 1_140 + 10_528 + linear(700, 301, 10)),
        ("mini", None, 75 + 2_410),
        ("cnn_6_16", GREY, 156 + 2_416 + linear(256, 120, 84, 10)),
        ("cnn_6_16", COLOUR, 456 + 2_416 + linear(400, 120, 84, 10)),
        ("cnn_20_50", GREY, 520 + 25_050 + linear(800, 500, 10)),
        ("cnn_20_50", COLOUR, 1_520 + 25_050 + linear(1250, 500, 10)),
        ("lenet", GREY, 260 + 5_020 + linear(320, 50, 10)),
        ("lenet", COLOUR, 760 + 5_020 + linear(500, 50, 10)),
        ("mlp_200_200", GREY, linear(784, 200, 200, 10)),
        ("mlp_200_200", COLOUR, linear(3072, 200, 200, 10)),
        ("logistic", (30,), linear(30, 10)),
        ("gru", None, 10 * 32 + 3 * 128 * (32 + 128 + 2) + linear(128, 10)),
        # He et al., n = 1: 3×3 convolutions of 16, 32 and 64 channels, 1×1 convolutions on two shortcuts, and norms
        (
            "resnet8", COLOUR, 9 * (3 * 16 + 2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64) + 16 * 32 + 32 * 64
            + 2 * (3 * 16 + 3 * 32 + 3 * 64) + linear(64, 10),
        ),
    ],
)  # fmt: skip
def test_parameters(name: str, shape: tuple[int, ...] | None, count: int) -> None:
    assert num_parameters(build(problem_of(name, shape))) == count


@pytest.mark.parametrize(("kind", "shape", "kb"), [("hfl", GREY, 447.9), ("hfl", COLOUR, 881.6), ("mini", COLOUR, 9.7)])
def test_models_have_the_papers_sizes(kind, shape, kb) -> None:
    model = build_model(kind, shape, 10)
    assert round(BITS_PER_PARAMETER * num_parameters(model) / BITS_PER_KB, 1) == kb


@pytest.mark.parametrize("shape", [(1, 16, 16), (2, 17, 40)])
def test_the_papers_network_takes_images_of_16_pixels_and_more(shape) -> None:
    assert build_model("hfl", shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


NOT_ACCEPTED = (["foo"], ["num_outputs", "the data set decides it"])


@pytest.mark.parametrize(
    "name, options, shape, error, facts",
    [(name, {facts[0]: 1}, None, "ConfigError", facts) for name in NAMES for facts in NOT_ACCEPTED]
    + refusals("models/networks"),
)
def test_what_does_not_fit_is_refused_in_one_line(name, options, shape, error, facts) -> None:
    with refusal(getattr(errors, error), *facts):
        build(problem_of(name, shape and tuple(shape), **options))


@pytest.mark.parametrize("shape", [(2484,), (2486,), (1, 2485), ()])
def test_a_vector_of_another_model_is_refused(shape) -> None:
    model = build_model("mini", (1, 28, 28), 10)
    before = to_vector(model)
    with pytest.raises(HflrayError, match="MiniCnn has 2485 parameters"):
        load_vector(model, np.zeros(shape, np.float32))
    assert np.array_equal(to_vector(model), before)


def test_pooling_before_relu_changes_no_number() -> None:
    torch.manual_seed(0)
    model, images = HflCnn(GREY, 10), torch.randn(4, *GREY)
    features = functional.max_pool2d(functional.relu(model.conv1(images)), 2)
    features = functional.max_pool2d(functional.relu(model.conv2(features)), 2)
    assert torch.equal(model(images), model.linear2(functional.relu(model.linear1(features.flatten(1)))))


def test_the_mini_model_returns_logits_worked_out_by_hand() -> None:
    model = MiniCnn((1, 10, 10), 2)
    load_vector(model, np.zeros(num_parameters(model), np.float32))
    with torch.no_grad():
        model.conv.weight[0, 0] = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        model.linear.weight[1, 0] = 1.0  # reads channel 0, pooled pixel (0, 0)
    # The convolution gives x[i,j] + x[i+1,j+1]. Its largest value in the first 2×2 window is x[1,1] + x[2,2] = 11 + 22.
    assert model(torch.arange(100.0).view(1, 1, 10, 10)).tolist() == [[0.0, 33.0]]


def test_an_mlp_is_linear_layers_with_relu_worked_out_by_hand() -> None:
    module = build(Problem((2, 2), 1, model=ModelSpec.of("mlp", {"hidden": [2]})))
    load_vector(module, np.float32([1, 1, 1, 1, -1, -1, -1, -1, 0, 0, 2, 3, 0.5]))
    inputs = torch.tensor([[[1.0, 2], [3, 4]], [[-1, -2], [-3, -4]]])
    assert module(inputs).tolist() == [[20.5], [30.5]]


def test_he_initialisation_of_the_papers_network() -> None:
    problem = problem_of("paper_cnn", COLOUR)
    model = build(problem)
    load_vector(model, initial_vector(problem, 0))
    assert not any(parameter.any() for name, parameter in model.named_parameters() if name.endswith("bias"))
    for name, inputs in {"conv1": 75, "conv2": 375, "linear1": 700, "linear2": 301}.items():
        weight = getattr(model, name).weight
        # The relative error of the sample deviation of n normals is above 5/√(2n) once in about a million draws.
        assert weight.std().item() == pytest.approx((2 / inputs) ** 0.5, rel=5 / (2 * weight.numel()) ** 0.5)


def test_a_gru_sees_the_whole_window_and_integers_only() -> None:
    module, tokens = build(problem_of("gru")), torch.zeros(1, 12, dtype=torch.int64)
    other = tokens.clone()
    other[0, 0] = 3
    assert not torch.equal(module(tokens), module(other))
    with pytest.raises(DataError, match="'gru' reads integers"):
        module(torch.zeros(2, 12))


def test_lenet_drops_out_channels_and_numbers_in_training_only() -> None:
    module, images = build(problem_of("lenet")), torch.rand(4, *GREY, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(module.train()(images), module(images))
    assert torch.equal(module.eval()(images), module(images))
    names = [type(layer).__name__ for layer in module.layers]
    assert (names[3:6], names[-2:]) == (["Conv2d", "Dropout2d", "MaxPool2d"], ["Dropout", "Linear"])
    assert not any("Dropout" in type(layer).__name__ for layer in build(problem_of("lenet", dropout=0.0)).layers)


def test_a_block_of_resnet8_adds_its_input_and_the_image_halves_twice() -> None:
    module = build(problem_of("resnet8", COLOUR))
    assert module.blocks(torch.zeros(1, 16, 32, 32)).shape == (1, 64, 8, 8)
    layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len([name for name in layers if "shortcut" not in name]) == 8
    with torch.no_grad():
        module.blocks[0].norm2.weight.zero_()  # the residual is then the norm's bias, which is zero
    features = torch.rand(2, 16, 4, 4)
    torch.testing.assert_close(module.blocks[0](features), features)


def test_options_reach_a_network_of_torchvision() -> None:
    module = build(problem_of("torchvision:squeezenet1_1", COLOUR, dropout=0.125))
    assert [layer.p for layer in module.modules() if isinstance(layer, nn.Dropout)] == [0.125]


@pytest.mark.parametrize(
    "name, shape, expected",
    [
        ("mini", COLOUR, Problem((1, 10, 10), 10, model=ModelSpec("mini"))),
        ("mini", (30,), Problem((30,), 10, model=ModelSpec.of("mlp", {"hidden": [16]}))),
        ("global", (30,), Problem((30,), 10, model=ModelSpec("logistic"))),
        ("mlp", COLOUR, Problem(COLOUR, 10, model=ModelSpec("mlp"))),
    ],
)
def test_the_auxiliary_network_follows_from_the_data(name, shape, expected) -> None:
    assert auxiliary_problem(Problem(shape, 10, model=ModelSpec("logistic")), name) == expected


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


OWN = own_module("network_and_loss")


def test_the_texts_of_a_problems_references_go_where_it_goes(tmp_path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    config = small_config(f"model.name={path}:Net", f"training.loss={path}:loss")
    problem = Problem.of(Dataset.of(np.eye(3, 4), [0, 1, 2], np.eye(3, 4), [0, 1, 2]), config)
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


class Tied(nn.Module):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight


def test_a_shared_weight_is_counted_and_sent_once() -> None:
    module = Tied()
    assert num_parameters(module) == 9
    load_vector(module, np.arange(9, dtype=np.float32))
    assert torch.equal(module.first.weight, module.second.weight)
    assert module.second.weight[0].tolist() == [0, 1, 2]


def test_a_frozen_parameter_is_not_sent_and_not_billed() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    assert num_parameters(module) == 8
    load_vector(module, np.ones(8, np.float32))
    assert torch.equal(module[0].weight, before)
    assert (module[1].weight == 1).all()


def test_statistics_travel_behind_the_weights_and_counters_do_not() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert (num_parameters(module), num_statistics(module)) == (6 + 8 + 6, 6)
    assert [buffer.dtype for buffer in kept_at_home(module)] == [torch.int64]
    assert to_vector(module)[-6:].tolist() == [0, 0, 0, 1, 1, 1]  # running mean and running variance
    load_vector(module, np.arange(20, dtype=np.float32))
    assert module[0].running_var.tolist() == [17, 18, 19]


def test_local_statistics_are_those_of_the_batch_in_evaluation_too() -> None:
    spec = ModelSpec.of("resnet8", {"norm": "batch"})
    average, local = (Problem((3, 8, 8), 4, model=spec, buffers=how) for how in ("average", "local"))
    assert len(initial_vector(average, 0)) - len(initial_vector(local, 0)) == num_statistics(build(average)) == 672
    images = 5 + 3 * torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    module = build(local).eval()
    normalised = module.norm(module.conv(images))
    torch.testing.assert_close(normalised.mean((0, 2, 3)), torch.zeros(16), atol=1e-5, rtol=0)


def test_other_networks_keep_the_first_weights_of_their_constructors() -> None:
    """He's rule of the paper's networks would set the weights of GroupNorm, of one dimension, to zero."""
    problem = Problem((3, 8, 8), 4, model=ModelSpec("resnet8"))
    module = build(problem)
    load_vector(module, initial_vector(problem, 3))
    assert (module.norm.weight == 1).all()


def test_vectors_are_copied_in_both_directions_and_may_be_read_only() -> None:
    module = nn.Linear(2, 1)
    before, vector = list(module.parameters()), np.arange(3, dtype=np.float32)
    vector.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_vector(module, vector)
    assert all(now is was for now, was in zip(module.parameters(), before, strict=True))
    to_vector(module)[:] = 3
    assert to_vector(module).tolist() == [0, 1, 2]  # in the order of parameters()
