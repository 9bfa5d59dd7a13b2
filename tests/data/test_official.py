"""hflray.data.download: the official Fashion-MNIST is told from the other split by its bytes, wherever it lies."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from hflray.data import download, load_dataset
from hflray.data.datasets import stored_at
from hflray.errors import ConfigError, DataError
from hflray.experiment import Scenario
from tests.conftest import small_config


@pytest.fixture(autouse=True)
def _without_debians_package(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(download, "DEBIAN", tmp_path / "no package")


def drawn() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (40, 28, 28), dtype=np.uint8), "y_train": np.arange(40, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (20, 28, 28), dtype=np.uint8), "y_test": np.arange(20, dtype=np.uint8) % 10,
    }  # fmt: skip


def write_idx(folder: Path, stored: dict[str, np.ndarray], packed: bool) -> None:
    folder.mkdir(parents=True)
    for key, name in download.IDX.items():
        array = stored[key]
        content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.fixture
def as_official(monkeypatch) -> dict[str, np.ndarray]:
    """Let the drawn images be what the official files hold."""
    stored = drawn()
    digests = {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in stored.items()}
    monkeypatch.setitem(download.DIGESTS, "official", digests)
    monkeypatch.setattr(download, "SIZES", (40, 20))
    return stored


def message(*, root: Path, split: str = "official") -> str:
    with pytest.raises(DataError) as error:
        load_dataset("fashion_mnist", root, split=split)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def no_download(monkeypatch) -> None:
    def fail(name: str, root: Path) -> None:
        raise DataError("no\nnetwork")

    monkeypatch.setattr(download, "load_or_download", fail)


@pytest.mark.parametrize("place", ["fashion_mnist_official.npz", "fashion_mnist.npz", "FashionMNIST/raw", "debian"])
@pytest.mark.parametrize("packed", [False, True])
def test_it_is_read_from_each_of_its_places(as_official, tmp_path, monkeypatch, place, packed) -> None:
    path = tmp_path / place
    if path.suffix:
        np.savez(path, **as_official)
    else:
        write_idx(path, as_official, packed)
        if place == "debian":
            monkeypatch.setattr(download, "DEBIAN", path)
    data = load_dataset("fashion_mnist", tmp_path, split="official")
    assert np.array_equal(data.x_train[:, 0], as_official["x_train"])
    assert data.y_test.tolist() == as_official["y_test"].tolist()
    assert stored_at("fashion_mnist", tmp_path, "official") == path
    assert download.stored_splits(tmp_path) == {path: "official"}
    assert np.array_equal(load_dataset("fashion_mnist", tmp_path, split=None).x_train, data.x_train)
    text = message(root=tmp_path, split="stratified")
    assert "data.split: got stratified, but " in text
    assert "set data.split: official" in text


def test_a_file_that_is_not_official_is_refused_by_what_differs(as_official, tmp_path) -> None:
    changed = {**as_official, "x_train": as_official["x_train"] ^ np.eye(28, dtype=np.uint8)}
    np.savez(tmp_path / download.OFFICIAL_FILE, **changed)
    assert "fashion_mnist_official.npz is not the official Fashion-MNIST (x_train" in message(root=tmp_path)


def test_the_other_splits_file_is_passed_over_and_named(as_official, tmp_path, no_download) -> None:
    np.savez(tmp_path / "fashion_mnist.npz", **{key: array[::-1] for key, array in as_official.items()})
    text = message(root=tmp_path)
    assert f"{tmp_path / 'fashion_mnist.npz'} has another split" in text
    assert "(no network)" in text
    assert "dataset-fashion-mnist" in text
    assert load_dataset("fashion_mnist", tmp_path).y_test[0] == 9  # as ever
    write_idx(tmp_path / "FashionMNIST" / "raw", as_official, packed=True)
    assert load_dataset("fashion_mnist", tmp_path, split="official").y_test[0] == 0
    assert load_dataset("fashion_mnist", tmp_path).y_test[0] == 9
    assert list(download.stored_splits(tmp_path).values()) == [None, "official"]


def test_it_is_downloaded_if_it_is_nowhere(as_official, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(download, "load_or_download", lambda name, root: as_official)
    assert len(load_dataset("fashion_mnist", tmp_path, split="official").y_train) == 40
    assert load_dataset("fashion_mnist", tmp_path, split="official").name == "fashion_mnist"


@pytest.mark.parametrize("content", [b"", b"\0\0\10\3", b"\0\0\10\1\0\0\0\2a", b"\0\0\10\1\xff\xff\xff\xffa"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_of_bytes_is_one_line(as_official, tmp_path, content, packed) -> None:
    folder = tmp_path / "FashionMNIST" / "raw"
    write_idx(folder, as_official, packed)
    path = folder / ("t10k-labels-idx1-ubyte" + packed * ".gz")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert f"data.name: {path}: cannot be read" in message(root=tmp_path)
    if packed:
        path.write_bytes(gzip.compress(content)[:-2] + b"xx")
        assert "cannot be read" in message(root=tmp_path)


@pytest.mark.parametrize("name", ["digits", "synthetic", "friedman1", "mine.npz"])
def test_data_with_one_split_only_refuse_the_official_one(name, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"data\.split: got official with data\.name"):
        load_dataset(name, tmp_path, split="official")


def test_cifar10_has_its_official_split_with_both(tmp_path) -> None:
    stored = {key: np.repeat(array[..., None], 3, -1) if array.ndim == 3 else array for key, array in drawn().items()}
    np.savez(tmp_path / "cifar10.npz", **stored)
    one, other = (load_dataset("cifar10", tmp_path, split=split) for split in ("official", "stratified"))
    assert all(np.array_equal(getattr(one, key), getattr(other, key)) for key in download.IDX)


def test_the_real_files_are_in_the_splits_that_they_are_said_to_be(real_data) -> None:
    """`.ci/run` unpacks both."""
    stratified = load_dataset("fashion_mnist", real_data)
    assert download.split_of({key: getattr(stratified, key) for key in download.IDX}) == "stratified"
    if not (real_data / download.OFFICIAL_FILE).exists():
        pytest.skip(f"$HFLRAY_DATA holds no {download.OFFICIAL_FILE}")
    data = load_dataset("fashion_mnist", real_data, split="official")
    assert download.split_of({key: getattr(data, key) for key in download.IDX}) == "official"
    together = [np.concatenate([each.x_train, each.x_test]).reshape(70_000, -1) for each in (stratified, data)]
    sums = [np.sort(images @ np.arange(784)) for images in together]
    assert np.array_equal(*sums)  # the same 70,000 images
    assert len(data.y_test) == 10_000


def test_a_scenario_has_the_split_of_its_configuration(as_official, tmp_path) -> None:
    np.savez(tmp_path / download.OFFICIAL_FILE, **as_official)
    np.savez(tmp_path / "fashion_mnist.npz", **{key: array[::-1] for key, array in as_official.items()})
    for split, first in (("official", 0), ("stratified", 9)):
        words = ["data.name=fashion_mnist", f"data.root={tmp_path}", f"data.split={split}", "data.partition=iid"]
        dataset = Scenario.build(small_config(*words, "data.samples_per_device=[2, 2]")).dataset
        assert dataset.y_test[0] == first
