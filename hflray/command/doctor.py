"""``hflray doctor``: whether this machine has what a sweep needs, and what to mend.

A finding that stops every sweep makes the exit code 1. Other problems cost time, or stop only some sweeps.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from hflray.errors import HflrayError
from hflray.support.terminal.app import HELP, RESULTS, DataRoot, Results, single
from hflray.support.terminal.output import new_console, say, waiting
from hflray.support.terminal.tables import fold
from hflray.training.machine import memory_bytes

GIB = 2**30
FREE_BYTES = GIB  # a data set and its checkpoints need some hundred MB
FULL_SHARE = 0.95  # Ray does not spill objects to a disk that is fuller
NAME_WIDTH = 16  # of the longest name of a finding


@dataclass(frozen=True)
class Finding:
    """What one check says.

    Attributes:
        name: what was checked.
        text: what it is.
        problem: what is wrong; empty: nothing.
        fix: how to mend it.
        stops: whether no sweep can run until it is mended.
    """

    name: str
    text: str
    problem: str = ""
    fix: str = ""
    stops: bool = False


Check = Iterator[Finding]


def versions() -> Check:
    """Check Python and the libraries against what hflray's package asks for."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    from hflray.support.provenance import environment

    facts = dict(environment())
    facts.pop("cpu")
    commit, _, dirty = facts.pop("git_commit").partition("-")
    yield Finding("hflray", f"{facts.pop('hflray')}, commit {commit[:12]}{' with changes' if dirty else ''}")
    yield Finding("Python", facts.pop("python"))
    problems, fixes, missing = [], [], False
    try:
        required = [Requirement(text) for text in requires("hflray") or []]
    except PackageNotFoundError:
        required = []
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            problems.append(f"{requirement.name} is missing")
            missing = True
        else:
            if requirement.specifier.contains(installed, prereleases=True):
                continue
            problems.append(f"{requirement.name} {installed} is not {requirement.specifier}")
        fixes.append(f"'{requirement.name}{requirement.specifier}'")
    text = ", ".join(f"{name} {number}" for name, number in facts.items())
    yield Finding("libraries", text, "; ".join(problems), f"pip install {' '.join(fixes)}" if fixes else "", missing)


def memory() -> Check:
    """Check that the memory suffices for a trial with one actor."""
    from hflray.sweep.preflight import DEVICE_ACTOR_MB, DRIVER_MB, EDGE_ACTOR_MB, RAY_MB, TRIAL_MB

    total, free = memory_bytes()
    needed = (DRIVER_MB + RAY_MB + TRIAL_MB + DEVICE_ACTOR_MB + EDGE_ACTOR_MB) * 2**20
    low = free < needed
    yield Finding(
        "memory", f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB",
        f"a sweep with one trial at a time needs {needed / GIB:.1f} GiB" if low else "",
        "end other programs, or take a machine with more memory" if low else "", low,
    )  # fmt: skip
    shared = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None
    if shared is not None:
        from hflray.training.start import OBJECT_STORE_BYTES

        small = shared < OBJECT_STORE_BYTES
        yield Finding(
            "shared memory", f"{shared / GIB:.1f} GiB in /dev/shm",
            f"Ray's object store takes {OBJECT_STORE_BYTES / GIB:.0f} GiB and uses the slower /tmp" if small else "",
            "enlarge it, in a container with docker run --shm-size=3g" if small else "",
        )  # fmt: skip


def folders(results: Path, data: Path) -> Check:
    """Check that the folders that a sweep writes to can be written, and how much room they have."""
    from hflray.support.private import cache_folder

    places = {
        "results": (results, "--results", True),
        "data sets": (data, "--data-root or $HFLRAY_DATA", False),
        "cache": (cache_folder("kernels").parent, "$XDG_CACHE_HOME", False),
        "temporary": (Path(tempfile.gettempdir()), "$TMPDIR", True),
    }
    for name, (folder, setting, needed) in places.items():
        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        usage = shutil.disk_usage(place)
        text = f"{folder.absolute()}: {usage.free / GIB:.1f} GiB free of {usage.total / GIB:.1f} GiB"
        problem = fix = ""
        if reason := unwritable(place):
            problem, fix = f"{place} cannot be written: {reason}", f"make it writable, or name another with {setting}"
        elif usage.free < FREE_BYTES:
            problem = f"less than {FREE_BYTES / GIB:.0f} GiB is free"
            fix = f"free space, or name a folder on another disk with {setting}"
        elif name == "temporary" and usage.used > FULL_SHARE * (usage.used + usage.free):
            problem = f"the disk is over {FULL_SHARE:.0%} full, where Ray spills no objects to it"
            fix, needed = "free space, or set $RAY_TMPDIR to a folder on another disk", False
        yield Finding(f"{name} folder", text, problem, fix, needed and bool(problem))


