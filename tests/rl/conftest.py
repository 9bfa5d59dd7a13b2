"""Fixtures that the tests of hflray.rl share."""

from __future__ import annotations

import pytest
import torch

from tests.rl.small import TINY


@pytest.fixture(scope="module")
def one_thread():
    """Run with one thread, because a second one has nothing to do in small networks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fleets():
    """Return forty small solved fleets."""
    return [TINY.solve(i) for i in range(40)]
