"""The networks: the two of the paper, others by name, and flat vectors of what travels of them.

* ``paper.py``, ``simple.py``, ``cnn.py``, ``resnet.py`` and ``vision.py`` hold networks, which the registry's kind
  ``model`` names: callables ``(input_shape, num_outputs, **options)`` that return a `torch.nn.Module`;
* ``vector.py`` says what of a network travels.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from hflray import registry
from hflray.errors import ConfigError
from hflray.models.paper import MINI_INPUT_SHAPE, init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.models.vector import Vector, to_vector
from hflray.seeding import seed_sequence, stream
from hflray.support.contract import Contract, described

MINI = ModelSpec("mini")
# IKC's small networks for data that are no images: a hidden layer for rows of numbers, a small state for tokens.
SMALL = {"next_token": ModelSpec.of("gru", {"embedding": 8, "hidden": 16})}
SMALL_OTHERWISE = ModelSpec.of("mlp", {"hidden": [16]})


def build(problem: Problem, seed: int = 0) -> nn.Module:
    """Build the network of a problem with the weights of its constructor, which draws them under `seed`.

    The statistics of normalisation layers are left out if they stay local (`Problem.buffers`): these layers then use
    the batch at hand, in training and in evaluation.

    Raises:
        ConfigError: the network is unknown, or it does not take an option.
        DataError: the network does not fit the data.
    """
    spec, options = problem.model, problem.model.options
    for option in ("input_shape", "num_outputs"):
        if option in options:
            raise ConfigError(f"model.options.{option}: the data set decides it; accepted: no such option; remove it")
    # Modules draw weights when they are built, and torch's global generator must not advance for that.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "network"))  # a GPU's generator draws no weights
        arguments = {"input_shape": problem.input_shape, "num_outputs": problem.num_outputs}
        tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        module: nn.Module = registry.build("model", spec.name, arguments, **tuples)
    if not isinstance(module, nn.Module):
        raise Contract.of("model.name", spec.name, "a torch.nn.Module").error(described(module))
    if problem.buffers == "local":
        for layer in module.modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return module


def is_papers(problem: Problem) -> bool:
    """Return whether the network is one of the paper's two, which need no trial and get He's initialisation."""
    return problem.model.name in ("paper_cnn", "mini")


def initial_vector(problem: Problem, seed: int, name: str = "model", network: nn.Module | None = None) -> Vector:
    """Draw what travels at first: He's weights for the paper's networks, and for others those of their constructor.

    Args:
        problem: what is learned.
        seed: the experiment's seed.
        name: the random stream of He's weights.
        network: what `build` returned for this problem and seed, if the caller has it already.
    """
    module = build(problem, seed) if network is None else network
    return init_vector(module, stream(seed, name)) if is_papers(problem) else to_vector(module)


def torch_seed(seed: int, name: str, *indices: int) -> int:
    """Return a seed for torch's generator, a function of the root seed, the stream's name and its indices."""
    low, high = seed_sequence(seed, name, *indices).generate_state(2).tolist()
    return int(low) | int(high) << 32


def auxiliary_problem(problem: Problem, name: str | None) -> Problem:
    """Return the problem with the small network that Algorithm 2 trains on every device to cluster the devices.

    Args:
        problem: the experiment's.
        name: ``global`` is the network itself, ``mini`` IKC's small network, which is the paper's mini model on 1×10×10
            inputs for images, and for other data an ``mlp`` or ``gru`` of 16 numbers on the data themselves; None is
            ``mini``; any other name is a network of the registry, on the data themselves.
    """
    if name == "global":
        return problem
    if name not in (None, "mini"):
        return replace(problem, model=ModelSpec(name))
    if problem.kind == "classification" and len(problem.input_shape) == 3:
        return replace(problem, input_shape=MINI_INPUT_SHAPE, model=MINI)
    return replace(problem, model=SMALL.get(problem.kind, SMALL_OTHERWISE))
