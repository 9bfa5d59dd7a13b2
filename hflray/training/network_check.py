"""A check of a network on one batch, before anything is trained: what a user's network gets wrong is said in one line.

The paper's networks are known and need no check. Any other network is built, passes one batch of the experiment's own
data forward and backward, in training and in evaluation, and its memory is compared with this machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hflray.config import TrainingConfig
from hflray.errors import ConfigError, HflrayError
from hflray.losses import find_loss
from hflray.models import build, is_papers
from hflray.models.problem import Problem
from hflray.models.vector import kept_at_home, num_parameters, num_statistics, trained, travelling
from hflray.support.reader import memory_share
from hflray.support.references import reason, spoken
from hflray.support.text import one_line
from hflray.training.batched import BatchedTrainer
from hflray.training.job import EVALUATION_BATCH, DeviceData, Samples

CHECKED_SAMPLES = 2  # of the batch that is passed through; more would only take longer
BYTES_PER_NUMBER = 40  # of what travels, in a host: weights, gradients, a flat copy, and sums in 64 bits
GIB = 2**30


def check_network(
    problem: Problem, training: TrainingConfig, seed: int, data: DeviceData, setting: str = "model.name"
) -> None:
    """Pass one batch through a network that is not the paper's.

    Args:
        problem: what is learned, by which network.
        training: the section of the configuration.
        seed: the experiment's seed.
        data: the samples of the devices.
        setting: the setting that names the network.

    Raises:
        ConfigError: the network does not fit the data, the loss, this machine's memory or the kernel.
    """
    if not is_papers(problem):
        _Check(problem, training, setting).run(seed, data)


class _Check:
    """The check of one network; its messages begin with the setting and the network's name."""

    def __init__(self, problem: Problem, training: TrainingConfig, setting: str) -> None:
        self.problem, self.training, self.setting = problem, training, setting
        self.name = spoken(problem.model.name)

    def run(self, seed: int, data: DeviceData) -> None:
        """Build the network, look at its tensors and make a step."""
        problem, sizes = self.problem, np.diff(data.offsets)
        with self._named("be built"):
            self._check_memory(_parameters_without_building(problem), 0)
            module = build(problem, seed)
        stays = kept_at_home(module) or any(not parameter.requires_grad for parameter in module.parameters())
        self._check_tensors(module, build(problem, seed) if stays else module)
        x, y = (tensor[:CHECKED_SAMPLES] for tensor in Samples(problem, data).of(int(sizes.argmax())))
        attempt = f"read a batch of inputs of the shape {list(x.shape[1:])}"
        if problem.num_tokens is not None:
            attempt += ", which are tokens because they are integers (features are float32, and images uint8)"
        one_sample = "train on a batch of one sample, which some device has"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            with self._named(attempt):
                with torch.no_grad():
                    self._check_outputs(module.eval()(x), len(x))
                activations = self._check_step(module.train(), x, y)
            if _ends_with_one(sizes, self.training):
                with self._named(one_sample, "change training.batch_size or data.samples_per_device"):
                    module(x[:1])
        batch = max(min(self.training.batch_size, int(sizes.max())), EVALUATION_BATCH // 8)
        self._check_memory(num_parameters(module), batch * activations)
        if self.training.device != "cpu" or self.training.kernel == "batched":
            self._check_stacked(module, x, y)

    def _refused(self, defect: str, fix: str) -> ConfigError:
        return ConfigError(f"{self.setting}: '{self.name}' {defect}; {fix}")

    @contextmanager
    def _named(self, deed: str, fix: str = "correct the network or its options") -> Iterator[None]:
        """Say in one line, with the user's own line of code, what the network cannot do."""
        try:
            yield
        except HflrayError:
            raise
        except Exception as error:  # a network may raise any type
            raise self._refused(f"cannot {deed}: {reason(error)}", fix) from error

    def _check_memory(self, parameters: int, activations: int) -> None:
        needed = BYTES_PER_NUMBER * parameters + activations
        total = memory_share(1.0)
        if needed > total:
            raise self._refused(
                f"needs about {needed / GIB:,.1f} GiB in every process that trains it ({parameters:,} weights, "
                f"{activations / GIB:,.1f} GiB for a batch), and this machine has {total / GIB:,.1f} GiB",
                "take a smaller network, or lower training.batch_size",
            )

    def _check_tensors(self, module: nn.Module, again: nn.Module) -> None:
        """Refuse tensors that cannot travel, and those that stay at home but differ from one host to the next."""
        if not trained(module):
            raise self._refused("has no parameter to train", "let at least one require a gradient")
        travels = {id(tensor) for tensor in travelling(module)}
        second = dict(again.named_parameters()) | dict(again.named_buffers())
        for label, tensor in (*module.named_parameters(), *module.named_buffers()):
            if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
                raise self._refused(f"has the lazy tensor '{label}' without a shape", "give its layer its sizes")
            if id(tensor) in travels and tensor.requires_grad and tensor.dtype is not torch.float32:
                raise self._refused(f"trains '{label}' as {tensor.dtype}; accepted: torch.float32", "convert it")
            if id(tensor) not in travels and not torch.equal(tensor, second[label]):
                raise self._refused(
                    f"has another '{label}' each time that it is built, and this part is not sent to the devices (a "
                    "frozen parameter or an integer buffer)", "draw it with torch's own generator",
                )  # fmt: skip

    def _check_outputs(self, outputs: object, count: int) -> None:
        expected = [count, self.problem.num_outputs]
        if not isinstance(outputs, Tensor):
            raise self._refused(f"returns a {type(outputs).__name__}; accepted: one tensor", "correct its forward")
        if list(outputs.shape) != expected:
            raise self._refused(
                f"returns the shape {list(outputs.shape)} for {count} inputs; accepted: {expected}, since these data "
                f"need {expected[1]} outputs for each", "correct its last layer",
            )  # fmt: skip

    def _check_step(self, module: nn.Module, x: Tensor, y: Tensor) -> int:
        """Make the forward and backward pass of a step; return the bytes of activations that it keeps for a sample."""
        held_bytes = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal held_bytes
            held_bytes += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = module(x)
            self._check_outputs(outputs, len(x))
            loss = find_loss(self.problem.loss)(outputs.float(), y)
        if loss.dim():
            raise ConfigError(
                f"training.loss: '{spoken(self.problem.loss)}' returns a tensor of the shape {list(loss.shape)}; "
                "accepted: one number; take the mean"
            )
        gradients = torch.autograd.grad(loss, trained(module), allow_unused=True)
        if not all(torch.isfinite(tensor).all() for tensor in (loss, *gradients) if tensor is not None):
            raise self._refused(
                f"has a loss of {float(loss.detach())} on its first batch, before any training, and it or its gradient "
                "is not finite", "look at its first weights, its layers and the range of its outputs",
            )  # fmt: skip
        return held_bytes // len(x)

    def _check_stacked(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse a network that the batched kernel cannot train."""
        begin, fix = "training.kernel: batched trains all devices at once", "set training.kernel to auto"
        if self.training.device != "cpu":
            begin, fix = "training.device: GPUs train all devices at once", "set training.device to cpu"
        takes_statistics = ConfigError(
            f"{begin}, with batches of padded length, and '{self.name}' takes statistics of its batches; use a "
            f"normalisation without them, such as GroupNorm, or {fix}"
        )
        if num_statistics(module):
            raise takes_statistics
        trainer = BatchedTrainer(module, find_loss(self.problem.loss), 0.0, "cpu")
        trainer.hold(x.numpy(), y.numpy(), torch.ones(1), torch.zeros(1))
        start = torch.cat([parameter.detach().reshape(-1) for parameter in trained(module)]).numpy()
        try:
            trainer.fit([start] * 2, [[np.arange(len(y))]] * 2)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"{begin} (torch.func.vmap), and '{self.name}' cannot be trained so "
                f"({one_line(str(error).splitlines()[0])}); {fix}"
            ) from error
        with torch.no_grad():  # the output of a sample must not depend on the one beside it, which may be padding
            alone, beside = (module(x[[0, other]])[0] for other in (0, -1))
        if not torch.allclose(alone, beside):
            raise takes_statistics


def _parameters_without_building(problem: Problem) -> int:
    """Return the number of parameters without the memory for them; 0 if the constructor needs real tensors."""
    try:
        with torch.device("meta"):
            return num_parameters(build(problem))
    except HflrayError:
        raise
    except Exception:  # a constructor that reads numbers; it is built for real next
        return 0


def _ends_with_one(sizes: NDArray[np.int64], training: TrainingConfig) -> bool:
    """Return whether some device makes a step on a single sample."""
    if training.local_iteration == "epoch":
        return bool((sizes % training.batch_size == 1 % training.batch_size).any())
    return bool((sizes == 1).any()) or (training.local_iteration == "step" and training.batch_size == 1)
