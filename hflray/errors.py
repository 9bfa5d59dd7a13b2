"""The errors that a user may see. Each message names the setting, the value, what is accepted and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HflrayError(Exception):
    """Base class of every error that hflray raises on purpose. The command prints its message and exits with code 2.

    Examples:
        >>> from hflray import HflrayError, build_scheduler
        >>> try:
        ...     build_scheduler("round_robbin", num_devices=5, num_scheduled=2)
        ... except HflrayError as error:
        ...     print(type(error).__name__, str(error).partition(";")[0], sep=": ")
        ConfigError: scheduler: unknown scheduler 'round_robbin'
    """


class ConfigError(HflrayError):
    """A setting is unknown, of the wrong type, or outside what it accepts.

    Examples:
        >>> from hflray import ConfigError, load_config
        >>> try:
        ...     load_config(None, ["fleet.num_device=20"])
        ... except ConfigError as error:
        ...     print(str(error).partition(";")[0])
        fleet.num_device: unknown key (got 20)
    """


class DamagedError(ConfigError):
    """A file that hflray wrote is missing, cut off or changed, so that it is not used."""


class RefusedError(ConfigError):
    """A run cannot go on from its checkpoints as they are, and nothing of them has been changed."""


class DataError(HflrayError):
    """A data set is missing or malformed, or a partition of it cannot be made.

    Examples:
        >>> from hflray import DataError, Dataset
        >>> try:
        ...     Dataset.of([[1.0], [2.0]], [0, 1], [[1.0]], [7])
        ... except DataError as error:
        ...     print(error)
        y_test labels out of range: y_test[0] is 7; accepted: the training labels 0..1; relabel it
    """


class InfeasibleError(HflrayError):
    """An allocation problem has no solution, or no solver found one; the message names the edge.

    Examples:
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from hflray import FleetConfig, InfeasibleError, Workload, allocate_round, sample_fleet
        >>> fleet = sample_fleet(FleetConfig(num_devices=2, num_edges=1), np.random.default_rng(0))
        >>> try:
        ...     allocate_round(replace(fleet, gain=np.full((2, 1), 1e-310)), Workload(model_bits=1e6), [0, 1], [0, 0])
        ... except InfeasibleError as error:
        ...     print(str(error).partition(":")[0])
        allocation of edge 0
    """


class WriteError(HflrayError):
    """A file could not be written, because its disk is full, read-only or failing. The command exits with code 1."""


class DivergedError(HflrayError):
    """Training produced weights that are not finite, or too large to aggregate; the message says where.

    Examples:
        >>> from hflray import DivergedError, Experiment, load_config
        >>> tiny = ["fleet.num_devices=2", "fleet.num_edges=1", "scheduling.name=fedavg", "scheduling.num_scheduled=2"]
        >>> tiny += ["assignment.name=geographic", "training.backend=serial", "model.name=logistic"]
        >>> try:
        ...     list(Experiment(load_config(None, [*tiny, "training.learning_rate=1e30"])))
        ... except DivergedError as error:
        ...     print(str(error).rpartition("; ")[2])
        lower training.learning_rate
    """


class WorkerLostError(HflrayError):
    """Ray actors kept dying, so that a round could not be finished in several attempts.

    Examples:
        A script that runs several experiments can go on with the next one:

        >>> from hflray import Experiment, WorkerLostError
        >>> def last_round(config):
        ...     try:
        ...         with Experiment(config) as experiment:
        ...             return list(experiment)[-1]
        ...     except WorkerLostError as error:
        ...         print(f"given up: {error}")
    """


def blaming(problem: str, accepts: str, fix: str = "correct it", kind: type[HflrayError] = ConfigError) -> HflrayError:
    """Return the error of a setting: what is wrong, with its name and value, what is accepted, and the fix.

    Examples:
        >>> from hflray.errors import blaming
        >>> str(blaming("cost.delay_weight: got 0", accepts="a number above 0"))
        'cost.delay_weight: got 0; accepted: a number above 0; correct it'
    """
    return kind(f"{problem}; accepted: {accepts}; {fix}")


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the name in `choices` that is closest to `name`, or an empty string."""
    # The cutoff is 0.5 instead of difflib's 0.6, so that short keys such as "lamda" or "edges" still match.
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
