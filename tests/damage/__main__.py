"""``python -m tests.damage``: run the whole matrix of damages and write its tables into docs/recovery.md.

``python -m tests.damage journal`` runs only the cells whose names match, as pytest's ``-k`` does, and keeps the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.damage.cells import CACHE_FILES, DAMAGES, PAGE, SWEEP_FILES, rendered, table

TABLES = {"matrix of sweeps": SWEEP_FILES, "matrix of caches": CACHE_FILES}


def main() -> int:
    """Run the matrix; return the exit code of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes.txt"
        command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).parent), "-m", "slow or not slow"]
        cells = "test_a_resume or test_a_cache or (unreadable_files and all)"
        command += ["-k", " and ".join([f"({cells})", *(f"({word})" for word in sys.argv[1:])])]
        code = subprocess.run(command, env=os.environ | {"HFLRAY_DAMAGE_NOTES": str(notes)}, check=False).returncode
        rows = [line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        print(*row, sep=" | ")
    results = {(kind, damage): result for kind, damage, result, _ in rows}
    text = PAGE.read_text(encoding="utf-8")
    for name, kinds in TABLES.items():
        known = table(text, name) | results
        cells = {(kind, damage): known.get((kind, damage), "") for kind in kinds for damage in DAMAGES}
        before, marker, rest = text.partition(f"<!-- {name} -->\n")
        text = before + marker + rendered(cells) + "\n\n" + rest.partition("\n\n")[2]
    PAGE.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
