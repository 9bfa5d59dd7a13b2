"""One contract of all registered parts: an option that a part does not have, or a value that it does not accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hflray import registry
from hflray.errors import ConfigError
from tests.conftest import says

# `flwr:` needs a package, and a network of torchvision takes what its function takes.
PARTS = [(kind, name) for kind, names in registry.BUILTIN.items() for name in names if not name.endswith(":")]
# What a caller gives besides the options.
GIVEN = {"scheduler": {"num_devices": 12, "num_scheduled": 4, "clusters": [0, 1, 2] * 4}}


def refused(kind: str, name: str, options: dict[str, Any], *facts: str) -> None:
    with pytest.raises(ConfigError) as error:
        registry.build(kind, name, GIVEN.get(kind), **options)
    assert says(str(error.value), *facts), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind, name", PARTS)
def test_an_option_that_a_part_does_not_have_is_refused_in_one_line(kind: str, name: str) -> None:
    refused(kind, name, {"foo": 1}, "foo")


REFUSED = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind, name, options, facts", REFUSED)
def test_a_value_that_a_part_does_not_accept_is_refused_in_one_line(kind, name, options, facts) -> None:
    refused(kind, name, options, *facts)
