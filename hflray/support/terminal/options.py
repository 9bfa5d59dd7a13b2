"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RESULTS = Path("hflray_results")
Results = Annotated[Path, typer.Option(help="Folder of the results.")]
DataRoot = Annotated[
    Path | None, typer.Option(help="Folder of the data sets; else $HFLRAY_DATA, else ~/.cache/hflray.")
]
