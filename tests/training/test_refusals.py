"""hflray.training.refusals: a learning rate that falls within a round; tests/training/test_method.py has the others."""

from __future__ import annotations

import pytest

from hflray.errors import ConfigError
from hflray.training.method import Method, RateDecay, Spec


@pytest.mark.parametrize("every", ["step", "iteration"])
def test_fednova_refuses_a_rate_that_falls_within_a_round(every) -> None:
    """Its aₙ counts steps of one rate (Wang et al., 2020)."""
    fednova = Spec("local_rule", "fednova")
    with pytest.raises(
        ConfigError, match=rf"learning_rate_decay\.every: got {every} with the rule fednova.*: round; set"
    ):
        Method(rule=fednova, decay=RateDecay(0.5, every)).parts()
    assert Method(rule=fednova, decay=RateDecay(0.5, "round")).parts().scales
    assert Method(rule=fednova, decay=RateDecay(1.0, every)).parts().scales
    assert Method(decay=RateDecay(0.5, every)).parts().adds_totals
