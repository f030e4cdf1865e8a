"""`make perf` counts passes of AutoAttack, ours and theirs, at the same model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("torchattacks")

from benchmarks.perf.autoattack import Case, CountingModel, compare, markdown


def test_passes_are_counted_by_image_forwards_and_backwards():
    model = CountingModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 5)))
    images = torch.rand(3, 1, 2, 2, requires_grad=True)
    logits = model(images)
    assert (model.forwards, model.backwards) == (3, 0)
    for column in (0, 1):
        torch.autograd.grad(logits[:, column].sum(), images, retain_graph=True)
    with torch.no_grad():
        model(images[:2])
    assert (model.forwards, model.backwards) == (5, 6)


def test_ours_and_theirs_have_a_line_each_with_the_same_images():
    table = compare([Case("cnn-small", "linf", 0.08)], images=6)
    assert table["by"].tolist() == ["robustcaps", "torchattacks"]
    assert (table["correct"] == 0).all() and (table["images"] == 6).all()
    assert 0 < table["forwards"][0] < table["forwards"][1]
    assert 0 < table["backwards"][0] < table["backwards"][1]
    assert markdown(table).count("| cnn-small | linf | 0.08 |") == 2
