"""hflray.scheduling.poll: the bill by hand, and devices that cannot be polled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.scheduling import Poll
from tests.scheduling import toy

FLEET = toy.fleet(np.ones((3, 1)), samples=[300, 600, 300], max_cpu_hz=[1e9, 1e9, 0.5e9])
LOSS = np.array([0.5, 2.0, 1.0])


def poll(available: Any = (True, True, True)) -> Poll:
    return Poll(FLEET, np.array(available), lambda devices: LOSS[devices])


def test_the_bill_by_hand() -> None:
    # A third of 10⁴ cycles times 300, 600 and 300 samples takes 1, 2 and 2 ms. α/2 · f² · cycles is 10⁻²⁸ times 10¹⁸
    # · 10⁶, 10¹⁸ · 2·10⁶ and 0.25·10¹⁸ · 10⁶: 0.1, 0.2 and 0.025 mJ.
    one = poll()
    assert one([0, 2]).tolist() == [0.5, 1.0]
    assert (one.cost.delay_s, one.cost.energy_j) == pytest.approx((2e-3, 1.25e-4))
    assert one([1]).tolist() == [2.0]  # a second poll follows the first
    assert (one.cost.delay_s, one.cost.energy_j) == pytest.approx((4e-3, 3.25e-4))
    assert one.spent_j == pytest.approx([1e-4, 2e-4, 2.5e-5])
    assert one(np.array([], dtype=np.intp)).tolist() == []
    assert one.cost.delay_s == pytest.approx(4e-3)


@pytest.mark.parametrize(
    "candidates, named",
    [([0, 1], "device 1 is not available"), ([0, 0], "twice"), ([3], "0 to 2"), ([-1], "0 to 2"), ([0.5], "float64")],
)
def test_a_poll_that_cannot_be_is_refused_and_not_billed(candidates: list[Any], named: str) -> None:
    one = poll([True, False, True])
    with pytest.raises(ConfigError, match=named):
        one(candidates)
    assert one.cost.delay_s == 0


def test_a_scheduler_must_say_that_it_polls() -> None:
    with pytest.raises(ConfigError, match="needs"):
        toy.context(FLEET).poll_loss([0])
