"""The sweep file says what to run and over which values. It is validated as a whole before anything starts.

::

    name: quickstart
    task: experiment          # see hflray.sweep.tasks
    experiment: {...}         # the configuration, see hflray.config
    sweep:                    # values by dotted key of the configuration
      scheduling.name: {grid: [ikc, fedavg]}
      data.name: {zip: [fashion_mnist, cifar10]}       # zip keys move together
      target_accuracy: {zip: [0.875, 0.56]}
    tune: {cpus_per_trial: 1}
    tracking: {experiment: hflray}
"""

from __future__ import annotations

from hflray.sweep.sections import Axis, EarlyStoppingConfig, PopulationConfig, SearchConfig, SweepFile, TuneConfig
from hflray.sweep.tasks.studies import assigner_label
from hflray.sweep.trials import (
    Trial,
    check_begins,
    expand,
    load_sweep,
    make_trial,
    prolong,
    smoke,
    with_absolute_paths,
    with_data_root,
)

__all__ = [
    "Axis", "EarlyStoppingConfig", "PopulationConfig", "SearchConfig", "SweepFile", "Trial", "TuneConfig",
    "assigner_label", "check_begins", "expand", "load_sweep", "make_trial", "prolong", "smoke", "with_absolute_paths",
    "with_data_root",
]  # fmt: skip
