"""Contestant (e): Flower's simulation engine as in its quickstart, with FedAvg. The arguments are data and CPUs."""

from __future__ import annotations

import logging
import sys

import numpy as np
import torch
from common import Work, fit, flat, load, resident, serve
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

PATH, CPUS = sys.argv[1], int(sys.argv[2])
DEVICES = Work(PATH).devices
for name in ("flwr", "ray"):
    logging.getLogger(name).setLevel(logging.ERROR)

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    work = resident(PATH)
    x, y = work.of(int(context.node_config["partition-id"]))
    model = work.net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = message.content["config"]
    fit(model, x, y, config["local_iterations"], config["batch_size"])
    told = {"num-examples": len(y), "threads": torch.get_num_threads()}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(told)})
    return Message(content=content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    model = Work(PATH).net()
    load(model, Work(PATH).start)
    said: dict[str, object] = {"kernel": "peers"}
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=DEVICES, min_available_nodes=DEVICES)

    def train_round(local_iterations: int, batch_size: int) -> np.ndarray:
        result = strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=1,
            train_config=ConfigRecord({"local_iterations": local_iterations, "batch_size": batch_size}),
        )
        model.load_state_dict(result.arrays.to_torch_state_dict())
        said["threads"] = float(result.train_metrics_clientapp[1]["threads"])  # their weighted mean
        return flat(model)

    serve(train_round, lambda: said)


run_simulation(
    server,
    client,
    num_supernodes=DEVICES,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": CPUS}},
)
