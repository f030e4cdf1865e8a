"""What `make perf` compares with, the textbook, computes what our networks compute; and its table is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import robustcaps as rc
from benchmarks.perf import comparison, textbook
from benchmarks.perf.comparison import Measurement
from benchmarks.perf.table import markdown, tabulate
from robustcaps.models.base import Classifier
from robustcaps.models.matrix_capsnet import MatrixCapsNet
from robustcaps.models.vector_capsnet import VectorCapsNet

IMAGES, SIZE = 3, 21
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "field": ("matrix-capsnet-small", {"competition": "field"}),
    "position": ("matrix-capsnet-small", {"competition": "position"}),
    "rising lambda": ("matrix-capsnet-small", {"schedule": "rising", "coordinates": False}),
    "one type only": ("matrix-capsnet", {"types": (3, 1, 2), "betas": "shared"}),
    "vector": ("vector-capsnet-small", {}),
    "vector, once": ("vector-capsnet-small", {"iterations": 1}),
}


def images() -> Tensor:
    """Smooth random images."""
    coarse = torch.rand(IMAGES, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, size=SIZE, mode="bilinear")


def both(name: str, options: dict[str, Any]) -> tuple[Classifier, Classifier]:
    """Our network and the textbook's, in eval mode."""
    model = rc.build_model(name, classes=4, channels=2, size=SIZE, **options).eval()
    if isinstance(model, VectorCapsNet):
        return model, textbook.vector_capsnet(model)
    assert isinstance(model, MatrixCapsNet)
    model.initialise(images())
    return model, textbook.matrix_capsnet(model)


def answers(model: Classifier) -> Iterator[tuple[str, Tensor]]:
    """The logits, and the gradients of the image and of every parameter."""
    seen = images().requires_grad_()
    logits = model(seen)
    yield "logits", logits.detach()
    labels = torch.arange(IMAGES) % 4
    loss = F.cross_entropy(logits, labels) + model.training_loss(seen, labels).mean()
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, [seen, *parameters])
    yield from zip(["image", *names], gradients, strict=True)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_textbook_and_ours_agree_in_outputs_and_all_gradients(case):
    ours, plain = (dict(answers(model)) for model in both(*case))
    assert plain.keys() == ours.keys()
    for name, value in ours.items():
        scale = float(value.abs().max())
        assert scale > 0, name
        assert (plain[name] - value).abs().max() <= 1e-4 * scale, name


@pytest.mark.parametrize("options", [{"activation": "mixture"}, {"poses": "vector"}])
def test_the_textbook_refuses_what_it_does_not_have(options):
    with pytest.raises(ValueError, match="the textbook"):
        both("matrix-capsnet-small", options)


def test_the_table_says_how_many_times_as_fast_as_the_textbook():
    numbers = ("forward_ms", "training_ms", "attack_ms", "peak_mb", "epoch_s")
    ours = dict(zip(numbers, (2.0, 5.0, 4.0, 50.0, 121.5), strict=True))
    plain = dict(zip(numbers, (80.0, 300.0, None, 3000.0, 7290.0), strict=True))
    case = [Measurement("net", 32, "robustcaps", **ours), Measurement("net", 16, "textbook", **plain)]
    measured = tabulate([case], load=0.1)
    assert measured["forward_ratio"].tolist() == [40, 1]
    assert measured["memory_ratio"].tolist() == [60, 1]
    lines = markdown(measured).splitlines()
    assert "| net | 32 | robustcaps | 2.00 (40.0x) | 5.00 (60.0x) | 4.00 | 50.0 (1/60.0) | 122 |" in lines
    assert "| net | 16 | textbook | 80.0 | 300 |  | 3,000 | 7,290 |" in lines


@pytest.mark.parametrize(("gigabytes", "batch"), [(100, 32), (16, 16), (0.001, 1)])
def test_only_the_textbook_gets_a_smaller_batch_where_memory_is_short(monkeypatch, gigabytes, batch):
    monkeypatch.setattr(comparison, "free_memory", lambda: gigabytes * 1e9)
    (case,) = (case for case in comparison.CASES if case.model == "matrix-capsnet")
    assert comparison.affordable_batch(case, "textbook") == batch
    assert comparison.affordable_batch(case, "robustcaps") == 32
