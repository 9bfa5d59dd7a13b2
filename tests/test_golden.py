"""What commit 6c93c38 computed, this tree computes too: settings that came later are off unless they are asked for."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from hflray import metrics
from tests.golden import driver
from tests.golden.trees import BILLS, ROOT, NoHistory, golden_tree, run_in

# How far L-BFGS-B gets with the bound hangs on where memory happens to lie: a fleet's gap was seen to move by 2e-6 of
# itself between two runs of the same code.
LOOSE = {metrics.ASSIGNMENT_GAP: 1e-3, metrics.assigner_ratio("lower_bound"): 1e-3}
GROWS = ("bill", "summary", "points", "studies")  # a metric may be added to the glossary; none may go or change


def differences(was: Any, now: Any, tolerance: float = 0.0, where: str = "", grows: bool = False) -> list[str]:
    """Every place at which two results differ, one line each.

    Args:
        was, now: what JSON holds.
        tolerance: largest relative difference of two floats.
        where, grows: of the recursion: the path so far, and whether `now` may have more keys.
    """
    if isinstance(was, dict) and isinstance(now, dict):
        keys = [key for key in (*was, *now) if key not in was or key not in now]
        found = [f"{where}/{key}: only {'before' if key in was else 'now'}" for key in keys if key in was or not grows]
        for key in was:
            if key in now:
                found += differences(
                    was[key], now[key], LOOSE.get(key, tolerance), f"{where}/{key}", grows or key in GROWS
                )
        return found
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, tolerance, f"{where}/{i}", grows)]
    if isinstance(was, float) and isinstance(now, float):  # hex: 0.0 is not -0.0, and NaN is NaN
        same = was.hex() == now.hex() or (tolerance > 0 and math.isclose(was, now, rel_tol=tolerance))
    else:
        same = type(was) is type(now) and was == now
    return [] if same else [f"{where}: was {was}, is {now}"]


def test_bills_are_those_of_6c93c38() -> None:
    """To 1e-12: the last bits depend on the CPU's vector unit. No hash is committed: weights depend on it far more.

    A shared deadline is found less exactly: compiled without vector instructions (``NUMBA_CPU_NAME=generic``), one of
    these delays differs by 1.4e-11 of itself, while per edge all agree to 1e-13.
    """
    was, now = json.loads(BILLS.read_text(encoding="utf-8")), json.loads(json.dumps(driver.bills()))
    assert {kind: list(cases) for kind, cases in was.items()} == {kind: list(cases) for kind, cases in now.items()}
    found = []
    for kind, cases in was.items():
        for name, case in cases.items():
            tolerance = 1e-9 if "joint" in name else 1e-12
            found += differences(case, now[kind][name], tolerance, f"{kind}/{name}", kind in GROWS)
    assert found == []


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two minutes and a half of a quiet machine with two cores
def test_every_bit_is_that_of_6c93c38() -> None:
    """Model hashes, bills, schedules, clusters, policies and keys of caches, side by side on this machine."""
    try:
        tree = golden_tree()
    except NoHistory as reason:
        pytest.skip(str(reason))
    begin = time.perf_counter()
    was, now = run_in(tree, "everything"), run_in(ROOT, "everything")
    print(f"both trees took {time.perf_counter() - begin:.0f} s")
    assert len({entry["rounds"][-1]["hash"] for entry in was["experiments"].values()}) == len(driver.EXPERIMENTS)
    assert differences(was, now) == []


def test_one_bit_is_a_difference() -> None:
    one = {"studies": {"a": [{"round/delay_s": 1.5, "n": 3}]}, "hash": "ab"}
    assert differences(one, json.loads(json.dumps(one))) == []
    ulp = {"studies": {"a": [{"round/delay_s": math.nextafter(1.5, 2.0), "n": 3}]}, "hash": "ab"}
    assert len(differences(one, ulp)) == 1
    assert differences(one, ulp, tolerance=1e-12) == []
    more = {"studies": {"a": [{"round/delay_s": 1.5, "n": 3, "new": 0}]}, "hash": "ab"}
    assert differences(one, more) == []  # a new metric
    assert len(differences(more, one)) == 1  # one that is gone
    assert len(differences(one, {**one, "b": 1})) == 1
    assert len(differences([1], [1, 2])) == len(differences(1, 1.0)) == len(differences(0.0, -0.0)) == 1
    assert differences(math.nan, math.nan) == []
    assert differences({metrics.ASSIGNMENT_GAP: 0.1}, {metrics.ASSIGNMENT_GAP: 0.1000001}) == []
