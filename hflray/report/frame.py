"""The rounds of a sweep as one table, for pandas, a spreadsheet or another program."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pandas as pd

from hflray.report.labels import DEPLOYMENT
from hflray.report.runs import SEED, SweepRecord, read_sweep
from hflray.support.files import replacing

Form = Literal["csv", "parquet"]


def read(sweep: str | Path, results: str | Path = "hflray_results") -> pd.DataFrame:
    """Return the rounds of all runs of a sweep as one table.

    Args:
        sweep: the sweep's name, for the latest of that name, or its folder.
        results: the folder of results.

    Returns:
        A row for each round of each run, with ``run``, ``seed``, the settings in which the runs differ by their dotted
        keys, ``round`` and the metrics of the glossary by their names.

    Raises:
        ConfigError: there is no such sweep, or none of its runs can be read.

    Examples:
        >>> from hflray import ConfigError, read
        >>> try:
        ...     print(read("no_such_sweep")["accuracy"].max())
        ... except ConfigError as error:
        ...     print(str(error).partition(":")[0])
        no_such_sweep
    """
    return frame(read_sweep(Path(results), str(sweep)))


def keys_of(sweep: SweepRecord) -> list[str]:
    """Return the settings in which the runs differ; for a report, the seed of a deployment is none of them."""
    deployments = {run.settings[DEPLOYMENT] for run in sweep.runs}
    return [*sweep.keys, *[DEPLOYMENT] * (len(deployments) > 1 and DEPLOYMENT not in sweep.keys)]


def frame(sweep: SweepRecord) -> pd.DataFrame:
    """Return the table of `read`. Lists, which are the schedules, are left out."""
    tables = []
    for run in sweep.runs:
        rounds = run.rounds.select_dtypes("number")
        settings = {key: [run.settings.get(key)] * len(rounds) for key in keys_of(sweep)}  # one may be a list
        front = pd.DataFrame({"run": run.name, SEED: run.seed} | settings, index=rounds.index)
        tables.append(front.join(rounds))
    return pd.concat(tables, ignore_index=True)


def export(sweep: SweepRecord, form: Form, path: Path) -> Path:
    """Write the table of `read` as a file, and return its path. Raises OSError: it cannot be written."""
    table = frame(sweep)
    for key in keys_of(sweep):
        kinds = set(table[key].map(type))
        if len(kinds) > 1 or list in kinds:  # Parquet has one type in a column
            is_given = table[key].map(lambda value: isinstance(value, list) or pd.notna(value))
            table[key] = table[key].where(~is_given, table[key].astype(str))
    with replacing(path) as scratch:
        table.to_csv(scratch, index=False) if form == "csv" else table.to_parquet(scratch, index=False)
    return path
