from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import robustcaps as rc
from robustcaps.attacks.budgets import Budget, random_start
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Targeted, Untargeted
from robustcaps.attacks.gradient_based.apgd import AutoPgd, _ApgdState, checkpoints
from robustcaps.attacks.losses import LOSSES
from robustcaps.errors import UserError
from robustcaps.utils.sample_random import Draws


def classifier(classes=5, scale=1.0):
    """A random network that is hard to fool in small balls and far from linear."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, classes)).double().eval()
    with torch.no_grad():
        net[1].weight *= 3.0
        net[3].weight *= scale
        net[3].bias *= scale
    return net


def pictures(n=12):
    return torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def labelled(model, n=12):
    images = pictures(n)
    with torch.no_grad():
        return images, model(images).argmax(1)


def run_attack(attack, model, images, goal, budget, counts=None):
    counted = CountedModel(model, counts or Counts.zeros(len(images)))
    (batch,) = attack.sweep(counted, images, goal, [budget])
    assert batch.violations == [None] * len(images)
    return batch.images


def by_the_book(f, x0, start, eps, steps, norm):
    """Algorithm 1 of Croce and Hein (2020) for one image, word by word: every iterate and all objectives are kept."""

    def projected(x):
        if norm == "linf":
            return torch.min(torch.max(x, x0 - eps), x0 + eps).clamp(0, 1)
        return (x0 + (x - x0) * min(1.0, eps / max(float((x - x0).norm()), 1e-30))).clamp(0, 1)

    def climbed(x, eta):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(f(x), x)
        direction = gradient.sign() if norm == "linf" else gradient / gradient.norm()
        return projected(x.detach() + eta * direction)

    value = lambda x: float(f(x).detach())
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    marks = [math.ceil(round(p * steps, 6)) for p in shares]
    eta = 2 * eps
    x = [start, climbed(start, eta)]
    best = max(x, key=value)
    rises, best_at_mark, halved, last = int(value(x[1]) > value(x[0])), value(start), False, 0
    for k in range(1, steps):
        if k in marks:
            first = rises < 0.75 * (k - last)
            second = not halved and value(best) == best_at_mark
            halved, best_at_mark, last, rises = first or second, value(best), k, 0
            if halved:
                eta, x[k] = eta / 2, best
        z = climbed(x[k], eta)
        x.append(projected(x[k] + 0.75 * (z - x[k]) + 0.25 * (x[k] - x[k - 1])))
        rises += int(value(x[k + 1]) > value(x[k]))
        best = max(best, x[k + 1], key=value)
    return best, value(best)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.3), ("l2", 1.5)])
@pytest.mark.parametrize("loss", ["log-odds", "dlr"])
def test_it_is_the_algorithm_of_the_paper(norm, eps, loss):
    """On a network that nothing fools, in balls so large that the objective is anything but linear."""
    model = classifier()
    with torch.no_grad():
        model[3].bias[0] += 10.0
    images, goal, budget = pictures(4), Untargeted(torch.zeros(4, dtype=torch.long)), Budget(eps, norm)
    found = run_attack(AutoPgd(loss=loss, steps=40, restarts=1, eot=1), model, images, goal, budget)
    starts = random_start(images, budget, Draws(0, torch.arange(len(images))), 0)
    for k in range(4):
        one, alone = torch.tensor([k]), CountedModel(model, Counts.zeros(1))
        f = lambda x, one=one, alone=alone: LOSSES[loss](alone, x, goal.select(one))[0].sum()
        expected, height = by_the_book(f, images[one], starts[one], eps, 40, norm)
        assert float(f(found[one]).detach()) == pytest.approx(height, rel=1e-9)
        assert torch.allclose(found[one], expected, atol=1e-6)


def test_checkpoints_are_those_of_the_paper():
    assert checkpoints(100) == {0, 22, 41, 57, 70, 80, 87, 93, 99}
    assert all(0 <= mark <= steps for steps in range(1, 30) for mark in checkpoints(steps))


@pytest.mark.parametrize(
    ("rises", "halved", "improved", "halve"),
    [
        (8, False, True, False),
        (7, False, True, True),  # condition 1: fewer than three of four steps rose
        (8, False, False, True),  # condition 2: no better point since the last checkpoint, with the same step
        (8, True, False, False),  # a step that has just been halved gets its chance
    ],
)
def test_when_steps_are_halved(rises, halved, improved, halve):
    """Few ways lead to the second condition alone, so it is looked at here."""
    state = _ApgdState.start(pictures(1), torch.full((1, 1, 1, 1), 0.1))
    state.update_best(torch.tensor([1.0]), torch.ones(1, 1, 6, 6))
    state.adapt_step(0)
    assert not state.halved
    best = state.best_image
    state.image = best + 0.05
    if improved:
        state.update_best(torch.tensor([1.5]), torch.ones(1, 1, 6, 6))
        best = state.image
        state.image = best + 0.05
    state.update_best(torch.tensor([0.5]), torch.zeros(1, 1, 6, 6))
    state.increases, state.halved = torch.tensor([rises]), torch.tensor([halved])
    state.adapt_step(10)
    assert bool(state.halved) == halve
    assert float(state.step) == pytest.approx(0.1 if halve else 0.2)
    assert torch.equal(state.image, best) == halve


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["apgd-ce", "apgd-dlr"]),
    ball=st.tuples(st.just("linf"), st.floats(0.0, 1.0)) | st.tuples(st.just("l2"), st.floats(0.0, 2.0)),
    steps=st.integers(1, 12),
    targeted=st.booleans(),
)
def test_proposals_are_valid_and_what_was_reached_on_the_way_is_kept(name, ball, steps, targeted):
    """Restarts only ever add iterates: they keep every success, and the highest objective where there is none."""
    norm, eps = ball
    model = classifier()
    images, labels = labelled(model)
    goal = Targeted((labels + 1) % 5) if targeted else Untargeted(labels)
    budget = Budget(eps, norm)
    once = run_attack(rc.load_attack(name, eps=eps, norm=norm, steps=steps), model, images, goal, budget)
    assert ((once >= 0) & (once <= 1)).all()
    thrice = run_attack(rc.load_attack(name, eps=eps, norm=norm, steps=steps, restarts=3), model, images, goal, budget)
    hit_once, hit_thrice = (goal.reached(model(found).argmax(1)) for found in (once, thrice))
    assert (hit_thrice >= hit_once).all()
    loss = lambda x: LOSSES["dlr" if name == "apgd-dlr" else "log-odds"](
        CountedModel(model, Counts.zeros(12)), x, goal
    )[0]
    assert (hit_thrice | (loss(thrice) >= loss(once) - 1e-9)).all()


@pytest.mark.parametrize("name", ["apgd-ce", "apgd-dlr"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.03), ("l2", 0.15)])
@pytest.mark.parametrize("goal_class", [Untargeted, Targeted])
def test_a_sample_does_not_depend_on_its_batch(name, norm, eps, goal_class):
    model = classifier()
    images, labels = labelled(model, 20)
    goal = goal_class(labels if goal_class is Untargeted else (labels + 2) % 5)
    attack = rc.load_attack(name, eps=eps, norm=norm, steps=10, restarts=2)
    (whole,) = attack.sweep(model, images, goal, attack.budgets)
    hit = goal.reached(model(whole.images).argmax(1))
    assert hit.any() and not hit.all()
    for rows in (torch.tensor([7, 3, 11]), torch.arange(19, 4, -1)):
        part = model, images[rows], goal.select(rows), attack.budgets, Draws(0, rows)
        (alone,) = attack.sweep(*part)
        assert torch.allclose(alone.images, whole.images[rows], rtol=0, atol=1e-9)


def test_every_pass_is_counted_and_success_ends_the_search():
    model = classifier()
    images, labels = labelled(model)
    for eps, restarts in ((1e-4, 1), (1e-4, 2), (1.0, 2)):
        counts = Counts.zeros(len(images))
        attack = AutoPgd(loss="log-odds", steps=9, restarts=restarts, eot=2)
        run_attack(attack, model, images, Untargeted(labels), Budget(eps), counts)
        if eps < 1:
            assert counts.backwards.tolist() == counts.forwards.tolist() == [10.0 * 2 * restarts] * len(images)
            assert attack.passes == 3 * 10 * 2 * restarts
        else:
            assert (counts.backwards < 10).all()


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.05), ("l2", 0.3)])
def test_it_is_stronger_than_the_fixed_step(network, network_data, norm, eps):
    fooled = {
        name: rc.evaluate(network, network_data, rc.load_attack(name, eps=eps, norm=norm, **options))["fooled"].mean()
        for name, options in {"bim": {"steps": 30}, "apgd-ce": {"steps": 30}, "apgd-dlr": {"steps": 30}}.items()
    }
    assert min(fooled["apgd-ce"], fooled["apgd-dlr"]) >= fooled["bim"] > 0.1


@pytest.mark.parametrize("goal_class", [Untargeted, Targeted])
def test_dlr_is_the_ratio_of_the_paper_and_knows_no_scale(goal_class):
    logits = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    classes = torch.arange(50) % 6
    for scale in (1e-6, 1.0, 1e6):
        identity = CountedModel(nn.Flatten(), Counts.zeros(50))
        values, _ = LOSSES["dlr"](identity, scale * logits[:, :, None, None], goal_class(classes))
        for z, own, value in zip(logits.tolist(), classes.tolist(), values.tolist(), strict=True):
            ranked, rival = sorted(z, reverse=True), max(z[:own] + z[own + 1 :])
            if goal_class is Untargeted:
                expected = -(z[own] - rival) / (ranked[0] - ranked[2])
            else:
                expected = -(rival - z[own]) / (ranked[0] - (ranked[2] + ranked[3]) / 2)
            assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("classes", "goal", "message"),
    [
        (2, "untargeted", "loss 'dlr': an untargeted goal needs 3 classes or more, but the model has 2."),
        (3, "targeted", "loss 'dlr': a targeted goal needs 4 classes or more, but the model has 3."),
    ],
)
def test_dlr_needs_classes_to_rank(classes, goal, message):
    model = classifier(classes).float()
    data = (pictures().float(), torch.arange(12) % classes)
    with pytest.raises(UserError) as error:
        rc.evaluate(model, data, rc.load_attack("apgd-dlr", eps=0.1, goal=goal))
    assert str(error.value) == message


def test_a_saturated_softmax_hides_nothing():
    """With logits a thousand times as large, cross-entropy and its gradient are exactly zero; it fools as many."""
    results = {}
    for scale in (1.0, 1000.0):
        model = classifier(scale=scale).float()
        data = rc.Data(pictures(30).float(), model(pictures(30).float()).argmax(1), tuple("abcde"))
        for name in ("apgd-ce", "apgd-dlr"):
            rows = rc.evaluate(model, data, rc.load_attack(name, eps=0.03, steps=20))
            results[name, scale] = rows["fooled"].mean()
    assert results["apgd-dlr", 1.0] == results["apgd-dlr", 1000.0] > 0.2
    assert results["apgd-ce", 1000.0] >= results["apgd-ce", 1.0] - 0.05 > 0.2
