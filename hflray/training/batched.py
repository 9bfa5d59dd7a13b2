"""Many devices trained at once: stacked parameters and `torch.func.vmap`, for GPUs, where one device fills nothing.

The devices' models are a batch dimension of one computation, every device with its own weights, data and mini-batch
order. The data set lies on the GPU once, as bytes; a step gathers and normalises its samples there. Batches are
padded, and a mask gives padding no weight in the loss; a device that has no batch left gets a zero gradient. So each
makes exactly the steps that it makes alone, equal to float32 rounding (a test compares with the other kernels, on CPU
tensors, with this same code). On a CPU it is slower than training one device after the other, and is never chosen.

A step works in place on tensors of a `Group`. On a GPU it is some 60 small kernels, and to issue them can take longer
than to run them; so it can be captured once for each shape as a CUDA graph and replayed: the same kernels on the same
tensors, hence the same bits. Shapes are rounded up (`rounded_up`), so that few graphs serve all rounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from hflray.errors import HflrayError
from hflray.models import load_vector
from hflray.training.aggregate import FloatVector
from hflray.training.kernels import Precision

log = logging.getLogger(__name__)

Batches = list[NDArray[np.int64]]  # of each step, positions in the data set
NO_SAMPLE = -1  # a place of a batch that is padding
KEPT_GROUPS = 4  # shapes whose tensors and graphs are kept
WARM_UP_STEPS = 3  # before a capture, so that libraries have chosen their algorithms and workspaces
TIMED_STEPS, TIMED_TURNS = 10, 3


class Group:
    """The tensors that a step of some devices works on; always the same ones, as a CUDA graph needs it.

    Attributes:
        parameters: by name, (count, *shape).
        pick: which samples each device takes in this step, (count, width); `NO_SAMPLE` where it takes none.
        replay: makes a step from a captured graph; None until there is one.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], count: int, width: int, device: torch.device) -> None:
        self.parameters = {name: torch.zeros(count, *shape, device=device) for name, shape in shapes.items()}
        self.pick = torch.full((count, width), NO_SAMPLE, dtype=torch.int64, device=device)
        self.replay: Callable[[], None] | None = None

    def load(self, vectors: Tensor) -> None:
        """Take over the parameters of the first devices, (n, P)."""
        sizes = [values[0].numel() for values in self.parameters.values()]
        for values, part in zip(self.parameters.values(), torch.split(vectors, sizes, dim=1), strict=True):
            values[: len(part)] = part.view(len(part), *values.shape[1:])
            values[len(part) :] = 0

    def vectors(self, count: int) -> Tensor:
        """The parameters of the first `count` devices, (count, P)."""
        return torch.cat([values[:count].reshape(count, -1) for values in self.parameters.values()], dim=1)


