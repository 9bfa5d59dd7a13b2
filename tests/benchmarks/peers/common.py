"""What all contestants share; needs torch and NumPy only, because the peers run in environments of their own.

A contestant is a process that says ``ready``, then for every line ``{"local_iterations": L, "batch_size": B, "save":
path or null}`` trains one round (every device from the global model, then the weighted mean) and answers ``done``. So
all of them can be alive at once and take turns, and start-up is not counted.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LEARNING_RATE = 0.01
MEAN, STD = 0.2860, 0.3530  # Fashion-MNIST's


class Net(nn.Module):
    """The paper's Fashion-MNIST model as anybody would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 15, 5), nn.Conv2d(15, 28, 5)
        self.linear1, self.linear2 = nn.Linear(448, 226), nn.Linear(226, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.linear2(functional.relu(self.linear1(x.flatten(1))))


class Work:
    """The devices' data and the start: `x` (n, 1, 28, 28) uint8, `y`, `offsets` (H + 1,), `start` (P,)."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.x, self.y, self.offsets, self.start = (file[name] for name in ("x", "y", "offsets", "start"))
        self.devices = len(self.offsets) - 1

    def of(self, device: int) -> tuple[Tensor, Tensor]:
        """Normalised images and labels of a device."""
        part = slice(self.offsets[device], self.offsets[device + 1])
        return (torch.from_numpy(self.x[part]).float() / 255 - MEAN) / STD, torch.from_numpy(self.y[part])


@functools.cache
def resident(path: str) -> Work:
    """The data, once for each worker process, which trains with one thread."""
    torch.set_num_threads(1)
    return Work(path)


def load(model: nn.Module, vector: np.ndarray) -> None:
    nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), model.parameters())  # it keeps views


def flat(model: nn.Module) -> np.ndarray:
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def fit(model: nn.Module, x: Tensor, y: Tensor, local_iterations: int, batch_size: int) -> None:
    """Plain mini-batch SGD; data in memory, no DataLoader."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(local_iterations):
        order = torch.randperm(len(y))
        for batch in order.split(batch_size):
            optimiser.zero_grad()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()


def serve(train_round: Callable[[int, int], np.ndarray], note: Callable[[], str] = str) -> None:
    """Answer the driver. `train_round(local_iterations, batch_size)` returns the new global model, (P,).

    `note`: a word about the round, sent along.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        vector = train_round(command["local_iterations"], command["batch_size"])
        if command["save"]:
            np.save(command["save"], vector)
        print("done", note(), flush=True)
