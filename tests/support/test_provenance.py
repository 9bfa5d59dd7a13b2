"""hflray.support.provenance: the versions that must be equal on all nodes, and those that a run records."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

from hflray.support import provenance
from hflray.support.provenance import differences, environment, git_commit, gpu_models, release, source_digest


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


def write_gpus(folder: Path, *models: str) -> None:
    """Write the files of an NVIDIA driver."""
    for number, model in enumerate(models):
        (folder / f"0000:0{number}:00.0").mkdir(parents=True)
        text = f"{model}IRQ:   \t\t 41\nBus Type: \t PCIe\n"
        (folder / f"0000:0{number}:00.0" / "information").write_text(text, encoding="utf-8")


def test_the_driver_names_the_gpus_and_counts_equal_ones(tmp_path) -> None:
    assert gpu_models(tmp_path / "absent") == ""
    h200, l4 = (f"Model: \t\t NVIDIA {name}\n" for name in ("H200", "L4"))
    write_gpus(tmp_path / "one", h200)
    assert gpu_models(tmp_path / "one") == "NVIDIA H200"
    write_gpus(tmp_path / "several", h200, l4, h200, "")
    assert gpu_models(tmp_path / "several") == "2 × NVIDIA H200, NVIDIA L4, a GPU"


def test_the_environment_names_a_gpu_only_where_there_is_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(provenance, "NVIDIA", tmp_path)
    assert "gpu" not in environment.__wrapped__()
    write_gpus(tmp_path, "Model: \t\t NVIDIA H200\n")
    assert environment.__wrapped__()["gpu"] == "NVIDIA H200"
