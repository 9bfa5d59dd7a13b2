"""Sections are frozen, and tell lists from ranges."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hflray.config import load_config


def test_the_values_of_a_list_need_no_order():
    config = load_config(
        None, ["fleet.num_edges=2", "fleet.edge_bandwidths_mhz=[3, 0.5]", "learning.model_kb=[882, 10]"]
    )
    assert config.fleet.edge_bandwidths_mhz == (3.0, 0.5)
    assert config.learning.model_kb == (882.0, 10.0)
    assert config.learning.epsilon == (1.0, 0.05)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError):
        load_config().seed = 3
