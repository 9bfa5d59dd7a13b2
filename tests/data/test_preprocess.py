"""The mini model's inputs are crops or principal components, both normalised."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.data.preprocess import preprocess
from hflray.errors import DataError

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
