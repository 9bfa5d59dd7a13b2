"""hflray.report.labels: what a reader calls a run's settings, and the colours of methods."""

from __future__ import annotations

import ast
from pathlib import Path

import hflray
from hflray import metrics
from hflray.report import labels
from hflray.report.labels import COLOURS, NAMES, colour, describe, hfel, marked, pretty
from tests.report.fabricated import CLEAN, run

PACKAGE = Path(hflray.__file__).parent


def test_a_method_has_its_name_and_its_colour_everywhere() -> None:
    assert [pretty(name) for name in ("ikc", "hfel", "d3qn", "somebody_elses")] == [
        "IKC", "HFEL", "D3QN", "somebody_elses",
    ]  # fmt: skip
    assert hfel(300) == "HFEL-300"
    assert {colour("IKC", number) for number in range(9)} == {labels.BLUE}
    assert colour("IKC, H = 10", 1) == COLOURS[1]
    assert colour("local search", 9) == COLOURS[1]


def test_names_and_colours_of_methods_are_typed_there_only() -> None:
    """No string elsewhere is a method's name as a reader calls it, or a colour of the palette."""
    known = {named.label for name, named in NAMES.items() if named.label != name} | {hfel(100), hfel(300)} | {*COLOURS}
    # The rows of Table II are the paper's own, of which one is called IKC.
    allowed = {("report/choices.py", pretty("ikc"))}
    found = [
        (path.relative_to(PACKAGE).as_posix(), node.value)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "labels.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known
    ]
    assert set(found) == allowed


def test_a_label_says_what_has_an_effect() -> None:
    one = run(
        {metrics.ACCURACY: [0.5]},
        "assignment.name=hfel",
        "assignment.exchanges=100",
        "allocation.coupling=joint",
        "scheduling.num_scheduled=10",
    )
    keys = ["assignment.name", "assignment.exchanges", "allocation.coupling"]
    assert describe(one, keys) == "HFEL-100, joint deadline"
    assert describe(one, ["scheduling.num_scheduled", "cost.delay_weight", "data.dirichlet_alpha"]) == "H = 10, λ = 1"


def test_a_modified_checkout_is_said() -> None:
    runs = [run({metrics.ACCURACY: [0.5]}, commit=commit) for commit in (CLEAN, f"{CLEAN}-dirty")]
    assert marked("IKC", runs[:1]) == "IKC"
    assert marked("IKC", runs) == "IKC (1 of 2 runs: modified checkout)"
    assert marked("IKC", runs[1:]) == "IKC (modified checkout)"
