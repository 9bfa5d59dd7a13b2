"""The base class of the world's parts that change with time: each has a state at the simulated clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hflray.errors import ConfigError


class Part:
    """A part of the world. It is at the start of the first round when it is made."""

    state_arrays: ClassVar[tuple[str, ...]] = ()
    """The names of the attributes that are the part's state; each is a NumPy array."""

    def advance(self, clock_s: float) -> None:
        """Move on to a later moment, in seconds since the start of the first round."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as NumPy arrays by name."""
        return {name: np.array(getattr(self, name)) for name in self.state_arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            ConfigError: an array is missing, or has another shape than this part's.
        """
        for name in self.state_arrays:
            own = np.asarray(getattr(self, name))
            saved = np.asarray(state.get(name, ()))
            if name not in state or saved.shape != own.shape:
                raise ConfigError(
                    f"state: {name} of {type(self).__name__} has shape {saved.shape}, this one has {own.shape}; "
                    "the state is of another world or damaged, use an earlier checkpoint"
                )
            setattr(self, name, saved.astype(own.dtype))
