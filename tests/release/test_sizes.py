"""tests.release.sizes: what an installation consists of."""

from __future__ import annotations

import re

import pytest

from tests.release import sizes


def test_the_rows_add_up_to_all_packages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sizes", "--least", "0"])
    sizes.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    amounts = {row[0]: float(row[1]) for row in rows}
    (total,) = (value for name, value in amounts.items() if name.startswith("all "))
    assert sum(amounts.values()) - total == pytest.approx(total, abs=len(amounts))
    assert {"numba", "ray", "mlflow", "cvxpy", "(shared)"} <= amounts.keys()
    assert re.fullmatch(r"all \d+ packages", rows[-1][0])


def test_what_two_packages_need_goes_with_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """a needs c, b needs c and d; d goes with b alone."""
    graph = {"a": ["c"], "b": ["c", "d"], "c": [], "d": []}
    monkeypatch.setattr(sizes, "needs", lambda name, extras=frozenset(): [(each, frozenset()) for each in graph[name]])
    assert sizes.closure([("a", frozenset())]) == {"a", "c"}
    assert sizes.closure([("b", frozenset())]) == {"b", "c", "d"}
