"""Verdicts on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from rich.padding import Padding
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console


def print_verdicts(claims: pd.DataFrame, console: Console) -> None:
    """Print whose each claim is, the claim, the answer, our numbers, the evidence, and our guess why they differ."""
    for text, ours, answer, evidence, guess in claims.itertuples(index=False):
        console.print(f"{claims.columns[0]}: {text}", style="bold", markup=False, highlight=False)
        for heading, line in (("", answer), ("ours: ", ours), ("on: ", evidence), ("our guess why: ", guess)):
            if line:
                console.print(Padding(Text(f"{heading}{line}"), (0, 0, 0, 2), expand=False))
