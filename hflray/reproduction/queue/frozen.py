"""Frozen copies of the code and the environment of a sweep that runs for days.

The code is a git worktree of one commit. The environment is a virtual environment with copies of the packages that were
installed when the sweep began, so that neither an edit nor an upgrade changes the results of a resumed sweep. Sweeps
that began with the same packages share an environment.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from hflray.errors import ConfigError
from hflray.support.files import write

OWN_PACKAGE = "hflray"  # this package is not copied: it comes from the worktree
PACKAGES = "packages.txt"  # this file is written when an environment is complete
LIST = """
import json, platform
from importlib.metadata import distributions
versions = {d.metadata["Name"].lower(): d.version for d in reversed(list(distributions())) if d.metadata["Name"]}
versions.pop("hflray", None)
print(json.dumps([f"python=={platform.python_version()}", *sorted(f"{n}=={v}" for n, v in versions.items())]))
"""


def git(repository: Path, *arguments: str) -> str:
    """Run git in `repository` and return its output. Raises ConfigError: git fails."""
    command = ["git", "-C", str(repository), "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"git: cannot be run ({error}); install it") from error
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise ConfigError(f"git {arguments[0]} in {repository}: {reason}")
    return done.stdout.strip()


def commit_of(repository: Path, name: str) -> str:
    """Return the full hash of a commit. Raises ConfigError: `repository` has no commit or branch called `name`."""
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except ConfigError as error:
        raise ConfigError(
            f"--code {name}: no commit or branch of {repository}; name one that `git log` knows there"
        ) from error


def freeze_tree(repository: Path, commit: str, tree: Path) -> None:
    """Make the worktree `tree` of a commit. The remains of an interrupted attempt are removed first."""
    if tree.exists():
        shutil.rmtree(tree)
    tree.parent.mkdir(parents=True, exist_ok=True)
    # --force, because git may still have a record of a worktree at this path that was deleted.
    git(repository, "worktree", "add", "--quiet", "--force", "--detach", str(tree), commit)


def check_tree(tree: Path, commit: str) -> None:
    """Raise ConfigError if `tree` is not the unmodified worktree of `commit`."""
    state = git(tree, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") if tree.is_dir() else "nothing"
    if state != commit:
        raise ConfigError(
            f"{tree}: a frozen sweep goes on only from commit {commit[:12]}, and this is {state[:12]}"
            f"{' with changes' if state.endswith('-dirty') else ''}; put it back with `git worktree add --force "
            f"--detach {tree} {commit}` (or `git checkout .` there), or drop the sweep"
        )


def release_tree(repository: Path, tree: Path) -> None:
    """Remove a worktree that is no longer needed."""
    if tree.exists():
        git(repository, "worktree", "remove", "--force", str(tree))


def packages_of(python: Path) -> list[str]:
    """Return an interpreter's version and its packages as sorted ``name==version``, without hflray.

    Raises:
        ConfigError: the interpreter does not run.
    """
    try:
        done = subprocess.run([str(python), "-I", "-c", LIST], capture_output=True, text=True, check=True)
        return [str(package) for package in json.loads(done.stdout)]
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise ConfigError(
            f"{python}: this Python of a frozen environment does not run ({error}); put it back, or drop the sweep"
        ) from error


def check_packages(python: Path, packages: Sequence[str]) -> None:
    """Raise ConfigError if the interpreter has other packages than `packages`."""
    installed = set(packages_of(python))
    removed, added = sorted(set(packages) - installed), sorted(installed - set(packages))
    if removed or added:
        raise ConfigError(
            f"{python}: its environment changed since the sweep began (removed: {', '.join(removed) or 'nothing'}; "
            f"added: {', '.join(added) or 'nothing'}); restore the packages, or drop the sweep"
        )


def freeze_environment(folder: Path) -> Path:
    """Copy the packages of the running interpreter into an environment below `folder` and return its interpreter.

    The environment's name is a hash of the packages and their versions. A complete environment is reused.

    Raises:
        ConfigError: a package has no list of its files, or the environment of this name has changed.
    """
    packages = packages_of(Path(sys.executable))
    place = folder / hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    python, done = place / "bin" / "python", place / PACKAGES
    if done.exists():
        check_packages(python, done.read_text(encoding="utf-8").splitlines())
        return python
    if place.exists():
        shutil.rmtree(place)
    venv.EnvBuilder(symlinks=True).create(place)
    (site,) = place.glob("lib/python*/site-packages")
    copied: set[str] = set()
    for (
        package
    ) in distributions():  # in the order of sys.path, so that the first package of a name is the one that is imported
        name = (package.metadata["Name"] or "").lower()
        if name and name not in copied:
            if name == OWN_PACKAGE:
                write_version(package, site)
            else:
                copy_package(package, site)
            copied.add(name)
    check_packages(python, packages)
    write(done, "\n".join(packages))
    return python


def write_version(package: Distribution, site: Path) -> None:
    """Write the metadata with a package's name and version into the folder `site`, without the package's code.

    Python may find the ``.egg-info`` first that an editable install writes to the checkout. Its name and format differ
    from those of an installed package, so the metadata is written and not copied.
    """
    info = site / f"{OWN_PACKAGE}-{package.version}.dist-info"
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {OWN_PACKAGE}\nVersion: {package.version}\n")


def copy_package(package: Distribution, site: Path) -> None:
    """Copy an installed package's files into the folder `site`, without its commands, which lie outside the folder.

    Raises:
        ConfigError: the package has no list of its files.
    """
    if package.files is None:
        name = package.metadata["Name"]
        raise ConfigError(f"{name}: it has no list of its files, so it cannot be copied; install it anew with pip")
    for file in package.files:
        if ".." in file.parts or file.is_absolute():
            continue
        source, target = Path(str(package.locate_file(file))), site / Path(*file.parts)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
