from __future__ import annotations

import pytest
import torch
from torch import nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.evaluation import evaluate
from robustcaps.attacks.goals import Targeted, Untargeted
from robustcaps.attacks.gradients import value_and_gradient
from robustcaps.attacks.losses import LOSSES
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier, ClassifierOutput

EPS = [0.0, 0.001, 0.01, 0.03, 0.05, 0.08, 0.1, 0.2]


@pytest.mark.parametrize(
    ("attack", "norm", "dual", "scale"),
    [
        ("fgsm", "linf", 1, 1.0),
        ("fgsm", "l2", 2, 3.0),
        ("bim", "linf", 1, 1.0),
        ("bim", "l2", 2, 3.0),
        ("pgd", "linf", 1, 1.0),
        ("momentum", "linf", 1, 1.0),
        ("momentum", "l2", 2, 3.0),
        ("apgd-ce", "linf", 1, 1.0),
        ("apgd-ce", "l2", 2, 3.0),
    ],
)
@pytest.mark.parametrize("sharpness", [1.0, 1000.0])
def test_attacks_on_a_linear_model_agree_with_the_closed_form(
    linear, linear_data, norm, dual, scale, attack, sharpness
):
    """Fooled exactly when margin < eps |w_label - w_other|_dual, for every eps, however saturated the softmax is."""
    with torch.no_grad():
        linear.linear.weight *= sharpness
        linear.linear.bias *= sharpness
    rows = evaluate(linear, linear_data, load_attack(attack, eps=[scale * e for e in EPS], norm=norm))
    weight = linear.linear.weight.detach().double()
    logits = linear_data.images.double().flatten(1) @ weight.T + linear.linear.bias.detach().double()
    pick = linear_data.labels[:, None]
    margin = (logits.gather(1, pick) - logits.gather(1, 1 - pick))[:, 0]
    reach = torch.linalg.vector_norm(weight[0] - weight[1], ord=dual)
    for eps in EPS:
        part = rows[rows["eps"] == scale * eps].sort_values("index")
        expected = margin - scale * eps * reach < 0
        assert part["fooled"].tolist() == expected.tolist(), eps
        attacked = part[(part["clean_pred"] == part["label"]) & ~part["fooled"]]
        if attack == "fgsm":
            assert attacked[norm].to_numpy() == pytest.approx(scale * eps, abs=1e-6)


@pytest.mark.parametrize("attack", ["fgsm", "bim", "pgd", "noise"])
@pytest.mark.parametrize("goal", ["untargeted", "targeted"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("unit", ["pixel", "std"])
def test_a_sweep_equals_its_budgets_alone(network, network_data, attack, goal, norm, unit):
    sweep = [0.02, 0.1, 0.4]
    together = evaluate(network, network_data, load_attack(attack, eps=sweep, norm=norm, unit=unit, goal=goal))
    for eps in sweep:
        alone = evaluate(network, network_data, load_attack(attack, eps=eps, norm=norm, unit=unit, goal=goal))
        part = together[together["eps"] == eps].reset_index(drop=True)
        costs = ["forwards", "backwards", "queries"]  # shared work is counted once in a sweep
        assert part.drop(columns=costs).equals(alone.drop(columns=costs))


def test_every_goal_is_pursued(network, network_data):
    rows = evaluate(network, network_data, load_attack("bim", eps=[0.3], goal="targeted", target="b"))
    assert set(rows["target"]) == {1} and (rows["fooled"] == (rows["adv_pred"] == 1)).all()
    every = evaluate(network, network_data, load_attack("bim", eps=[0.0, 0.3], goal="targeted"))
    assert len(every) == 3 * 2 * len(network_data)
    clean = every[every["eps"] == 0]
    assert clean["fooled"].mean() == pytest.approx(1 / 3)
    assert every[every["eps"] == 0.3]["fooled"].mean() > 0.5


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.05), ("l2", 0.3)])
def test_more_effort_is_never_weaker(network, network_data, norm, eps):
    accuracy = {}
    for name, options in {"fgsm": {}, "bim": {"steps": 20}, "pgd": {"steps": 20, "restarts": 3}}.items():
        accuracy[name] = (
            1 - evaluate(network, network_data, load_attack(name, eps=eps, norm=norm, **options))["fooled"].mean()
        )
    assert accuracy["pgd"] <= accuracy["bim"] <= accuracy["fgsm"] < 1


