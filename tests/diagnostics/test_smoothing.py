from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm
from torch import nn

import robustcaps as rc
from robustcaps.diagnostics.smoothing import NoisyPredictions, certify
from robustcaps.models.inference import NO_ANSWER

SIGMA = 0.5
DIRECTION = torch.where(torch.arange(64) % 3 == 0, 0.125, -0.125)
"""The unit normal of the boundary, which goes through the middle of the box."""
DISTANCES = torch.tensor([-0.9, -0.2, 0.0, 0.05, 0.3, 0.6, 2.0])


class HalfSpace(nn.Module):
    """Class 1 on one side of a hyperplane at a known distance: smoothing does not move the boundary."""

    def forward(self, images):
        distance = (images.flatten(1) - 0.5) @ DIRECTION
        return torch.stack([-distance, distance], 1)


def half_space_data(label: int = 1) -> rc.Data:
    images = 0.5 + DISTANCES[:, None] * DIRECTION
    return rc.Data(images.view(-1, 1, 8, 8), torch.full((len(images),), label), ("no", "yes"))


def test_certificates_of_a_linear_model_are_close_to_its_distances_and_never_beyond():
    rows = certify(HalfSpace(), half_space_data(), sigma=SIGMA, n=4000)
    distances = DISTANCES.abs().numpy()
    assert (rows["radius"] <= distances).all()
    assert rows["prediction"].tolist() == [0, 0, NO_ANSWER, rows["prediction"][3], 1, 1, 1]
    assert rows["correct"].tolist() == (rows["prediction"] == 1).tolist()
    sure = [0, 1, 4, 5]
    np.testing.assert_allclose(rows["radius"][sure], distances[sure], atol=0.15 * SIGMA)
    assert rows["radius"][6] == rows["max_radius"][6] == pytest.approx(SIGMA * norm.ppf(0.001 ** (1 / 4000)))


def test_bounds_are_exact_and_abstentions_have_no_radius():
    data = half_space_data()
    rows = certify(HalfSpace(), data, sigma=SIGMA, n0=20, n=50, alpha=0.05)
    noisy = NoisyPredictions(HalfSpace(), data, SIGMA, batch=9, seed=0)
    selected, counts = noisy.count(range(20)).argmax(1), noisy.count(range(20, 70))
    assert (counts.sum(1) == 50).all()
    k = counts[np.arange(len(data)), selected]
    np.testing.assert_allclose(rows["p_lower"], beta.ppf(0.05, k, 50 - k + 1))
    abstained = rows["prediction"] == NO_ANSWER
    assert (abstained == (rows["p_lower"] <= 0.5)).all() and abstained.any()
    assert (rows["radius"][abstained] == 0).all() and not rows["correct"][abstained].any()
    np.testing.assert_allclose(rows["radius"][~abstained], SIGMA * norm.ppf(rows["p_lower"][~abstained]))


def test_rows_depend_on_the_seed_but_not_on_batches_or_other_samples():
    data, options = half_space_data(), {"sigma": SIGMA, "n0": 10, "n": 60}
    rows = certify(HalfSpace(), data, **options)
    assert certify(HalfSpace(), data, **options, batch=7).equals(rows)
    assert certify(HalfSpace(), data.first(4), **options).equals(rows[:4])
    assert not certify(HalfSpace(), data, **options, seed=1)["p_lower"].equals(rows["p_lower"])
    more = certify(HalfSpace(), data, sigma=SIGMA, n0=10, n=61)["p_lower"]
    assert not more.equals(rows["p_lower"])


def test_the_model_is_in_eval_mode_and_progress_ends_at_the_number_of_copies():
    model, seen = nn.Sequential(HalfSpace(), nn.Dropout(0.9)).train(), []
    data = half_space_data()
    rows = certify(model, data, sigma=SIGMA, n0=5, n=20, batch=50, progress=lambda *done: seen.append(done))
    assert rows.equals(certify(HalfSpace(), data, sigma=SIGMA, n0=5, n=20))
    assert model.training and seen[-1] == (7 * 25, 7 * 25) and seen == sorted(seen)


def test_logits_that_are_not_finite_are_abstentions():
    class Broken(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :2] * torch.nan

    rows = certify(Broken(), half_space_data(label=0), n0=3, n=20)
    assert (rows["prediction"] == NO_ANSWER).all() and not rows["correct"].any() and (rows["radius"] == 0).all()
