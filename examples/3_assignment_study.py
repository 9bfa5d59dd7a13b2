"""3. Compare assigners by their costs, without training: the paper's Figure 6 on a few fleets, in a few seconds.

An assignment says which edge server each scheduled device uploads to. Its costs follow from the cost model, equations
(4) to (14), so that no device has to train.
"""

# %% The work of a round, and fleets as in the paper's Table I: 100 devices, 5 edges, a model of 448 KB.
import time

import numpy as np
import pandas as pd

from hflray import FleetConfig, Workload, allocate_round, build_assigner, round_cost, sample_fleet
from hflray.assignment.bounds import gap

work = Workload(model_bits=448 * 1024 * 8, local_iterations=5, edge_iterations=5, delay_weight=1.0)
assigners = {
    "geographic": build_assigner("geographic"),  # the nearest edge
    "best gain": build_assigner("best_gain"),  # the edge with the best channel
    "HFEL-300": build_assigner("hfel", exchanges=300),  # the paper's search
    "local search": build_assigner("local_search"),  # every transfer and exchange, until none helps
    "D3QN": build_assigner("d3qn"),  # the shipped network
}

# %% Each assigner gets the same fleets and the same 50 scheduled devices.
rows = []
for number in range(6):
    rng = np.random.default_rng(number)
    fleet = sample_fleet(FleetConfig(num_devices=100, num_edges=5), rng)
    devices = np.sort(rng.choice(fleet.num_devices, 50, replace=False))
    for name, assigner in assigners.items():
        begin = time.perf_counter()
        assignment = assigner.assign(fleet, work, devices, np.random.default_rng(0))
        latency_ms = 1e3 * (time.perf_counter() - begin)
        cost = round_cost(fleet, work, devices, assignment, allocate_round(fleet, work, devices, assignment))
        rows.append(
            {
                "assigner": name,
                "delay, s": cost.delay_s,
                "energy, J": cost.energy_j,
                "objective, J": cost.objective,
                "gap to bound, %": 100 * gap(fleet, work, devices, assignment).relative,
                "latency, ms": latency_ms,
            }
        )

# %% Medians over the fleets. The gap says how far from the optimum the assignment is at most; the first call of an
# assigner compiles or loads it, and the median leaves this out.
table = pd.DataFrame(rows).groupby("assigner", sort=False).median()
print(table.round(2).to_string())
