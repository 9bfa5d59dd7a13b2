"""The message that a mistake in a configuration earns."""

from __future__ import annotations

import pytest

from hflray.config import load_config
from hflray.errors import ConfigError


def line_of(*overrides):
    """The one line that these overrides earn."""
    with pytest.raises(ConfigError) as error:
        load_config(overrides=overrides)
    message = str(error.value)
    assert "\n" not in message
    assert "input should" not in message.lower()  # pydantic's own words have no place here
    return message
