"""``python -m hflray.tune`` runs sweeps of experiments with Ray Tune.

`trial` runs in a trial's process, `driver` runs in the command's process, and `cli` is the command. This file imports
nothing, so that a trial's process loads only the modules that it needs.
"""
