"""Fixtures of the tests that learn from the cost."""

from __future__ import annotations

import pytest
import torch

from tests.rl.small import TINY


@pytest.fixture(scope="module")
def one_thread():
    """Small networks: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fleets():
    """Forty small solved fleets."""
    return [TINY.solve(i) for i in range(40)]
