"""hflray.world.part: a state is taken whole or refused."""

from __future__ import annotations

import pytest

from hflray.errors import ConfigError
from hflray.world.spells import Spells


def test_a_state_of_another_size_is_refused() -> None:
    state = Spells(1, "test", 5, 30.0, 10.0).state_dict()
    with pytest.raises(ConfigError, match=r"state: up of Spells has shape \(5,\), this one has \(6,\); .* checkpoint"):
        Spells(1, "test", 6, 30.0, 10.0).load_state_dict(state)
    del state["up"]
    with pytest.raises(ConfigError, match="up of Spells has shape"):
        Spells(1, "test", 5, 30.0, 10.0).load_state_dict(state)
