"""What a saved state of an experiment must hold, and how a state that does not is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec

import numpy as np
from pydantic import BaseModel, Field

from hflray.errors import DamagedError
from hflray.support.reader import fit
from hflray.support.references import blame

Count = Annotated[int, Field(ge=0, lt=2**53)]
P = ParamSpec("P")
WRONG = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


class StateContent(BaseModel):
    """The values of a state that every round uses, see `hflray.experiment.experiment.Experiment.state_dict`."""

    config: dict[str, Any]
    rule_revision: int = 1
    round: Count
    totals: dict[str, float]
    clusters: list[Count] | None
    clustering: dict[str, float]
    reached: dict[str, float]
    changes: list[dict[str, Any]] = []
    scheduler: dict[str, Any] | None


def whole(load: Callable[Concatenate[Any, Mapping[str, Any], P], None]) -> Callable[..., None]:
    """Let a method that loads a state refuse one with a value of a wrong type, such as a stranger's.

    The method raises DamagedError then. An error in a file of the user's own stays as it is.
    """

    @wraps(load)
    def loading(self: Any, state: Mapping[str, Any], *rest: P.args, **named: P.kwargs) -> None:
        try:
            if "round" in state or "config" in state:  # otherwise the method names the version
                fit(StateContent, {name: each for name, each in state.items() if not isinstance(each, np.ndarray)})
            load(self, state, *rest, **named)
        except WRONG as error:
            if blame(error) is not None:
                raise
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise DamagedError(f"state: not a whole one ({reason}); remove it, or give another") from error

    return loading
