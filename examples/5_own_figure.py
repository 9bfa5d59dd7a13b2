"""5. Draw a figure of your own from a sweep: what does accuracy cost? Run `hflray tune examples/sweep.yaml` first.

A report has the paper's figures. Any other figure is a few lines of Matplotlib on the same tables.
"""

# %% The curves of each scheduler: test accuracy against the energy spent so far
from pathlib import Path

from matplotlib.figure import Figure

from hflray import metrics
from hflray.report.runs import read_sweep

sweep = read_sweep(Path("hflray_results"), "examples")
accuracy, energy = metrics.describe(metrics.ACCURACY), metrics.describe(metrics.TOTAL_ENERGY_J)

figure = Figure(figsize=(5, 3.2), layout="constrained")
axes = figure.subplots()
for number, (label, runs) in enumerate(sweep.groups().items()):  # runs that differ in the seed only are one group
    for run in runs:
        x = run.series(metrics.TOTAL_ENERGY_J) * energy.scale
        y = run.series(metrics.ACCURACY) * accuracy.scale
        axes.plot(x, y, "o-", color=f"C{number}", ms=4, label=label if run is runs[0] else None)
axes.set_xlabel(energy.axis)
axes.set_ylabel(accuracy.axis)
axes.legend()

# %% Save it.
figure.savefig("accuracy_by_energy.png", dpi=150)
print("accuracy_by_energy.png")
