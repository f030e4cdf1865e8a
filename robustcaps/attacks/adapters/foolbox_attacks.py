"""The attacks of foolbox (Rauber et al. 2020), with the library's own options and defaults.

Names start with the norm where foolbox has one attack per norm: `foolbox.linf_pgd`, `foolbox.l2_deepfool`; its shorter
synonyms (PGD, FGSM, FGM, ...) are not repeated. Decision-based attacks start from an adversarial image; samples without
one, according to foolbox's own initial attack, stay unchanged.
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

from robustcaps.attacks.adapters.library_attack import (
    BOTH_NORMS,
    L0_ATTACK,
    L1_ATTACK,
    TARGETED,
    UNTARGETED,
    AttackRequest,
    Count,
    LibraryAttackSpec,
    Positive,
    Share,
    register,
)
from robustcaps.attacks.goals import Targeted
from robustcaps.registry import ATTACKS

fa: Any = attacks  # foolbox does not declare its exports
LINF, L2 = BOTH_NORMS[:1], BOTH_NORMS[1:]
L1 = L1_ATTACK[:1]
NOISE: dict[str, Any] = {"random": "always", "passes_per_step": 1}
BLACK_BOX: dict[str, Any] = {"random": "always", "minimises": True, "passes_per_step": 1}
BRENDEL_BETHGE: dict[str, Any] = {"random": "always", "minimises": True, "passes_per_step": 0.3, "requires": "numba"}
FMN: dict[str, Any] = {"minimises": True, "hidden": ("binary_search_steps",)}

ATTACK_SPECS = {
    "linf_fast_gradient": LibraryAttackSpec(
        fa.LinfFastGradientAttack, "FGSM (Goodfellow et al. 2015)", LINF, UNTARGETED, "start"
    ),
    "l2_fast_gradient": LibraryAttackSpec(
        fa.L2FastGradientAttack, "Fast gradient method, FGM", L2, UNTARGETED, "start"
    ),
    "linf_basic_iterative": LibraryAttackSpec(
        fa.LinfBasicIterativeAttack, "BIM (Kurakin et al. 2017)", LINF, random="start"
    ),
    "l2_basic_iterative": LibraryAttackSpec(fa.L2BasicIterativeAttack, "BIM in L2", L2, random="start"),
    "linf_adam_basic_iterative": LibraryAttackSpec(
        fa.LinfAdamBasicIterativeAttack, "BIM with Adam", LINF, random="start"
    ),
    "l2_adam_basic_iterative": LibraryAttackSpec(fa.L2AdamBasicIterativeAttack, "BIM with Adam", L2, random="start"),
    "linf_pgd": LibraryAttackSpec(fa.LinfPGD, "Projected gradient descent (Madry et al. 2018)", LINF, random="start"),
    "l2_pgd": LibraryAttackSpec(fa.L2PGD, "Projected gradient descent (Madry et al. 2018)", L2, random="start"),
    "linf_adam_pgd": LibraryAttackSpec(fa.LinfAdamPGD, "PGD with Adam", LINF, random="start"),
    "l2_adam_pgd": LibraryAttackSpec(fa.L2AdamPGD, "PGD with Adam", L2, random="start"),
    "linf_mifgsm": LibraryAttackSpec(
        fa.LinfMomentumIterativeFastGradientMethod, "BIM with momentum (Dong et al. 2018)", LINF, random="start"
    ),
    "l2_mifgsm": LibraryAttackSpec(
        fa.L2MomentumIterativeFastGradientMethod, "BIM with momentum (Dong et al. 2018)", L2, random="start"
    ),
    "l1_fast_gradient": LibraryAttackSpec(
        fa.L1FastGradientAttack, "Fast gradient method in L1", L1, UNTARGETED, "start"
    ),
    "l1_basic_iterative": LibraryAttackSpec(fa.L1BasicIterativeAttack, "BIM in L1", L1, random="start"),
    "l1_adam_basic_iterative": LibraryAttackSpec(fa.L1AdamBasicIterativeAttack, "BIM with Adam", L1, random="start"),
    "l1_pgd": LibraryAttackSpec(fa.L1PGD, "Projected gradient descent (Madry et al. 2018)", L1, random="start"),
    "l1_adam_pgd": LibraryAttackSpec(fa.L1AdamPGD, "PGD with Adam", L1, random="start"),
    "l1_mifgsm": LibraryAttackSpec(
        fa.L1MomentumIterativeFastGradientMethod, "BIM with momentum (Dong et al. 2018)", L1, random="start"
    ),
    "sparse_l1_descent": LibraryAttackSpec(
        fa.SparseL1DescentAttack, "Sparse descent in L1 (Tramer and Boneh 2019)", L1, random="start"
    ),
    "virtual_adversarial": LibraryAttackSpec(
        fa.VirtualAdversarialAttack,
        "Virtual adversarial direction (Miyato et al. 2015)",
        L2,
        UNTARGETED,
        "always",
        defaults={"steps": 1},
    ),
    "genattack": LibraryAttackSpec(
        fa.GenAttack, "Black box: genetic search (Alzantot et al. 2019)", LINF, TARGETED, "always", passes_per_step=1
    ),
    "l2_contrast_reduction": LibraryAttackSpec(
        fa.L2ContrastReductionAttack, "Contrast reduction", L2, passes_per_step=1
    ),
    "linf_uniform_noise": LibraryAttackSpec(
        fa.LinfAdditiveUniformNoiseAttack, "Uniform noise, one draw", LINF, **NOISE
    ),
    "l2_uniform_noise": LibraryAttackSpec(fa.L2AdditiveUniformNoiseAttack, "Uniform noise, one draw", L2, **NOISE),
    "l2_gaussian_noise": LibraryAttackSpec(fa.L2AdditiveGaussianNoiseAttack, "Gaussian noise, one draw", L2, **NOISE),
    "l2_clipping_aware_uniform_noise": LibraryAttackSpec(
        fa.L2ClippingAwareAdditiveUniformNoiseAttack, "Clipping-aware uniform noise, one draw", L2, **NOISE
    ),
    "l2_clipping_aware_gaussian_noise": LibraryAttackSpec(
        fa.L2ClippingAwareAdditiveGaussianNoiseAttack, "Clipping-aware Gaussian noise, one draw", L2, **NOISE
    ),
    "linf_repeated_uniform_noise": LibraryAttackSpec(
        fa.LinfRepeatedAdditiveUniformNoiseAttack, "Uniform noise, many draws", LINF, **NOISE
    ),
    "l2_repeated_uniform_noise": LibraryAttackSpec(
        fa.L2RepeatedAdditiveUniformNoiseAttack, "Uniform noise, many draws", L2, **NOISE
    ),
    "l2_repeated_gaussian_noise": LibraryAttackSpec(
        fa.L2RepeatedAdditiveGaussianNoiseAttack, "Gaussian noise, many draws", L2, **NOISE
    ),
    "l2_clipping_aware_repeated_uniform_noise": LibraryAttackSpec(
        fa.L2ClippingAwareRepeatedAdditiveUniformNoiseAttack, "Uniform noise of full size, many draws", L2, **NOISE
    ),
    "l2_clipping_aware_repeated_gaussian_noise": LibraryAttackSpec(
        fa.L2ClippingAwareRepeatedAdditiveGaussianNoiseAttack, "Gaussian noise of full size, many draws", L2, **NOISE
    ),
    "l2_carlini_wagner": LibraryAttackSpec(fa.L2CarliniWagnerAttack, "Carlini and Wagner (2017)", L2, minimises=True),
    "l2_deepfool": LibraryAttackSpec(
        fa.L2DeepFoolAttack,
        "DeepFool (Moosavi-Dezfooli et al. 2016)",
        L2,
        UNTARGETED,
        minimises=True,
        passes_per_step=30,
    ),
    "linf_deepfool": LibraryAttackSpec(
        fa.LinfDeepFoolAttack,
        "DeepFool (Moosavi-Dezfooli et al. 2016)",
        LINF,
        UNTARGETED,
        minimises=True,
        passes_per_step=30,
    ),
    "ddn": LibraryAttackSpec(fa.DDNAttack, "Decoupled direction and norm (Rony et al. 2019)", L2, minimises=True),
    "newtonfool": LibraryAttackSpec(
        fa.NewtonFoolAttack, "NewtonFool (Jang et al. 2017)", L2, UNTARGETED, minimises=True
    ),
    "ead": LibraryAttackSpec(fa.EADAttack, "Elastic net (Chen et al. 2018)", L1_ATTACK, minimises=True),
    "linf_fmn": LibraryAttackSpec(fa.LInfFMNAttack, "Fast minimum norm (Pintor et al. 2021)", LINF, **FMN),
    "l2_fmn": LibraryAttackSpec(fa.L2FMNAttack, "Fast minimum norm (Pintor et al. 2021)", L2, **FMN),
    "l1_fmn": LibraryAttackSpec(fa.L1FMNAttack, "Fast minimum norm, L1 (Pintor et al. 2021)", L1_ATTACK, **FMN),
    "l0_fmn": LibraryAttackSpec(fa.L0FMNAttack, "Fast minimum norm, L0 (Pintor et al. 2021)", L0_ATTACK, **FMN),
    "linf_brendel_bethge": LibraryAttackSpec(
        fa.LinfinityBrendelBethgeAttack, "Brendel and Bethge (2019)", LINF, **BRENDEL_BETHGE
    ),
    "l2_brendel_bethge": LibraryAttackSpec(fa.L2BrendelBethgeAttack, "Brendel and Bethge (2019)", L2, **BRENDEL_BETHGE),
    "l1_brendel_bethge": LibraryAttackSpec(
        fa.L1BrendelBethgeAttack, "Brendel and Bethge (2019), L1", L1_ATTACK, **BRENDEL_BETHGE
    ),
    "l0_brendel_bethge": LibraryAttackSpec(
        fa.L0BrendelBethgeAttack, "Brendel and Bethge (2019), L0", L0_ATTACK, **BRENDEL_BETHGE
    ),
    "boundary": LibraryAttackSpec(
        fa.BoundaryAttack, "Decision-based: boundary attack (Brendel et al. 2018)", L2, **BLACK_BOX
    ),
    "hop_skip_jump": LibraryAttackSpec(
        fa.HopSkipJumpAttack,
        "Decision-based: HopSkipJump (Chen et al. 2020)",
        BOTH_NORMS,
        random="always",
        minimises=True,
        passes_per_step=600,
    ),
    "pointwise": LibraryAttackSpec(
        fa.PointwiseAttack, "Decision-based: pointwise (Schott et al. 2019)", L0_ATTACK, **BLACK_BOX
    ),
    "salt_and_pepper_noise": LibraryAttackSpec(
        fa.SaltAndPepperNoiseAttack, "Salt and pepper noise", BOTH_NORMS, **BLACK_BOX
    ),
    "linear_search_blended_uniform_noise": LibraryAttackSpec(
        fa.LinearSearchBlendedUniformNoiseAttack, "Blended uniform noise, linear search", BOTH_NORMS, **BLACK_BOX
    ),
    "linear_search_contrast_reduction": LibraryAttackSpec(
        fa.LinearSearchContrastReductionAttack,
        "Contrast reduction, linear search",
        BOTH_NORMS,
        minimises=True,
        passes_per_step=1,
    ),
    "binary_search_contrast_reduction": LibraryAttackSpec(
        fa.BinarySearchContrastReductionAttack,
        "Contrast reduction, binary search",
        BOTH_NORMS,
        minimises=True,
        passes_per_step=1,
    ),
    "gaussian_blur": LibraryAttackSpec(
        fa.GaussianBlurAttack, "Gaussian blur", BOTH_NORMS, minimises=True, passes_per_step=1
    ),
    "inversion": LibraryAttackSpec(fa.InversionAttack, "Inverted image", BOTH_NORMS, minimises=True, passes_per_step=1),
}

EXCLUDED = {
    "spatial": "it rotates and translates by whole pixels and degrees of its own; use 'affine'.",
    "dataset": "it needs images of other classes, which attacks have no access to.",
    "binarization_refinement": "it refines the images of another attack on models that binarise their inputs.",
}

_SET_BY_HARNESS = frozenset({"init_attack", "tensorboard", "distance", "channel_axis", "constraint"})
_OPTION_TYPES = {
    **dict.fromkeys(("steps", "repeats", "directions", "population", "binary_search_steps"), Count),
    **dict.fromkeys(("initial_gradient_eval_steps", "max_gradient_eval_steps", "update_stats_every_k"), Count),
    **dict.fromkeys(("rel_stepsize", "stepsize", "initial_stepsize", "initial_const", "xi", "init_epsilon"), Positive),
    **dict.fromkeys(("target", "mutation_probability", "quantile"), Share),
    "loss": Literal["logits", "crossentropy"],
    "decision_rule": Literal["EN", "L1"],
    "stepsize_search": Literal["geometric_progression", "grid_search"],
}
_INIT_ATTACKS: dict[Any, Callable[[], Any]] = {
    fa.BoundaryAttack: lambda: fa.LinearSearchBlendedUniformNoiseAttack(steps=50),
    fa.HopSkipJumpAttack: lambda: fa.LinearSearchBlendedUniformNoiseAttack(steps=50),
    fa.LinfinityBrendelBethgeAttack: fa.LinearSearchBlendedUniformNoiseAttack,
    fa.L2BrendelBethgeAttack: fa.LinearSearchBlendedUniformNoiseAttack,
    fa.L1BrendelBethgeAttack: fa.LinearSearchBlendedUniformNoiseAttack,
    fa.L0BrendelBethgeAttack: fa.LinearSearchBlendedUniformNoiseAttack,
    fa.PointwiseAttack: fa.SaltAndPepperNoiseAttack,
}
"""Attacks that need an adversarial image to start from, with foolbox's own initial attack."""


