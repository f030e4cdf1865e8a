from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import torch

from robustcaps.data import load_data
from robustcaps.data.protocol import AZIMUTHS, ELEVATIONS, shrink
from robustcaps.data.viewpoints import Angle, Views, familiar, prepare_rows, rows_of
from robustcaps.errors import UserError

ETH80 = [
    *[(0, 0)],
    *[(polar, azimuth) for polar in (22, 45, 68) for azimuth in (0, 90, 180, 270)],
    *[(35, azimuth) for azimuth in (45, 135, 225, 315)],
    *[(66, azimuth) for azimuth in (27, 63, 117, 153, 207, 243, 297, 333)],
    *[(90, azimuth) for azimuth in (0, 22, 45, 68, 90, 112, 135, 158, 180, 202, 225, 248, 270, 292, 315, 338)],
]
"""Polar angle and azimuth of each view, as its files are named."""


@pytest.mark.parametrize(
    ("factors", "by", "column", "values", "count"),
    [
        (pd.DataFrame({"azimuth": AZIMUTHS}), "azimuths", "azimuth", {300, 320, 340, 0, 20, 40}, 6),
        (pd.DataFrame({"elevation": ELEVATIONS}), "elevations", "elevation", {30, 35, 40}, 3),
        (
            pd.DataFrame(ETH80, columns=["polar", "azimuth"]),
            *("azimuths", "azimuth", {292, 297, 315, 333, 338, 0, 22, 27, 45}, 15),
        ),
        (pd.DataFrame(ETH80, columns=["polar", "azimuth"]), "elevations", "polar", {90, 68, 66}, 28),
    ],
    ids=["smallnorb azimuths", "smallnorb elevations", "eth80 azimuths", "eth80 elevations"],
)
def test_familiar_views_are_those_of_the_paper_or_the_nearest(
    factors: pd.DataFrame, by: Angle, column: str, values: set[int], count: int
) -> None:
    known = familiar(factors, by)
    assert set(factors[column][known]) == values
    assert known.sum() == count


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("views", "column", "values"),
    [
        ("familiar-azimuths", "azimuth", {300, 320, 340, 0, 20, 40}),
        ("novel-azimuths", "azimuth", set(range(60, 281, 20))),
        ("familiar-elevations", "elevation", {30, 35, 40}),
        ("novel-elevations", "elevation", {45, 50, 55, 60, 65, 70}),
    ],
)
def test_toys_of_some_views_are_a_balanced_prefix_of_those_of_a_split(
    split: str, views: Views, column: str, values: set[int]
) -> None:
    some, more = (load_data("toys", split=split, limit=limit, views=views) for limit in (10, 95))
    assert set(more.factors[column]) == values
    assert [set(more.labels[k : k + 5].tolist()) for k in range(0, 95, 5)] == [set(range(5))] * 19
    assert torch.equal(some.images, more.images[:10])
    assert some.factors.equals(more.factors[:10])
    everything = load_data("toys", split=split, limit=500)
    numbers = everything.factors.reset_index().merge(some.factors.assign(place=range(10)))
    assert len(numbers) == 10
    shown = some.select(torch.tensor(numbers["place"].tolist()))
    origin = everything.select(torch.tensor(numbers["index"].tolist()))
    assert shown.digest == origin.digest


def test_familiar_and_novel_views_make_up_a_split_and_share_nothing() -> None:
    factors = pd.DataFrame({"category": ["a", "b"] * 18, "azimuth": np.repeat(AZIMUTHS, 2)})
    parts = [rows_of(factors, views, None).tolist() for views in ("familiar-azimuths", "novel-azimuths")]
    assert (len(parts[0]), len(parts[1])) == (12, 24)
    assert sorted(parts[0] + parts[1]) == rows_of(factors, "all", None).tolist() == list(range(36))


def test_images_come_in_the_order_of_the_rows_whatever_the_blocks() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 1, 96, 96), dtype=np.uint8)
    told: list[tuple[int, int]] = []

    def blocks() -> Iterator[np.ndarray]:
        yield from (pixels[:2], pixels[2:5], pixels[5:])

    for rows in ([8, 0, 6], [0, 1, 2, 3, 4, 5, 6, 7, 8], [5, 1]):
        found = prepare_rows(
            blocks(), np.array(rows), crop=True, progress=lambda done, total: told.append((done, total))
        )
        assert torch.equal(found, shrink(pixels[rows], crop=True))
        assert told[-1] == (len(rows), len(rows))


@pytest.mark.parametrize(
    ("factors", "views", "complaint"),
    [
        ({"instance": [1, 2]}, "novel-azimuths", "has no factor for azimuths; its factors are: instance"),
        ({"azimuth": [0]}, "familiar-elevations", "has no factor for elevations"),
        ({"category": ["car"], "azimuth": [100]}, "familiar-azimuths", "none of the 1 samples has familiar az"),
    ],
)
def test_views_that_data_do_not_have_are_named(factors: dict[str, list[int]], views: Views, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        rows_of(pd.DataFrame(factors), views, None)
