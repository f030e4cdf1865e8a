"""The attacks of foolbox (Rauber et al. 2020), with the library's own options and defaults.

Names say the norm first where foolbox has an attack for each: `foolbox.linf_pgd`, `foolbox.l2_deepfool`; its shorter
synonyms (PGD, FGSM, FGM, ...) are not repeated. Decision-based attacks start from an adversarial image; samples for
which foolbox's own search for a start finds none stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from foolbox import attacks
from foolbox.criteria import Misclassification, TargetedMisclassification
from foolbox.models.pytorch import PyTorchModel
from torch import Tensor

from robustcaps.attacks.adapters.external import (
    BOTH,
    TARGETED,
    UNTARGETED,
    Count,
    Native,
    Positive,
    Request,
    Share,
    register,
)
from robustcaps.attacks.goals import Targeted
from robustcaps.registry import ATTACKS

fa: Any = attacks  # it does not say which names it exports
LINF, L2 = BOTH[:1], BOTH[1:]
NOISE: dict[str, Any] = {"random": "always", "weight": 1}
BLACK_BOX: dict[str, Any] = {"random": "always", "minimal": True, "weight": 1}
BRENDEL_BETHGE: dict[str, Any] = {"random": "always", "minimal": True, "weight": 0.3, "needs": "numba"}
FMN: dict[str, Any] = {"minimal": True, "hidden": ("binary_search_steps",)}

NATIVE = {
    "linf_fast_gradient": Native(fa.LinfFastGradientAttack, "FGSM (Goodfellow et al. 2015)", LINF, UNTARGETED, "start"),
    "l2_fast_gradient": Native(fa.L2FastGradientAttack, "Fast gradient method, FGM", L2, UNTARGETED, "start"),
    "linf_basic_iterative": Native(fa.LinfBasicIterativeAttack, "BIM (Kurakin et al. 2017)", LINF, random="start"),
    "l2_basic_iterative": Native(fa.L2BasicIterativeAttack, "BIM in L2", L2, random="start"),
    "linf_adam_basic_iterative": Native(fa.LinfAdamBasicIterativeAttack, "BIM with Adam", LINF, random="start"),
    "l2_adam_basic_iterative": Native(fa.L2AdamBasicIterativeAttack, "BIM with Adam", L2, random="start"),
    "linf_pgd": Native(fa.LinfPGD, "Projected gradient descent (Madry et al. 2018)", LINF, random="start"),
    "l2_pgd": Native(fa.L2PGD, "Projected gradient descent (Madry et al. 2018)", L2, random="start"),
    "linf_adam_pgd": Native(fa.LinfAdamPGD, "PGD with Adam", LINF, random="start"),
    "l2_adam_pgd": Native(fa.L2AdamPGD, "PGD with Adam", L2, random="start"),
    "linf_mifgsm": Native(
        fa.LinfMomentumIterativeFastGradientMethod, "BIM with momentum (Dong et al. 2018)", LINF, random="start"
    ),
    "l2_mifgsm": Native(
        fa.L2MomentumIterativeFastGradientMethod, "BIM with momentum (Dong et al. 2018)", L2, random="start"
    ),
    "virtual_adversarial": Native(
        fa.VirtualAdversarialAttack,
        "Virtual adversarial direction (Miyato et al. 2015)",
        L2,
        UNTARGETED,
        "always",
        defaults={"steps": 1},
    ),
    "genattack": Native(
        fa.GenAttack, "Black box: genetic search (Alzantot et al. 2019)", LINF, TARGETED, "always", weight=1
    ),
    "l2_contrast_reduction": Native(fa.L2ContrastReductionAttack, "Less contrast", L2, weight=1),
    "linf_uniform_noise": Native(fa.LinfAdditiveUniformNoiseAttack, "Uniform noise, one draw", LINF, **NOISE),
    "l2_uniform_noise": Native(fa.L2AdditiveUniformNoiseAttack, "Uniform noise, one draw", L2, **NOISE),
    "l2_gaussian_noise": Native(fa.L2AdditiveGaussianNoiseAttack, "Gaussian noise, one draw", L2, **NOISE),
    "l2_clipping_aware_uniform_noise": Native(
        fa.L2ClippingAwareAdditiveUniformNoiseAttack, "Uniform noise of full size, one draw", L2, **NOISE
    ),
    "l2_clipping_aware_gaussian_noise": Native(
        fa.L2ClippingAwareAdditiveGaussianNoiseAttack, "Gaussian noise of full size, one draw", L2, **NOISE
    ),
    "linf_repeated_uniform_noise": Native(
        fa.LinfRepeatedAdditiveUniformNoiseAttack, "Uniform noise, many draws", LINF, **NOISE
    ),
    "l2_repeated_uniform_noise": Native(
        fa.L2RepeatedAdditiveUniformNoiseAttack, "Uniform noise, many draws", L2, **NOISE
    ),
    "l2_repeated_gaussian_noise": Native(
        fa.L2RepeatedAdditiveGaussianNoiseAttack, "Gaussian noise, many draws", L2, **NOISE
    ),
    "l2_clipping_aware_repeated_uniform_noise": Native(
        fa.L2ClippingAwareRepeatedAdditiveUniformNoiseAttack, "Uniform noise of full size, many draws", L2, **NOISE
    ),
    "l2_clipping_aware_repeated_gaussian_noise": Native(
        fa.L2ClippingAwareRepeatedAdditiveGaussianNoiseAttack, "Gaussian noise of full size, many draws", L2, **NOISE
    ),
    "l2_carlini_wagner": Native(fa.L2CarliniWagnerAttack, "Carlini and Wagner (2017)", L2, minimal=True),
    "l2_deepfool": Native(
        fa.L2DeepFoolAttack, "DeepFool (Moosavi-Dezfooli et al. 2016)", L2, UNTARGETED, minimal=True, weight=30
    ),
    "linf_deepfool": Native(
        fa.LinfDeepFoolAttack, "DeepFool (Moosavi-Dezfooli et al. 2016)", LINF, UNTARGETED, minimal=True, weight=30
    ),
    "ddn": Native(fa.DDNAttack, "Decoupled direction and norm (Rony et al. 2019)", L2, minimal=True),
    "newtonfool": Native(fa.NewtonFoolAttack, "NewtonFool (Jang et al. 2017)", L2, UNTARGETED, minimal=True),
    "ead": Native(fa.EADAttack, "Elastic net (Chen et al. 2018)", BOTH, minimal=True),
    "linf_fmn": Native(fa.LInfFMNAttack, "Fast minimum norm (Pintor et al. 2021)", LINF, **FMN),
    "l2_fmn": Native(fa.L2FMNAttack, "Fast minimum norm (Pintor et al. 2021)", L2, **FMN),
    "l1_fmn": Native(fa.L1FMNAttack, "Fast minimum norm, L1 (Pintor et al. 2021)", BOTH, **FMN),
    "l0_fmn": Native(fa.L0FMNAttack, "Fast minimum norm, L0 (Pintor et al. 2021)", BOTH, **FMN),
    "linf_brendel_bethge": Native(fa.LinfinityBrendelBethgeAttack, "Brendel and Bethge (2019)", LINF, **BRENDEL_BETHGE),
    "l2_brendel_bethge": Native(fa.L2BrendelBethgeAttack, "Brendel and Bethge (2019)", L2, **BRENDEL_BETHGE),
    "l1_brendel_bethge": Native(fa.L1BrendelBethgeAttack, "Brendel and Bethge (2019), L1", BOTH, **BRENDEL_BETHGE),
    "l0_brendel_bethge": Native(fa.L0BrendelBethgeAttack, "Brendel and Bethge (2019), L0", BOTH, **BRENDEL_BETHGE),
    "boundary": Native(fa.BoundaryAttack, "Decision-based: along the boundary (Brendel et al. 2018)", L2, **BLACK_BOX),
    "hop_skip_jump": Native(
        fa.HopSkipJumpAttack,
        "Decision-based: HopSkipJump (Chen et al. 2020)",
        BOTH,
        random="always",
        minimal=True,
        weight=600,
    ),
    "pointwise": Native(fa.PointwiseAttack, "Decision-based: pixel by pixel (Schott et al. 2019)", BOTH, **BLACK_BOX),
    "salt_and_pepper_noise": Native(fa.SaltAndPepperNoiseAttack, "Salt and pepper noise", BOTH, **BLACK_BOX),
    "linear_search_blended_uniform_noise": Native(
        fa.LinearSearchBlendedUniformNoiseAttack, "A blend with uniform noise", BOTH, **BLACK_BOX
    ),
    "linear_search_contrast_reduction": Native(
        fa.LinearSearchContrastReductionAttack, "Less and less contrast", BOTH, minimal=True, weight=1
    ),
    "binary_search_contrast_reduction": Native(
        fa.BinarySearchContrastReductionAttack, "Less contrast, by bisection", BOTH, minimal=True, weight=1
    ),
    "gaussian_blur": Native(fa.GaussianBlurAttack, "More and more blur", BOTH, minimal=True, weight=1),
    "inversion": Native(fa.InversionAttack, "The negative image", BOTH, minimal=True, weight=1),
}

_L1_BALL = "it keeps to an L1 ball, but budgets are linf or l2."
EXCLUDED = {
    **dict.fromkeys(("l1_pgd", "l1_adam_pgd", "l1_basic_iterative", "l1_adam_basic_iterative"), _L1_BALL),
    **dict.fromkeys(("l1_mifgsm", "l1_fast_gradient", "sparse_l1_descent"), _L1_BALL),
    "spatial": "it turns and shifts images, which no linf or l2 ball bounds.",
    "dataset": "it needs images of other classes, which attacks do not get.",
    "binarization_refinement": "it refines another attack's images, on models that binarise their inputs.",
}

_SET_BY_US = frozenset({"init_attack", "tensorboard", "distance", "channel_axis", "constraint"})
_TYPES = {
    **dict.fromkeys(("steps", "repeats", "directions", "population", "binary_search_steps"), Count),
    **dict.fromkeys(("initial_gradient_eval_steps", "max_gradient_eval_steps", "update_stats_every_k"), Count),
    **dict.fromkeys(("rel_stepsize", "stepsize", "initial_stepsize", "initial_const", "xi", "init_epsilon"), Positive),
    **dict.fromkeys(("target", "mutation_probability"), Share),
    "loss": Literal["logits", "crossentropy"],
    "decision_rule": Literal["EN", "L1"],
    "stepsize_search": Literal["geometric_progression", "grid_search"],
}
_STARTS: dict[Any, Callable[[], Any]] = {
    fa.BoundaryAttack: lambda: fa.LinearSearchBlendedUniformNoiseAttack(steps=50),
    fa.HopSkipJumpAttack: lambda: fa.LinearSearchBlendedUniformNoiseAttack(steps=50),
    fa.LinfinityBrendelBethgeAttack: fa.LinearSearchBlendedUniformNoiseAttack,
    fa.L2BrendelBethgeAttack: fa.LinearSearchBlendedUniformNoiseAttack,
    fa.L1BrendelBethgeAttack: fa.LinearSearchBlendedUniformNoiseAttack,
    fa.L0BrendelBethgeAttack: fa.LinearSearchBlendedUniformNoiseAttack,
    fa.PointwiseAttack: fa.SaltAndPepperNoiseAttack,
}
"""Attacks that need an adversarial image to start from, and foolbox's own choice of one."""


