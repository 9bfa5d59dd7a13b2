"""`hflray.reproduction.queue.frozen`: code and environment stay as they were when a sweep began."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.reproduction.queue import frozen
from hflray.reproduction.queue.frozen import (
    check_packages,
    check_tree,
    commit_of,
    freeze_tree,
    git,
    packages_of,
    release_tree,
)

ROOT = Path(__file__).parents[3]


def commit(repository: Path, message: str) -> str:
    git(repository, "add", "--all")
    git(repository, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", message)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "--quiet", "--initial-branch=main")
    (path / "code.txt").write_text("first")
    commit(path, "first")
    return path


def test_a_tree_keeps_its_commit_when_the_repository_changes(repository, tmp_path) -> None:
    first, tree = commit_of(repository, "main"), tmp_path / "queue" / "tree"
    (repository / "code.txt").write_text("an edit that is in no commit")
    freeze_tree(repository, first, tree)
    assert commit(repository, "second") != first
    assert (tree / "code.txt").read_text() == "first"
    check_tree(tree, first)
    release_tree(repository, tree)
    assert not tree.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_an_interrupted_tree_is_made_again(repository, tmp_path) -> None:
    first, tree = commit_of(repository, "HEAD"), tmp_path / "tree"
    freeze_tree(repository, first, tree)
    (tree / "code.txt").unlink()
    freeze_tree(repository, first, tree)
    check_tree(tree, first)


def test_a_changed_or_missing_tree_is_refused(repository, tmp_path) -> None:
    first, tree = commit_of(repository, "HEAD"), tmp_path / "tree"
    with pytest.raises(ConfigError, match=f"goes on only from commit {first[:12]}, and this is nothing"):
        check_tree(tree, first)
    freeze_tree(repository, first, tree)
    (tree / "code.txt").write_text("edited")
    with pytest.raises(ConfigError, match=f"this is {first[:12]} with changes; put it back"):
        check_tree(tree, first)


def test_an_unknown_commit_is_named(repository) -> None:
    with pytest.raises(ConfigError, match="--code nosuch: no commit or branch of"):
        commit_of(repository, "nosuch")


def package(site: Path, name: str, version: str) -> None:
    """Install a package with one module and one command into `site`, as pip does."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (site / name).mkdir(exist_ok=True)
    (site / name / "__init__.py").write_text(f"where = {str(site)!r}")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    files = [f"{name}/__init__.py", f"{info.name}/METADATA", f"{info.name}/RECORD", f"../../../bin/{name}"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    (site.parents[2] / "bin" / name).write_text("a command")


@pytest.fixture
def small(tmp_path) -> Path:
    """Make a small environment and return its interpreter."""
    venv.EnvBuilder(symlinks=True).create(tmp_path / "small")
    (site,) = (tmp_path / "small").glob("lib/python*/site-packages")
    package(site, "apple", "1.0")
    package(site, "hflray", "0.1.0")
    return tmp_path / "small" / "bin" / "python"


def freeze(python: Path, folder: Path) -> Path:
    """Run `freeze_environment` in another interpreter with only the standard library and hflray's code."""
    code = f"import sys; from pathlib import Path; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "from hflray.reproduction.queue.frozen import freeze_environment\n"
    code += f"print(freeze_environment(Path({str(folder)!r})))"
    done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return Path(done.stdout.strip())


def test_an_upgrade_does_not_change_a_frozen_environment(small, tmp_path) -> None:
    python = freeze(small, tmp_path / "environments")
    before = packages_of(python)
    assert before == packages_of(small)
    assert before[1:] == ["apple==1.0"]
    site = Path(subprocess.check_output([python, "-c", "import apple; print(apple.__file__)"], text=True)).parents[1]
    assert (tmp_path / "environments") in site.parents
    assert not (python.parent / "apple").exists()
    # Only the metadata of hflray is copied, because the worktree has its code.
    # A checkout that is installed has a version of its own beside the code, which may come before that of `small`.
    assert len(list(site.glob("hflray-*.dist-info/METADATA"))) == 1
    assert not (site / "hflray").exists()

    assert freeze(small, tmp_path / "environments") == python  # the same packages give the same environment
    (old,) = small.parents[1].glob("lib/python*/site-packages/apple-1.0.dist-info")
    old.joinpath("RECORD").unlink()
    old.joinpath("METADATA").unlink()
    old.rmdir()
    package(old.parent, "apple", "2.0")
    check_packages(python, before)
    upgraded = freeze(small, tmp_path / "environments")
    assert upgraded != python
    assert packages_of(upgraded)[1:] == ["apple==2.0"]


def test_an_incomplete_environment_is_made_again(small, tmp_path) -> None:
    python = freeze(small, tmp_path / "environments")
    place = python.parents[1]
    (place / frozen.PACKAGES).unlink()
    (info,) = place.glob("lib/python*/site-packages/apple-1.0.dist-info/METADATA")
    info.unlink()
    assert freeze(small, tmp_path / "environments") == python
    assert info.exists()


def test_the_version_of_an_editable_checkout_is_written(tmp_path) -> None:
    # An editable install leaves `hflray.egg-info` in the checkout, which is first on the path of `python -m`.
    checkout, site = tmp_path / "checkout", tmp_path / "site-packages"
    (checkout / "hflray.egg-info").mkdir(parents=True)
    (checkout / "hflray.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: hflray\nVersion: 0.1.0\n")
    (checkout / "hflray").mkdir()
    (package,) = distributions(path=[str(checkout)])
    frozen.write_version(package, site)
    (copied,) = distributions(path=[str(site)])
    assert (copied.metadata["Name"], copied.version) == ("hflray", "0.1.0")
    assert [folder.name for folder in site.iterdir()] == ["hflray-0.1.0.dist-info"]


def test_a_changed_environment_is_refused(small) -> None:
    before = packages_of(small)
    (site,) = small.parents[1].glob("lib/python*/site-packages")
    package(site, "pear", "3.1")
    with pytest.raises(ConfigError, match=r"changed since the sweep began .*added: pear==3\.1"):
        check_packages(small, before)
    with pytest.raises(ConfigError, match=r"removed: kiwi==1"):
        check_packages(small, [*before, "kiwi==1"])


def test_a_missing_interpreter_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match="does not run"):
        packages_of(tmp_path / "python")


def test_a_package_without_a_list_of_files_is_refused(tmp_path) -> None:
    info = tmp_path / "old-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: old\nVersion: 1.0\n")
    distribution = frozen.Distribution.at(info)
    with pytest.raises(ConfigError, match="old: it has no list of its files"):
        frozen.copy_package(distribution, tmp_path / "site")


def test_packages_do_not_depend_on_the_callers_pythonpath(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.devnull)
    packages = packages_of(Path(sys.executable))
    assert packages[0].startswith("python==3.")
    assert any(name.startswith("numpy==") for name in packages)
    assert not any(name.startswith("hflray==") for name in packages)
