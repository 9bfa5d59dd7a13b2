"""The matrix of damages: kinds of files × kinds of damage, and the table of outcomes in docs/recovery.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"

GOES_ON = "goes on"
SAYS_SO = "says so, goes on"
STOPS = "stops"
AGAIN = "made again"
UNMEASURED = "not measured"
ENDED, OPEN = "s0", "s1"  # the last parts of the names of the trial that has ended and of the one that was interrupted

# The kinds of files, by the pattern below the folder of the results; the last match is the newest.
SWEEP_FILES = {
    "`sweep.json`": "mended-*/sweep.json",
    "journal of an ended trial": f"mended-*/journal/*-{ENDED}.jsonl",
    "journal of an interrupted trial": f"mended-*/journal/*-{OPEN}.jsonl",
    "newest checkpoint": f"mended-*/checkpoints/*-{OPEN}/*",
    "checkpoint of an ended trial": f"mended-*/checkpoints/*-{ENDED}/*",
    "CSV of a trial": f"mended-*/csv/*-{OPEN}.csv",
    "MLflow's database": "mlflow-*.db",
}

CACHE_FILES = (
    "policy", "fleets' `spec.json`", "fleets' `.npz`", "references on fleets", "compiled kernel",
)  # fmt: skip


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


def table(text: str, marker: str) -> dict[tuple[str, str], str]:
    """Return the cells of the table after ``<!-- marker -->`` by kind of file and damage."""
    lines = text.partition(f"<!-- {marker} -->\n")[2].partition("\n\n")[0].splitlines()
    if not lines:
        return {}
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    return {(row[0], damage): cell for row in rows[2:] for damage, cell in zip(rows[0][1:], row[1:], strict=True)}


def rendered(cells: dict[tuple[str, str], str]) -> str:
    """Return these cells as a Markdown table."""
    kinds, damages = list(dict.fromkeys(kind for kind, _ in cells)), list(DAMAGES)
    lines = ["| file | " + " | ".join(damages) + " |", "|---" * (len(damages) + 1) + "|"]
    lines += [f"| {kind} | " + " | ".join(cells.get((kind, damage), "") for damage in damages) + " |" for kind in kinds]
    return "\n".join(lines)
