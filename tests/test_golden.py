"""This tree computes what commits 6c93c38 and 319efcb computed, because later settings are off by default.

Hashes, schedules and clusters are equal to the bit with the versions of ``cluster/requirements.lock``. With others they
are not compared, because a release of torch or NumPy may round otherwise. Bills agree to 1e-12 with all of
them: they are sums of what happens to each device (`hflray.timeline`), where those commits multiplied one edge
iteration by Q.
"""

from __future__ import annotations

import json
import math
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from hflray import metrics
from tests.golden import configurations, driver
from tests.golden.trees import BILLS, COMMIT, GROWN, INSIDE, LATER, ROOT, NoHistory, golden_tree, run_in

# Relative tolerances by metric. The bound that L-BFGS-B reaches depends on memory addresses: a fleet's gap differed by
# 2e-6 of itself between two runs of the same code.
LOOSE = {metrics.ASSIGNMENT_GAP: 1e-3, metrics.assigner_ratio("lower_bound"): 1e-3}
# Until November 2026 the broadcasts of an edge's turns in one round, beside a cloud that does not wait, counted as one.
# Until December 2026 a device was busy while it received, turns of asynchronous edges told of a device in each round in
# which a pass went on, later turns listed devices that had vanished, edges that were down shared a region's hop, and
# scaffold's vector was billed in each upload of an edge to its region. Under clocks that do not wait, edges that were
# down counted as idle. A download was billed whole when its device vanished or was stopped before it was through.
MENDED = re.compile(
    r"/fedbuff \| broadcast/.*/round/download_bits: "
    r"|/[^/]*(broadcast|unicast|region \| failure)[^/]*/.*(/busy_s/|/battery/|/world\.battery\.)"
    r"|/mixed[^/]*/.*/device_delay_s/"
    r"|/(fed|mixed)[^/]*/.*/round/(vanished|edge_idle_s): "
    r"|/region \|[^/]*/.*/bill/edge/\d+/(delay_s|energy_j): "
    r"|/region \| scaffold/.*/(bill/|summary/|table/|schedule/edge_bits|world\.battery\.charge_j)"
    r"|/(fedasync|mixed, fedat|ring) \| unicast/.*/(bill/.*(energy_j|download_j|objective)|table/download_j/\d+): "
)
GROWS = ("bill", "summary", "points", "studies")  # dictionaries that may gain metrics, but may not lose or change one


EXACT = ("numpy", "ray", "torch")  # the packages on whose releases the bits depend


def pins(path: Path) -> dict[str, str]:
    """Return the release of each package that a file of requirements pins."""
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", path.read_text(encoding="utf-8"), flags=re.M))


def other_versions() -> str:
    """Return what is installed of `EXACT` in another release than the locked one, or nothing."""
    locked = pins(ROOT / "cluster" / "requirements.lock")
    installed = {name: version(name).partition("+")[0] for name in EXACT}
    return ", ".join(
        f"{name} {installed[name]} is not {locked[name]}" for name in EXACT if installed[name] != locked[name]
    )


def differences(was: Any, now: Any, tolerance: float = 0.0, where: str = "", grows: bool = False) -> list[str]:
    """Return one line for each difference between two results.

    Args:
        was: the earlier result, made of JSON values.
        now: the later result.
        tolerance: the largest accepted relative difference of two floats.
        where: the path of this part of the result; used by the recursion.
        grows: whether `now` may have more keys than `was`; used by the recursion.
    """
    if isinstance(was, dict) and isinstance(now, dict):
        keys = [key for key in (*was, *now) if key not in was or key not in now]
        lines = [f"{where}/{key}: only {'before' if key in was else 'now'}" for key in keys if key in was or not grows]
        for key in was:
            if key in now:
                lines += differences(
                    was[key], now[key], LOOSE.get(key, tolerance), f"{where}/{key}", grows or key in GROWS
                )
        return lines
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, tolerance, f"{where}/{i}", grows)]
    if isinstance(was, float) and isinstance(now, float):  # in hex 0.0 differs from -0.0, and NaN equals NaN
        same = was.hex() == now.hex() or (tolerance > 0 and math.isclose(was, now, rel_tol=tolerance))
    else:
        same = type(was) is type(now) and was == now
    return [] if same else [f"{where}: was {was}, is {now}"]


