from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcaps.data.protocol import prepare, shrink


def random_pixels(seed: int, samples: int = 2, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (samples, channels, 96, 96), dtype=np.uint8)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), channels=st.integers(1, 2))
def test_shrink_takes_means_of_2x2_pixels(seed: int, channels: int) -> None:
    pixels = random_pixels(seed, channels=channels)
    expected = pixels.astype(np.float64).reshape(2, channels, 48, 2, 48, 2).mean(axis=(3, 5)) / 255
    images = shrink(pixels, crop=False)
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images.numpy(), expected, atol=1e-7)


def test_crop_keeps_the_centre() -> None:
    pixels = random_pixels(0)
    assert torch.equal(shrink(pixels, crop=True), shrink(pixels, crop=False)[..., 8:40, 8:40])


@pytest.mark.parametrize("value", [0, 255])
def test_extremes_stay_in_the_box(value: int) -> None:
    images = shrink(np.full((1, 1, 96, 96), value, dtype=np.uint8), crop=True)
    assert images.unique().tolist() == [value / 255]


def test_prepare_joins_blocks_and_tells_progress() -> None:
    told: list[tuple[int, int]] = []
    blocks = [random_pixels(seed, samples) for seed, samples in ((1, 3), (2, 2))]
    images = prepare(blocks, 5, crop=True, progress=lambda done, total: told.append((done, total)))
    assert torch.equal(images, shrink(np.concatenate(blocks), crop=True))
    assert told == [(3, 5), (5, 5)]


def test_nearest_keeps_every_other_pixel() -> None:
    pixels = np.arange(96 * 96, dtype=np.uint32).astype(np.uint8).reshape(1, 1, 96, 96)
    images = shrink(pixels, crop=False, downsampling="nearest")
    assert images.dtype == torch.float32
    assert torch.equal(images, torch.from_numpy(pixels[..., ::2, ::2]).float() / 255)
