"""One storage and three results folders: one driver is paused, one is killed, and nothing is lost or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
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


def drive(folder: Path, storage: Path, *given: str) -> subprocess.Popen[bytes]:
    """Start a driver in a results folder of its own."""
    folder.mkdir()
    settings = {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMMAND, *given, "--results", "results", "--storage", str(storage)]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(
            command, cwd=folder, env=os.environ | settings, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def stored(storage: Path) -> int:
    """Return how many rounds the storage has."""
    places = [Storage(str(storage), folder) for folder in storage.glob(f"{NAME}-*")]
    return sum(place._whole(key).count(b'{"round": ') for place in places for key in place._keys())


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_paused_driver_gives_way_and_a_killed_one_is_followed(tmp_path: Path) -> None:
    """What each of the three has made is in the storage once; the paused one says in a line that another goes on."""
    (tmp_path / f"{NAME}.yaml").write_text(SWEEPS["storage"])
    storage, drivers = tmp_path / "storage", list[subprocess.Popen[bytes]]()

    def go_on(name: str, *given: str) -> subprocess.Popen[bytes]:
        before = stored(storage)
        drivers.append(drive(tmp_path / name, storage, *given))
        wait_for(lambda: stored(storage) > before + 1 or drivers[-1].poll() is not None)
        assert drivers[-1].poll() is None, (tmp_path / name / "output.txt").read_text()
        return drivers[-1]

    with mlflow_server(tmp_path) as server:
        try:
            paused = go_on("A", f"../{NAME}.yaml", "--tracking-uri", server.uri)
            for process in family(paused.pid):
                process.suspend()
            killed = go_on("B", "--resume", NAME)
            killed.kill()
            killed.wait()
            last = go_on("C", "--resume", NAME)
            for process in family(paused.pid):
                process.resume()
            assert paused.wait(400) == 2
            said = (tmp_path / "A" / "output.txt").read_text()
            assert "Traceback" not in said
            assert said.count("error: ") == 1
            assert last.wait(400) == 0, (tmp_path / "C" / "output.txt").read_text()
        finally:
            for process in [member for driver in drivers for member in family(driver.pid)]:
                with suppress(psutil.Error):
                    process.kill()
        (local,) = (tmp_path / "C" / "results").glob(f"{NAME}-*")
        reference, place = Reference.of_file(tmp_path / f"{NAME}.yaml"), SweepFolder.load(local).place
        artifacts = tmp_path / "server-artifacts"
        assert differences(local.parent, reference, tmp_path / "server.db", artifacts, place) == []
    (shared,) = storage.glob(f"{NAME}-*")
    whole = Storage(str(storage), local)
    for key in Journal(local).run_keys():
        assert whole._whole(key) == Journal(local).path(key).read_bytes()
    assert SweepFolder.load(shared / "hflray").finished
