"""What of a network travels between devices, edges and cloud: one flat float32 vector of weights and statistics.

The vector holds the parameters that are trained, in the order of ``module.parameters()``, and then the floating
buffers, such as the running statistics of BatchNorm. A weight that two layers share is held once. What does not travel
is alike on all hosts, because it is drawn from the experiment's seed: frozen parameters (``requires_grad=False``),
which nobody changes, and integer buffers, such as counters, which every local training starts anew.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hflray.errors import HflrayError

BITS_PER_PARAMETER = 32

Vector = NDArray[np.float32]


def trained(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained, in order; shared ones once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def statistics(module: nn.Module) -> list[Tensor]:
    """Return the floating buffers, which travel behind the parameters, in order; shared ones once."""
    return [buffer for buffer in module.buffers() if buffer.is_floating_point()]


def travelling(module: nn.Module) -> list[Tensor]:
    """Return all tensors whose numbers are in the vector, in the order of the vector."""
    return [*trained(module), *statistics(module)]


def kept_at_home(module: nn.Module) -> list[Tensor]:
    """Return the buffers that do not travel; every local training starts with their first values."""
    return [buffer for buffer in module.buffers() if not buffer.is_floating_point()]


def num_statistics(module: nn.Module) -> int:
    """Return how many numbers at the end of the vector are those of buffers."""
    return sum(buffer.numel() for buffer in statistics(module))


def to_vector(module: nn.Module) -> Vector:
    """Return a copy of all that travels, (P,) float32."""
    with torch.no_grad():
        # torch.cat copies even a single tensor, so the result never shares memory with the module.
        return torch.cat([tensor.reshape(-1).float() for tensor in travelling(module)]).cpu().numpy()


def load_vector(module: nn.Module, vector: NDArray[np.floating]) -> None:
    """Copy `vector` (P,) into the module's tensors in place, so that they stay the same tensors.

    Raises:
        HflrayError: the vector does not have exactly P numbers.
    """
    expected = num_parameters(module)
    if vector.shape != (expected,):
        raise HflrayError(
            f"{type(module).__name__} has {expected} parameters, but the vector has shape {vector.shape}; "
            "it belongs to a model for another data set or number of classes"
        )
    # torch warns of read-only arrays, such as those from Ray's object store, although nothing writes to them.
    flat = torch.from_numpy(vector if vector.flags.writeable else vector.copy())
    with torch.no_grad():
        start = 0
        for tensor in travelling(module):
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()


def num_parameters(module: nn.Module) -> int:
    """Return P, the length of the vector: the trained parameters and the floating buffers."""
    return sum(tensor.numel() for tensor in travelling(module))
