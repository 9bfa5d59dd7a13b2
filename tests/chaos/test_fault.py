"""The draws of faults: the shares, the moments, and that a run can go on anywhere."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.chaos.fault import BLOCK, CLOCK, CUT, FULL, KILL, STOP, STOP_S, TWO, draw
from tests.chaos.place import PLACES

DRAWN = [draw(1, number) for number in range(10 * len(BLOCK))]


def test_a_fault_depends_on_seed_and_number_alone() -> None:
    assert draw(1, 37) == DRAWN[37]
    assert draw(2, 37) != DRAWN[37]
    assert len({(fault.kind, fault.fraction) for fault in DRAWN}) == len(DRAWN)


def test_a_fifth_of_the_kills_at_least_is_inside_a_write() -> None:
    kills = [fault for fault in DRAWN if fault.kills]
    assert sum(fault.kind == CUT for fault in kills) >= len(kills) / 5
    assert len(kills) == 170


def test_every_kind_and_place_occurs() -> None:
    count = Counter(fault.kind for fault in DRAWN)
    assert set(count) == {KILL, CUT, STOP, CLOCK, FULL, TWO}
    assert {fault.place for fault in DRAWN} == set(PLACES)
    assert {fault.place for fault in DRAWN if fault.kind == KILL} == set(PLACES)
    assert all(fault.lasts_s == STOP_S for fault in DRAWN if fault.kind == STOP)
    assert {fault.after for fault in DRAWN if fault.kind == CUT} == {True, False}


def test_fractions_are_uniform() -> None:
    for place in ("driver", "trial", "device actor"):
        fractions = [fault.fraction for fault in DRAWN if fault.place == place]
        assert np.histogram(fractions, bins=4, range=(0, 1))[0].min() > 0.1 * len(fractions)
