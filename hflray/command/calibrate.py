"""``hflray calibrate``: from a log of real devices to tables of a fleet, with verdicts on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hflray.errors import ConfigError
from hflray.support.terminal.app import HELP, single, spoken
from hflray.support.terminal.output import new_console, say, say_notes, waiting

EXAMPLE = Path("calibration_log.csv")
SHOWN, NOTES = 12, 12  # rows of a table of constants on the terminal; and notes
LONG_BYTES = 2_000_000  # of a log whose calibration may take more than two seconds

app = single()


@app.command(context_settings=HELP)
def calibrate(
    log: Annotated[Path | None, typer.Argument(metavar="LOG", help="A CSV or Parquet file with a row a turn.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to write: tables, page, sweep.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="NAME=THEIRS,…", help="Names of columns in the file by ours.")
    ] = None,
    compute_w: Annotated[
        float | None, typer.Option(metavar="W", help="Watts of computing, where the log has no train_j.")
    ] = None,
    upload_w: Annotated[
        float | None, typer.Option(metavar="W", help="Watts of sending, where the log has no send_j.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files in a folder that is not empty.")] = False,
    example: Annotated[
        bool, typer.Option("--example", help=f"Write a log to try, to LOG or {EXAMPLE}, and end.")
    ] = False,
) -> None:
    """Fit what devices and links take from a log, and say whether this predicts rows that were held out.

    The log has the columns device, round, samples, steps, train_s, bytes and send_s, and may have train_j, send_j,
    edge and batch (docs/howto/real.md). The exit code is 0 if the constants fit, 1 if they do not or nothing could be
    tested, and 2 for wrong input.

    \b
    Examples:
      hflray calibrate --example
      hflray calibrate calibration_log.csv -o calibrated
      hflray calibrate theirs.csv -o calibrated --columns device=cid,train_s=fit_seconds --compute-w 4 --upload-w 1.5
    """
    called = spoken("calibrate", "hflray calibrate")
    if example:
        _write_example(log or EXAMPLE, called)
        return
    if log is None or out is None:
        raise ConfigError(
            f"{'LOG' if log is None else '--out'}: got nothing; accepted: {called} LOG -o FOLDER; give it"
        )
    if out.exists() and not (out.is_dir() and (force or not any(out.iterdir()))):
        fix = "choose another folder, or add --force" if out.is_dir() else "choose a folder"
        raise ConfigError(f"--out: {out} {'is not empty' if out.is_dir() else 'is a file'}; {fix}")
    given_w = {name: w for name, w in (("compute_w", compute_w), ("upload_w", upload_w)) if w is not None}
    for name, watts in given_w.items():
        if not 0 < watts <= 1e6:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: got {watts:g}; accepted: above 0 and at most 1e+06; correct it")
    from hflray.calibration.log import read_log, renamed_columns
    from hflray.calibration.output import calibrate as calibration_of
    from hflray.calibration.output import constant_tables, save, verdict_table
    from hflray.calibration.verdict import FITS

    console = new_console()
    renamed = renamed_columns(columns or ())
    short = not log.is_file() or log.stat().st_size < LONG_BYTES
    with waiting(console, f"reading and fitting {log.name}", quiet=short):
        made = calibration_of(read_log(log, renamed), given_w)
        written = save(made, out, log.name)
    for table in (*constant_tables(made, SHOWN), verdict_table(made)):
        console.print(table)
    say_notes(console, made.notes, NOTES)
    say(console, f"{made.answer}: {made.size}")
    for path in written:
        say(console, f"  {path}")
    if made.answer != FITS:
        raise typer.Exit(1)


def _write_example(path: Path, called: str) -> None:
    """Write the example and say what comes next. Raises ConfigError: the file exists, or is no CSV file."""
    from hflray.calibration.log import write_example

    if path.exists() or path.suffix != ".csv":
        raise ConfigError(
            f"LOG: got {path}; accepted with --example: a new file that ends in .csv; choose another name"
        )
    print(f"{write_example(path)}: 24 rounds of 6 devices at 2 edges; next:")
    print(f"  {called} {path} -o calibrated")