class BatchedTrainer:
    """Trains groups of devices at once.

    Args:
        module: the architecture; it belongs to the trainer from then on.
        learning_rate: β.
        device: torch's name of where to compute.
        precision: of the layers; weights and updates are always float32. Sets torch's flag for TF32 on a GPU, where
            its default is TF32 for convolutions.
        graph: replay a captured step, on a GPU; None: if that is faster, as timed at the first use. Elsewhere: never.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        learning_rate: float,
        device: str,
        precision: Precision = "float32",
        graph: bool | None = None,
    ) -> None:
        self._device, self._rate, self._bf16 = torch.device(device), learning_rate, precision == "bf16"
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self._module = module.to(self._device)
        self._shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self._gradient = vmap(grad(self._loss))
        self._graph = graph if on_gpu else False
        self._groups: dict[tuple[int, int], Group] = {}
        self._most: int | None = None  # devices at once, as far as the memory has shown

    def hold(
        self, x: NDArray[np.uint8] | NDArray[np.float32], y: NDArray[np.int64], scale: Tensor, shift: Tensor
    ) -> None:
        """Take the data set: images (n, C, H, W) and labels (n,). Bytes become ``x · scale + shift`` in each step."""
        self._x, self._y = torch.tensor(x, device=self._device), torch.tensor(y, device=self._device)
        self._scale, self._shift = scale.to(self._device), shift.to(self._device)

    def fit(self, starts: Sequence[FloatVector], batches: Sequence[Batches]) -> list[FloatVector]:
        """Train device g from ``starts[g]`` through ``batches[g]``; return the models, (P,) each.

        When the memory does not hold all of them the devices are split and tried again, with one warning.

        Raises:
            HflrayError: the memory does not hold one device.
        """
        results: list[FloatVector] = []
        while len(results) < len(starts):
            count = min(self._most or len(starts), len(starts) - len(results))
            part = slice(len(results), len(results) + count)
            try:
                results += self._fit(starts[part], batches[part])
                continue
            except torch.OutOfMemoryError as error:
                if len(self._groups) > 1:  # first, what is kept for other shapes goes
                    self._let_go()
                    continue
                if count == 1:
                    raise HflrayError(
                        f"the memory of {self._device} does not hold the training of one device "
                        f"({str(error).splitlines()[0]}); lower training.batch_size, or set training.device to cpu"
                    ) from error
            if self._most is None:
                log.warning("out of memory on %s: its devices are trained in smaller groups from now on", self._device)
            self._most = count // 2
            self._let_go()
        return results

    def load(self, vector: FloatVector) -> None:
        """Take over the parameters, (P,), for `logits`."""
        load_vector(self._module, vector)

    def logits(self, images: Tensor) -> Tensor:
        """Scores (n, num_classes) of normalised images, on the CPU."""
        with torch.no_grad(), self._precision():
            scores: Tensor = self._module(images.to(self._device))
        return scores.float().cpu()

    def _fit(self, starts: Sequence[FloatVector], batches: Sequence[Batches]) -> list[FloatVector]:
        if not any(batches):
            return [start.copy() for start in starts]
        steps, width = max(map(len, batches)), max(len(batch) for own in batches for batch in own)
        shape = rounded_up(len(starts)), rounded_up(width)
        chosen = np.full((steps, *shape), NO_SAMPLE, np.int64)
        for g, own in enumerate(batches):
            for t, batch in enumerate(own):
                chosen[t, g, : len(batch)] = batch
        group = self._group(*shape)
        run = self._runner(group)  # may make steps of its own, so before the parameters are loaded
        group.load(torch.from_numpy(np.stack(starts)).to(self._device))
        # One transfer for all steps; a copy from the CPU in each would make the GPU wait.
        for pick in torch.from_numpy(chosen).to(self._device):
            group.pick.copy_(pick)
            run()
        return list(group.vectors(len(starts)).cpu().numpy())

    def _let_go(self) -> None:
        """Give back the memory of all groups and their graphs."""
        self._groups.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _group(self, count: int, width: int) -> Group:
        """The tensors for this shape; of the shapes used least recently one is let go."""
        group = self._groups.pop((count, width), None)
        if group is None:
            while len(self._groups) >= KEPT_GROUPS:
                del self._groups[next(iter(self._groups))]
            group = Group(self._shapes, count, width, self._device)
        self._groups[count, width] = group
        return group

    def _runner(self, group: Group) -> Callable[[], None]:
        """How a step of the group is made: issued anew, or replayed."""
        plain = partial(self._step, group)
        if self._graph is False:
            return plain
        if group.replay is None:
            try:
                group.replay = capture(plain)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                log.warning("no CUDA graph of a step can be made (%s); steps are issued one by one", reason)
                self._graph = False
                return plain
            if self._graph is None:
                self._graph = _faster(group.replay, plain)
                if not self._graph:
                    group.replay = None
                    return plain
        return group.replay

    def _step(self, group: Group) -> None:
        """One step of SGD of every device on its samples, in place."""
        taken, index = group.pick >= 0, group.pick.clamp(min=0)
        x = self._x[index]
        if x.dtype == torch.uint8:
            x = x.float().mul_(self._scale).add_(self._shift)
        gradients = self._gradient(group.parameters, x, self._y[index], taken.float())
        values = list(group.parameters.values())
        with torch.no_grad():
            torch._foreach_add_(values, [gradients[name] for name in group.parameters], alpha=-self._rate)

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        with self._precision():
            scores = functional_call(self._module, parameters, (x,))
        each = functional.cross_entropy(scores.float(), y, reduction="none")
        return (each * mask).sum() / mask.sum().clamp(min=1)

    def _precision(self) -> torch.autocast | nullcontext[None]:
        # Without the cache: it would keep casts made inside a captured graph, and a step uses each weight once.
        return torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False) if self._bf16 else nullcontext()


def rounded_up(count: int) -> int:
    """`count`, or up to an eighth more, so that numbers that vary a little become few: 1 to 16, 18, 20, … 32, 36, …"""
    quantum = 1 << max(0, (count - 1).bit_length() - 4)
    return -(-count // quantum) * quantum


def capture(step: Callable[[], None]) -> Callable[[], None]:
    """Capture what `step` does on the GPU; return what does it again. Makes some steps on the way."""
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
    """Whether the first makes steps faster than the second: timed in turns, the best of each."""
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
    """Of one step, over some."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TIMED_STEPS):
        run()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / TIMED_STEPS
