"""A small sweep that a version left half done, as the next versions must open it.

    python -m tests.release.half_done            # writes tests/data/released/hflray-VERSION.zip for this version
    python -m tests.release.half_done --force    # also if there is one

The sweep has two trials of four rounds. Its driver is killed after the first round of the second one. The archive has
the sweep's folder: journals, checkpoints, and what Ray Tune wrote. The database of MLflow is not part of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from hflray import __version__

FOLDER = Path(__file__).parents[1] / "data" / "released"
ROUNDS, LIMIT_S = 4, 300.0
# So many steps that a round takes about a second: the driver must be killed between two of them.
SWEEP = Path(__file__).with_name("released.yaml").read_text(encoding="utf-8")


def archives() -> list[Path]:
    """Return the archives of all versions that have one."""
    return sorted(FOLDER.glob("hflray-*.zip"))


def unpack(archive: Path, results: Path) -> Path:
    """Unpack an archive into a folder of results, and return the sweep's folder."""
    with ZipFile(archive) as opened:
        opened.extractall(results)
    (folder,) = results.iterdir()
    return folder


def rounds_of(journal: Path) -> int:
    """Return the number of whole rounds in a journal."""
    return sum(line.startswith('{"round"') and line.endswith("}\n") for line in journal.open(encoding="utf-8"))


def leave_half_done(results: Path) -> Path:
    """Run the sweep, kill its driver in the second trial, and return the sweep's folder.

    Raises:
        RuntimeError: the second trial ended before the kill, or never began.
    """
    results.mkdir(parents=True)
    file = results.parent / "released.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    command = [sys.executable, "-m", "hflray.tune", str(file), "--results", str(results), "--quiet"]
    driver = subprocess.Popen(command, start_new_session=True, cwd=results.parent)
    stop = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < stop and driver.poll() is None:
            journals = sorted(results.glob("released-*/journal/*-s1*.jsonl"))
            if journals and rounds_of(journals[0]):
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
                break
            time.sleep(0.05)
    finally:
        if driver.poll() is None:
            driver.terminate()
            driver.wait()
    (folder,) = results.glob("released-*")
    left = [rounds_of(path) for path in sorted((folder / "journal").iterdir())]
    if len(left) != 2 or left[0] != ROUNDS or not 0 < left[1] < ROUNDS:
        raise RuntimeError(f"the trials were left after {left} rounds; run the command again")
    return folder


def pack(folder: Path, archive: Path) -> None:
    """Write a sweep's folder to an archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(archive, "w") as opened:
        for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.name != ".lock"):
            entry = ZipInfo(str(path.relative_to(folder.parent)))
            entry.external_attr = 0o644 << 16
            opened.writestr(entry, path.read_bytes(), ZIP_DEFLATED, compresslevel=9)


def main() -> None:
    """Write the archive of this version."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.release.half_done", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--force", action="store_true", help="write it again")
    archive = FOLDER / f"hflray-{__version__}.zip"
    if archive.exists() and not parser.parse_args().force:
        sys.exit(f"{archive} exists; --force writes it again")
    with tempfile.TemporaryDirectory(prefix="hflray-released-") as scratch:
        pack(leave_half_done(Path(scratch) / "hflray_results"), archive)
    print(f"{archive}: {archive.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
