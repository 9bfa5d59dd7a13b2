"""Local training by a function of the user's own, written in plain PyTorch.

``training.rule: {name: mine.py:train}`` names a function ``train(module, batches, loss, rate, rng, **options)``. It
changes the module in place, in any way that it likes. If it has parameters ``device`` or ``round`` without a default,
and no option of that name is given, it receives n, or i from 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hflray.errors import ConfigError
from hflray.training.rules.base import LocalRule, further

ARGUMENTS = ("module", "batches", "loss", "rate", "rng")


class OwnTraining(LocalRule):
    """A function that trains a device's network.

    Args:
        train: the function. ``batches`` yields pairs of inputs and targets, one for each step of L local iterations;
            ``loss`` is called with outputs and targets; ``rate`` is the learning rate of this edge iteration; and
            ``rng`` is a NumPy generator of this device and edge iteration.
        spoken: how messages name it.
        options: its further arguments.

    Raises:
        ConfigError: the function does not take these arguments, or not these options.
    """

    def __init__(self, train: Callable[..., Any], spoken: str, options: Mapping[str, Any]) -> None:
        parameters = inspect.signature(train).parameters  # a default may be torch's name of a device
        required = (name for name in further(train) if parameters[name].default is inspect.Parameter.empty)
        self.further = tuple(name for name in required if name not in options)
        try:
            inspect.signature(train).bind(*ARGUMENTS, **options, **dict.fromkeys(self.further))
        except TypeError as error:
            raise ConfigError(
                f"training.rule.name: {spoken} cannot be called with ({', '.join((*ARGUMENTS, *options))}) ({error}); "
                "accepted: a function of these arguments, the last ones by name; correct it or training.rule.options"
            ) from error
        self.train, self.options = train, dict(options)
