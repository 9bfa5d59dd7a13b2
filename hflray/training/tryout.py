"""A network's trial on one batch, before anything is trained: what a user's network gets wrong is said in one line.

The paper's networks are known and need no trial. Any other network is built, passes one batch of the experiment's own
data forward and backward, in training and in evaluation, and its memory is compared with this machine's.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hflray.config import TrainingConfig
from hflray.errors import ConfigError, HflrayError
from hflray.losses import find_loss
from hflray.models import build, is_papers, kept_at_home, num_parameters, num_statistics, trained
from hflray.models.problem import Problem
from hflray.support.references import spoken
from hflray.support.text import one_line
from hflray.training.batched import BatchedTrainer
from hflray.training.job import EVALUATION_BATCH, DeviceData, LocalJob
from hflray.training.local import DeviceHost

SAMPLES = 2  # of the batch that is passed through; more would only take longer
BYTES_PER_NUMBER = 40  # of what travels, in a host: weights, gradients, a flat copy, and sums in 64 bits
GIB = 2**30


def try_network(problem: Problem, training: TrainingConfig, seed: int, data: DeviceData) -> None:
    """Pass one batch through a network that is not the paper's.

    Args:
        problem: what is learned, by which network.
        training: the section of the configuration.
        seed: the experiment's seed.
        data: the samples of the devices.

    Raises:
        ConfigError: the network does not fit the data, the loss, this machine's memory or the kernel.
    """
    if is_papers(problem):
        return
    name = spoken(problem.model.name)
    with _named(name, "be built"):
        _check_memory(name, _parameters_without_building(problem), 0)
        module = build(problem, seed)
    _check_tensors(name, module)
    if kept_at_home(module) or any(not parameter.requires_grad for parameter in module.parameters()):
        _check_alike(name, module, build(problem, seed))
    host = DeviceHost(LocalJob(problem, seed, kernel="eager"), data)
    device = int(np.diff(data.offsets).argmax())
    x, y = (tensor[:SAMPLES] for tensor in host.samples.of(device))
    attempt = f"read a batch of inputs of the shape {list(x.shape[1:])}"
    if problem.num_tokens is not None:
        attempt += ", which are tokens because they are integers (features are float32, and images uint8)"
    with torch.random.fork_rng(devices=[]), _named(name, attempt):
        torch.manual_seed(0)
        _check_outputs(problem, module.eval(), x)
        needed = _check_step(problem, module.train(), x, y)
        if _ends_with_one(np.diff(data.offsets), training):
            _check_single(name, module, x[:1])
    samples = min(training.batch_size, int(np.diff(data.offsets).max()))
    _check_memory(name, num_parameters(module), max(samples * needed, EVALUATION_BATCH * needed // 8))
    if training.device != "cpu":
        _check_stacked(problem, module, x, y)


def _parameters_without_building(problem: Problem) -> int:
    """Return the number of parameters without the memory for them; 0 if the constructor needs real tensors."""
    try:
        with torch.device("meta"):
            return num_parameters(build(problem))
    except HflrayError:
        raise
    except Exception:  # a constructor that reads numbers; it is built for real next
        return 0


def _check_memory(name: str, parameters: int, activations: int) -> None:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return
    needed = BYTES_PER_NUMBER * parameters + activations
    if needed > total:
        raise ConfigError(
            f"model.name: '{name}' needs about {needed / GIB:,.1f} GiB in every process that trains it ({parameters:,} "
            f"weights, {activations / GIB:,.1f} GiB for a batch), and this machine has {total / GIB:,.1f} GiB; take a "
            "smaller network, or lower training.batch_size"
        )


def _check_tensors(name: str, module: nn.Module) -> None:
    """Refuse tensors that cannot travel."""
    if not trained(module):
        raise ConfigError(f"model.name: '{name}' has no parameter to train; let at least one require a gradient")
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for label, tensor in tensors:
            if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
                raise ConfigError(
                    f"model.name: '{name}' has the lazy {kind} '{label}' without a shape; give its layer its sizes"
                )
            sent = tensor.requires_grad if kind == "parameter" else tensor.is_floating_point()
            odd = tensor.is_complex() or tensor.is_quantized or tensor.layout is not torch.strided
            if odd or (sent and kind == "parameter" and tensor.dtype is not torch.float32):
                raise ConfigError(
                    f"model.name: '{name}' has the {kind} '{label}' of the type {tensor.dtype} ({tensor.layout}); "
                    "accepted: dense torch.float32, and for buffers also other real numbers; convert it"
                )


def _check_alike(name: str, first: nn.Module, second: nn.Module) -> None:
    """Refuse a network of which a part that is not sent differs from one host to the next."""
    again = dict(second.named_parameters()) | dict(second.named_buffers())
    home = {id(tensor) for tensor in kept_at_home(first)}
    for label, tensor in (*first.named_parameters(), *first.named_buffers()):
        stays = id(tensor) in home or (isinstance(tensor, nn.Parameter) and not tensor.requires_grad)
        if stays and not torch.equal(tensor, again[label]):
            raise ConfigError(
                f"model.name: '{name}' has another '{label}' each time that it is built, and this part is not sent to "
                "the devices (a frozen parameter or an integer buffer); draw it with torch's own generator"
            )


def _check_outputs(problem: Problem, module: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        outputs = module(x)
    name, expected = spoken(problem.model.name), (len(x), problem.num_outputs)
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"model.name: '{name}' returns a {type(outputs).__name__}; accepted: one tensor")
    if tuple(outputs.shape) != expected:
        raise ConfigError(
            f"model.name: '{name}' returns the shape {list(outputs.shape)} for {len(x)} inputs; accepted: "
            f"{list(expected)}, since these data need {problem.num_outputs} outputs for each; correct its last layer"
        )


def _check_step(problem: Problem, module: nn.Module, x: Tensor, y: Tensor) -> int:
    """Make the forward and backward pass of a step; return the bytes of activations that it keeps for a sample."""
    held_bytes = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal held_bytes
        held_bytes += tensor.numel() * tensor.element_size()
        return tensor

    name = spoken(problem.model.name)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = module(x)
        if not isinstance(outputs, Tensor):
            raise ConfigError(
                f"model.name: '{name}' returns a {type(outputs).__name__} in training; accepted: one tensor"
            )
        loss = find_loss(problem.loss)(outputs.float(), y)
    if loss.dim():
        raise ConfigError(
            f"loss: '{spoken(problem.loss)}' returns a tensor of the shape {list(loss.shape)}; accepted: one number; "
            "take the mean"
        )
    if not torch.isfinite(loss):
        raise ConfigError(
            f"model.name: the loss of '{name}' is {float(loss.detach())} on its first batch, before any training; look "
            "at its first weights and at the range of its outputs"
        )
    gradients = torch.autograd.grad(loss, trained(module), allow_unused=True)
    if not all(torch.isfinite(gradient).all() for gradient in gradients if gradient is not None):
        raise ConfigError(f"model.name: a gradient of '{name}' is not finite on its first batch; look at its layers")
    return held_bytes // len(x)


def _ends_with_one(sizes: NDArray[np.int64], training: TrainingConfig) -> bool:
    """Return whether some device makes a step on a single sample."""
    if training.local_iteration == "full_batch":
        return bool((sizes == 1).any())
    if training.local_iteration == "step":
        return training.batch_size == 1 or bool((sizes == 1).any())
    return bool((sizes % training.batch_size == 1 % training.batch_size).any())


def _check_single(name: str, module: nn.Module, x: Tensor) -> None:
    try:
        module(x)
    except ValueError as error:
        raise ConfigError(
            f"model.name: '{name}' cannot train on a batch of one sample, which some device has ({one_line(str(error))}"
            "); change training.batch_size or data.samples_per_device"
        ) from error


def _check_stacked(problem: Problem, module: nn.Module, x: Tensor, y: Tensor) -> None:
    """Refuse a network that the kernel of GPUs cannot train."""
    advice = "set training.device to cpu"
    if num_statistics(module):
        raise ConfigError(
            "training.device: GPUs train all devices at once, with batches of padded length, and "
            f"'{spoken(problem.model.name)}' keeps statistics of its batches; use a normalisation without them, such "
            f"as GroupNorm, or {advice}"
        )
    trainer = BatchedTrainer(module, find_loss(problem.loss), 0.0, "cpu")
    trainer.hold(x.numpy(), y.numpy(), torch.ones(1), torch.zeros(1))
    start = torch.cat([parameter.detach().reshape(-1) for parameter in trained(module)]).numpy()
    try:
        trainer.fit([start] * 2, [[np.arange(len(y))]] * 2)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"training.device: GPUs train all devices at once (torch.func.vmap), and '{spoken(problem.model.name)}' "
            f"cannot be trained so ({one_line(str(error).splitlines()[0])}); {advice}"
        ) from error


@contextmanager
def _named(name: str, deed: str) -> Iterator[None]:
    """Say in one line, with the user's own line of code, what a network of any origin cannot do."""
    try:
        yield
    except HflrayError:
        raise
    except Exception as error:  # a network may raise any type
        text = one_line((str(error).splitlines() or [""])[0])
        raise ConfigError(
            f"model.name: '{name}' cannot {deed}: {type(error).__name__}: {text}{_place(error)}; correct the network "
            "or its options"
        ) from error


def _place(error: Exception) -> str:
    """Return the last line of code that is neither a library's nor ours, as text; empty if there is none."""
    ours, libraries = Path(__file__).parents[1], ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python")
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not Path(frame.filename).is_relative_to(ours) and not any(part in frame.filename for part in libraries):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""
