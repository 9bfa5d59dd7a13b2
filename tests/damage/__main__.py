"""``python -m tests.damage``: run the whole matrix of damages and write its tables into docs/recovery.md.

``python -m tests.damage journal`` runs only the cells whose names match, as pytest's ``-k`` does, and keeps the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.damage.cells import PAGE, outcomes, with_outcomes

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes.txt"
        command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).parent), "-m", "slow or not slow"]
        words = ["test_a_damaged_file or test_unreadable_files", *sys.argv[1:]]
        command += ["-k", " and ".join(f"({word})" for word in words)]
        code = subprocess.run(command, env=os.environ | {"HFLRAY_DAMAGE_NOTES": str(notes)}, check=False).returncode
        rows = [line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines()]
    text = PAGE.read_text(encoding="utf-8")
    cells = outcomes(text) | {(kind, damage): result for kind, damage, result, _ in rows}
    PAGE.write_text(with_outcomes(text, cells), encoding="utf-8")
    sys.exit(code)