def unwritable(folder: Path) -> str:
    """Return why no locked file can be written in a folder; empty if it can."""
    import fcntl

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def ray() -> Check:
    """Start Ray, or join the cluster at $RAY_ADDRESS."""
    from hflray.training.start import last_line, ray_place, start_ray

    address, began = os.environ.get("RAY_ADDRESS"), time.monotonic()
    where = f"the cluster at {address}" if address else "this machine"
    try:
        cpus = start_ray()
    except (HflrayError, OSError, RuntimeError, ValueError) as error:
        logs = ray_place() / "ray" / "session_latest" / "logs"
        fix = f"see {logs}, and end other Ray processes of yours (ray stop)"
        yield Finding("Ray", f"does not start on {where}", last_line(error), fix, True)
        return
    yield Finding("Ray", f"starts on {where} with {cpus} CPUs in {time.monotonic() - began:.1f} s")


def data_sets(folder: Path) -> Check:
    """Say which data sets are here, and Fashion-MNIST in which split."""
    from hflray.command.data import splits
    from hflray.config import WITH_A_SPLIT
    from hflray.data.datasets import stored_at

    state = ", ".join(
        f"{name} here{splits(name, folder)}" if stored_at(name, folder, None) else f"{name} not here"
        for name in WITH_A_SPLIT
    )
    yield Finding("data sets", f"{state}; digits and synthetic need no files")


app = single()


@app.command(context_settings=HELP)
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out Ray's start.")] = False,
    results: Results = RESULTS,
    data_root: DataRoot = None,
) -> None:
    """Check versions, memory, disk, Ray and data sets of this machine, and say what to mend.

    The exit code is 1 if no sweep can run here, and 0 otherwise.
    """
    from hflray.data.datasets import data_root as folder_of_data

    data, console = folder_of_data(data_root), new_console()
    checks: dict[str, Callable[[], Check]] = {
        "reading versions": versions, "looking at the memory": memory,
        "writing to the folders": lambda: folders(results, data), "starting Ray": ray,
        "looking for data sets": lambda: data_sets(data),
    }  # fmt: skip
    if quick:
        del checks["starting Ray"]
    findings: list[Finding] = []
    for text, check in checks.items():
        with waiting(console, text, quiet=as_json or not console.is_terminal):
            news = list(check())
        findings += news
        if not as_json:
            for finding in news:
                show(finding, console)
    stopped = [finding for finding in findings if finding.stops and finding.problem]
    if as_json:
        print(json.dumps({"ok": not stopped, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        console.print(verdict(findings))
    if stopped:
        raise typer.Exit(1)


def show(finding: Finding, console: Console) -> None:
    """Print a finding, with its problem and its fix on lines of their own."""
    mark, style = ("✓", None) if not finding.problem else ("✗", "red") if finding.stops else ("!", "yellow")
    lines: list[tuple[str, str, str | None]] = [(f"{mark} {finding.name:{NAME_WIDTH}}", finding.text, None)]
    if finding.problem:
        lines += [("", f"problem: {finding.problem}", style), ("", f"fix: {finding.fix}", None)]
    for head, text, colour in lines:
        for part, line in enumerate(fold(text, max(20, console.width - NAME_WIDTH - 3))):
            say(console, f"{head if part == 0 else '':{NAME_WIDTH + 2}} {line}", colour)


def verdict(findings: list[Finding]) -> Text:
    """Return the last line: whether sweeps can run here."""
    stopped = [finding.name for finding in findings if finding.stops and finding.problem]
    slower = [finding.name for finding in findings if finding.problem and not finding.stops]
    if stopped:
        return Text(f"No sweep can run here until this is mended: {', '.join(stopped)}.", style="bold red")
    end = f" Worth mending: {', '.join(slower)}." if slower else ""
    return Text(f"Sweeps can run here.{end}", style="bold")
