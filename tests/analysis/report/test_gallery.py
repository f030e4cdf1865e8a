from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pandas as pd
import pytest

from robustcaps.analysis.report import gallery
from robustcaps.analysis.report.gallery import gallery_data
from robustcaps.attacks.example_columns import encode_image

CLASSES = {"d": ["cat", "dog"]}


def examples(*images, eps=0.1, **columns):
    """Example rows of one model and attack: (original, adversarial) pairs of arrays (channels, height, width)."""
    fixed = {"data": "d", "model": "m", "attack": "a", "goal": "untargeted", "norm": "linf", "unit": "pixel"}
    fixed |= {"target": -1, "seed": 0, "eps": eps, "label": 0, "clean_pred": 0, "adv_pred": 1}
    fixed |= {"fooled": True, "valid": True, "clean_confidence": 0.9, "adv_confidence": 0.8, **columns}
    return pd.DataFrame(
        [
            {
                "index": place,
                "original": encode_image(original),
                "adversarial": encode_image(adversarial),
                "image_shape": "x".join(map(str, original.shape)),
                **fixed,
            }
            for place, (original, adversarial) in enumerate(images)
        ]
    )


def decoded(data, series, step):
    """An original and its adversarial image as the page computes them."""
    pixels = zlib.decompress(base64.b64decode(data["pixels"]))
    sample = data["samples"][series["sample"]]
    shape = sample["channels"], sample["height"], sample["width"]
    size = int(np.prod(shape))
    original = np.frombuffer(pixels, np.uint8, size, sample["at"]).reshape(shape) / 255
    return original, original + step["unit"] * np.frombuffer(pixels, np.int8, size, step["at"]).reshape(shape)


@pytest.mark.parametrize("size", [0.0005, 0.03, 0.5])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_images_come_back_with_the_precision_of_a_screen_and_perturbations_with_their_own(channels, size):
    random = np.random.default_rng(0)
    original = random.integers(0, 256, (channels, 4, 5)) / 255
    change = np.where(random.random(original.shape) < 0.5, -size, size)
    adversarial = np.clip(original + change, 0, 1)
    data = gallery_data(examples((original, adversarial)), CLASSES)
    series = data["series"][0]
    step = series["steps"][0]
    before, after = decoded(data, series, step)
    shown = slice(None) if channels == 3 else slice(1)  # the left image of a stereo pair
    assert np.abs(before - original[shown]).max() < 1e-4
    assert np.abs((after - before) - (adversarial - original)[shown]).max() < size / 100 + 1e-4
    assert series["clean"] == [0, 0.9] and step["to"] == [1, 0.8] and step["state"] == "fooled"
    json.dumps(data, allow_nan=False)


def test_a_series_goes_through_all_eps_and_samples_are_stored_once():
    image = np.full((1, 2, 2), 0.5)
    rows = [
        examples((image, image + eps), (image, image), eps=eps, attack=attack, fooled=fooled, adv_confidence=None)
        for attack in ("a", "b")
        for eps, fooled in ((0.2, True), (0.1, False))
    ]
    data = gallery_data(pd.concat(rows, ignore_index=True), CLASSES)
    assert len(data["samples"]) == 2 and len(data["series"]) == 4
    steps = data["series"][0]["steps"]
    assert [(step["eps"], step["state"]) for step in steps] == [(0.1, "held"), (0.2, "fooled")]
    assert steps[0]["to"] == [1, None] and steps[1]["largest"] == pytest.approx(0.2, abs=1e-4)


def test_only_the_first_seed_is_shown():
    image = np.zeros((1, 2, 2))
    rows = [examples((image, image), seed=seed) for seed in (1, 0)]
    assert len(gallery_data(pd.concat(rows, ignore_index=True), CLASSES)["series"]) == 1


def test_invalid_samples_say_so():
    image = np.zeros((1, 2, 2))
    data = gallery_data(examples((image, image), valid=False, fooled=False), CLASSES)
    assert data["series"][0]["steps"][0]["state"] == "invalid"


def test_of_too_many_bytes_the_last_samples_are_left_out(monkeypatch):
    random = np.random.default_rng(0)
    pairs = [(random.random((1, 20, 20)), random.random((1, 20, 20))) for _ in range(4)]
    monkeypatch.setattr(gallery, "MAX_BYTES", 2500)
    data = gallery_data(examples(*pairs), CLASSES)
    assert len(data["samples"]) == 2 and data["left_out"] == 2


def test_a_run_without_examples_has_no_gallery():
    assert gallery_data(examples((np.zeros((1, 2, 2)), np.zeros((1, 2, 2)))).iloc[:0], CLASSES) is None
