"""Local rules of the user's own: what a class returns is checked where it enters, and a function may train instead.

``training.rule: {name: mine.py:train}`` names a function ``train(module, batches, loss, rate, rng, **options)`` in
plain PyTorch. It changes the module in place, in any way that it likes. If it has parameters ``device`` or ``round``
without a default, and no option of that name is given, it receives n, or i from 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hflray.errors import ConfigError
from hflray.support.arrays import FloatArray
from hflray.support.contract import Contract, all_finite, described, is_ours
from hflray.training.rules.base import CloudReport, LocalRule, Memory, Received, State, Vector, further

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


def _contract(rule: LocalRule, method: str, accepted: str) -> Contract:
    return Contract.of("training.rule.name", rule, accepted, f"mend its method {method}")


def started(part: object, setting: str, state: object) -> None:
    """Look at what `start` of a rule or an aggregator returned. Raises ConfigError: it is no dict of arrays by name."""
    if not is_ours(part):
        Contract.of(setting, part, "a dict of arrays by name", "mend its method start").arrays(state)


def begun(rule: LocalRule, received: Received, memory: Memory) -> Memory:
    """Return `LocalRule.begin`. Raises ConfigError: it returned something else than a memory."""
    made = rule.begin(received, memory)
    return made if is_ours(rule) else _memory(_contract(rule, "begin", "the memory, a dict of arrays by name"), made)


def after_training(
    rule: LocalRule, received: Received, trained: Vector, rate: float, memory: Memory
) -> tuple[Memory, Mapping[str, Vector]]:
    """Return `LocalRule.finish`. Raises ConfigError: it returned something else than a memory and vectors by name."""
    made = rule.finish(received, trained, rate, memory)
    if is_ours(rule):
        return made
    accepted = f"the memory, a dict of arrays by name, and a dict of vectors of shape {trained.shape} by name"
    contract = _contract(rule, "finish", accepted)
    memory_after, vectors = contract.pair(made)
    return _memory(contract, memory_after), _vectors(contract, vectors, len(trained), all_finite(trained))


def vectors_for(rule: LocalRule, state: State, edge: int, size: int) -> Mapping[str, Vector]:
    """Return `LocalRule.sends`. Raises ConfigError: it returned something else than vectors by name."""
    made = rule.sends(state, edge)
    if is_ours(rule):
        return made
    return _vectors(_contract(rule, "sends", f"a dict of vectors of shape ({size},) by name"), made, size, True)


def at_cloud(rule: LocalRule, report: CloudReport, state: State) -> tuple[Vector | None, State]:
    """Return `LocalRule.cloud`. Raises ConfigError: it returned something else than a model, or None, and a state."""
    made = rule.cloud(report, state)
    if is_ours(rule):
        return made
    size = len(report.before)
    contract = _contract(rule, "cloud", f"None or the global model of shape ({size},), and a dict of arrays by name")
    model, after = contract.pair(made)
    finite = all_finite((report.mean, dict(report.extra)))
    return None if model is None else contract.array(model, (size,), finite=finite), contract.arrays(after)


def scaled(rule: LocalRule, made: Any, count: int) -> tuple[FloatArray, float] | None:
    """Return what `LocalRule.scales` returned for n senders. Raises ConfigError: it is no factors and no number."""
    if is_ours(rule) or made is None:
        result: tuple[FloatArray, float] | None = made
        return result
    contract = _contract(rule, "scales", f"None, or factors of shape ({count},) and a number of steps, all finite")
    factors, steps = contract.pair(made)
    return contract.array(factors, (count,)), contract.number(steps)


def _memory(contract: Contract, made: object) -> Memory:
    """Return a memory as a checkpoint gives it back: arrays, and numbers of Python."""
    return {name: array if array.ndim else array.item() for name, array in contract.arrays(made).items()}


def _vectors(contract: Contract, made: object, size: int, finite: bool) -> Mapping[str, Vector]:
    if not isinstance(made, Mapping):
        raise contract.error(described(made))
    return {
        name: contract.array(vector, (size,), where=f" for the vector {name}", finite=finite)
        for name, vector in made.items()
    }