def _propose(native: Native, request: Request, options: dict[str, Any]) -> Tensor:
    """Make the attack and call it, on the samples that have a start if it needs one."""
    chosen = {"constraint": request.norm} if native.make is fa.HopSkipJumpAttack else {}
    attack = native.make(**options, **chosen)
    if native.make in _STARTS:
        return _from_starts(attack, request, _STARTS[native.make]())
    if native.minimal:
        return _run(attack, request)
    found = _run(attack, request, epsilon=request.eps)
    clipped: Tensor = attack.distance.clip_perturbation(request.images, found, request.eps)  # as foolbox itself does
    return clipped


def _run(attack: Any, request: Request, **more: Any) -> Tensor:
    """Call a foolbox attack."""
    model = PyTorchModel(request.model, bounds=(0, 1), device=request.images.device)
    kind = TargetedMisclassification if isinstance(request.goal, Targeted) else Misclassification
    found: Tensor = attack.run(model, request.images, kind(request.goal.classes), **more)
    return found


def _from_starts(attack: Any, request: Request, search: Any) -> Tensor:
    """Look for starts, and call the attack on the samples that have one: foolbox would give up on the whole batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # foolbox warns of samples without a start
        starts = _run(search, request)
    with torch.no_grad():
        reached = request.goal.reached(request.model(starts).argmax(1))
    rows, found = torch.nonzero(reached).flatten(), request.images.clone()
    if len(rows):
        found[rows] = _run(attack, request.select(rows), starting_points=starts[rows])
    return found


for _name, _native in NATIVE.items():
    register(f"foolbox.{_name}", _native, _propose, hidden=_SET_BY_US, types=_TYPES)
for _name, _reason in EXCLUDED.items():
    ATTACKS.exclude(f"foolbox.{_name}", _reason)
