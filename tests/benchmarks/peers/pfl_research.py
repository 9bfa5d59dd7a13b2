"""Contestant (f): pfl-research in one process with as many threads as CPUs. The arguments are data and threads."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from common import LEARNING_RATE, Work, flat, load, own_threads
from networks import NETWORKS
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import HyperParam, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

work = Work(sys.argv[1])
torch.set_num_threads(int(sys.argv[2]))


class Learner(NETWORKS[work.model]):
    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict:
        return {}


class Setting(HyperParam):
    """The driver's last command."""

    def __init__(self, name: str) -> None:
        self.name = name

    def value(self) -> int:
        return command[self.name]


class Turn(TrainingProcessCallback):
    """After each round, answer the driver and wait for its next line."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration: int):
        if command["save"]:
            np.save(command["save"], flat(model.pytorch_model))
        print("done", json.dumps(own_threads()), flush=True)
        return not listen(), Metrics()


def listen() -> bool:
    line = sys.stdin.readline()
    if line:
        command.update(json.loads(line))
    return bool(line)


command: dict = {}
net = Learner()
load(net, work.start)
cached = {device: [*work.of(device)] for device in range(work.devices)}
dataset = FederatedDataset(
    lambda user: Dataset(raw_data=cached[user], user_id=str(user)),
    get_user_sampler("minimize_reuse", list(range(work.devices))),
)
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
backend = SimulatedBackend(dataset, None, postprocessors=[WeightByDatapoints()])
parameters = NNAlgorithmParams(
    central_num_iterations=10**6, evaluation_frequency=10**6, train_cohort_size=work.devices, val_cohort_size=None
)
settings = NNTrainHyperParams(
    local_num_epochs=Setting("local_iterations"),
    local_learning_rate=LEARNING_RATE,
    local_batch_size=Setting("batch_size"),
)
print("ready", flush=True)
if listen():
    FederatedAveraging().run(parameters, backend, model, settings, callbacks=[Turn()], send_metrics_to_platform=False)
