"""4. Read the runs of a sweep with pandas. Run the sweep first: `hflray tune examples/sweep.yaml`.

`read_sweep` reads the journal in the sweep's folder, which has everything that a tracker gets.
"""

# %% The latest sweep with this name, in the folder of results
from pathlib import Path

import pandas as pd

from hflray import metrics
from hflray.report.runs import read_sweep

sweep = read_sweep(Path("hflray_results"), "examples")
print(f"{sweep.title}: {len(sweep.runs)} runs, which differ in {', '.join(sweep.keys)} and the seed")

# %% One row for each round of each run. The columns are the metrics of the glossary.
rounds = pd.concat(
    [run.rounds.assign(scheduler=run.config.scheduling.name, seed=run.seed) for run in sweep.runs], ignore_index=True
)
print(rounds[["scheduler", "seed", "round", metrics.ACCURACY, metrics.TOTAL_OBJECTIVE]].round(3).to_string(index=False))

# %% Means over the seeds, after the last round
last = rounds[rounds["round"] == rounds["round"].max()]
print(last.groupby("scheduler")[[metrics.ACCURACY, metrics.TOTAL_ENERGY_J, metrics.TOTAL_DELAY_S]].mean().round(3))

# %% Who trained: each round keeps its devices, their edges and what they were allocated.
run = sweep.runs[0]
schedule = run.rounds.set_index("round")["devices"]
for number, devices in schedule.items():
    print(f"{run.name}, round {number}: devices {[int(device) for device in devices]}")

# %% The configuration of a run is an object with the same keys as the YAML file.
print(f"H = {run.config.scheduling.num_scheduled}, L = {run.config.training.local_iterations}")
