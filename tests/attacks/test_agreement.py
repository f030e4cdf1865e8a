"""Built-in attacks compared with those of torchattacks and foolbox, on a shipped network with the same settings.

In float64, since a pixel whose gradient is all but zero would take another sign in another order of float32 sums.
Differences in definition:
- torchattacks' momentum normalises by the mean, ours by the sum of |gradient|: the same direction. Foolbox accumulates
  signs instead of gradients, and has no counterpart of ours in L2.
- foolbox's DeepFool is the authors' (steps and overshoot from the image); torchattacks overshoots every step anew.
- torchattacks' CW takes one c and has no search; foolbox's stops a whole batch at once, ours each sample by itself.
- APGD starts anywhere in the ball, torchattacks' on its surface.
"""

from __future__ import annotations

import copy

import pytest
import torch

import robustcaps as rc

torchattacks = pytest.importorskip("torchattacks")
foolbox = pytest.importorskip("foolbox")


@pytest.fixture(scope="module")
def model():
    return rc.load_model("cnn-small", data="toys").eval()


def images_and_labels(model, limit):
    """Return samples that the model classifies correctly."""
    data = rc.load_data("toys", split="test", limit=limit)
    images = data.images.to(next(model.parameters()).dtype)
    with torch.no_grad():
        right = model(images).argmax(1) == data.labels
    return images[right], data.labels[right]


def spec(attack, model, images, labels):
    (batch,) = attack.sweep(model, images, rc.Untargeted(labels), attack.budgets)
    assert batch.violations == [None] * len(images)
    return batch.images


def of_foolbox(attack, eps=None):
    def run(model, images, labels):
        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
        return attack.run(wrapped, images, labels, **({} if eps is None else {"epsilon": eps}))

    return run


def of_torchattacks(name, **options):
    return lambda model, images, labels: getattr(torchattacks, name)(model, **options)(images, labels)


