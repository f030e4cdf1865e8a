from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import robustcaps as rc
from robustcaps.attacks.spatial.affine import AffineBudget
from robustcaps.errors import UserError
from robustcaps.utils.affine_maps import transform_images


@pytest.fixture(scope="module")
def model():
    return rc.load_model("cnn-small")


@pytest.fixture(scope="module")
def data():
    return rc.load_data("toys", skip=1, limit=12)


def test_a_map_moves_every_pixel_where_its_formula_says():
    image = torch.zeros(1, 1, 41, 41)
    image[0, 0, 14, 26] = 1.0  # 6 to the right of the centre, 6 above it
    parameters = torch.tensor([[30.0, 0.1, -0.05, 0.2, 10.0]], dtype=torch.float64)
    angle, shear = math.radians(30), math.tan(math.radians(10))
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    x, y = 1.2 * turn @ np.array([[1, shear], [0, 1]]) @ (6, -6) + (4.1, -2.05)
    moved = transform_images(image, parameters)[0, 0].double()
    columns, rows = torch.arange(41) - 20.0, torch.arange(41) - 20.0
    assert float((moved.sum(0) * columns).sum() / moved.sum()) == pytest.approx(x, abs=0.25)
    assert float((moved.sum(1) * rows).sum() / moved.sum()) == pytest.approx(y, abs=0.25)


def test_quarter_turns_and_whole_pixels_are_exact():
    image = torch.rand(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    turned = transform_images(image, torch.tensor([[90.0, 0.0, 0.0, 0.0, 0.0]]))
    assert torch.allclose(turned, image.rot90(-1, (2, 3)), atol=1e-5)  # clockwise
    shifted = transform_images(image, torch.tensor([[0.0, 0.25, 0.0, 0.0, 0.0]]))
    assert torch.allclose(shifted[..., 2:], image[..., :-2], atol=1e-5)
    assert torch.allclose(shifted[..., 0], image[..., 0], atol=1e-5)  # the border repeats


def test_gradients_of_the_parameters_are_right():
    image = torch.nn.functional.avg_pool2d(torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(1)), 5, 1)
    weight = torch.rand(image.shape, generator=torch.Generator().manual_seed(2)).double()

    def value(parameters):
        return (transform_images(image.double(), parameters) * weight).sum()

    parameters = torch.tensor([[3.0, 0.01, 0.02, 0.05, 2.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(parameters), parameters)
    step = 1e-6 * torch.eye(5, dtype=torch.float64)
    for place in range(5):
        slope = (value(parameters + step[place]) - value(parameters - step[place])) / 2e-6
        assert float(gradient[0, place]) == pytest.approx(float(slope.detach()), rel=0.02, abs=1e-4)


def test_ranges_grow_with_eps_and_points_of_the_cube_are_parameters_and_back():
    budget, images = AffineBudget(15.0), torch.rand(3, 1, 8, 8)
    low, high = budget.limits(images)
    assert high[0].tolist() == pytest.approx([15.0, 0.05, 0.05, 0.1, 5.0]) and torch.equal(low, -high)
    points = torch.rand(3, 5, dtype=torch.float64) * 2 - 1
    parameters = budget.at(images, points)
    assert torch.allclose(budget.points_of(images, parameters), points)
    assert budget.contains(images, parameters).all() and not budget.contains(images, 1.01 * low).any()
    assert budget.size(parameters).max() <= 15
    assert torch.equal(budget.transform(images, torch.zeros(3, 5, dtype=torch.float64)), images)
    assert len(budget.grid(5)) == 44 and budget.grid(5).abs().max() == 1


def test_a_sweep_never_loses_what_it_found_and_only_claims_what_it_did(model, data):
    rows = rc.evaluate(model, data, rc.load_attack("affine", eps=[0, 5, 15], steps=3, tries=4))
    assert rows["valid"].all() and set(rows["norm"]) == {"affine"} and set(rows["unit"]) == {"degrees"}
    assert not rows["fooled"][rows["eps"] == 0].any() and (rows["size"] <= rows["eps"] + 1e-6).all()
    by_eps = [rows[rows["eps"] == eps].set_index("index") for eps in (5.0, 15.0)]
    assert by_eps[1]["fooled"][by_eps[0]["fooled"]].all() and by_eps[1]["fooled"].sum() > 0
    assert (by_eps[1]["queries"][by_eps[0]["fooled"]] == 0).all()
    fooled = by_eps[1][by_eps[1]["fooled"]]
    columns = ["rotation", "right", "down", "scaling", "shearing"]
    parameters = torch.tensor(fooled[columns].to_numpy())
    moved = transform_images(data.images[torch.tensor(fooled.index)], parameters)
    assert model(moved).argmax(1).tolist() == fooled["adv_pred"].tolist()


def test_gradients_and_random_points_find_more_than_the_grid(model, data):
    found = [
        rc.evaluate(model, data, rc.load_attack("affine", eps=6, grid=3, steps=steps, tries=tries))["fooled"].sum()
        for steps, tries in ((0, 0), (8, 0), (8, 20))
    ]
    assert found == sorted(found) and found[-1] > found[0]


@pytest.mark.parametrize("goal", ["untargeted", "targeted"])
def test_rows_do_not_depend_on_the_batch_size(model, data, goal):
    target = {"goal": goal, **({"target": 2} if goal == "targeted" else {})}
    attack = rc.load_attack("affine", eps=[4, 12], steps=2, tries=3, **target)
    first, second = (rc.evaluate(model, data, attack, batch_size=size) for size in (5, 12))
    columns = ["index", "eps", "fooled", "adv_pred", "queries", "rotation", "right", "down"]
    assert first[columns].round(6).equals(second[columns].round(6))


def test_other_ranges_are_another_threat_model(model, data):
    attack = rc.load_attack("affine", eps=10, translation=0, scale=0, shear=0, steps=1, tries=1)
    rows = rc.evaluate(model, data.first(4), attack)
    assert set(rows["norm"]) == {"affine (translation 0, scale 0, shear 0)"}
    assert (rows[["right", "down", "scaling", "shearing"]] == 0).all(axis=None) and rows["valid"].all()
    assert rows["size"].between(0, 10).all()


MISTAKES = [
    ({"eps": 200}, "eps: a rotation is at most 180 degrees, not 200"),
    ({"eps": 90, "scale": 0.4}, "scale: at eps 90 it is 1.2; it must be from 0 to less than 1"),
    ({"eps": 10, "norm": "linf"}, "norm: 'affine' supports affine only, not 'linf'"),
    ({"eps": 10, "unit": "pixel"}, "unit: affine is measured in degrees, not 'pixel'"),
    ({"eps": 10, "max_queries": 5}, "max_queries: cannot be set with norm 'affine'"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError) as error:
        rc.load_attack("affine", **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_norms_that_an_attack_does_not_have_are_refused():
    for use, norm in itertools.product(("apgd-ce", "square"), ("l1", "affine")):
        with pytest.raises(UserError, match=f"'{use}' supports linf and l2 only, not '{norm}'"):
            rc.load_attack(use, eps=1, norm=norm)
    with pytest.raises(UserError, match="'affine': moves objects instead of pixels, so it cannot be part of another"):
        rc.load_attack("worst-case", attacks=["affine"], eps=1)
