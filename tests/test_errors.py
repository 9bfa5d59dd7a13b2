"""The family of errors, and the suggestion of the nearest name."""

from __future__ import annotations

import pytest

from hflray import errors
from tests.conftest import cases


def test_every_error_is_an_hflray_error():
    kinds = ("ConfigError", "DataError", "InfeasibleError", "DivergedError", "WorkerLostError")
    assert all(issubclass(getattr(errors, kind), errors.HflrayError) for kind in kinds)


@pytest.mark.parametrize("name, choices, hint", cases("nearest"))
def test_nearest_suggests_the_closest_name(name, choices, hint):
    assert errors.nearest(name, choices) == hint
