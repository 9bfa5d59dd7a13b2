"""Turn the availability of FedScale's clients, as JSON or CSV, into a trace of availability.

    python -m hflray.world.fedscale clients.json trace.csv [--devices N]

The JSON file maps each client to ``{"active": [s, …], "inactive": [s, …], "finish_time": s}``: it becomes available at
the times of the first list and unavailable at those of the second one. The CSV file has the columns
``client,active_s,inactive_s`` with a line for each spell of being available. FedScale's own file is a Python pickle,
which can run any program when it is read; ``examples/fedscale_pickle.py`` turns one that you trust into JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from hflray.errors import ConfigError, HflrayError
from hflray.support.files import write

COLUMNS = ["client", "active_s", "inactive_s"]
Spell = tuple[float, float]


def convert(source: Path, target: Path, devices: int | None = None) -> tuple[int, float]:
    """Write the trace; return the number of devices and the time after which the clients repeat themselves, s.

    Args:
        source: the file, whose name ends in ``.json`` or ``.csv``.
        target: the CSV file, with columns ``time_s,device,available``.
        devices: the first clients that are taken; None: all.

    Raises:
        ConfigError: the file is not of this form.
    """
    try:
        clients, period_s = _json(source) if source.suffix == ".json" else _csv(source)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{source}: not the availability of clients ({error!r}); give the JSON or CSV form that "
            "`python -m hflray.world.fedscale --help` names"
        ) from error
    rows: list[tuple[float, int, int]] = []
    for device, spells in enumerate(clients[:devices]):
        rows.append((0.0, device, 0))
        for active_s, inactive_s in spells:
            if not 0 <= active_s <= inactive_s:
                raise ConfigError(
                    f"{source}: client {device} is available from {active_s:g} to {inactive_s:g} s; accepted: times "
                    "that do not run backwards; correct the file"
                )
            rows += [(active_s, device, 1), (inactive_s, device, 0)]
    if not rows:
        raise ConfigError(f"{source}: it has no client; give a file with one")
    rows.sort(key=lambda row: row[0])  # a client's lines of the same time stay in order
    lines = [f"{time:.15g},{device},{available}" for time, device, available in rows]
    write(target, "\n".join(["time_s,device,available", *lines, ""]), durable=True)
    return len(clients[:devices]), max(period_s, rows[-1][0])


def _json(source: Path) -> tuple[list[list[Spell]], float]:
    clients, period_s = [], 0.0
    for client in json.loads(source.read_text(encoding="utf-8")).values():
        starts, ends = ([float(time) for time in client[name]] for name in ("active", "inactive"))
        finish_s = float(client["finish_time"])
        if ends and starts and ends[0] < starts[0]:  # it was available from the start
            starts = [0.0, *starts]
        if len(ends) < len(starts):  # it is available until the end
            ends.append(finish_s)
        clients.append(list(zip(starts, ends, strict=True)))
        period_s = max(period_s, finish_s)
    return clients, period_s


def _csv(source: Path) -> tuple[list[list[Spell]], float]:
    rows = list(csv.reader(source.read_text(encoding="utf-8").splitlines()))
    if not rows or [cell.strip() for cell in rows[0]] != COLUMNS:
        raise ValueError(f"the columns are not {','.join(COLUMNS)}")
    clients: dict[str, list[Spell]] = {}
    for client, active_s, inactive_s in rows[1:]:
        clients.setdefault(client, []).append((float(active_s), float(inactive_s)))
    return list(clients.values()), max((spell[1] for spells in clients.values() for spell in spells), default=0.0)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Turn the availability of FedScale's clients into a trace.")
    parser.add_argument("source", type=Path, help="a .json file {client: {active, inactive, finish_time}}, or a .csv "
                        "file with columns client,active_s,inactive_s")  # fmt: skip
    parser.add_argument("target", type=Path, help="the CSV file to write")
    parser.add_argument("--devices", type=int, help="the largest number of devices")
    arguments = parser.parse_args()
    try:
        count, period_s = convert(arguments.source, arguments.target, arguments.devices)
    except HflrayError as error:
        raise SystemExit(str(error)) from None
    print(f"{count} devices; set world.availability.options.repeat_s to more than {period_s:.15g} to repeat the trace")


if __name__ == "__main__":
    main()
