"""hflray.reproduction.printing: a claim on the terminal is preceded by whose it is."""

from __future__ import annotations

from io import StringIO

import pandas as pd
from rich.console import Console

from hflray.reproduction.printing import print_verdicts


def test_a_claim_says_whose_it_is_and_an_empty_field_has_no_line() -> None:
    console = Console(file=StringIO(), width=80)
    row = ("IID data raise it", "55 and 50 %", "so far yes", "3 of 5 seeds", "")
    print_verdicts(pd.DataFrame([row], columns=["our guess", "ours", "agree", "evidence", "guess"]), console)
    assert [line.strip() for line in console.file.getvalue().splitlines()] == [  # type: ignore[attr-defined]
        "our guess: IID data raise it", "so far yes", "ours: 55 and 50 %", "on: 3 of 5 seeds",
    ]  # fmt: skip
