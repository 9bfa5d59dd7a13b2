"""One storage and three results folders: whatever is killed or paused, there is one journal, and nothing is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from hflray.sweep.results import SweepFolder
from hflray.tracking import Journal
from hflray.tune.storage import Storage
from tests.chaos.comparison import Reference, differences
from tests.chaos.fault import family
from tests.chaos.sweep import NAME, ROOT, SWEEPS
from tests.servers import mlflow_server

LEASE_S = 4.0
# The command itself with a shorter lease.
COMMAND = f"""
from hflray.tune import cli, storage
storage.Storage.__init__.__defaults__ = ({LEASE_S},)
cli.main()
"""


@dataclass
class Machine:
    """A results folder of its own, and the process that works in it.

    Attributes:
        process: the driver; None if none runs.
        starts: how often one was started.
        stopped: the processes that are paused.
        until_s: when they go on.
    """

    folder: Path
    storage: Path
    tracking_uri: str
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    stopped: list[psutil.Process] = field(default_factory=list)
    until_s: float = 0.0

    def start(self, first: bool = False) -> None:
        self.folder.mkdir(exist_ok=True)
        self.starts += 1
        given = [f"../{NAME}.yaml", "--tracking-uri", self.tracking_uri] if first else ["--resume", NAME]
        settings = {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *given, "--results", "results", "--storage", str(self.storage)],
                cwd=self.folder, env=os.environ | settings, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def output(self) -> Path:
        """What the last process has printed."""
        return self.folder / f"output-{self.starts}.txt"

    @property
    def awake(self) -> bool:
        return self.process is not None and not self.stopped

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def pause(self, seconds: float, whole: bool) -> None:
        """Stop the driver, or the `whole` family of its processes, for some time."""
        assert self.process is not None
        self.stopped = family(self.process.pid) if whole else [psutil.Process(self.process.pid)]
        self.until_s = time.monotonic() + seconds
        for process in self.stopped:
            with suppress(psutil.Error):
                process.suspend()

    def wake(self) -> None:
        for process in self.stopped:
            with suppress(psutil.Error):
                process.resume()
        self.stopped = []

    def look(self) -> bool:
        """Let a pause end when it is over, and judge a process that has ended. Return whether the sweep has ended."""
        if self.stopped and time.monotonic() > self.until_s:
            self.wake()
        if self.process is None or self.process.poll() is None:
            return False
        code, said = self.process.returncode, self.output.read_text(errors="replace")
        self.process, self.stopped = None, []
        # A process that cannot go on, because another one does or has ended the sweep, says so in one line.
        assert "Traceback" not in said, said
        assert code == 0 or (code == 2 and said.count("error: ") == 1), f"{self.folder.name}: exit code {code}:\n{said}"
        return code == 0


def stored(storage: Path) -> int:
    """Return how many rounds the storage has."""
    total = 0
    for folder in storage.glob(f"{NAME}-*"):
        place = Storage(str(storage), folder)
        total += sum(place._whole(key).count(b'{"round": ') for key in place._keys())
    return total


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("seed", "faults"), [(0, 8), pytest.param(1, 30, marks=pytest.mark.timeout(3600))])
def test_three_folders_on_one_storage_lose_nothing(tmp_path, seed: int, faults: int) -> None:
    """A driver is killed or is paused for longer than its lease, and goes on in the same folder or in another."""
    (tmp_path / f"{NAME}.yaml").write_text(SWEEPS["storage"])
    rng, storage = random.Random(seed), tmp_path / "storage"
    with mlflow_server(tmp_path) as server:
        machines = [Machine(tmp_path / name, storage, server.uri) for name in "ABC"]
        try:
            machines[0].start(first=True)
            while not stored(storage):
                assert not machines[0].look()
                assert machines[0].process is not None, machines[0].output.read_text()
                time.sleep(0.2)
            finished = None
            while faults > 0:
                faults -= break_one(rng, machines, storage)
            for machine in machines:
                machine.wake()
            while finished is None:
                time.sleep(0.2)
                finished = next((machine for machine in machines if machine.look()), None)
                if finished is None and not any(machine.process for machine in machines):
                    rng.choice(machines).start()
            while any(machine.process for machine in machines):
                look(machines)  # those that were replaced say so
                time.sleep(0.2)
        finally:
            for machine in machines:
                machine.wake()
                if machine.process is not None:
                    machine.kill()
        (local,) = (finished.folder / "results").glob(f"{NAME}-*")
        lost = differences(
            local.parent, Reference.of_file(tmp_path / f"{NAME}.yaml"), tmp_path / "server.db",
            tmp_path / "server-artifacts", SweepFolder.load(local).place,
        )  # fmt: skip
    assert lost == []
    (shared,) = storage.glob(f"{NAME}-*")
    place = Storage(str(storage), local)
    for key in Journal(local).run_keys():
        assert place._whole(key) == Journal(local).path(key).read_bytes()
    assert SweepFolder.load(shared / "hflray").finished


def break_one(rng: random.Random, machines: list[Machine], storage: Path) -> bool:
    """Wait for a random moment, kill or pause a driver that runs then, and start another one if none runs.

    Returns whether one was killed or paused.
    """
    starts = not any(machine.awake for machine in machines)
    if starts:
        idle = [machine for machine in machines if machine.process is None]
        for machine in rng.sample(idle, min(len(idle), rng.choice((1, 1, 1, 2)))):  # two at once: one is refused
            machine.start()
    before, begun_s = stored(storage), time.monotonic()
    early_s = rng.uniform(0, 20) if starts and rng.random() < 0.4 else None  # while it starts, or after another round
    while time.monotonic() - begun_s < early_s if early_s is not None else stored(storage) == before:
        look(machines)
        assert time.monotonic() - begun_s < 400, "no round within 400 s"
        if not any(machine.awake for machine in machines):
            return False
        time.sleep(0.1)
    time.sleep(rng.uniform(0, 0.5))
    look(machines)
    awake = [machine for machine in machines if machine.awake]
    if not awake:
        return False
    machine = rng.choice(awake)
    if rng.random() < 0.45:
        machine.kill()
        return True
    whole, alone = rng.random() < 0.5, rng.random() < 0.7
    machine.pause(LEASE_S * rng.uniform(1.2, 1.8 if alone else 8), whole)
    while alone and machine.stopped:
        look(machines)
        time.sleep(0.1)
    return True


def look(machines: list[Machine]) -> None:
    """See `Machine.look`."""
    assert not any(machine.look() for machine in machines), "the sweep ended before all faults: make it longer"
