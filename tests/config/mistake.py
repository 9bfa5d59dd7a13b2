"""A helper that returns the message of one mistake in a configuration."""

from __future__ import annotations

import pytest

from hflray.config import load_config
from hflray.errors import ConfigError


def line_of(*overrides):
    """Return the message that these overrides give, which is one line."""
    with pytest.raises(ConfigError) as error:
        load_config(overrides=overrides)
    message = str(error.value)
    assert "\n" not in message
    assert "input should" not in message.lower()  # this would be pydantic's own message
    return message