def test_bills_are_those_of_6c93c38() -> None:
    """The tolerance is 1e-12, because the last bits depend on the CPU's vector unit.

    No hash is committed, because weights depend on the vector unit far more. A shared deadline is less exact: compiled
    without vector instructions (``NUMBA_CPU_NAME=generic``), one of these delays differs by 1.4e-11 of itself, while
    all bills per edge agree to 1e-13.
    """
    was, now = json.loads(BILLS.read_text(encoding="utf-8")), json.loads(json.dumps(driver.bills()))
    assert {kind: list(cases) for kind, cases in was.items()} == {kind: list(cases) for kind, cases in now.items()}
    lines = []
    for kind, cases in was.items():
        for name, case in cases.items():
            tolerance = 1e-9 if "joint" in name else 1e-12
            lines += differences(case, now[kind][name], tolerance, f"{kind}/{name}", kind in GROWS)
    assert lines == []


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it takes two and a half minutes on an idle machine with two cores
@pytest.mark.parametrize(
    ("commit", "kind", "count"),
    [
        (COMMIT, "everything", len(driver.CASES["experiments"])),
        (LATER, "later", len(driver.CASES["later"])),
        (INSIDE, "inside", len(driver.CASES["inside"])),
        (INSIDE, "rounds", 0),  # parts of the world that change no model, and refusals
        (GROWN, "systems", 0),
    ],
)
def test_every_hash_is_that_of_an_early_commit(commit: str, kind: str, count: int) -> None:
    """Model hashes, bills, schedules, clusters, policies and cache keys are compared on this machine."""
    if others := other_versions():
        pytest.skip(f"hashes hold for the versions of cluster/requirements.lock: {others}")
    try:
        tree = golden_tree(commit)
    except NoHistory as reason:
        pytest.skip(str(reason))
    begin = time.perf_counter()
    was, now = run_in(tree, kind), run_in(ROOT, kind)
    print(f"both trees took {time.perf_counter() - begin:.0f} s")
    hashes = {entry["rounds"][-1]["hash"] for entry in was["experiments"].values() if "rounds" in entry}
    assert len(hashes) == count or (not count and len(hashes) > 30)
    assert [line for line in differences(was, now, tolerance=1e-12) if not MENDED.search(line)] == []


def test_hashes_of_configurations_do_not_change() -> None:
    was = json.loads(configurations.HASHES.read_text(encoding="utf-8"))
    assert len(was) > 70
    assert differences(was, configurations.hashes()) == []


def test_ci_installs_the_versions_for_which_hashes_hold() -> None:
    locked, frozen = (pins(ROOT / path) for path in ("cluster/requirements.lock", ".ci/frozen.txt"))
    assert set(EXACT) < frozen.keys()
    assert {name: locked[name] for name in frozen} == frozen


def test_differences_reports_a_single_bit() -> None:
    one = {"studies": {"a": [{"round/delay_s": 1.5, "n": 3}]}, "hash": "ab"}
    assert differences(one, json.loads(json.dumps(one))) == []
    ulp = {"studies": {"a": [{"round/delay_s": math.nextafter(1.5, 2.0), "n": 3}]}, "hash": "ab"}
    assert len(differences(one, ulp)) == 1
    assert differences(one, ulp, tolerance=1e-12) == []
    more = {"studies": {"a": [{"round/delay_s": 1.5, "n": 3, "new": 0}]}, "hash": "ab"}
    assert differences(one, more) == []  # a new metric
    assert len(differences(more, one)) == 1  # a metric that was removed
    assert len(differences(one, {**one, "b": 1})) == 1
    assert len(differences([1], [1, 2])) == len(differences(1, 1.0)) == len(differences(0.0, -0.0)) == 1
    assert differences(math.nan, math.nan) == []
    assert differences({metrics.ASSIGNMENT_GAP: 0.1}, {metrics.ASSIGNMENT_GAP: 0.1000001}) == []
