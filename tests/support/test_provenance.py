"""hflray.support.provenance: the versions that must be equal on all nodes, and those that a run records."""

from __future__ import annotations

import platform
import subprocess

import torch

from hflray.support.provenance import differences, environment, git_commit, release, source_digest


def test_a_release_holds_the_versions_that_decide_bits() -> None:
    versions = release()
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__  # includes +cpu, because CUDA's build may give other bits
    assert set(versions) == {"python", "hflray", "ray", "numpy", "scipy", "torch"}


def test_the_digest_follows_names_and_contents_of_the_sources(tmp_path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "b.c").write_text("int x;")
    (tmp_path / "c.txt").write_text("no source")
    digests = {source_digest(tmp_path)}
    (tmp_path / "c.txt").write_text("other")
    assert source_digest(tmp_path) in digests
    for change in (
        lambda: (tmp_path / "b.c").write_text("int y;"),
        lambda: (tmp_path / "a.py").rename(tmp_path / "d.py"),
        lambda: (tmp_path / "e.py").touch(),
    ):
        change()
        assert source_digest(tmp_path) not in digests
        digests.add(source_digest(tmp_path))


def test_differences_name_actual_and_expected_versions() -> None:
    expected = {"ray": "2.60.0", "hflray": "0.1.0 (aa)", "numpy": "2.4"}
    assert differences(expected, dict(expected)) == ""
    assert differences(expected, {"ray": "2.59.0", "hflray": "0.1.0 (aa)"}) == (
        "ray 2.59.0 instead of 2.60.0, numpy not installed instead of 2.4"
    )


def test_the_commit_is_unknown_outside_a_checkout(tmp_path) -> None:
    assert git_commit(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert git_commit(tmp_path) == head
    assert environment()["torch"].startswith("2.13")