def test_early_stop_does_not_change_who_is_fooled_on_the_way(network, network_data):
    stopped = evaluate(network, network_data, load_attack("bim", eps=0.1))
    full = evaluate(network, network_data, load_attack("bim", eps=0.1, early_stop=False))
    assert (stopped["fooled"] >= full["fooled"]).all()
    assert stopped["backwards"].sum() < full["backwards"].sum()


def test_seeds_matter_only_to_random_attacks(network, network_data):
    for name, random in {"fgsm": False, "bim": False, "pgd": True, "noise": True}.items():
        attack = load_attack(name, eps=0.02)
        first, second = (evaluate(network, network_data, attack, seed=seed) for seed in (0, 1))
        again = evaluate(network, network_data, attack, seed=0)
        assert first.equals(again)
        assert (not first.drop(columns="seed").equals(second.drop(columns="seed"))) == random == attack.randomised


def test_every_loss_stops_early(network_data):
    for loss in LOSSES:
        counts = {}
        for early in (True, False):
            attack = load_attack("bim", eps=0.3, loss=loss, early_stop=early)
            counts[early] = evaluate(Saturating(), network_data, attack)["backwards"].sum()
        assert counts[True] < counts[False], loss


class Saturating(Classifier):
    """Scores that are squashed logits, and a training loss with a margin."""

    def __init__(self):
        super().__init__(classes=4, channels=1, size=8)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))

    def classify(self, images):
        logits = self.net(images)
        return ClassifierOutput(logits=logits, scores=torch.sigmoid(logits))

    def training_loss(self, images, labels, progress=1.0):
        return torch.relu(1.5 - self.scores(images).gather(1, labels[:, None])[:, 0])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("goal_class", [Untargeted, Targeted])
def test_losses_against_finite_differences(loss, goal_class, network_data):
    model = Saturating().double()
    images, labels = network_data.images[:6].double(), network_data.labels[:6]
    counted = CountedModel(model, Counts.zeros(6))
    goal = goal_class(labels)
    values, gradient, _ = value_and_gradient(LOSSES[loss], counted, images, goal)
    direction = torch.randn(images.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        ahead = LOSSES[loss](counted, images + 1e-6 * direction, goal)[0]
        behind = LOSSES[loss](counted, images - 1e-6 * direction, goal)[0]
    assert torch.allclose((gradient * direction).flatten(1).sum(1), (ahead - behind) / 2e-6, atol=1e-7, rtol=1e-5)
    assert counted.counts.backwards.tolist() == [1.0] * 6
    reference = {
        "log-odds": nn.functional.cross_entropy(model(images), labels, reduction="none").expm1().log(),
        "ce": nn.functional.cross_entropy(model(images), labels, reduction="none"),
        "ce-scores": nn.functional.cross_entropy(model.scores(images), labels, reduction="none"),
        "training": model.training_loss(images, labels),
    }
    if loss in reference:
        assert torch.allclose(values, goal.sign * reference[loss].detach())


def test_scores_need_a_model_that_has_them(network, network_data):
    with pytest.raises(UserError, match="Sequential has no scores"):
        evaluate(network, network_data, load_attack("fgsm", eps=0.1, loss="ce-scores"))


def test_a_std_budget_is_scaled_by_each_image(linear, linear_data):
    rows = evaluate(linear, linear_data, load_attack("fgsm", eps=0.1, unit="std"))
    attacked = rows[rows["clean_pred"] == rows["label"]]
    spread = linear_data.images.flatten(1).std(1, correction=0)[attacked["index"].tolist()]
    assert attacked["linf"].to_numpy() == pytest.approx(0.1 * spread.numpy(), rel=1e-5)


def test_fgsm_takes_one_gradient_for_all_eps(network, network_data):
    rows = evaluate(network, network_data, load_attack("fgsm", eps=[0.01 * k for k in range(1, 11)]))
    cost = rows.groupby("index")[["forwards", "backwards"]].sum()
    wrong = rows.groupby("index")["clean_pred"].first() != rows.groupby("index")["label"].first()
    assert (cost[~wrong] == [12, 1]).all(axis=None)  # 1 clean, 1 for the gradient, 10 re-predictions
    assert (cost[wrong] == [1, 0]).all(axis=None)
