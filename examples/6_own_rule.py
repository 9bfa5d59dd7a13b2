"""6. Write a local rule, and train it beside plain SGD and SCAFFOLD, on the same data, fleet and seed.

`register` adds a name in this process. In a sweep file, a file beside it will do:
`training.rule: {name: mine.py:Prox}`.
"""

# %% A local rule says what is added to each gradient; this one pulls towards the model that the device has received.
from hflray import Experiment, load_config
from hflray.registry import register
from hflray.training.rules import LocalRule


class Prox(LocalRule):
    """FedProx, which is also built in as `fedprox`."""

    def __init__(self, mu=0.1):
        self.mu = mu

    def correction(self, weights, received, vectors, memory):
        return self.mu * (weights - received)


register("local_rule", "prox", Prox)

# %% Train with each rule. SCAFFOLD sends one vector more a round on each hop, and its bill says so.
SETTINGS = [
    "fleet.num_devices=20", "fleet.num_edges=3", "scheduling.num_scheduled=6", "scheduling.name=fedavg",
    "data.majority_fraction=1", "training.local_iterations=2", "training.edge_iterations=2", "training.batch_size=16",
    "training.backend=serial", "max_rounds=3",
]  # fmt: skip

for name in ("sgd", "prox", "scaffold"):
    with Experiment(load_config(None, [*SETTINGS, f"training.rule.name={name}"])) as experiment:
        *_, record = experiment
    megabytes = record.totals["message_bits"] / 8e6
    print(f"{name:9} accuracy {record.accuracy:.1%}, {megabytes:.1f} MB sent, model {record.model_hash[:8]}")
