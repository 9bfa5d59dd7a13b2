"""``make release``: build the sdist and the wheel, check them, and use each of them as a stranger would.

    python -m tests.release [--out build/release] [--only wheel,sdist] [--quick] [--keep]

1. The distributions are built from a clean copy of the tracked files. ``twine check --strict`` reads their metadata.
2. The wheel must have every tracked file of the package, and nothing else. The sdist must have what the wheel is made
   of. cffconvert validates CITATION.cff.
3. Each is installed into a new virtual environment outside the checkout. There `hflray --version`, `hflray doctor`, the
   quickstart and a report run, and every module and the shipped sweep files are found inside the environment.

Each step is a line with its seconds. All output stands in ``build/release/log.txt``. ``--quick`` leaves step 3 out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO
from zipfile import ZipFile

from tests.checkout import copy_tracked, tracked

ROOT = Path(__file__).parents[2]
LIMIT_S = 1800.0  # time for one command; an installation downloads PyTorch and Ray
LEFT_OUT = ("tune_configs/RESULTS.md",)  # of the tracked files below the package's folders
BESIDE = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "codemeta.json"}  # in the sdist
FINDS = """
import importlib, pathlib, pkgutil, sys
import hflray
home = pathlib.Path(hflray.__file__).parent
assert pathlib.Path(sys.prefix) in home.parents, home
skipped = {"__main__", "flower"}  # commands, and a module of an extra
names = [m.name for m in pkgutil.walk_packages([str(home)], "hflray.") if m.name.rsplit(".", 1)[1] not in skipped]
for name in names:
    importlib.import_module(name)
