"""The verdict on models whose label is known, and the proof of each label. See `collection`."""

from __future__ import annotations

import pytest

import robustcaps as rc
from tests.diagnostics.collection import COLLECTION, EPS, accuracy, attack, blobs, specimen, textbook

DATA = blobs(100, seed=2)

pytestmark = pytest.mark.slow


def test_the_collection_is_large_enough():
    labels = [each.masked for each in COLLECTION.values()]
    assert labels.count(False) >= 12 and labels.count(True) >= 16


@pytest.mark.parametrize("name", COLLECTION)
def test_the_label_is_true(name):
    """A masked model falls to those who know its secret; on an honest one far more effort gains next to nothing."""
    label, model = COLLECTION[name], specimen(name)
    best = accuracy(model, label.proof(model, DATA), DATA.labels)
    if label.masked:
        assert accuracy(model, textbook(model, DATA), DATA.labels) - best >= 0.1
    else:
        usual = attack(model, DATA.images, DATA.labels, EPS, steps=20)
        assert accuracy(model, usual, DATA.labels) - best <= 0.05


@pytest.mark.parametrize("name", COLLECTION)
def test_masked_models_are_found_and_honest_ones_are_not_accused(name):
    verdict = rc.diagnose(specimen(name), DATA, EPS)
    assert verdict.masked == COLLECTION[name].masked, verdict.summary
    assert verdict.masked or verdict.status == "trusted", verdict.summary
