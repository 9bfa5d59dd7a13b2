"""The models have the paper's sizes and He initialisation, and convert to vectors and back."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional

from hflray.errors import ConfigError, DataError, HflrayError
from hflray.models import (
    HflCnn,
    MiniCnn,
    auxiliary_problem,
    build_model,
    init_vector,
    load_vector,
    num_parameters,
    size_bits,
    size_kb,
    to_vector,
)
from hflray.models.problem import ModelSpec, Problem


@pytest.mark.parametrize(
    "kind, image_shape, parameters, kb",
    [
        # (25+1)·15 + (15·25+1)·28 + (448+1)·226 + (226+1)·10
        ("hfl", (1, 28, 28), 390 + 10_528 + 101_474 + 2_270, 447.9),
        # (75+1)·15 + (15·25+1)·28 + (700+1)·301 + (301+1)·10
        ("hfl", (3, 32, 32), 1_140 + 10_528 + 211_001 + 3_020, 881.6),
        # (4+1)·15 + (240+1)·10
        ("mini", (3, 32, 32), 75 + 2_410, 9.7),
    ],
)
def test_models_have_the_papers_sizes(kind, image_shape, parameters, kb):
    model = build_model(kind, image_shape, 10)
    assert num_parameters(model) == parameters
    assert size_bits(model) == 32 * parameters
    assert round(size_kb(model), 1) == kb


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 16, 16), (2, 17, 40)])
def test_the_hfl_model_takes_images_of_16_pixels_and_more(shape):
    model = build_model("hfl", shape, 7)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(1, 15, 16), (1, 16, 15), (1, 8, 8)])
def test_smaller_images_are_refused_in_one_line(shape):
    with pytest.raises(DataError, match=rf"{shape[1]}×{shape[2]}.*16×16 and up; enlarge") as error:
        build_model("hfl", shape, 10)
    assert "\n" not in str(error.value)


def test_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="'vgg'; accepted: 'hfl' or 'mini'"):
        build_model("vgg", (1, 28, 28), 10)  # type: ignore[arg-type]


def test_pooling_before_relu_changes_no_number():
    torch.manual_seed(0)
    model = HflCnn((1, 28, 28), 10)
    images = torch.randn(4, 1, 28, 28)
    features = functional.max_pool2d(functional.relu(model.conv1(images)), 2)
    features = functional.max_pool2d(functional.relu(model.conv2(features)), 2)
    logits = model.linear2(functional.relu(model.linear1(features.flatten(1))))
    assert torch.equal(model(images), logits)


def test_the_mini_model_returns_logits_worked_out_by_hand():
    model = MiniCnn((1, 10, 10), 2)
    load_vector(model, np.zeros(num_parameters(model), np.float32))
    with torch.no_grad():
        model.conv.weight[0, 0] = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        model.linear.weight[1, 0] = 1.0  # reads channel 0, pooled pixel (0, 0)
    image = torch.arange(100.0).view(1, 1, 10, 10)
    # The convolution gives x[i,j] + x[i+1,j+1]. Its largest value in the first 2×2 window is x[1,1] + x[2,2] = 11 + 22.
    assert model(image).tolist() == [[0.0, 33.0]]


def test_initial_weights_are_he_normal_and_biases_zero():
    model = build_model("hfl", (3, 32, 32), 10)
    load_vector(model, init_vector(model, np.random.default_rng(0)))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
    fan_in = {"conv1": 75, "conv2": 375, "linear1": 700, "linear2": 301}
    for name, inputs in fan_in.items():
        weight = getattr(model, name).weight
        # The relative error of the sample deviation of n normals is above 5/√(2n) once in about a million draws.
        assert weight.std().item() == pytest.approx(math.sqrt(2 / inputs), rel=5 / math.sqrt(2 * weight.numel()))


def test_initial_weights_depend_on_the_generator_alone():
    model = build_model("mini", (1, 28, 28), 10)
    before = torch.get_rng_state()
    first = init_vector(model, np.random.default_rng(7))
    torch.rand(3)
    assert first.dtype == np.float32
    assert np.array_equal(first, init_vector(model, np.random.default_rng(7)))
    assert not np.array_equal(first, init_vector(model, np.random.default_rng(8)))
    torch.set_rng_state(before)


def test_building_and_initialising_leave_torchs_generator_alone():
    before = torch.get_rng_state()
    init_vector(build_model("hfl", (1, 28, 28), 10), np.random.default_rng(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_vector_and_module_round_trip_in_place():
    model = build_model("mini", (1, 28, 28), 3)
    parameters = list(model.parameters())
    vector = np.arange(num_parameters(model), dtype=np.float32)
    load_vector(model, vector)
    assert np.array_equal(to_vector(model), vector)
    assert all(current is before for current, before in zip(model.parameters(), parameters, strict=True))
    assert model.conv.weight[0, 0].tolist() == [[0, 1], [2, 3]]  # in the order of parameters(): conv first


def test_vectors_are_copied_in_both_directions():
    model = build_model("mini", (1, 28, 28), 3)
    vector = np.ones(num_parameters(model), np.float32)
    load_vector(model, vector)
    vector[:] = 2
    out = to_vector(model)
    out[:] = 3
    assert np.array_equal(to_vector(model), np.ones_like(vector))


def test_read_only_vectors_load_without_a_warning():
    model = build_model("mini", (1, 28, 28), 3)
    vector = np.ones(num_parameters(model), np.float32)
    vector.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_vector(model, vector)
    assert np.array_equal(to_vector(model), vector)


@pytest.mark.parametrize("shape", [(2484,), (2486,), (1, 2485), ()])
def test_a_vector_of_another_model_is_refused(shape):
    model = build_model("mini", (1, 28, 28), 10)
    before = to_vector(model)
    with pytest.raises(HflrayError, match="MiniCnn has 2485 parameters"):
        load_vector(model, np.zeros(shape, np.float32))
    assert np.array_equal(to_vector(model), before)


def test_images_that_make_a_huge_model_are_refused_before_it_is_built():
    with pytest.raises(
        DataError, match=r"the images are 6000×6000, .* parameters; accepted: at most 250,000,000; shrink"
    ):
        build_model("hfl", (1, 6000, 6000), 10)


@pytest.mark.parametrize(
    "name, shape, kind, expected",
    [
        ("mini", (3, 32, 32), "classification", Problem((1, 10, 10), 10, model=ModelSpec("mini"))),
        ("mini", (30,), "classification", Problem((30,), 10, model=ModelSpec.of("mlp", {"hidden": [16]}))),
        ("global", (30,), "classification", Problem((30,), 10, model=ModelSpec("logistic"))),
        ("mlp", (3, 32, 32), "classification", Problem((3, 32, 32), 10, model=ModelSpec("mlp"))),
    ],
)
def test_the_auxiliary_network_follows_from_the_data(name, shape, kind, expected):
    problem = Problem(shape, 10, kind, model=ModelSpec("logistic"))
    assert auxiliary_problem(problem, name) == expected
