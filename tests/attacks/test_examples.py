"""Example images are kept of the same few samples, whatever the batch size, the model and the attack."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import robustcaps as rc
from robustcaps.attacks.evaluation import evaluate
from robustcaps.attacks.example_columns import EXAMPLE_COLUMNS, decode_image, encode_image
from robustcaps.attacks.examples import MAX_SAMPLES, ExampleImages, choose_samples
from robustcaps.data.base import Data


def data_of(count, classes=3, size=2):
    labels = torch.arange(count) % classes
    return Data(torch.zeros(count, 1, size, size), labels, tuple(map(str, range(classes))))


@given(count=st.integers(1, 300), classes=st.integers(1, 12))
def test_chosen_samples_are_evenly_spaced_and_of_different_classes(count, classes):
    data = data_of(max(count, classes), classes)
    chosen = choose_samples(data)
    assert len(chosen) == min(MAX_SAMPLES, len(data)) and chosen[0] == 0 and chosen[-1] < len(data)
    assert len(set(np.diff(chosen))) <= 1
    assert math.gcd(*np.diff(chosen).tolist() or [1], classes) == 1
    assert len(set(data.labels[chosen].tolist())) == min(len(chosen), classes)


@pytest.mark.parametrize(("size", "count"), [(8, 6), (100, 6), (128, 4), (300, 1)])
def test_fewer_samples_are_chosen_of_large_images(size, count):
    assert len(choose_samples(data_of(40, size=size))) == count


@pytest.mark.parametrize("goal", ["untargeted", "targeted"])
def test_images_are_those_of_the_attack(network, network_data, goal):
    attack = rc.load_attack("fgsm", eps=[0.0, 0.1], goal=goal)
    keep = ExampleImages(network, network_data, several_targets=goal == "targeted")
    rows = evaluate(network, network_data, attack, extra_columns=keep)
    plain = evaluate(network, network_data, attack)
    assert rows[plain.columns].equals(plain)
    shown = rows[rows["original"].notna()]
    assert rows.loc[rows["original"].isna(), list(EXAMPLE_COLUMNS)].isna().all(axis=None)
    assert shown.groupby("eps")["index"].apply(list).map(sorted).tolist() == [choose_samples(network_data)] * 2
    if goal == "targeted":
        assert (shown["target"] != shown["label"]).all() and len(set(shown["target"])) > 1
    for line in shown.to_dict("records"):
        original, adversarial = (decode_image(line[name], line["image_shape"]) for name in EXAMPLE_COLUMNS[:2])
        assert np.abs(original - network_data.images[line["index"]].numpy()).max() <= 0.51 / 65535
        assert abs(np.abs(adversarial - original).max() - line["linf"]) <= 2 / 65535
        with torch.no_grad():
            probability = network(network_data.images[[line["index"]]]).softmax(1)[0, line["clean_pred"]]
        assert line["clean_confidence"] == pytest.approx(float(probability), abs=1e-6)
        assert 0 < line["adv_confidence"] <= 1


def test_images_do_not_depend_on_the_batch_size(network, network_data):
    attack = rc.load_attack("bim", eps=[0.02, 0.1], goal="targeted")
    keep = ExampleImages(network, network_data, several_targets=True)
    reference, *others = (
        evaluate(network, network_data, attack, batch_size=size, extra_columns=keep) for size in (37, 1, 5)
    )
    for other in others:
        pd.testing.assert_frame_equal(other, reference)


class Guessing(torch.nn.Module):
    """Draws random numbers in every pass, and has no answer for images that were touched."""

    def forward(self, images):
        logits = torch.rand(len(images), 3)
        return torch.where((images == 1).flatten(1).any(1)[:, None], torch.nan, logits)


def test_random_models_draw_the_same_and_no_answer_has_no_confidence(network_data):
    attack, model = rc.load_attack("noise", eps=1.0, tries=1), Guessing()
    rows = {}
    for name, keep in {"with": ExampleImages(model, network_data, several_targets=False), "without": None}.items():
        torch.manual_seed(0)
        rows[name] = evaluate(model, network_data, attack, extra_columns=keep)
    assert rows["with"][rows["without"].columns].equals(rows["without"])
    shown = rows["with"][rows["with"]["original"].notna()]
    assert shown["clean_confidence"].notna().any()
    unanswered = shown["adv_pred"] == -1
    assert unanswered.any() and shown.loc[unanswered, "adv_confidence"].isna().all()


@given(st.lists(st.floats(0, 1, width=32), min_size=12, max_size=12))
def test_images_survive_their_encoding(values):
    image = np.array(values, np.float32).reshape(1, 3, 4)
    decoded = decode_image(encode_image(image), "1x3x4")
    assert decoded.shape == image.shape and np.abs(decoded - image).max() <= 0.51 / 65535
    assert encode_image(decoded) == encode_image(image)


def test_tolerated_pixels_beyond_the_box_are_clipped():
    assert encode_image(np.array([[[-1e-6, 1 + 1e-6]]])) == b"\0\0\xff\xff"
