"""1. Run one experiment in a loop, without a sweep. It trains for about five seconds and needs no data.

The experiment is Algorithm 6 of the paper: in each round, a scheduler chooses devices, an assigner chooses an edge for
each of them, bandwidth and CPU frequency are allocated, the devices train, and the global model is tested.
"""

# %% A configuration: every setting has a default, which is the paper's, and these lines change some of them.
from hflray import Experiment, load_config

config = load_config(
    None,
    [
        "data.name=digits",  # handwritten digits from scikit-learn, which need no download
        "fleet.num_devices=20",  # N
        "fleet.num_edges=3",  # M
        "scheduling.num_scheduled=8",  # H
        "training.local_iterations=2",  # L
        "training.edge_iterations=2",  # Q
        "training.batch_size=16",
        "training.backend=serial",  # train in this process, without Ray's actors
        "max_rounds=4",
    ],
)

# %% The loop: an experiment yields a record after each round.
with Experiment(config) as experiment:
    for record in experiment:
        cost = record.cost
        print(
            f"round {record.round}: accuracy {record.accuracy:.1%}, simulated delay {cost.delay_s:.1f} s, "
            f"energy {cost.energy_j:.1f} J, objective {cost.objective:.1f} J"
        )

# %% The plan of the last round: who trained at which edge, and what each device got.
for edge in range(config.fleet.num_edges):
    members = record.devices[record.assignment == edge]
    bandwidth_mhz = record.allocation.bandwidth_hz[record.assignment == edge].sum() / 1e6
    print(f"edge {edge}: devices {members.tolist()}, {bandwidth_mhz:.2f} MHz, {cost.edge_delay_s[edge]:.1f} s")

# %% The simulated seconds above follow from the cost model. The measured seconds of this machine are separate.
print(f"this machine trained the last round in {record.wall['train_s']:.2f} s")
print(f"SHA-256 of the global model: {record.model_hash}")  # the same for the same seed, on the same type of CPU
