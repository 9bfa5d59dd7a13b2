"""tests.reproduction.variates: the corrections of SCAFFOLD stay short."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.reproduction import variates
from tests.reproduction.variates import IID, ONE


@pytest.mark.parametrize("case", [IID, ONE])
def test_corrections_stay_short_with_momentum(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Divided by Kβ, the correction had a length of 7,351 after five rounds with IID data."""
    monkeypatch.setattr(variates, "ROUNDS", (1, 3))
    first, third = islice(variates.rows(case, 0.9), 2)
    assert (first.round, third.round) == (1, 3)
    assert 0.05 < third.correction < 1.0
    assert third.accuracy > first.accuracy > 0.2
