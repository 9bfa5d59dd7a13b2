"""The small sweep that is broken: its file, its driver's process, its command to go on, and its progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hflray.tracking import Journal

ROOT = Path(__file__).parents[2]
NAME = "chaos"
SWEEPS = {path.stem: path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("sweeps/*.yaml"))}


@dataclass
class Sweep:
    """A sweep in a folder of its own.

    Args:
        folder: the folder, in which the command runs; it has the sweep's file, its results and its output.
        environment: additional environment variables of its processes.
        tracking_uri: the MLflow server; None stands for the SQLite file of the results.
        text: the sweep file.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    tracking_uri: str | None = None
    text: str = SWEEPS["plain"]

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{NAME}.yaml").write_text(self.text, encoding="utf-8")

    @property
    def results(self) -> Path:
        """The folder of the results."""
        return self.folder / "hflray_results"

    @property
    def output(self) -> Path:
        """The file with everything that the commands have printed."""
        return self.folder / "output.txt"

    def begun(self) -> list[Path]:
        """Return the folders of the sweeps that have begun, which is one, or none at first."""
        return sorted(path.parent for path in self.results.glob(f"{NAME}-*/sweep.json"))

    def finished(self) -> bool:
        """Return whether every trial has ended, as ``sweep.json`` says."""
        return any(json.loads((path / "sweep.json").read_text(encoding="utf-8"))["finished"] for path in self.begun())

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command: the first one, or the one that goes on if the sweep has begun."""
        if self.begun():
            return self._run("--resume", NAME)
        more = ("--tracking-uri", self.tracking_uri) if self.tracking_uri else ()
        # A driver that dies before the sweep has begun leaves nothing that could be gone on with.
        return self._run(f"{NAME}.yaml", *more)

    def resume(self) -> subprocess.Popen[bytes]:
        """Start the command that goes on."""
        return self._run("--resume", NAME)

    def _run(self, *arguments: str, module: str = "hflray.tune") -> subprocess.Popen[bytes]:
        settings = {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", module, *arguments]
        with self.output.open("ab") as output:
            output.write(f"$ {' '.join(command[1:])}\n".encode())
            output.flush()
            return subprocess.Popen(
                command, cwd=self.folder, env=os.environ | settings | dict(self.environment),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def synchronise(self) -> subprocess.Popen[bytes]:
        """Start the command that sends MLflow what it lacks."""
        return self._run("sync", str(self.begun()[-1]), module="hflray.tracking")

    def progress(self) -> dict[str, tuple[int, bool]]:
        """Return the last journalled round of each trial that has begun, and whether the trial has ended."""
        state = {}
        for folder in self.begun():
            journal = Journal(folder)
            for key in journal.run_keys():
                entries = journal.entries(key)
                kinds = [kind for entry in entries for kind in ("start", "end") if kind in entry]
                state[key] = max((int(e["round"]) for e in entries if "round" in e), default=0), kinds[-1:] == ["end"]
        return state


def steps(before: Mapping[str, tuple[int, bool]], after: Mapping[str, tuple[int, bool]]) -> bool:
    """Return whether every trial that ran `before` has made another round or has ended `after`.

    If none ran, it is whether any trial has made a round.
    """
    running = [name for name, (_, ended) in before.items() if not ended]
    if not running:
        return any(last > before.get(name, (0, False))[0] for name, (last, _) in after.items())
    return all(after[name][0] > before[name][0] or after[name][1] for name in running)