def _run_attack(spec: LibraryAttackSpec, request: AttackRequest, options: dict[str, Any]) -> Tensor:
    """Build the foolbox attack and run it."""
    extra = {"constraint": request.norm} if spec.attack_class is fa.HopSkipJumpAttack else {}
    attack = spec.attack_class(**options, **extra)
    if spec.attack_class in _INIT_ATTACKS:
        return _run_from_starting_points(attack, request, _INIT_ATTACKS[spec.attack_class]())
    if spec.minimises:
        return _call(attack, request)
    found = _call(attack, request, epsilon=request.eps)
    clipped: Tensor = attack.distance.clip_perturbation(request.images, found, request.eps)  # as foolbox itself does
    return clipped


def _call(attack: Any, request: AttackRequest, **arguments: Any) -> Tensor:
    """Call a foolbox attack."""
    model = PyTorchModel(request.model, bounds=(0, 1), device=request.images.device)
    criterion = TargetedMisclassification if isinstance(request.goal, Targeted) else Misclassification
    found: Tensor = attack.run(model, request.images, criterion(request.goal.classes), **arguments)
    return found


def _run_from_starting_points(attack: Any, request: AttackRequest, init_attack: Any) -> Tensor:
    """Run the attack on samples with a starting point only; foolbox would fail for the whole batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # foolbox warns about samples without a starting point
        starts = _call(init_attack, request)
    with torch.no_grad():
        reached = request.goal.reached(request.model(starts).argmax(1))
    rows, found = torch.nonzero(reached).flatten(), request.images.clone()
    if len(rows):
        found[rows] = _call(attack, request.select(rows), starting_points=starts[rows])
    return found


for _name, _spec in ATTACK_SPECS.items():
    register(f"foolbox.{_name}", _spec, _run_attack, hidden=_SET_BY_HARNESS, types=_OPTION_TYPES)
for _name, _reason in EXCLUDED.items():
    ATTACKS.exclude(f"foolbox.{_name}", _reason)
