"""hflray.command.data: the list says what is here, and a download arrives, is checked, and shows its progress."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hflray.data import download
from tests.command.calls import caller

call = caller("data")


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (200, 28, 28), dtype=np.uint8), "y_train": np.arange(200) % 10,
        "x_test": rng.integers(0, 256, (50, 28, 28), dtype=np.uint8), "y_test": np.arange(50) % 10,
    }  # fmt: skip


@pytest.fixture
def fake_download(monkeypatch):
    """Let torchvision's download write an archive of 3 MB into its scratch folder, and no network be used."""

    def make(name: str, root: Path, download: bool) -> dict[str, np.ndarray]:
        folder = root / "FashionMNIST" / "raw"
        if download:
            folder.mkdir(parents=True)
            (folder / "train-images-idx3-ubyte.gz").write_bytes(b"x" * 3_000_000)
            (folder / "train-images-idx3-ubyte").write_bytes(b"x" * 9_000_000)
        return arrays()

    monkeypatch.setattr(download, "_arrays", make)


def test_the_list_says_what_is_here(tmp_path, capsys, monkeypatch) -> None:
    np.savez(tmp_path / "cifar10.npz", **arrays())
    code, out, err = call(capsys, "list", "--root", str(tmp_path))
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "here, 0 MB: cifar10.npz" in rows["cifar10"]
    assert "not here; hflray data get fashion_mnist" in rows["fashion_mnist"]
    assert "installed" in rows["digits"]
    monkeypatch.setenv("HFLRAY_DATA", str(tmp_path))
    assert call(capsys, "list")[1] == out


def test_a_data_set_is_downloaded_once_and_checked(tmp_path, capsys, fake_download) -> None:
    code, out, err = call(capsys, "get", "fashion_mnist", "--root", str(tmp_path))
    assert (code, err) == (0, "")
    first, *_, second = out.splitlines()
    assert first.startswith("downloading fashion_mnist (31 MB) …")
    assert second.startswith("fashion_mnist: 200 training and 50 test images of 1×28×28, 10 classes; ")
    assert second.endswith(f"{tmp_path}/FashionMNIST (12 MB)")
    code, out, _ = call(capsys, "get", "fashion_mnist", "--root", str(tmp_path))
    assert code == 0
    assert out.startswith("reading fashion_mnist …")


def test_data_sets_without_a_file_and_own_files_are_checked(tmp_path, capsys) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())
    code, out, err = call(capsys, "get", "digits", str(tmp_path / "mine.npz"))
    assert (code, err) == (0, "")
    assert "digits: 1,438 training and 359 test images of 1×28×28, 10 classes; needs no file" in out
    assert "mine.npz: 200 training" in out
    for name, text in (
        ("breast_cancer", "456 training and 113 test rows of 30 features, 2 classes; needs no file"),
        ("diabetes", "354 training and 88 test rows of 10 features, a number to predict; needs no file"),
        ("pydoc_topics", "sequences of 32 tokens, "),
    ):
        code, out, _ = call(capsys, "get", name)
        assert code == 0
        assert text in out
    np.savez(tmp_path / "mine.npz", **(arrays() | {"y_test": np.full(50, 77)}))
    code, _, err = call(capsys, "get", str(tmp_path / "mine.npz"))
    assert code == 2
    assert "y_test" in err
    assert err.count("\n") == 1


def test_a_download_that_fails_is_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch) -> None:
    def fail(name: str, root: Path, download: bool) -> dict[str, np.ndarray]:
        raise OSError("no route to host")

    monkeypatch.setattr(download, "_arrays", fail)
    code, _, err = call(capsys, "get", "cifar10", "--root", str(tmp_path / "new"))
    assert code == 2
    assert err.count("\n") == 1
    assert "no route to host" in err
    assert not (tmp_path / "new").exists()


def test_the_splits_of_fashion_mnist_are_named(real_data, capsys) -> None:
    listed = call(capsys, "list", "--root", str(real_data))[1]
    assert "fashion_mnist.npz: stratified split" in listed
    assert "in the stratified split; " in call(capsys, "get", "fashion_mnist", "--root", str(real_data))[1]
    if (real_data / "fashion_mnist_official.npz").exists():
        assert "fashion_mnist_official.npz: official split" in listed
        told = call(capsys, "get", "fashion_mnist", "--official", "--root", str(real_data))[1]
        assert "in the official split; " in told