print(len(names), "modules of hflray", hflray.__version__, "were imported from", home)
"""


class ReleaseError(Exception):
    """A distribution that strangers could not use."""


class Steps:
    """Runs the steps of a release, and writes down what each said and how long it took.

    Args:
        log: the file of all output.
    """

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self.seconds: dict[str, float] = {}
        home = tempfile.mkdtemp(prefix="hflray-release-home-")
        kept = {
            key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        }
        caches = {name: str(Path(home) / name) for name in ("HOME", "XDG_CACHE_HOME")}
        pip = {"PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))}
        self._home, self._environment = Path(home), kept | caches | pip | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        (self._home / "HOME").mkdir()

    def close(self) -> None:
        """Delete the home folder of the commands."""
        shutil.rmtree(self._home, ignore_errors=True)

    def run(self, name: str, command: Sequence[str | Path], where: Path, holds: str = "") -> str:
        """Run a command, and return what it printed.

        Args:
            name: what the line of the step says.
            command: the command.
            where: its folder.
            holds: what its output must hold.

        Raises:
            ReleaseError: the command failed, or its output lacks `holds`.
        """
        begin = time.monotonic()
        result = subprocess.run(
            [str(part) for part in command], cwd=where, env=self._environment, timeout=LIMIT_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        self.seconds[name] = round(time.monotonic() - begin, 1)
        self._log.write(f"## {name} ({self.seconds[name]} s)\n$ {' '.join(map(str, command))}\n{result.stdout}\n")
        self._log.flush()
        if result.returncode or holds not in result.stdout:
            lines = "\n".join(result.stdout.splitlines()[-30:])
            problem = f"exit status {result.returncode}" if result.returncode else f"its output lacks '{holds}'"
            raise ReleaseError(f"{name}: {problem}; its last lines:\n{lines}")
        print(f"  {name}: {self.seconds[name]:.1f} s", flush=True)
        return result.stdout


def packaged(files: Iterable[str]) -> set[str]:
    """Return what a wheel holds of these tracked files; the shipped sweeps are inside the package."""
    inside = {name for name in files if name.startswith("hflray/")}
    sweeps = {f"hflray/{name}" for name in files if name.startswith("tune_configs/") and not name.startswith(LEFT_OUT)}
    return inside | sweeps


def of_wheel(path: Path) -> set[str]:
    """Return the files of a wheel besides its metadata."""
    with ZipFile(path) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def check_contents(wheel: Path, sdist: Path, files: Iterable[str]) -> str:
    """Return a sentence on the contents of both distributions.

    Raises:
        ReleaseError: a file lacks or is too many, or the metadata lacks a licence.
    """
    files = list(files)
    wanted, held = packaged(files), of_wheel(wheel)
    if wanted != held:
        raise ReleaseError(f"the wheel lacks {sorted(wanted - held)} and should not have {sorted(held - wanted)}")
    with tarfile.open(sdist) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    sources = {name.removeprefix("hflray/") if name.startswith("hflray/tune_configs/") else name for name in wanted}
    if missing := (sources | BESIDE) - inside:
        raise ReleaseError(f"the sdist lacks {sorted(missing)}")
    with ZipFile(wheel) as archive:
        licences = [name for name in archive.namelist() if "/licenses/" in name]
    if len(licences) < 2:
        raise ReleaseError(f"the wheel needs the licences of hflray and of what it ships; it has {licences}")
    return (f"the wheel has {len(held)} files ({wheel.stat().st_size / 1e6:.1f} MB), the sdist {len(inside)} "
            f"({sdist.stat().st_size / 1e6:.1f} MB)")  # fmt: skip


def check_citation(steps: Steps, scratch: Path) -> None:
    """Validate CITATION.cff in an environment of its own: cffconvert needs an older jsonschema than our tests."""
    venv = scratch / "cff"
    steps.run("cffconvert: environment", [sys.executable, "-m", "venv", venv], scratch)
    steps.run("cffconvert: pip install", [venv / "bin" / "pip", "install", "-q", "cffconvert==2.0.0"], scratch)
    command = [venv / "bin" / "cffconvert", "--validate", "-i", ROOT / "CITATION.cff"]
    steps.run("CITATION.cff", command, scratch, "valid")


def use(steps: Steps, kind: str, distribution: Path, version: str, folder: Path) -> None:
    """Install a distribution into a new environment, and use it as a newcomer does.

    Args:
        steps: runs the commands.
        kind: ``wheel`` or ``sdist``.
        distribution: its file.
        version: the version that it must have.
        folder: an empty folder outside the checkout.
    """
    venv, work = folder / "venv", folder / "work"
    work.mkdir()
    steps.run(f"{kind}: environment", [sys.executable, "-m", "venv", venv], folder)
    programs = venv / "bin"
    steps.run(f"{kind}: pip install", [programs / "pip", "install", "--no-input", distribution], work)
    steps.run(f"{kind}: pip check", [programs / "pip", "check"], work)
    steps.run(f"{kind}: version", [programs / "hflray", "--version"], work, version)
    steps.run(f"{kind}: every module", [programs / "python", "-c", FINDS], work, version)
    steps.run(f"{kind}: sweep files", [programs / "hflray-tune", "--list"], work, "quickstart")
    steps.run(f"{kind}: hflray doctor", [programs / "hflray", "doctor"], work)
    steps.run(f"{kind}: quickstart", [programs / "hflray-tune"], work)
    sweeps = sorted((work / "hflray_results").glob("quickstart-*"))
    if len(sweeps) != 1:
        raise ReleaseError(f"{kind}: the quickstart left the folders {sweeps}")
    steps.run(f"{kind}: hflray report", [programs / "hflray", "report", sweeps[0].name], work)
    if not list(work.rglob("*.html")):
        raise ReleaseError(f"{kind}: the report wrote no page")


def release(out: Path, kinds: Sequence[str], quick: bool, keep: bool) -> dict[str, Any]:
    """Build and check both distributions; return the seconds of each step.

    Raises:
        ReleaseError: something is wrong with one of them.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("hflray-*"), out / "log.txt"):
        old.unlink(missing_ok=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with ExitStack() as stack:
        log = stack.enter_context((out / "log.txt").open("w", encoding="utf-8"))
        steps = Steps(log)
        stack.callback(steps.close)
        scratch = Path(tempfile.mkdtemp(prefix="hflray-release-"))
        if not keep:
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        source = scratch / "source"
        copy_tracked(ROOT, source)
        steps.run("build", [sys.executable, "-m", "build", "--outdir", out, source], scratch)
        wheel, sdist = out / f"hflray-{version}-py3-none-any.whl", out / f"hflray-{version}.tar.gz"
        steps.run("twine check", [sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], out)
        print(f"  {check_contents(wheel, sdist, tracked(ROOT))}")
        check_citation(steps, scratch)
        for kind, distribution in {"wheel": wheel, "sdist": sdist}.items():
            if kind in kinds and not quick:
                (scratch / kind).mkdir()
                use(steps, kind, distribution, version, scratch / kind)
        return steps.seconds


def main() -> int:
    """Run the command; return 1 if a distribution is not fit for strangers."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release", help="folder of the distributions")
    parser.add_argument("--only", default="wheel,sdist", help="which of them are installed")
    parser.add_argument("--quick", action="store_true", help="build and check them without installing")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    options = parser.parse_args()
    try:
        seconds = release(options.out.resolve(), options.only.split(","), options.quick, options.keep)
    except ReleaseError as problem:
        print(f"not fit for release: {problem}", file=sys.stderr)
        return 1
    print(f"fit for release: {len(seconds)} steps in {sum(seconds.values()):.0f} s; {options.out}")
    return 0
