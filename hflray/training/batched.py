"""Train many devices at once with stacked parameters and `torch.func.vmap`, because one device cannot fill a GPU.

The devices' models are a batch dimension of one computation. Every device has its own weights, data and mini-batch
order. The data set lies on the GPU once, as bytes, and each step gathers and normalises its samples there. Batches are
padded, and a mask gives the padding no weight in the loss. A device without a further batch gets a zero gradient. Each
device therefore makes the steps that it makes alone, up to float32 rounding; a test runs this code on CPU tensors and
compares it with the other kernels. On a CPU this is slower than training one device after the other, so it is never
chosen there.

A step works in place on the tensors of a `Group`. On a GPU it consists of some 60 small kernels, and issuing them can
take longer than running them. A step can therefore be captured once per shape as a CUDA graph and replayed. The replay
runs the same kernels on the same tensors, so it gives the same bits. Shapes are rounded up (`rounded_up`), so that few
graphs serve all rounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from hflray.aggregation.fixed_point import FloatVector
from hflray.errors import HflrayError
from hflray.losses import Loss
from hflray.models.vector import load_vector
from hflray.training.differences import Differences
from hflray.training.kernel_base import split_like
from hflray.training.kernels import Precision

log = logging.getLogger(__name__)

Batches = list[NDArray[np.int64]]  # for each step, the samples' positions in the data set
KEPT_GROUPS = 4  # the number of shapes whose tensors and graphs stay in memory
WARM_UP_STEPS = 3  # steps before a capture, in which libraries choose their algorithms and workspaces
TIMED_STEPS, TIMED_TURNS = 10, 3
NO_SAMPLE = -1  # marks padding in a batch


class Group:
    """The tensors on which a group of devices makes its steps. A CUDA graph needs the same tensors in every step.

    Attributes:
        parameters: the devices' parameters by name, (places, *shape) each.
        pick: the samples of each device in this step, (places, width); `NO_SAMPLE` marks padding.
        replay: a function that makes a step from the captured graph; None before the capture.
        count: n, the number of devices whose parameters are loaded.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], places: int, width: int, device: torch.device) -> None:
        self.parameters = {name: torch.zeros(places, *shape, device=device) for name, shape in shapes.items()}
        self.pick = torch.full((places, width), NO_SAMPLE, dtype=torch.int64, device=device)
        self.replay: Callable[[], None] | None = None
        self.count = 0

    def load(self, vectors: Tensor) -> None:
        """Copy `vectors`, (n, P), into the parameters of the first n devices, and set the others to zero."""
        self.count = len(vectors)
        for values, part in zip(self.parameters.values(), self.arranged(vectors), strict=True):
            values[: self.count] = part
            values[self.count :] = 0

    def weights(self) -> list[Tensor]:
        """Return the parameters of the loaded devices, (n, *shape) each, without a copy."""
        return [values[: self.count] for values in self.parameters.values()]

    def vectors(self) -> Tensor:
        """Return the parameters of the loaded devices, (n, P)."""
        return torch.cat([values.reshape(self.count, -1) for values in self.weights()], dim=1)

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """See `hflray.training.differences.ResidentWeights`."""
        return split_like(vectors, [values.shape[1:] for values in self.parameters.values()])

    def memory(self) -> list[Tensor]:
        """See `hflray.training.differences.ResidentWeights`. Torch steps all devices at once, on a GPU too."""
        return []