EPS, EPS_L2 = 0.03, 0.6
OURS = {"steps": 8, "step": 0.15, "early_stop": False}
THEIRS = {"eps": EPS, "alpha": 0.15 * EPS, "steps": 8}
FOOLBOX = {"rel_stepsize": 0.15, "steps": 8, "random_start": False}
SAME = {
    "fgsm": (("fgsm", EPS, "linf", {}), of_torchattacks("FGSM", eps=EPS)),
    "fgsm, foolbox": (("fgsm", EPS, "linf", {}), of_foolbox(foolbox.attacks.LinfFastGradientAttack(), EPS)),
    "fgsm l2": (("fgsm", EPS_L2, "l2", {}), of_foolbox(foolbox.attacks.L2FastGradientAttack(), EPS_L2)),
    "bim": (("bim", EPS, "linf", OURS), of_torchattacks("BIM", **THEIRS)),
    "bim, pgd": (("bim", EPS, "linf", OURS), of_torchattacks("PGD", **THEIRS, random_start=False)),
    "bim l2": (
        ("bim", EPS_L2, "l2", OURS),
        of_foolbox(foolbox.attacks.L2BasicIterativeAttack(**FOOLBOX), EPS_L2),
    ),
    "bim l2, pgd": (("bim", EPS_L2, "l2", OURS), of_foolbox(foolbox.attacks.L2PGD(**FOOLBOX), EPS_L2)),
    "momentum": (("momentum", EPS, "linf", OURS | {"decay": 0.8}), of_torchattacks("MIFGSM", **THEIRS, decay=0.8)),
    "deepfool": (("deepfool", 50.0, "l2", {}), of_foolbox(foolbox.attacks.L2DeepFoolAttack())),
    "deepfool linf": (("deepfool", 1.0, "linf", {}), of_foolbox(foolbox.attacks.LinfDeepFoolAttack())),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_images(model, case):
    (name, eps, norm, options), theirs = SAME[case]
    precise = copy.deepcopy(model).double()
    images, labels = images_and_labels(precise, 24)
    mine = spec(rc.load_attack(name, eps=eps, norm=norm, **options), precise, images, labels)
    expected = theirs(precise, images, labels)
    assert (expected - images).abs().max() > 1e-3
    assert torch.allclose(mine, expected, rtol=0, atol=1e-5)


def test_the_same_images_towards_a_target(model):
    precise = copy.deepcopy(model).double()
    images, labels = images_and_labels(precise, 24)
    targets = (labels + 1) % 5
    attack = rc.load_attack("bim", eps=EPS_L2, norm="l2", **OURS)
    (batch,) = attack.sweep(precise, images, rc.Targeted(targets), attack.budgets)
    criterion = foolbox.criteria.TargetedMisclassification(targets)
    expected = of_foolbox(foolbox.attacks.L2BasicIterativeAttack(**FOOLBOX), EPS_L2)(precise, images, criterion)
    assert torch.allclose(batch.images, expected, rtol=0, atol=1e-5)


APGD = {"steps": 20, "eps": 0.015}
AS_STRONG = {
    "pgd": (
        ("pgd", 0.015, "linf", {"steps": 20, "step": 0.15}),
        of_torchattacks("PGD", eps=0.015, alpha=0.15 * 0.015, steps=20, random_start=True),
    ),
    "pgd l2": (
        ("pgd", 0.3, "l2", {"steps": 20, "step": 0.15}),
        of_foolbox(foolbox.attacks.L2PGD(rel_stepsize=0.15, steps=20, random_start=True), 0.3),
    ),
    "apgd-ce": (("apgd-ce", 0.015, "linf", {"steps": 20}), of_torchattacks("APGD", loss="ce", **APGD)),
    "apgd-dlr": (("apgd-dlr", 0.015, "linf", {"steps": 20}), of_torchattacks("APGD", loss="dlr", **APGD)),
    "apgd-ce l2": (
        ("apgd-ce", 0.3, "l2", {"steps": 20}),
        of_torchattacks("APGD", norm="L2", loss="ce", steps=20, eps=0.3),
    ),
}


def robust_share(model, images, labels):
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).double().mean())


@pytest.mark.parametrize("limit", [40, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", AS_STRONG)
def test_as_strong(model, case, limit):
    """The accuracy left differs by less than a point on many samples, and by no more than two of a few samples."""
    (name, eps, norm, options), theirs = AS_STRONG[case]
    images, labels = images_and_labels(model, limit)
    mine = spec(rc.load_attack(name, eps=eps, norm=norm, **options), model, images, labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = theirs(model, images, labels)
    shares = [robust_share(model, found, labels) for found in (mine, expected)]
    assert 0.1 < shares[1] < 0.9
    assert shares[0] == pytest.approx(shares[1], abs=max(0.01, 2.01 / len(labels)))


@pytest.mark.parametrize("limit", [12, pytest.param(230, marks=pytest.mark.slow)])
def test_carlini_and_wagner_find_images_as_close(model, limit):
    images, labels = images_and_labels(model, limit)
    mine = spec(rc.load_attack("cw", eps=100.0, norm="l2", steps=60, search_steps=5), model, images, labels)
    options = {"steps": 60, "binary_search_steps": 5, "stepsize": 0.01, "initial_const": 0.1}
    theirs = of_foolbox(foolbox.attacks.L2CarliniWagnerAttack(**options))(model, images, labels)
    assert robust_share(model, mine, labels) == robust_share(model, theirs, labels) == 0.0
    ours, expected = ((found - images).flatten(1).norm(dim=1) for found in (mine, theirs))
    assert ours.mean() < 1.02 * expected.mean()
    for eps in (0.1, 0.2, 0.3, 0.4, 0.5):
        left, expected_left = (float((size > eps).double().mean()) for size in (ours, expected))
        assert left == pytest.approx(expected_left, abs=max(0.01, 1.01 / len(labels)))
