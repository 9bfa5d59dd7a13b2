"""The trees of the golden test: this one, and early commits as `git worktree`s in the user's cache folder.

``python -m tests.golden.trees`` writes ``bills.json`` again from 6c93c38. As the commit is fixed, this is not needed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hflray.support.private import cache_folder

COMMIT = "6c93c38326e342d601457dd017a01cf10c64e7f6"
INSIDE = "d5bfa282f4eac51da03d182d9f853c96258ef876"  # it has all local rules, aggregators, compressors and clocks
LATER = "319efcb65387809d21f2246b74a42ea31421f0f2"  # it has schedulers that learn from what they observe
ROOT = Path(__file__).parents[2]
GROWN = "afbe98f71616fce65c65707e27386e1b98b99a74"  # it has trees and physics beside them
DRIVER, BILLS = Path(__file__).with_name("driver.py"), Path(__file__).with_name("bills.json")


class NoHistory(Exception):
    """This checkout does not have the commit; the message says why."""


def _git(folder: Path, *arguments: str) -> str:
    # The variables that Git sets while a hook runs would point at another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoHistory(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _is_intact(tree: Path, commit: str) -> bool:
    """Return whether `tree` is a worktree of the commit with no file changed, added or missing."""
    try:
        return _git(tree, "rev-parse", "--show-toplevel", "HEAD") == f"{tree}\n{commit}" and not _git(
            tree, "status", "--porcelain"
        )
    except NoHistory:
        return False


def golden_tree(commit: str = COMMIT) -> Path:
    """Return the worktree of a commit. It is made once and reused; a damaged one is made again.

    Raises:
        NoHistory: git or the repository is missing, or the history lacks the commit.
    """
    if shutil.which("git") is None:
        raise NoHistory("git is not installed")
    if not (ROOT / ".git").exists():
        raise NoHistory(f"{ROOT} is not a git checkout")
    folder = cache_folder("worktrees").resolve()
    tree = folder / commit[:7]
    with (folder / f".{commit[:7]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may begin at the same time
        if not _is_intact(tree, commit):
            try:
                _git(ROOT, "cat-file", "-e", f"{commit}^{{commit}}")
            except NoHistory:
                raise NoHistory(f"the history has no commit {commit[:7]} (a shallow clone?)") from None
            shutil.rmtree(tree, ignore_errors=True)
            # Twice --force: a worktree of this path may still be registered, locked or not.
            _git(ROOT, "worktree", "add", "--force", "--force", "--detach", str(tree), commit)
    return tree


def run_in(tree: Path, kind: str) -> dict[str, Any]:
    """Run `tests.golden.driver` with `tree` in a new process and return the results of a kind; see there."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "RAY_"))}
    # PYTHONPATH precedes the finder of an editable install; the driver checks which tree it imported.
    env |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        command = [sys.executable, str(DRIVER), str(tree), kind, str(out)]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        results: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return results


if __name__ == "__main__":
    BILLS.write_text(json.dumps(run_in(golden_tree(), "bills"), indent=1) + "\n", encoding="utf-8")
    print(f"{BILLS}: made from {COMMIT[:7]}")
