"""2. Write a scheduler and compare it with FedAvg, on the same data, the same fleet and the same seed.

`register` adds a name in this process, which is enough for a notebook. For sweeps, whose trials run in processes of
their own, a package registers the name through an entry point (see the page "Write a scheduler" of the documentation).
"""

# %% A scheduler chooses the H devices of each round. All of its randomness must come from `rng`; this one needs none.
import numpy as np

from hflray import Experiment, Scheduler, load_config
from hflray.registry import register


class Carousel(Scheduler):
    """Schedule the next H devices in turn, so that every device trains equally often."""

    position = 0

    def schedule(self, rng):
        chosen = (self.position + np.arange(self.num_scheduled)) % self.num_devices
        self.position = int(chosen[-1] + 1)
        return np.sort(chosen)

    def state_dict(self):  # what a resumed run needs besides the numbers of devices
        return super().state_dict() | {"position": self.position}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.position = state["position"]


register("scheduler", "carousel", Carousel)

# %% Train with both schedulers. Everything else is equal, as a random stream depends on the seed and its name only.
SETTINGS = [
    "fleet.num_devices=20", "fleet.num_edges=3", "scheduling.num_scheduled=5", "training.local_iterations=2",
    "training.edge_iterations=2", "training.batch_size=16", "training.backend=serial", "max_rounds=4",
]  # fmt: skip

turns = {}
for name in ("carousel", "fedavg"):
    times_trained = np.zeros(20, dtype=int)
    with Experiment(load_config(None, [*SETTINGS, f"scheduling.name={name}"])) as experiment:
        for record in experiment:
            times_trained[record.devices] += 1
    turns[name] = times_trained
    print(f"{name:12} accuracy {record.accuracy:.1%}, total objective {record.totals['objective']:.0f} J")

# %% How often has each device trained?
for name, times_trained in turns.items():
    print(f"{name:12} {times_trained.tolist()}")
