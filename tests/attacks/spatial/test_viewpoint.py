from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import robustcaps as rc
from robustcaps.attacks.spatial.viewpoint import ViewCache, ViewpointBudget
from robustcaps.data.toys.views import ToysRenderer
from robustcaps.errors import UserError

QUICK = {"grid": 2, "rounds": 1, "tries": 2}


@pytest.fixture(scope="module")
def model():
    return rc.load_model("cnn-small")


@pytest.fixture(scope="module")
def data():
    return rc.load_data("toys", skip=1, limit=10)


@pytest.mark.parametrize("options", [{}, {"eyes": "both", "crop": False}, {"views": "novel-azimuths"}])
def test_the_renderer_draws_the_dataset_itself(options):
    data = rc.load_data("toys", limit=6, **options)
    assert torch.equal(data.renderer.draw(data.factors, np.zeros((6, 4))), data.images)


def test_a_view_is_that_of_the_sample_with_these_factors_whatever_it_is_drawn_with(data):
    changes = np.zeros((10, 4))
    changes[:, 0] = 20  # the dataset has azimuths in steps of 20 degrees
    turned = data.factors.assign(azimuth=(data.factors["azimuth"] + 20) % 360)
    assert torch.equal(data.renderer.draw(data.factors, changes), data.renderer.draw(turned, 0 * changes))
    changes = np.random.default_rng(0).uniform(-9, 9, (10, 4))
    together = data.renderer.draw(data.factors, changes)
    alone = [data.renderer.draw(data.factors.iloc[[row]], changes[[row]]) for row in range(10)]
    assert torch.equal(together, torch.cat(alone))


def test_light_moves_without_the_object(data):
    changes = np.zeros((10, 4))
    changes[:, 2] = 40
    lit = data.renderer.draw(data.factors, changes)
    assert (lit != data.images).flatten(1).any(1).all()
    assert (lit - data.images).abs().mean() < 0.1


def test_elevations_and_lights_stay_within_the_dataset(data):
    budget = ViewpointBudget(90.0).for_samples(data, torch.arange(10))
    low, high = (limit.numpy() for limit in budget.limits(data.images))
    own = data.factors["elevation"].to_numpy()
    assert (own + low[:, 1] == 30).all() and (own + high[:, 1] == 70).all()
    assert (low[:, 0] == -90).all() and (high[:, 2] == 90).all()
    assert (high[:, 3] - low[:, 3] == pytest.approx(40)) and (low <= 0).all() and (high >= 0).all()


def test_a_sweep_keeps_to_its_ranges_and_its_rows_say_which_view_it_was(model, data):
    rows = rc.evaluate(model, data, rc.load_attack("viewpoint", eps=[0, 10, 40], **QUICK))
    assert rows["valid"].all() and set(rows["norm"]) == {"viewpoint"} and set(rows["unit"]) == {"degrees"}
    names = ["azimuth_change", "elevation_change", "light_right_change", "light_height_change"]
    assert (rows[names].abs().max(axis=1) <= rows["eps"] + 1e-9).all()
    assert np.allclose(rows["size"], rows[names].abs().max(axis=1))
    last = rows[rows["eps"] == 40]
    assert last["fooled"].any() and not rows["fooled"][rows["eps"] == 0].any()
    images = data.renderer.draw(data.factors, last[names].to_numpy())
    assert model(images).argmax(1).tolist() == last["adv_pred"].tolist()


def test_rows_do_not_depend_on_the_batch_size(model, data):
    attack = rc.load_attack("viewpoint", eps=15, **QUICK)
    first, second = (rc.evaluate(model, data, attack, batch_size=size) for size in (4, 10))
    columns = ["index", "eps", "fooled", "adv_pred", "queries", "azimuth_change", "elevation_change"]
    assert first[columns].round(6).equals(second[columns].round(6))


def test_refinement_finds_worse_views_than_the_grid(model, data):
    found = []
    for rounds in (0, 3):
        rows = rc.evaluate(model, data, rc.load_attack("viewpoint", eps=12, grid=2, rounds=rounds, tries=4))
        found.append(set(rows["index"][rows["fooled"]]))
    assert found[0] <= found[1]


def test_only_datasets_that_can_be_drawn_have_viewpoints(model, data):
    attack = rc.load_attack("viewpoint", eps=10)
    with pytest.raises(UserError, match=r"^norm 'viewpoint': 'data' cannot be drawn from other sides; 'toys' can\.$"):
        rc.evaluate(model, (data.images, data.labels), attack)
    with pytest.raises(UserError, match="at most 180 degrees"):
        rc.load_attack("viewpoint", eps=181)


class CountingRenderer(ToysRenderer):
    """Draws images that are as bright as the first angle."""

    drawn: list[int] = []  # noqa: RUF012

    def draw(self, factors, changes):
        self.drawn.append(len(factors))
        return torch.tensor(changes[:, 0])[:, None, None, None].expand(-1, 1, 2, 2)


def test_views_are_drawn_once_and_forgotten_when_memory_is_short():
    cache, renderer = ViewCache(max_values=3 * 4), CountingRenderer(("left",), crop=True)
    factors = pd.DataFrame({"azimuth": [0, 20, 0]})
    angles = torch.tensor([[0.1, 0, 0, 0], [0.2, 0, 0, 0], [0.1, 0, 0, 0]], dtype=torch.float64)
    assert cache.draw(renderer, factors, angles)[:, 0, 0, 0].tolist() == [0.1, 0.2, 0.1]
    assert cache.draw(renderer, factors, angles)[:, 0, 0, 0].tolist() == [0.1, 0.2, 0.1]
    assert renderer.drawn == [2]
    cache.draw(renderer, factors, angles + 1)
    assert len(cache.views) == 3 and cache.size == 12 and renderer.drawn == [2, 2]
