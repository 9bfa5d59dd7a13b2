"""Named data sets and `.npz` files are loaded, and wrong files are refused; no test uses a network."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from hflray.data import Dataset, datasets, download, load_dataset, npz
from hflray.data.datasets import data_root, make_synthetic, validation_rows
from hflray.data.preprocess import preprocess
from hflray.errors import ConfigError, DataError
from tests.conftest import says
from tests.inputs.corpus import encrypted


def arrays(n: int = 12, shape: tuple[int, ...] = (16, 16), classes: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (n, *shape), dtype=np.uint8),
        "y_train": np.arange(n) % classes,
        "x_test": rng.integers(0, 256, (n // 2, *shape), dtype=np.uint8),
        "y_test": np.arange(n // 2) % classes,
    }


def refused(path: Path, **changes: object) -> str:
    """Save valid arrays with `changes` (None removes a key), load them, and return the one-line error."""
    np.savez(path, **{key: value for key, value in (arrays() | changes).items() if value is not None})
    return message_of(str(path))


def message_of(name: str, root: Path | None = None) -> str:
    with pytest.raises(DataError) as error:
        load_dataset(name, root)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("data.name: ")
    return message


def real(name: str) -> Dataset:
    folder = os.environ.get("HFLRAY_DATA")
    if not folder or not (Path(folder) / f"{name}.npz").is_file():
        pytest.skip(f"needs {name}.npz in $HFLRAY_DATA (now {folder!r}); see docs/howto/data.md")
    return load_dataset(name)


def test_digits_are_those_of_scikit_learn():
    """They are read from its files, without importing it."""
    from sklearn.datasets import load_digits

    table, theirs = datasets.digits_table(), load_digits()
    np.testing.assert_array_equal(table[:, :-1], theirs.data)
    np.testing.assert_array_equal(table[:, -1], theirs.target)


def test_digits_need_no_file_and_are_split_evenly():
    digits = load_dataset("digits", root="/nonexistent")
    assert digits.image_shape == (1, 28, 28)
    assert (digits.num_classes, digits.samples_range) == (10, (400, 700))
    assert (len(digits.x_train), len(digits.x_test)) == (1438, 359)
    assert (len(digits.y_train), len(digits.y_test)) == (1438, 359)
    # By scikit-learn's counts, a fifth of each class, rounded, is for testing.
    assert np.bincount(digits.y_test).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert digits.x_train.dtype == np.uint8
    assert digits.x_train.flags.c_contiguous
    assert digits.x_train.max() == 255
    assert digits.y_train.dtype == np.int64
    reloaded = load_dataset("digits", seed=5)  # stored data depend on no seed
    assert np.array_equal(reloaded.x_train, digits.x_train)


def test_enlarged_pixels_worked_out_by_hand():
    # From 2×2 to 4×4, the pixel centres are at -0.25 (clamped to 0), 0.25, 0.75, 1.25 (clamped to 1) of the old grid.
    image = np.array([[[0, 16], [0, 16]]])
    enlarged = datasets._enlarge(image, 4, 255, 16)
    assert enlarged.shape == (1, 1, 4, 4)
    assert enlarged[0, 0].tolist() == [[0, 64, 191, 255]] * 4  # 63.75 and 191.25, rounded
    assert datasets._enlarge(np.array([[[3]]]), 5, 1, 1).tolist() == [[[[3] * 5] * 5]]


def test_synthetic_is_learnable_noisy_and_a_function_of_its_seed():
    data = make_synthetic(num_classes=4, train=400, test=100, channels=3, size=20)
    assert data.x_train.shape == (400, 3, 20, 20)
    assert np.bincount(data.y_train).tolist() == [100] * 4
    means = np.stack([data.x_train[data.y_train == c].mean(axis=0).ravel() for c in range(4)])
    distance = ((data.x_test.reshape(100, 1, -1) - means) ** 2).sum(axis=2)
    assert (distance.argmin(axis=1) == data.y_test).mean() > 0.95
    assert data.x_train[data.y_train == 0].std(axis=0).mean() > 30  # images of a class differ by noise
    small = {"num_classes": 2, "train": 10, "test": 4}
    assert np.array_equal(make_synthetic(**small, seed=1).x_train, make_synthetic(**small, seed=1).x_train)
    assert not np.array_equal(make_synthetic(**small, seed=1).x_train, make_synthetic(**small, seed=2).x_train)


def test_channel_statistics_are_those_of_the_scaled_training_images():
    x = np.zeros((2, 2, 1, 2), np.uint8)
    x[:, 0] = [[[0, 255]], [[0, 255]]]
    x[:, 1] = 51
    data = Dataset("hand", x, np.array([0, 1]), x, np.array([0, 1]), 2)
    np.testing.assert_allclose(data.channel_mean, [0.5, 0.2])
    np.testing.assert_allclose(data.channel_std, [0.5, 1 / 255])  # that of the constant channel is its lower limit
    assert data.channel_mean.dtype == data.channel_std.dtype == np.float32


def test_the_root_is_the_argument_or_the_variable_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HFLRAY_DATA", str(tmp_path / "variable"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "variable"
    monkeypatch.delenv("HFLRAY_DATA")
    assert data_root() == Path.home() / ".cache" / "hflray"


@pytest.mark.parametrize("shape, expected", [((16, 18), (1, 16, 18)), ((16, 18, 3), (3, 16, 18))])
def test_npz_images_become_channels_first(tmp_path, shape, expected):
    stored = arrays(shape=shape)
    np.savez(tmp_path / "mine.npz", **stored, extra=np.zeros(3))
    data = load_dataset(str(tmp_path / "mine.npz"))
    assert (data.name, data.num_classes, data.image_shape) == ("mine", 3, expected)
    assert data.x_train.flags.c_contiguous
    channels_last = stored["x_train"].reshape(12, 16, 18, -1)
    assert all(np.array_equal(data.x_train[:, c], channels_last[..., c]) for c in range(expected[0]))
    assert np.array_equal(data.y_test, stored["y_test"])


def test_an_npz_path_may_be_relative_to_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "mine.npz", **arrays())
    assert load_dataset("mine.npz", tmp_path / "data").name == "mine"
    assert "elsewhere.npz: no such file" in message_of("elsewhere.npz", tmp_path / "data")


def test_a_named_file_below_the_root_is_loaded_with_the_papers_range(tmp_path):
    np.savez(tmp_path / "fashion_mnist.npz", **arrays(n=20, shape=(28, 28), classes=10))
    np.savez(tmp_path / "cifar10.npz", **arrays(n=20, shape=(32, 32, 3), classes=10))
    fashion, cifar = load_dataset("fashion_mnist", tmp_path), load_dataset("cifar10", tmp_path)
    assert (fashion.name, fashion.image_shape, fashion.samples_range) == ("fashion_mnist", (1, 28, 28), (400, 700))
    assert (cifar.name, cifar.image_shape, cifar.samples_range) == ("cifar10", (3, 32, 32), (300, 600))
    np.savez(tmp_path / "cifar10.npz", **arrays(n=22, shape=(32, 32, 3), classes=11))
    assert "y_train labels out of range: y_train[10] is 10; accepted: 0..9" in message_of("cifar10", tmp_path)


def test_float_images_are_scaled_by_their_range(tmp_path):
    x = np.full((12, 16, 16), 0.2)
    x[0, 0, 0] = 1.0
    np.savez(tmp_path / "unit.npz", **(arrays() | {"x_train": x, "x_test": x[:6]}))
    assert load_dataset(str(tmp_path / "unit.npz")).x_train[0, 0, 0, :2].tolist() == [255, 51]
    np.savez(tmp_path / "byte.npz", **(arrays() | {"x_train": x * 254.6, "x_test": x[:6] * 254.6}))
    assert load_dataset(str(tmp_path / "byte.npz")).x_train[0, 0, 0, :2].tolist() == [255, 51]
    message = refused(tmp_path / "mixed.npz", x_train=x, x_test=x[:6] * 254.6)
    assert "x_train has floats up to 1 but x_test up to 255" in message


def poisoned(value: float, dtype: type = np.float32) -> np.ndarray:
    x = np.zeros((12, 16, 16), dtype)
    x[2, 3, 4] = value
    return x


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"x_test": None, "y_test": None}, "lacks x_test, y_test (it has x_train, y_train)"),
        ({"x_train": poisoned(np.nan)}, "x_train[2, 3, 4] is nan; accepted: finite numbers"),
        ({"x_train": poisoned(-0.5)}, "x_train[2, 3, 4] is -0.5; accepted: floats in [0, 1] or in [0, 255]"),
        ({"x_train": poisoned(255.5)}, "x_train[2, 3, 4] is 255.5"),
        ({"x_train": poisoned(256, np.int32)}, "x_train[2, 3, 4] is 256; accepted: integers in 0..255"),
        ({"x_train": np.zeros((12, 16, 16), bool)}, "type bool; accepted: integers or floats; convert it, for example"),
        ({"y_train": np.array(["a", "b", "c"] * 4)}, "y_train has type <U1; accepted: integers 0..classes-1; number"),
        ({"x_train": np.zeros((12, 256))}, "x_train has shape (12, 256); accepted: (n, height, width)"),
        ({"x_train": np.zeros((12, 3, 16, 16))}, "move the channels last"),
        ({"x_train": np.zeros((0, 16, 16)), "y_train": np.zeros(0, int)}, "x_train is empty"),
        ({"x_train": np.zeros((12, 0, 16))}, "x_train is empty"),
        ({"x_train": np.array([{}] * 12)}, "cannot be read as plain arrays (Object arrays cannot be loaded"),
        ({"x_test": np.zeros((6, 16, 17), np.uint8)}, "(1, 16, 16) but x_test of (1, 16, 17)"),
        ({"y_train": np.arange(11) % 3}, "x_train holds 12 images but y_train 11 labels"),
        ({"y_train": (np.arange(12) % 3)[:, None]}, "y_train has shape (12, 1); accepted: (n,)"),
        ({"y_train": np.arange(12) % 3 + 1}, "y_train[0] is 1, but class 0 has no sample"),
        ({"y_train": np.full(12, 2**64 - 1, np.uint64)}, "y_train[0] is 18446744073709551615"),
    ],
)
def test_a_wrong_npz_is_refused_in_one_line(tmp_path, changes, expected):
    message = refused(tmp_path / "wrong.npz", **changes)
    assert expected in message
    assert str(tmp_path / "wrong.npz") in message


def test_unreadable_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "broken.npz"
    assert "no such file; accepted: an .npz file with the keys x_train" in message_of(str(path))
    np.savez_compressed(path, **arrays())
    content = path.read_bytes()
    for cut in (0, 10, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:cut])
        assert "cannot be read as plain arrays" in message_of(str(path))
    middle = len(content) // 4  # inside the compressed bytes of x_train, so that only the checksum detects it
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    assert "cannot be read as plain arrays" in message_of(str(path))
    path.write_bytes(b"label,pixel\n")
    assert "cannot be read as plain arrays" in message_of(str(path))
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "holds a single array" in message_of(str(path))
    path.unlink()
    path.mkdir()
    assert "no such file" in message_of(str(path))


@pytest.mark.parametrize("name", ["x" * 300 + ".npz", "a/" * 3000 + "b.npz", "~nobody_here/x.npz"])
def test_a_path_that_cannot_exist_is_no_file(tmp_path, name):
    assert "no such file" in message_of(name)
    assert "cannot be downloaded" in message_of("fashion_mnist", root=Path(f"/dev/null/{name}"))


def test_an_encrypted_file_is_refused(tmp_path):
    (tmp_path / "locked.npz").write_bytes(encrypted())
    message = message_of(str(tmp_path / "locked.npz"))
    assert "cannot be read as plain arrays" in message
    assert "encrypted" in message


def test_an_archive_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    images = {"x_train": np.zeros((12, 1000, 1000), np.uint8), "x_test": np.zeros((6, 1000, 1000), np.uint8)}
    np.savez_compressed(tmp_path / "zeros.npz", **(arrays() | images))
    assert (tmp_path / "zeros.npz").stat().st_size < 200_000
    monkeypatch.setattr(npz.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 5000}[name])
    monkeypatch.setattr(npz.np, "load", None)
    message = message_of(str(tmp_path / "zeros.npz"))
    assert re.search(
        r"zeros.npz: its arrays need 0\.0 GiB of memory, and this machine has 0\.0 GiB; accepted: ", message
    )


@pytest.mark.parametrize("name", ["rows.csv", "digits.json", "sets/mnist.gz", "digits.npy"])
def test_a_file_that_is_no_npz_is_read_by_a_function_of_ones_own(name: str) -> None:
    with pytest.raises(ConfigError, match=r"only an \.npz is named by its path") as error:
        load_dataset(name)
    assert says(str(error.value), f"unknown dataset '{name}'", "mine.py:load")
    assert "did you mean" not in str(error.value)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ConfigError, match=r"data\.name: unknown dataset 'fashion_mnst'.*did you mean 'fashion_mnist'"):
        load_dataset("fashion_mnst")


def test_a_data_set_of_another_package_is_a_function_of_root(monkeypatch, tmp_path):
    dataset = make_synthetic(num_classes=2, train=4, test=2)
    monkeypatch.setattr("hflray.registry.check", lambda kind, name, setting=None: name)
    monkeypatch.setattr(
        "hflray.registry.resolve", lambda kind, name: lambda root: dataset if root == tmp_path else None
    )
    assert load_dataset("plugin", tmp_path) is dataset
    with pytest.raises(ConfigError, match=r"plugin returned None; accepted: a hflray\.Dataset"):
        load_dataset("plugin", tmp_path / "other")


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_without_a_network_the_error_says_what_to_put_where(monkeypatch, tmp_path, name):
    timeouts = []

    def unreachable(*args, **kwargs):
        timeouts.append(socket.getdefaulttimeout())
        raise urllib.error.URLError("no\nnetwork")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    root = tmp_path / "new" / "root"
    message = message_of(name, root)
    assert f"put {name}.npz with x_train y_train x_test y_test in {root}, or set --data-root / $HFLRAY_DATA" in message
    assert "no network" in message
    assert list(tmp_path.iterdir()) == []  # the new folders are removed too
    assert timeouts
    assert set(timeouts) == {download.TIMEOUT_S}
    assert socket.getdefaulttimeout() is None
    existing = tmp_path / "kept"
    existing.mkdir()
    message_of(name, existing)
    assert list(existing.iterdir()) == []


def write_idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def write_torchvision_fashion(root: Path, stored: dict[str, np.ndarray]) -> None:
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        write_idx(raw / f"{prefix}-images-idx3-ubyte", stored[f"x_{part}"])
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", stored[f"y_{part}"].astype(np.uint8))


def test_torchvisions_layout_is_read(tmp_path):
    stored = arrays(n=20, shape=(28, 28), classes=10)
    write_torchvision_fashion(tmp_path, stored)
    data = load_dataset("fashion_mnist", tmp_path)
    assert np.array_equal(data.x_train[:, 0], stored["x_train"])
    assert np.array_equal(data.y_test, stored["y_test"])


def test_a_damaged_torchvision_folder_is_named(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert f"torchvision cannot read {tmp_path / 'cifar-10-batches-py'}" in message_of("cifar10", tmp_path)


def test_a_download_arrives_whole_under_its_final_name(monkeypatch, tmp_path):
    stored = arrays(n=20, shape=(28, 28), classes=10)
    load = download._arrays

    def fake_download(name: str, root: Path, download: bool) -> dict[str, np.ndarray]:
        if download:
            assert root.parent == tmp_path / "root"
            write_torchvision_fashion(root, stored)
        return load(name, root, download=False)

    monkeypatch.setattr(download, "_arrays", fake_download)
    data = load_dataset("fashion_mnist", tmp_path / "root")
    assert np.array_equal(data.x_test[:, 0], stored["x_test"])
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["FashionMNIST"]


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_torchvision_imports_beside_this_torch():
    code = (
        "from hflray.data.download import import_torchvision; import_torchvision(); import_torchvision(); "
        "import torchvision.datasets, torchvision.transforms.v2 as v2, torch; "
        "print(tuple(v2.CenterCrop(2)(torch.zeros(1, 4, 4)).shape), torchvision.datasets.CIFAR10.__name__)"
    )
    assert in_a_new_process(code) == "(1, 2, 2) CIFAR10"


def test_the_real_fashion_mnist_has_its_published_statistics():
    data = real("fashion_mnist")
    assert data.x_train.shape == (60_000, 1, 28, 28)
    assert data.x_test.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.y_train).tolist() == [6000] * 10
    assert data.channel_mean[0] == pytest.approx(0.286, abs=0.001)  # the published statistics
    assert data.channel_std[0] == pytest.approx(0.353, abs=0.001)


def test_the_real_cifar10_has_its_published_statistics():
    data = real("cifar10")
    assert data.x_train.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    np.testing.assert_allclose(data.channel_mean, [0.4914, 0.4822, 0.4465], atol=0.001)
    np.testing.assert_allclose(data.channel_std, [0.247, 0.2435, 0.2616], atol=0.001)


# The data sets that need no files.


def test_breast_cancer_is_that_of_scikit_learn():
    from sklearn.datasets import load_breast_cancer

    data, theirs = load_dataset("breast_cancer"), load_breast_cancer()
    assert (data.kind, data.num_classes, data.x_train.shape, data.x_test.shape) == (
        "classification", 2, (456, 30), (113, 30),
    )  # fmt: skip
    ours = np.concatenate([data.y_train, data.y_test])
    assert np.bincount(ours).tolist() == np.bincount(theirs.target).tolist()
    assert np.bincount(data.y_test).tolist() == [42, 71]
    # Each row of ours is a row of theirs, standardised by our training rows.
    together = np.concatenate([data.x_train, data.x_test])
    spread = theirs.data.std(axis=0) / together.std(axis=0)
    back = together * spread + (theirs.data.mean(axis=0) - together.mean(axis=0) * spread)
    np.testing.assert_allclose(np.sort(back, axis=0), np.sort(theirs.data, axis=0), rtol=1e-4, atol=1e-5)


def test_diabetes_is_that_of_scikit_learn():
    from sklearn.datasets import load_diabetes

    data, theirs = load_dataset("diabetes"), load_diabetes(scaled=False)
    targets = np.concatenate([data.y_train, data.y_test]) * data.target_std + data.target_mean
    assert (data.kind, data.x_train.shape, data.x_test.shape) == ("regression", (354, 10), (88, 10))
    np.testing.assert_allclose(np.sort(targets), np.sort(theirs.target), rtol=1e-5)


def test_friedman1_follows_friedmans_function():
    data = load_dataset("friedman1")
    assert (data.kind, data.x_train.shape, data.x_test.shape) == ("regression", (16_000, 10), (4_000, 10))
    # The features are uniform on 0..1, whose deviation is 1 / √12; undo the standardisation.
    x = data.x_test / np.sqrt(12) + 0.5
    y = data.y_test * data.target_std + data.target_mean
    signal = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    assert 1 - np.var(y - signal) / np.var(y) == pytest.approx(0.96, abs=0.01)
    assert np.array_equal(load_dataset("friedman1").y_test, data.y_test)
    assert not np.array_equal(load_dataset("friedman1", seed=1).y_test, data.y_test)


def test_windows_are_pieces_of_the_topics_followed_by_their_target():
    data = load_dataset("pydoc_topics")
    alphabet = sorted(set("".join(topics.values())))
    assert (data.kind, data.num_tokens, data.num_classes) == ("next_token", len(alphabet), len(alphabet))
    rng = np.random.default_rng(0)
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        for i in rng.integers(0, len(y), 20):
            window = "".join(alphabet[code] for code in [*x[i], y[i]])
            assert any(window in text for text in topics.values())


def test_no_test_window_occurs_in_the_training_texts():
    data = load_dataset("pydoc_topics")
    alphabet = sorted(set("".join(topics.values())))
    training = "\0".join(text[: len(text) * 4 // 5] for text in topics.values())
    for i in range(0, len(data.y_test), 10):
        assert "".join(alphabet[code] for code in [*data.x_test[i], data.y_test[i]]) not in training


# hflray.data.datasets: which training samples are the validation part, and that no device has them.


N = 300


def dataset(labels: np.ndarray, **columns: object) -> Dataset:
    x = np.arange(float(len(labels)))[:, None]
    return Dataset.of(x, labels, x[:4], labels[:4], **columns)  # type: ignore[arg-type]


def test_the_part_has_the_shares_of_the_classes() -> None:
    labels = np.repeat([0, 1, 2], [180, 90, 30])
    for count in (10, 57, 100, 200):
        rows = validation_rows(dataset(labels), count, seed=3)
        assert len(rows) == count == len(set(rows.tolist()))
        assert rows.tolist() == sorted(rows.tolist())
        shares = np.array([180, 90, 30]) / N * count
        assert np.abs(np.bincount(labels[rows], minlength=3) - shares).max() <= 1


def test_it_is_a_function_of_the_seed_and_a_smaller_one_lies_within_a_larger_one() -> None:
    data = dataset(np.arange(N) % 3)
    rows = validation_rows(data, 60, seed=1)
    np.random.default_rng(0).random(5)  # draws in between change nothing
    assert np.array_equal(validation_rows(data, 60, seed=1), rows)
    assert not np.array_equal(validation_rows(data, 60, seed=2), rows)
    assert set(validation_rows(data, 30, seed=1)) < set(rows)


def test_nothing_is_drawn_by_default() -> None:
    assert validation_rows(dataset(np.arange(N) % 3), 0, seed=1).tolist() == []


def test_each_class_group_and_owner_keeps_a_sample() -> None:
    labels, owner, groups = np.arange(N) % 3, np.arange(N) % 50, np.arange(N) % 7
    data = dataset(labels, owner=owner, test_owner=owner[:4], groups=groups)
    with pytest.raises(DataError) as error:
        validation_rows(data, N, seed=0)
    most = int(str(error.value).partition(" to ")[2].partition(",")[0])
    rest = np.delete(np.arange(N), validation_rows(data, most, seed=0))
    assert len(rest) == N - most < 60
    for column in (labels, owner, groups):
        assert set(column[rest]) == set(column)


@pytest.mark.parametrize("count", [1, 9, 1429, 5000])
def test_too_few_or_too_many_are_refused_in_one_line(count) -> None:
    with pytest.raises(DataError) as error:
        validation_rows(load_dataset("digits"), count, seed=0)
    text = str(error.value)
    assert text.startswith(f"data.validation: got {count:,} for digits, whose 1,438 training samples have 10 classes; ")
    assert "accepted: 0, or 10 to 1,428" in text
    assert "\n" not in text


def test_deciles_and_tokens_take_the_place_of_classes() -> None:
    numbers = load_dataset("friedman1")
    rows = validation_rows(numbers, 100, seed=0)
    assert np.bincount(numbers.labels[rows]).tolist() == [10] * 10
    tokens = replace(load_dataset("pydoc_topics"), notes=())
    assert len(set(tokens.labels[validation_rows(tokens, 1000, seed=0)])) == 10


# The mini model's inputs are crops or principal components, both normalised.


RNG = np.random.default_rng


def numbered(n: int, channels: int = 3, height: int = 12, width: int = 13) -> np.ndarray:
    """Make images with row·width + column in channel 0, which identifies a crop's place, and 255 in the others."""
    images = np.full((n, channels, height, width), 255, np.uint8)
    images[:, 0] = np.arange(height * width, dtype=np.uint8).reshape(height, width)
    return images