def rounded_up(count: int) -> int:
    """Round `count` up to 1 to 16, 18, 20, … 32, 36, …: at most an eighth more, so that similar shapes become equal."""
    quantum = 1 << max(0, (count - 1).bit_length() - 4)
    return -(-count // quantum) * quantum


# Given which of the devices are trained and their resident weights, returns what makes their steps.
Stepping = Callable[[slice, Group], Differences]


class BatchedTrainer:
    """Trains groups of devices at once.

    Args:
        module: the architecture. The trainer owns and changes it.
        loss: the loss.
        learning_rate: β.
        device: torch's name of the device that computes.
        precision: the precision of the layers; weights and updates are always float32. On a GPU this also sets
            torch's TF32 flags, because torch allows TF32 in convolutions by default.
        graph: whether a GPU replays a captured step. None times both ways at the first use and takes the faster one.
            Other devices never use graphs.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Loss,
        learning_rate: float,
        device: str,
        precision: Precision = "float32",
        graph: bool | None = None,
    ) -> None:
        self._device, self._rate, self._bf16 = torch.device(device), learning_rate, precision == "bf16"
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self._module = module.to(self._device).train()
        self._shapes = {
            name: parameter.shape for name, parameter in module.named_parameters() if parameter.requires_grad
        }
        self._loss = loss
        self._gradient = vmap(grad(self._mean_loss))
        self._graph = graph if on_gpu else False
        self._groups: dict[tuple[int, int], Group] = {}
        self._max_group: int | None = None  # the largest group that the memory holds, once it has been exceeded

    def hold(self, x: NDArray[Any], y: NDArray[np.int64] | NDArray[np.float32], scale: Tensor, shift: Tensor) -> None:
        """Copy the data set to the device: inputs (n, …) and targets (n,).

        Images given as bytes are normalised to ``x · scale + shift`` in each step.
        """
        self._x, self._y = torch.tensor(x, device=self._device), torch.tensor(y, device=self._device)
        self._scale, self._shift = scale.to(self._device), shift.to(self._device)

    def fit(
        self, starts: Sequence[FloatVector], batches: Sequence[Batches], stepping: Stepping | None = None
    ) -> list[FloatVector]:
        """Train device g from ``starts[g]`` on ``batches[g]``; return the models, (P,) each.

        Plain steps are made unless `stepping` is given. If the memory does not hold all devices at once, they are split
        into smaller groups, with one warning.

        Raises:
            HflrayError: the memory does not hold the training of one device.
        """
        results: list[FloatVector] = []
        while len(results) < len(starts):
            count = min(self._max_group or len(starts), len(starts) - len(results))
            part = slice(len(results), len(results) + count)
            try:
                results += self._fit(starts[part], batches[part], stepping and partial(stepping, part))
                continue
            except torch.OutOfMemoryError as error:
                if len(self._groups) > 1:  # release the memory of other shapes before splitting the devices
                    self._release_groups()
                    continue
                if count == 1:
                    raise HflrayError(
                        f"the memory of {self._device} does not hold the training of one device "
                        f"({str(error).splitlines()[0]}); lower training.batch_size, or set training.device to cpu"
                    ) from error
            if self._max_group is None:
                log.warning("out of memory on %s: its devices are trained in smaller groups from now on", self._device)
            self._max_group = count // 2
            self._release_groups()
        return results

    def load(self, vector: FloatVector) -> None:
        """Load the parameters, (P,), that `logits` uses."""
        load_vector(self._module, vector)

    def logits(self, images: Tensor) -> Tensor:
        """Return the outputs (n, num_outputs) for normalised inputs, on the CPU."""
        self._module.eval()
        with torch.no_grad(), self._precision():
            scores: Tensor = self._module(images.to(self._device))
        self._module.train()
        return scores.float().cpu()

    def _fit(
        self,
        starts: Sequence[FloatVector],
        batches: Sequence[Batches],
        stepping: Callable[[Group], Differences] | None,
    ) -> list[FloatVector]:
        if not any(batches):
            return [start.copy() for start in starts]
        steps = max(map(len, batches))
        width = max(len(batch) for device_batches in batches for batch in device_batches)
        shape = rounded_up(len(starts)), rounded_up(width)
        picks = np.full((steps, *shape), NO_SAMPLE, np.int64)
        for g, device_batches in enumerate(batches):
            for t, batch in enumerate(device_batches):
                picks[t, g, : len(batch)] = batch
        group = self._group(*shape)
        run = self._runner(group)  # before the parameters are loaded, because it may make steps itself
        group.load(torch.from_numpy(np.stack(starts)).to(self._device))
        steps_of = None if stepping is None else stepping(group)
        has_batch = (picks[:, : len(starts), 0] != NO_SAMPLE) if steps_of is not None else None
        # One transfer serves all steps; a copy from the CPU in every step would make the GPU wait.
        for index, pick in enumerate(torch.from_numpy(picks).to(self._device)):
            group.pick.copy_(pick)
            if steps_of is None or has_batch is None:
                run()
            else:
                steps_of.step(run, index, has_batch[index])
        return list(group.vectors().cpu().numpy())

    def _release_groups(self) -> None:
        """Release the memory of all groups and their graphs."""
        self._groups.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _group(self, count: int, width: int) -> Group:
        """Return the tensors of this shape. At most `KEPT_GROUPS` shapes stay; the least recently used ones go."""
        group = self._groups.pop((count, width), None)
        if group is None:
            while len(self._groups) >= KEPT_GROUPS:
                del self._groups[next(iter(self._groups))]
            group = Group(self._shapes, count, width, self._device)
        self._groups[count, width] = group
        return group

    def _runner(self, group: Group) -> Callable[[], None]:
        """Return a function that makes a step of the group, either by issuing its kernels or by replaying a graph."""
        issue = partial(self._step, group)
        if self._graph is False:
            return issue
        if group.replay is None:
            try:
                group.replay = capture(issue)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                log.warning("no CUDA graph of a step can be made (%s); steps are issued one by one", reason)
                self._graph = False
                return issue
            if self._graph is None:
                self._graph = _faster(group.replay, issue)
                if not self._graph:
                    group.replay = None
                    return issue
        return group.replay

    def _step(self, group: Group) -> None:
        """Make one SGD step of every device on its picked samples, in place."""
        is_sample, index = group.pick >= 0, group.pick.clamp(min=0)
        x = self._x[index]
        if x.dtype == torch.uint8:
            x = x.float().mul_(self._scale).add_(self._shift)
        elif not x.is_floating_point():  # tokens
            x = x.long()
        gradients = self._gradient(group.parameters, x, self._y[index], is_sample.float())
        values = list(group.parameters.values())
        with torch.no_grad():
            torch._foreach_add_(values, [gradients[name] for name in group.parameters], alpha=-self._rate)

    def _mean_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        with self._precision():
            scores = functional_call(self._module, parameters, (x,))
        losses = self._loss(scores.float(), y, reduction="none")
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    def _precision(self) -> torch.autocast | nullcontext[None]:
        # The cache is off because it would keep casts that were made inside a captured graph. It would save nothing,
        # since a step uses each weight once.
        return torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False) if self._bf16 else nullcontext()


def capture(step: Callable[[], None]) -> Callable[[], None]:
    """Capture the GPU's work in `step` as a CUDA graph; return a function that replays it.

    The warm-up before the capture makes `WARM_UP_STEPS` steps.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _faster(first: Callable[[], None], second: Callable[[], None]) -> bool:
    """Return whether `first` makes a step faster than `second`. They are timed in turns, and the best times count."""
    best = []
    for run in (first, second):
        run()
        best.append(_seconds(run))
    for _ in range(TIMED_TURNS - 1):
        best = [min(before, _seconds(run)) for before, run in zip(best, (first, second), strict=True)]
    replayed, issued = best
    log.info("a step takes %.2f ms replayed from a CUDA graph, %.2f ms issued anew", 1e3 * replayed, 1e3 * issued)
    return replayed < issued


def _seconds(run: Callable[[], None]) -> float:
    """Return the seconds of one step, averaged over `TIMED_STEPS` steps."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TIMED_STEPS):
        run()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / TIMED_STEPS
