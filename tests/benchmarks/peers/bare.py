"""Contestants (a) and (b): a bare PyTorch loop in one process on one CPU.

The arguments are the data, the CPU, the first device and the step of its devices, and channels_last for a network and
images in that layout, which hflray's kernel of that name uses.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
from common import Work, fit, flat, load, own_threads, serve

work = Work(sys.argv[1])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(sys.argv[2])})
torch.set_num_threads(1)
devices = range(int(sys.argv[3]), work.devices, int(sys.argv[4]))
data = {device: work.of(device) for device in devices}
model, weights = work.net(), work.start
kernel = "channels_last" if "channels_last" in sys.argv[5:] else "peers"
if kernel == "channels_last":
    data = {device: (x.contiguous(memory_format=torch.channels_last), y) for device, (x, y) in data.items()}


def train_round(local_iterations: int, batch_size: int) -> np.ndarray:
    global weights
    total, samples = np.zeros(len(weights)), 0
    for x, y in data.values():
        load(model, weights)
        if kernel == "channels_last":
            model.to(memory_format=torch.channels_last)
        fit(model, x, y, local_iterations, batch_size)
        total += len(y) * flat(model).astype(np.float64)
        samples += len(y)
    weights = (total / samples).astype(np.float32)
    return weights


serve(train_round, lambda: own_threads() | {"kernel": kernel})
