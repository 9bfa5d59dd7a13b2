"""Many devices trained at once: stacked parameters and `torch.func.vmap`, for GPUs, where one device fills nothing.

The devices' models are a batch dimension of one computation, every device with its own weights, data and mini-batch
order. Devices have unequal D_n: their data are padded, and a mask gives padding no weight in the loss; a device that
has no batch left gets a zero gradient. So each makes exactly the steps that it makes alone, equal to float32 rounding
(a test compares with the other kernels, on CPU tensors, with this same code). On a CPU it is slower than training
one device after the other, and is never chosen there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from hflray.errors import HflrayError
from hflray.models import load_vector
from hflray.training.aggregate import FloatVector

log = logging.getLogger(__name__)

Samples = tuple[Tensor, Tensor]  # normalised images (n, C, H, W), labels (n,)
Batches = list[NDArray[np.int64]]


class BatchedTrainer:
    """Trains groups of devices at once.

    Args:
        module: the architecture; it belongs to the trainer from then on.
        learning_rate: β.
        device: torch's name of where to compute.
        bf16: the layers in bfloat16; weights and updates stay float32.
    """

    def __init__(self, module: torch.nn.Module, learning_rate: float, device: str, bf16: bool = False) -> None:
        self._device, self._rate, self._bf16 = torch.device(device), learning_rate, bf16
        self._module = module.to(self._device)
        self._shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self._gradient = vmap(grad(self._loss))
        self._most: int | None = None  # devices at once, as far as the memory has shown

    def fit(
        self, starts: Sequence[FloatVector], data: Sequence[Samples], batches: Sequence[Batches]
    ) -> list[FloatVector]:
        """Train device g from ``starts[g]`` on ``data[g]``, through ``batches[g]``; return the models, (P,) each.

        When the memory does not hold all of them the devices are split and tried again, with one warning.

        Raises:
            HflrayError: the memory does not hold one device.
        """
        results: list[FloatVector] = []
        while len(results) < len(starts):
            count = min(self._most or len(starts), len(starts) - len(results))
            part = slice(len(results), len(results) + count)
            try:
                results += self._fit(starts[part], data[part], batches[part])
                continue
            except torch.OutOfMemoryError as error:
                if count == 1:
                    raise HflrayError(
                        f"the memory of {self._device} does not hold the training of one device "
                        f"({str(error).splitlines()[0]}); lower training.batch_size, or set training.device to cpu"
                    ) from error
            if self._most is None:
                log.warning("out of memory on %s: its devices are trained in smaller groups from now on", self._device)
            self._most = count // 2
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return results

    def load(self, vector: FloatVector) -> None:
        """Take over the parameters, (P,), for `logits`."""
        load_vector(self._module, vector)

    def logits(self, images: Tensor) -> Tensor:
        """Scores (n, num_classes) of normalised images, on the CPU."""
        with torch.no_grad(), self._precision():
            scores: Tensor = self._module(images.to(self._device))
        return scores.float().cpu()

    def _fit(
        self, starts: Sequence[FloatVector], data: Sequence[Samples], batches: Sequence[Batches]
    ) -> list[FloatVector]:
        if not any(batches):
            return [start.copy() for start in starts]
        stacked = torch.from_numpy(np.stack(starts)).to(self._device)
        sizes = [shape.numel() for shape in self._shapes.values()]
        parameters = {
            name: part.reshape(len(starts), *shape).contiguous()
            for (name, shape), part in zip(self._shapes.items(), torch.split(stacked, sizes, dim=1), strict=True)
        }
        longest = max(len(y) for _, y in data)
        x = torch.zeros(len(data), longest, *data[0][0].shape[1:])
        y = torch.zeros(len(data), longest, dtype=torch.int64)
        for g, (images, labels) in enumerate(data):
            x[g, : len(labels)], y[g, : len(labels)] = images, labels
        x, y = x.to(self._device), y.to(self._device)
        steps, width = max(map(len, batches)), max(len(batch) for own in batches for batch in own)
        chosen, mask = np.zeros((steps, len(data), width), np.int64), np.zeros((steps, len(data), width), np.float32)
        for g, own in enumerate(batches):
            for t, batch in enumerate(own):
                chosen[t, g, : len(batch)], mask[t, g, : len(batch)] = batch, 1.0
        # One transfer for all steps; a copy in each would make the GPU wait.
        picks, masks = torch.from_numpy(chosen).to(self._device), torch.from_numpy(mask).to(self._device)
        row = torch.arange(len(data), device=self._device)[:, None]
        for pick, weight in zip(picks, masks, strict=True):
            gradients = self._gradient(parameters, x[row, pick], y[row, pick], weight)
            with torch.no_grad():
                torch._foreach_add_(list(parameters.values()), [gradients[n] for n in parameters], alpha=-self._rate)
        flat = torch.cat([parameter.reshape(len(starts), -1) for parameter in parameters.values()], dim=1)
        return list(flat.cpu().numpy())

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        with self._precision():
            scores = functional_call(self._module, parameters, (x,))
        each = functional.cross_entropy(scores.float(), y, reduction="none")
        return (each * mask).sum() / mask.sum().clamp(min=1)

    def _precision(self) -> torch.autocast | nullcontext[None]:
        return torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext()
