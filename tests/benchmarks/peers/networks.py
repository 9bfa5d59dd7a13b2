"""The networks of the comparison in plain PyTorch, with their parameters in hflray's order; without hflray."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Net(nn.Module):
    """The paper's Fashion-MNIST model."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 15, 5), nn.Conv2d(15, 28, 5)
        self.linear1, self.linear2 = nn.Linear(448, 226), nn.Linear(226, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.linear2(functional.relu(self.linear1(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(8, outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


class ResNet8(nn.Module):
    """ResNet-8 with GroupNorm for CIFAR-10."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(torch.relu(self.norm(self.conv(x)))).mean((2, 3)))


class Gru(nn.Module):
    """A GRU that reads 40 characters of an alphabet of 96 and predicts the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(96, 32), nn.GRU(32, 128, batch_first=True)
        self.linear = nn.Linear(128, 96)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.gru(self.embedding(x))[0][:, -1])


NETWORKS = {"paper_cnn": Net, "resnet8": ResNet8, "gru": Gru}