def corners(inputs: np.ndarray) -> set[tuple[int, int]]:
    """Recover the (row, column) of each crop of `numbered` images from values up to shift and scale."""
    # Neighbours in a row differ by 1/std, which gives the scale. The lowest crop, taken as (0, 0), gives the shift.
    unit = inputs[0, 0, 0, 1] - inputs[0, 0, 0, 0]
    offsets = np.rint((inputs[:, 0, 0, 0] - inputs[:, 0, 0, 0].min()) / unit).astype(int)
    return {divmod(int(offset), 13) for offset in offsets}


@pytest.mark.parametrize("how", ["crop", "pca"])
def test_inputs_have_their_shape_type_and_scale(how):
    images = RNG(0).integers(0, 256, (300, 3, 16, 18), dtype=np.uint8)
    inputs = preprocess(images, how, RNG(1))
    assert inputs.shape == (300, 1, 10, 10)
    assert inputs.dtype == np.float32
    assert inputs.flags.c_contiguous
    assert inputs.mean() == pytest.approx(0, abs=1e-5)
    assert inputs.std() == pytest.approx(1, rel=1e-5)
    assert np.array_equal(inputs, preprocess(images, how, RNG(1)))


def test_a_crop_is_a_window_of_the_first_channel():
    image = numbered(1, height=10, width=10)  # it has only one 10×10 crop
    inputs = preprocess(image, "crop", RNG(0))
    expected = np.arange(100.0).reshape(1, 1, 10, 10)
    np.testing.assert_allclose(inputs, (expected - 49.5) / expected.std(), rtol=1e-5)


