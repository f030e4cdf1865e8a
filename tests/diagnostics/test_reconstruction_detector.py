from __future__ import annotations

import pytest
import torch

import robustcaps as rc
from robustcaps.attacks.evaluation import COLUMNS
from robustcaps.errors import UserError
from robustcaps.models.base import ClassifierOutput
from robustcaps.utils.statistics import wilson


class Inker(torch.nn.Module):
    """Class 1 if the first pixel is bright; its capsules remember the mean of an image and paint everything with it."""

    reconstruction = 1.0

    def classify(self, images):
        first = images[:, 0, 0, 0]
        logits = torch.stack([0.5 - first, first - 0.5], 1)
        poses = images.mean((1, 2, 3))[:, None, None].expand(-1, 2, 1)
        return ClassifierOutput(logits=logits, scores=logits.sigmoid(), poses=poses)

    def forward(self, images):
        return self.classify(images).logits

    def decode(self, poses, labels):
        chosen = poses[torch.arange(len(poses)), labels, 0]
        return chosen[:, None, None, None].expand(-1, 1, 2, 2)


def image(*pixels: float) -> torch.Tensor:
    return torch.tensor(pixels).view(1, 1, 2, 2)


FLAT, ROUGH, BROKEN = image(0.2, 0.2, 0.2, 0.2), image(0.8, 0.2, 0.2, 0.2), image(torch.nan, 0, 0, 0)


def test_errors_are_euclidean_and_beyond_the_quantile_flagged():
    model = Inker()
    spread = torch.cat([image(0.5 + d, 0.5 - d, 0.5 + d, 0.5 - d) for d in torch.linspace(0, 0.5, 101).tolist()])
    detector = rc.ReconstructionDetector.fit(model, spread)
    assert torch.allclose(detector.errors(spread), torch.linspace(0, 1, 101), atol=1e-6)  # |(d, -d, d, -d)| = 2 d
    assert detector.threshold == pytest.approx(0.95)
    assert detector.flags(spread).nonzero().flatten().tolist() == [96, 97, 98, 99, 100]
    assert detector.flags(torch.cat([FLAT, ROUGH, BROKEN])).tolist() == [False, False, True]
    assert rc.ReconstructionDetector.fit(model, spread, quantile=0.5).threshold == pytest.approx(0.5)


@pytest.mark.usefixtures("registries")
def test_fooled_and_undetected_are_told_apart():
    @rc.attack("ink")
    def ink(model, images, labels, eps):
        """Brighten the first pixel of the first image, and all pixels of the second."""
        found = images.clone()
        found[0, 0, 0, 0] += eps
        found[1] += eps
        return found

    images, labels = FLAT.repeat(4, 1, 1, 1), torch.tensor([0, 0, 0, 1])
    detector = rc.ReconstructionDetector(Inker(), threshold=0.1)
    attack = rc.load_attack("ink", eps=[0.0, 0.6])
    rows = rc.detect(Inker(), (images, labels), attack, detector)
    strong = rows[rows["eps"] == 0.6]
    assert strong["fooled"].tolist() == [True, True, False, True]  # the last one is wrong from the start
    assert strong["flagged"].tolist() == [True, False, False, False]
    assert strong["undetected"].tolist() == [False, True, False, True]
    assert strong["error"].tolist() == pytest.approx([0.27**0.5, 0, 0, 0], abs=1e-6)  # off by 0.45 and three times 0.15
    assert rows[list(COLUMNS)].equals(rc.evaluate(Inker(), (images, labels), attack))

    rates = rc.detection_rates(rows).set_index("eps")
    assert rates["n"].tolist() == [4, 4]
    assert rates.loc[0.6, ["fooled", "flagged", "undetected"]].tolist() == [0.75, 0.25, 0.5]
    assert rates.loc[0.6, ["undetected_low", "undetected_high"]].tolist() == pytest.approx(list(wilson(2, 4)))
    assert rates["detected"].tolist() == pytest.approx([0, 1 / 3])
    assert rates.loc[0.6, ["detected_low", "detected_high"]].tolist() == pytest.approx(list(wilson(1, 3)))


def test_of_nothing_fooled_no_share_is_detected():
    rows = rc.detect(
        Inker(), (FLAT, torch.tensor([0])), rc.load_attack("clean"), rc.ReconstructionDetector(Inker(), 0.1)
    )
    (line,) = rc.detection_rates(rows).to_dict("records")
    assert (line["n"], line["fooled"]) == (1, 0)
    assert all(line[name] != line[name] for name in ("detected", "detected_low", "detected_high"))  # NaN


def test_only_a_trained_decoder_detects():
    sizes = {"classes": 2, "channels": 1, "size": 20}
    mistakes = {
        "no decoder": rc.build_model("cnn-small", **sizes),
        "decoder is untrained": rc.build_model("vector-capsnet-small", **sizes, reconstruction=0),
    }
    for message, model in mistakes.items():
        with pytest.raises(UserError, match=message):
            rc.ReconstructionDetector.fit(model, torch.rand(2, 1, 20, 20))
    with pytest.raises(UserError, match="quantile: must lie between 0 and 1"):
        rc.ReconstructionDetector.fit(Inker(), FLAT, quantile=95)
