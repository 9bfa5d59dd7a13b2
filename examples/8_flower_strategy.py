"""8. Choose the clients of a Flower app by hflray, and bill its rounds. It needs `pip install flwr`.

Flower trains and combines. hflray says which devices train in a round, at which edge, with which bandwidth and CPU
frequency, and what this costs in simulated seconds and joules.
"""

# %% A strategy of Flower that asks hflray, without Ray, before each round.
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation

from hflray import Fleet, Workload, allocate_round, build_assigner, build_scheduler, round_cost


class Scheduled(FedAvg):
    """FedAvg whose clients are the devices of a fleet, chosen in turn and assigned by local search."""

    def __init__(self, fleet: Fleet, work: Workload, num_scheduled: int) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.fleet, self.work, self.bills = fleet, work, []
        self.scheduler = build_scheduler("fedavg", num_devices=fleet.num_devices, num_scheduled=num_scheduled)
        self.assigner, self.rng = build_assigner("local_search"), np.random.default_rng(0)

    def configure_train(self, server_round, arrays, config, grid):
        """Return a message for each device that trains in this round."""
        _, nodes = sample_nodes(grid, self.fleet.num_devices, 0)  # all nodes, once so many are there
        nodes = sorted(nodes)  # a device of the fleet for each
        devices = self.scheduler.schedule(self.rng)
        edges = self.assigner.assign(self.fleet, self.work, devices, self.rng)
        allocation = allocate_round(self.fleet, self.work, devices, edges)
        self.bills.append(round_cost(self.fleet, self.work, devices, edges, allocation))
        config["server-round"] = server_round
        record = RecordDict({"arrays": arrays, "config": config})
        return [Message(content=record, message_type=MessageType.TRAIN, dst_node_id=nodes[n]) for n in devices]


# %% Any client app: here each device moves a vector towards its own number.
client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Return the vector after a step."""
    (vector,) = message.content["arrays"].to_numpy_ndarrays()
    vector = vector + 0.5 * (context.node_config["partition-id"] - vector)
    answer = RecordDict({"arrays": ArrayRecord([vector]), "metrics": MetricRecord({"num-examples": 500})})
    return Message(content=answer, reply_to=message)


# %% A fleet of 6 devices and 2 edges, and 3 rounds with 4 of the devices.
DEVICES = 6
rng = np.random.default_rng(0)
fleet = Fleet.of(None, rng, max_cpu_hz=np.full(DEVICES, 2e9), edge_bandwidth_hz=np.array([1e6, 2e6]))
strategy = Scheduled(fleet, Workload(model_bits=1e6), num_scheduled=4)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=3)


run_simulation(server, client, num_supernodes=DEVICES)

# %% What the rounds would cost on that fleet.
for number, cost in enumerate(strategy.bills, start=1):
    print(f"round {number}: {cost.delay_s:.2f} s, {cost.energy_j:.3f} J, devices per edge {cost.edge_devices.tolist()}")
