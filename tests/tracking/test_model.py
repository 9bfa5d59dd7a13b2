"""hflray.tracking.model: the final model of a run."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from safetensors.torch import load_file

from hflray.data import load_dataset
from hflray.models import build_model, init_vector, load_vector
from hflray.models.problem import Problem
from hflray.support import checkpoint
from hflray.tracking import FinalModel


def test_any_tracker_can_store_the_weights_by_name(tmp_path) -> None:
    dataset = load_dataset("digits")
    network = build_model("hfl", dataset.image_shape, dataset.num_classes)
    vector = init_vector(network, np.random.default_rng(3))
    load_vector(network, vector)
    checkpoint.save(tmp_path / "saved" / "state", {"global_model": vector, "config": {"seed": 0}})
    model = FinalModel(lambda: nullcontext(tmp_path / "saved"), dataset, Problem.posed_by(dataset))
    (path,) = model.write(tmp_path)
    weights = load_file(path)
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in network.state_dict().items()
    }
    assert all(torch.equal(weights[name], value) for name, value in network.state_dict().items())
    example = model.example()
    assert example.shape == (2, *dataset.image_shape)
    assert example.dtype == np.float32
    assert torch.equal(model.module()(torch.from_numpy(example)), network(torch.from_numpy(example)))
