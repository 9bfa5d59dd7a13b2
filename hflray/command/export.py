"""The command ``hflray export``, which writes the rounds of a sweep as one table for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hflray.errors import ConfigError
from hflray.support.terminal.app import HELP, RESULTS, Results, single

FORMS = ("csv", "parquet")
app = single()


@app.command(context_settings=HELP)
def command(
    sweep: Annotated[str, typer.Argument(help="A sweep's folder, or its name for the latest sweep of that name.")],
    form: Annotated[str, typer.Option("--to", metavar="csv|parquet", help="The form of the file.")] = "csv",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The file; default: SWEEP.csv or SWEEP.parquet.")
    ] = None,
    results: Results = RESULTS,
) -> None:
    """Write the rounds of a sweep as one table: run, seed, the settings that differ, round, and all metrics.

    \b
    Examples:
      hflray export quickstart
      hflray export quickstart --to parquet -o rounds.parquet
    """
    if form not in FORMS:
        raise ConfigError(f"--to: got '{form}'; accepted: {', '.join(FORMS)}; correct it")
    from hflray.report.frame import export
    from hflray.report.runs import read_sweep
    from hflray.support.terminal.output import new_console, say
    from hflray.support.text import as_file_stem

    record = read_sweep(results, sweep)
    path = export(record, form, out or Path(f"{as_file_stem(record.name)}.{form}"))  # type: ignore[arg-type]
    console = new_console()
    for note in record.notes:
        say(console, f"missing: {note}", "yellow")
    say(console, f"  {path}")
