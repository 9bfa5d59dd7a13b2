"""``python -m hflray.tune``: sweeps of experiments with Ray Tune.

`trial` runs in a trial's process, `driver` in the command's, `cli` is the command. Nothing is imported here, so that
a trial's process loads only its own part.
"""
