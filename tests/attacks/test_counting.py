from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import robustcaps as rc
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.query_budget import QueryBudget


def images_of(n):
    return torch.linspace(0.1, 0.9, n)[:, None, None, None].expand(n, 1, 2, 2).clone()


def counted(n, **more):
    return CountedModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Counts.zeros(n), **more)


def test_every_sample_is_counted_for_its_own_passes():
    model = counted(3)
    images = images_of(3).requires_grad_()
    model(images).sum().backward()
    model.select(torch.tensor([0, 2]))(images[[0, 2]].detach())
    assert model.counts.forwards.tolist() == [2, 1, 2]
    assert model.counts.backwards.tolist() == [1, 1, 1]
    assert model.counts.queries.tolist() == [2, 1, 2]


def test_copies_of_a_sample_are_counted_one_by_one():
    model = counted(2)
    rows = torch.tensor([0, 0, 0, 1])
    images = images_of(2)[rows].requires_grad_()
    model.select(rows)(images).sum().backward()
    assert (model.counts.forwards.tolist(), model.counts.backwards.tolist()) == ([3, 1], [3, 1])


def test_images_without_a_place_are_counted_on_the_sample_they_are_closest_to():
    images = images_of(3)
    model = counted(3, originals=images)
    model((images[2:] + 0.01).requires_grad_()).sum().backward()
    model(images.flip(0).repeat(2, 1, 1, 1))
    assert model.counts.forwards.tolist() == [2, 2, 3]
    assert model.counts.backwards.tolist() == [0, 0, 1]


class Noisy(nn.Module):
    def forward(self, images):
        return images.flatten(1)[:, :3] + torch.rand(len(images), 3)


def test_a_random_model_draws_on_without_touching_the_generator_of_others():
    before = torch.get_rng_state()
    answers = [CountedModel(Noisy(), Counts.zeros(2)) for _ in range(2)]
    first, again = (torch.stack([model(images_of(2)) for _ in range(2)]) for model in answers)
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(torch.get_rng_state(), before)


class Brightness(nn.Module):
    """Class 1 where the mean is above one half."""

    def forward(self, images):
        mean = images.mean((1, 2, 3))
        return torch.stack([0.5 - mean, mean - 0.5], 1)


def run_with_budget(max_queries, images, eps, queries):
    """Query the brightness model with (rows, images) pairs under a query budget; return the images and the counts."""
    goal = Untargeted(torch.zeros(len(images), dtype=torch.long))
    query_budget = QueryBudget(max_queries, torch.arange(len(images)), images, goal)
    model = CountedModel(Brightness(), Counts.zeros(len(images)), originals=images, query_budget=query_budget)

    def sweep():
        for rows, queried in queries:
            model.select(torch.tensor(rows))(queried)
        yield torch.zeros_like(images)

    return query_budget.run(Budget(eps), sweep), model.counts.queries.tolist()


def test_a_query_budget_keeps_the_first_success_inside_the_ball():
    images = torch.full((1, 1, 2, 2), 0.4)
    queries = [([0], torch.full_like(images, value)) for value in (0.7, 0.55, 0.6, 0.3, 0.4)]  # outside, hit, hit, none
    found, spent = run_with_budget(4, images, 0.2, queries)
    assert found.flatten().tolist() == pytest.approx([0.55] * 4) and spent == [4]


def test_who_has_queries_left_goes_on_and_keeps_its_own_proposal():
    images = images_of(2)
    queries = [([0], images[:1] + 0.05), ([0], images[:1] + 0.05), ([0, 1], images)]
    found, spent = run_with_budget(2, images, 1.0, queries)
    assert torch.equal(found[0], images[0] + 0.05) and not found[1].any()
    assert spent == [2, 1]


@pytest.mark.parametrize(
    ("attack", "options"),
    [("pgd", {}), ("minimal", {"attack": "bim"}), ("square", {}), ("worst-case", {"attacks": ["fgsm", "bim"]})],
)
def test_rows_with_a_query_budget_do_not_depend_on_the_batch_and_respect_it(network, network_data, attack, options):
    configured = rc.load_attack(attack, eps=[0.05, 0.2], max_queries=7, **options)
    whole = rc.evaluate(network, network_data, configured)
    for size in (1, 7):
        assert rc.evaluate(network, network_data, configured, batch_size=size).equals(whole)
    assert whole["queries"].max() <= 7 + 2  # the clean image, and the re-check
    free = rc.evaluate(network, network_data, rc.load_attack(attack, eps=[0.05, 0.2], **options))
    assert free["queries"].max() > 9 and whole["fooled"].mean() <= free["fooled"].mean()


def test_passes_of_the_unwrapped_model_are_counted_all_the_same(network, network_data):
    def step(model, images, labels, eps):
        images.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(images), labels), images)
        return (images + eps * gradient.sign()).clamp(0, 1)

    rc.attack("honest")(step)
    rc.attack("unwraps")(lambda model, images, labels, eps: step(model.model, images, labels, eps))
    honest, sly = (rc.evaluate(network, network_data, rc.load_attack(name, eps=0.1)) for name in ("honest", "unwraps"))
    costs = ["forwards", "backwards", "queries"]
    assert honest[costs].equals(sly[costs]) and honest["backwards"].max() == 1
    assert not network._forward_pre_hooks
