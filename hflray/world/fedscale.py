"""Turn the availability of FedScale's clients, as JSON or CSV, into a trace of availability.

    python -m hflray.world.fedscale clients.json trace.csv [--devices N]

The JSON file maps each client to ``{"active": [s, …], "inactive": [s, …], "finish_time": s}``: it becomes available at
the times of the first list and unavailable at those of the second one, and begins anew after its own ``finish_time``. A
trace repeats all devices at once, so that each client's repetitions are written out to the longest of these times. The
CSV file has the columns ``client,active_s,inactive_s`` with a line for each spell of being available. FedScale's own
file is a Python pickle, which can run any program when it is read; ``examples/fedscale_pickle.py`` turns one that you
trust into JSON.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from hflray.errors import ConfigError
from hflray.support.files import write
from hflray.support.reader import parse_json, read_bytes
from hflray.support.tables import Table
from hflray.support.terminal.app import HELP, exit_code, single

COLUMNS = ["client", "active_s", "inactive_s"]
MOST_LINES = 5_000_000  # of a trace; a client with a tiny finish_time would fill the disk
Spell = tuple[float, float]
app = single()


def convert(source: Path, target: Path, devices: int | None = None) -> tuple[int, float]:
    """Write the trace; return the number of devices and the time after which the clients repeat themselves, s.

    Args:
        source: the file, whose name ends in ``.json`` or ``.csv``.
        target: the CSV file, with columns ``time_s,device,available``.
        devices: the first clients that are taken; None: all.

    Raises:
        ConfigError: the file is not of this form; the message names the client or the line.
    """
    try:
        content = read_bytes(source)
        is_json = source.suffix == ".json"
        clients = _json(content.decode("utf-8-sig"), devices) if is_json else _csv(str(source), content, devices)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{source}: not the availability of clients ({error}); give the JSON or CSV form that "
            "`python -m hflray.world.fedscale --help` names"
        ) from error
    if not clients:
        raise ConfigError(f"{source}: it has no client; give a file with one")
    longest_s = max(finish_s for _, finish_s in clients)
    if sum(2 * len(spells) * math.ceil(longest_s / finish_s) for spells, finish_s in clients if spells) > MOST_LINES:
        shortest_s = min(finish_s for spells, finish_s in clients if spells)
        raise ConfigError(
            f"{source}: repeated until {longest_s:g} s, the longest finish_time, the clients' spells are more than "
            f"{MOST_LINES:,} lines; the shortest finish_time is {shortest_s:g} s; leave such clients out, or take the "
            "first few (--devices)"
        )
    rows: list[tuple[float, int, int]] = []
    for device, (spells, finish_s) in enumerate(clients):
        rows.append((0.0, device, 0))
        for lap in range(math.ceil(longest_s / finish_s)):
            for active_s, inactive_s in ((lap * finish_s + first, lap * finish_s + last) for first, last in spells):
                if active_s < longest_s:
                    rows += [(active_s, device, 1), (min(inactive_s, longest_s), device, 0)]
    rows.sort(key=lambda row: row[0])  # a client's lines of the same time stay in order
    lines = [f"{time:.15g},{device},{available}" for time, device, available in rows]
    write(target, "\n".join(["time_s,device,available", *lines, ""]), durable=True)
    return len(clients), longest_s


def _json(text: str, devices: int | None) -> list[tuple[list[Spell], float]]:
    """Return the spells and the finish_time of each client. Raises ValueError with the client's name."""
    tree = parse_json(text)
    if not isinstance(tree, dict):
        raise ValueError(f"it is a {type(tree).__name__} and not a mapping of clients")
    return [_client(name, client) for name, client in list(tree.items())[:devices]]


def _client(name: str, client: Any) -> tuple[list[Spell], float]:
    try:
        starts, ends = ([float(time) for time in client[key]] for key in ("active", "inactive"))
        finish_s = float(client["finish_time"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"client {name!r}: {error!r} in place of lists of times and a finish_time") from error
    if not 0 < finish_s < math.inf:
        raise ValueError(f"client {name!r}: its finish_time is {finish_s:g}; accepted: a finite time above 0")
    if ends and (not starts or ends[0] < starts[0]):  # it was available from the start
        starts = [0.0, *starts]
    if len(ends) == len(starts) - 1:  # it is available until the end
        ends = [*ends, max(finish_s, starts[-1])]
    if len(ends) != len(starts):
        raise ValueError(
            f"client {name!r}: it becomes available {len(starts)} times and unavailable {len(ends)} times; accepted: "
            "in turn"
        )
    times = [time for spell in zip(starts, ends, strict=True) for time in spell]
    _check(f"client {name!r}", times)
    spells = [(first, min(last, finish_s)) for first, last in zip(starts, ends, strict=True) if first < finish_s]
    return spells, finish_s


def _csv(name: str, content: bytes, devices: int | None) -> list[tuple[list[Spell], float]]:
    """Return the spells of each client, and the last time of all. Raises ConfigError with the number of the row."""
    table = Table(name, content, is_csv=True)
    if table.columns != COLUMNS:
        raise ConfigError(f"{name}, row 1: the columns are not {','.join(COLUMNS)}; correct the line")
    first_s, last_s = table.filled("active_s", 0.0), table.filled("inactive_s", 0.0)
    if len(back := np.flatnonzero(last_s < first_s)):
        raise table.error(int(back[0]), "inactive_s", "is before active_s; accepted: a later time; correct it")
    clients: dict[str, list[Spell]] = {}
    for client, first, last in zip(table.texts("client"), first_s.tolist(), last_s.tolist(), strict=True):
        clients.setdefault(client, []).append((first, last))
    chosen = {client: sorted(spells) for client, spells in list(clients.items())[:devices]}
    for client, spells in chosen.items():
        _check(f"client {client!r}", [time for spell in spells for time in spell])
    end_s = max(last for spells in chosen.values() for _, last in spells)
    return [(spells, end_s) for spells in chosen.values()] if end_s > 0 else []


def _check(place: str, times: list[float]) -> None:
    """Raise ValueError if times are not finite, are negative or run backwards."""
    if not all(0 <= time < math.inf for time in times) or any(b < a for a, b in pairwise(times)):
        shown = ", ".join(f"{time:g}" for time in times[:6]) + (", …" if len(times) > 6 else "")
        raise ValueError(f"{place}: its times are {shown} s; accepted: times from 0 on that do not run backwards")


@app.command(context_settings=HELP)
def trace(
    source: Annotated[Path, typer.Argument(help="A .json file {client: {active, inactive, finish_time}}, or a .csv "
                                           "file with the columns client,active_s,inactive_s.")],
    target: Annotated[Path, typer.Argument(help="The CSV file to write.")],
    devices: Annotated[int | None, typer.Option(min=1, help="The first clients that are taken.")] = None,
) -> None:  # fmt: skip
    """Turn the availability of FedScale's clients into a trace of availability."""
    count, period_s = convert(source, target, devices)
    print(f"{count} devices; set world.availability.options.repeat_s to more than {period_s:.15g} to repeat the trace")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.world.fedscale")


if __name__ == "__main__":
    raise SystemExit(main())
