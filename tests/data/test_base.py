from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from robustcaps.data.base import Data
from robustcaps.errors import UserError


def small_data() -> Data:
    images = torch.arange(3 * 2 * 4 * 4).reshape(3, 2, 4, 4) / 100
    return Data(images, torch.tensor([0, 1, 1]), ("cat", "dog"), factors=pd.DataFrame({"view": [5, 6, 7]}))


def test_data_knows_its_measures() -> None:
    data = small_data()
    assert (len(data), data.classes, data.channels, data.size) == (3, 2, 2, 4)


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (torch.zeros(2, 4, 4), torch.zeros(2, dtype=torch.int64), "images must be float32"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.int64), "images must be float32"),
        (torch.zeros(2, 1, 4, 4), torch.zeros(3, dtype=torch.int64), "labels must be int64"),
        (torch.zeros(2, 1, 4, 4), torch.zeros(2), "labels must be int64"),
        (torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.int64), "no images"),
        (torch.full((1, 1, 4, 4), torch.nan), torch.zeros(1, dtype=torch.int64), "finite"),
        (torch.full((1, 1, 4, 4), 1.1), torch.zeros(1, dtype=torch.int64), "in \\[0, 1\\]"),
        (torch.zeros(1, 1, 4, 4), torch.tensor([2]), "labels must be in 0..1; found 2..2"),
    ],
)
def test_bad_images_and_labels_are_refused(images: torch.Tensor, labels: torch.Tensor, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        Data(images, labels, ("cat", "dog"))


def test_select_keeps_images_labels_and_factors_together() -> None:
    chosen = small_data().select(torch.tensor([2, 0]))
    assert torch.equal(chosen.images, small_data().images[[2, 0]])
    assert chosen.labels.tolist() == [1, 0]
    assert chosen.factors["view"].tolist() == [7, 5]


def test_digest_depends_on_pixels_and_labels_only() -> None:
    data = small_data()
    assert replace(data, name="other").digest == data.digest
    assert replace(data, labels=torch.tensor([0, 0, 1])).digest != data.digest
    assert replace(data, images=data.images.flip(0)).digest != data.digest
    assert replace(data, images=data.images.reshape(3, 1, 8, 4)).digest != data.digest
