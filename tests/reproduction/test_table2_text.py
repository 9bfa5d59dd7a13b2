"""hflray.reproduction.table2_text: the findings say which choice agrees with the paper, or that none does."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from hflray.reproduction.table2_choices import OURS, PAPER, Study, rank
from hflray.reproduction.table2_text import findings, section, table
from tests.conftest import says


def study(energy: float, nearest: float = 4.0) -> Study:
    """Return a study with one choice for random edges and one for nearest edges.

    Its means are the paper's, with the energies multiplied by `energy`; at nearest edges, all numbers are multiplied by
    `nearest`. One of the two fleets costs five times as much as the other.
    """
    rows = []
    for edge, share in (("random", 1.0), ("nearest", nearest)):
        for fleet, scale in ((1, 1 / 3), (2, 5 / 3)):
            numbers = {name: value * scale * share for name, value in PAPER.items()}
            numbers = {name: value * (energy if name.startswith("energy") else 1) for name, value in numbers.items()}
            rows.append(vars(replace(OURS, edge=edge)) | {"fleet": fleet} | numbers)
    return Study(pd.DataFrame(rows), (), 2, "2027-01-01", {"git_commit": "0123456789abcdef", "cpu": "a CPU"})


def test_the_findings_name_a_choice_that_agrees() -> None:
    lines = findings(study(1.2), rank(study(1.2).bills))
    assert lines[0].startswith("All six means are within 25% of the paper's by powers uniform in dBm")
    assert says(
        lines[0], "a random edge", "as allocated", "one edge iteration", "3.1 / 128 / 253 s", "28 / 805 / 1,580 J"
    )
    assert any(line.startswith("With every device at its nearest edge") and "380%" in line for line in lines)
    assert any("no choice brings all six numbers" in line for line in lines)  # they are 1/3 and 5/3 of the paper's


def test_the_findings_say_that_no_choice_agrees() -> None:
    lines = findings(study(0.5), rank(study(0.5).bills))
    assert lines[0].startswith("No choice brings all six means within 25% of the paper's. The closest is off by up to")
    assert "off by up to 50%: powers uniform in dBm" in lines[0]
    assert any("three delays alone come within 0%" in line for line in lines)


def test_the_powers_and_the_computing_energy_are_those_computed_by_hand() -> None:
    # 671 / 128 = 5.24, 1317 / 252.6 = 5.21 J/s. Mean powers: (0.19953 - 0.001) / ln(199.53) = 0.03749 W and 0.1003 W.
    # Computing: 100 · 1e-28 · 5 · (2e9)² · 5.5e4 · 550 = 6.05 J.
    line = findings(study(1.0), rank(study(1.0).bills))[-1]
    assert "5.2 and 5.2 J for each second" in line
    assert says(line, "3.7 J", "dBm", "10.0 J")
    assert "adds 6.1 J an edge iteration" in line


def test_the_section_has_every_choice_the_command_and_the_machine() -> None:
    text = section(study(1.0), "here")
    assert "python -m hflray.report choices --fleets 2 --export here" in text
    assert says(text, "2 choices", "2 fleets", "a CPU", "2027-01-01", "0123456789ab")
    assert "the paper: 3.1 / 128 / 252.6 s; 23.5 / 671 / 1,317 J" in text
    rows = table(rank(study(1.0).bills))
    assert rows["edge"].tolist() == ["random", "nearest"]
    assert rows["worst of the means"].tolist() == ["0%", "300%"]
    assert text.count("\n| dBm |") == 2
    # The delays match on no fleet, so that there is no mean energy of such fleets.
    assert rows["their energies, J"].tolist() == ["–", "–"]