def test_crops_come_from_every_place():
    inputs = preprocess(numbered(400), "crop", RNG(0))
    assert corners(inputs) == {(row, column) for row in range(3) for column in range(4)}
    # Each crop is a whole window: a step down adds the image's width, 13 times as much as a step right.
    unit = inputs[0, 0, 0, 1] - inputs[0, 0, 0, 0]
    np.testing.assert_allclose(np.diff(inputs, axis=2) / unit, 13, rtol=1e-3)
    np.testing.assert_allclose(np.diff(inputs, axis=3) / unit, 1, rtol=1e-3)


def test_components_are_ordered_uncorrelated_and_keep_the_variance():
    images = RNG(0).integers(0, 256, (500, 1, 12, 12), dtype=np.uint8)
    images[:, :, :3] //= 8  # pixels of low variance, for the last components
    flat = preprocess(images, "pca", RNG(0)).reshape(500, 100).astype(np.float64)
    covariance = flat.T @ flat / 500
    variance = np.diag(covariance)
    assert (np.diff(variance) <= 1e-4).all()
    np.testing.assert_allclose(covariance, np.diag(variance), atol=1e-3)
    # The shares of variance are those of the centred images' singular values by NumPy.
    centred = images.reshape(500, -1) - images.reshape(500, -1).mean(axis=0)
    values = np.linalg.svd(centred, compute_uv=False)[:100] ** 2
    np.testing.assert_allclose(variance / variance.sum(), values / values.sum(), rtol=1e-3)


def test_pca_of_fewer_than_100_pixels_pads_with_zeros():
    inputs = preprocess(RNG(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8), "pca", RNG(0)).reshape(40, 100)
    assert np.ptp(inputs[:, 64:]) < 1e-6
    assert np.ptp(inputs[:, 0]) > 1


def test_constant_images_give_zeros_rather_than_nan():
    for how in ("crop", "pca"):
        assert not preprocess(np.full((5, 1, 16, 16), 7, np.uint8), how, RNG(0)).any()


def test_images_that_are_too_small_are_refused():
    with pytest.raises(DataError, match="at least 10×10, but they are 9×12"):
        preprocess(numbered(2, height=9, width=12), "crop", RNG(0))
