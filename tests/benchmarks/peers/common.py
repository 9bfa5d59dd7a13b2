"""Code of all contestants; it needs torch and NumPy only, because the peers run in their own environments.

A contestant is a process that says ``ready``, then for every line ``{"local_iterations": L, "batch_size": B, "save":
path or null}`` trains one round (every device from the global model, then the weighted mean) and answers ``done`` with
its report about the round, as JSON. All contestants can therefore run at the same time and take turns, and the start
does not count.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable

import numpy as np
import torch
from networks import NETWORKS
from torch import Tensor, nn
from torch.nn import functional

LEARNING_RATE = 0.01


class Work:
    """The network's name, the devices' data, and the first weights.

    They are `model`, `x` (n, C, H, W) uint8 or (n, tokens) integers, `y` (n,), `offsets` (H + 1,), `start` (P,), and
    the channels' `mean` and `std` (C,).
    """

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.x, self.y, self.offsets, self.start = (file[name] for name in ("x", "y", "offsets", "start"))
            self.mean, self.std, self.model = file["mean"], file["std"], str(file["model"])
        self.devices = len(self.offsets) - 1

    def net(self) -> nn.Module:
        """Return the network, with weights that are still to be loaded."""
        return NETWORKS[self.model]()

    def of(self, device: int) -> tuple[Tensor, Tensor]:
        """Return the normalised images, or the tokens, and the labels of a device."""
        part = slice(self.offsets[device], self.offsets[device + 1])
        x, y = torch.from_numpy(self.x[part]), torch.from_numpy(self.y[part])
        if x.dtype != torch.uint8:
            return x.long(), y
        mean, std = (torch.from_numpy(moment).view(-1, 1, 1) for moment in (self.mean, self.std))
        return (x.float() / 255 - mean) / std, y


@functools.cache
def resident(path: str) -> Work:
    """Return the data, which each worker process loads once, and set one thread."""
    torch.set_num_threads(1)
    return Work(path)


def load(model: nn.Module, vector: np.ndarray) -> None:
    nn.utils.vector_to_parameters(
        torch.from_numpy(vector.copy()), model.parameters()
    )  # the parameters become views of the vector


def flat(model: nn.Module) -> np.ndarray:
    # torch.nn.utils.parameters_to_vector takes no parameters in the layout channels_last.
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


def fit(model: nn.Module, x: Tensor, y: Tensor, local_iterations: int, batch_size: int) -> None:
    """Train with plain mini-batch SGD on data in memory, without a DataLoader."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(local_iterations):
        order = torch.randperm(len(y))
        for batch in order.split(batch_size):
            step(model, optimiser, x[batch], y[batch])


def step(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """Take one gradient step in plain PyTorch, which is the peers' kernel."""
    optimiser.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    optimiser.step()


def own_threads() -> dict[str, object]:
    """Return the report of a contestant that trains in its own process."""
    return {"kernel": "peers", "threads": torch.get_num_threads()}


def serve(train_round: Callable[[int, int], np.ndarray], note: Callable[[], dict[str, object]] = own_threads) -> None:
    """Answer the driver.

    Args:
        train_round: called with `local_iterations` and `batch_size`; returns the new global model, (P,).
        note: returns the report about the last round.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        vector = train_round(command["local_iterations"], command["batch_size"])
        if command["save"]:
            np.save(command["save"], vector)
        print("done", json.dumps(note()), flush=True)
