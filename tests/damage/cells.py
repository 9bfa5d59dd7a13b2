"""The matrix of damages: kinds of files × kinds of damage, and the tables of outcomes in docs/recovery.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"
GOES_ON, SAYS_SO, STOPS, AGAIN, UNMEASURED = "goes on", "says so, goes on", "stops", "made again", "not measured"
ENDED, OPEN = "s0", "s1"  # the last parts of the names of the trial that has ended and of the one that was interrupted
# The kinds of files, by the pattern below the folder of the results or of the caches; the last match is the newest.
SWEEP_FILES = {
    "`sweep.json`": "mended-*/sweep.json",
    "journal of an ended trial": f"mended-*/journal/*-{ENDED}.jsonl",
    "journal of an interrupted trial": f"mended-*/journal/*-{OPEN}.jsonl",
    "newest checkpoint": f"mended-*/checkpoints/*-{OPEN}/*",
    "checkpoint of an ended trial": f"mended-*/checkpoints/*-{ENDED}/*",
    "CSV of a trial": f"mended-*/csv/*-{OPEN}.csv",
    "MLflow's database": "mlflow-*.db",
}
CACHE_FILES = {
    "policy": "policy.safetensors",
    "fleets' `spec.json`": "fleets/spec.json",
    "fleets' `.npz`": "fleets/fleets-*.npz",
    "references on fleets": "fleets/references.npz",
    "compiled kernel": "hflray/mini/*.so",
}
TABLES = {"matrix of sweeps": SWEEP_FILES, "matrix of caches": CACHE_FILES}


def _flip(path: Path) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one bit flipped": _flip,
    "unreadable": lambda path: path.chmod(0),
    "deleted": lambda path: path.unlink(),
}


def outcomes(text: str) -> dict[tuple[str, str], str]:
    """Return the cells of all tables of the page by kind of file and damage."""
    cells: dict[tuple[str, str], str] = {}
    for name in TABLES:
        lines = text.partition(f"<!-- {name} -->\n")[2].partition("\n\n")[0].splitlines()
        heading, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines)
        cells |= {(row[0], damage): cell for row in rows for damage, cell in zip(heading[1:], row[1:], strict=True)}
    return cells


def with_outcomes(text: str, cells: dict[tuple[str, str], str]) -> str:
    """Return the page with these cells in its tables."""
    for name, kinds in TABLES.items():
        rows = [["file", *DAMAGES], *([kind, *(cells.get((kind, damage), "") for damage in DAMAGES)] for kind in kinds)]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        table = "\n".join([lines[0], "|---" * (len(DAMAGES) + 1) + "|", *lines[1:]])
        before, marker, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}{marker}{table}\n\n{rest.partition(chr(10) * 2)[2]}"
    return text
