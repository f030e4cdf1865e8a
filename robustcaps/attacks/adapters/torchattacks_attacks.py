"""The attacks of torchattacks (Kim 2020), with the library's own options and defaults.

Its defaults are small: with alpha = 2/255 and 10 steps a perturbation cannot exceed 0.078. Set alpha and steps.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
import torchattacks as ta
from pydantic import Field
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
from robustcaps.attacks.norms import NORMS
from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS

LINF, L2 = BOTH_NORMS[:1], BOTH_NORMS[1:]
FOR_L1: dict[str, Any] = {"norms": L1_ATTACK, "minimises": True}
FOR_L0: dict[str, Any] = {"norms": L0_ATTACK, "minimises": True}
"""Attacks for sparse perturbations; in linf and l2 their results are projected onto the ball."""


class ClosestTargetFab(ta.FAB):  # type: ignore[misc]
    """FAB that tries every target class with `multi_targeted` and keeps the closest image.

    The library stops at the first class that succeeds within eps; here eps is unlimited, since one search serves every
    budget, so that would be the first class for almost every sample.
    """

    def perturb(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the closest adversarial image found for each image, or the clean image where none was found."""
        if not self.multi_targeted:
            untargeted: Tensor = super().perturb(images, labels)
            return untargeted
        torch.manual_seed(self.seed)
        ball = NORMS["l2" if self.norm == "L2" else "linf"]
        closest, distance = images.clone(), torch.full((len(images),), torch.inf, dtype=torch.double)
        for place in range(2, self.n_target_classes + 2):
            self.target_class = place
            for restart in range(self.n_restarts):
                found = self.attack_single_run_targeted(images, labels, use_rand_start=restart > 0)
                size = ball.size(found - images).cpu()
                closer = (size > 0) & (size < distance)
                closest[closer], distance[closer] = found[closer], size[closer]
        return closest


ATTACK_SPECS = {
    "fgsm": LibraryAttackSpec(ta.FGSM, "Fast gradient sign method (Goodfellow et al. 2015)", LINF),
    "bim": LibraryAttackSpec(ta.BIM, "Basic iterative method (Kurakin et al. 2017)", LINF),
    "rfgsm": LibraryAttackSpec(ta.RFGSM, "R+FGSM: a random step first (Tramer et al. 2018)", LINF, random="always"),
    "pgd": LibraryAttackSpec(ta.PGD, "Projected gradient descent (Madry et al. 2018)", LINF, random="start"),
    "pgdl2": LibraryAttackSpec(ta.PGDL2, "Projected gradient descent (Madry et al. 2018)", L2, random="start"),
    "eotpgd": LibraryAttackSpec(ta.EOTPGD, "PGD on averaged gradients (Zimmermann 2019)", LINF, random="start"),
    "ffgsm": LibraryAttackSpec(ta.FFGSM, "FGSM from a random start (Wong et al. 2020)", LINF, random="always"),
    "tpgd": LibraryAttackSpec(
        ta.TPGD, "PGD on the KL divergence, TRADES (Zhang et al. 2019)", LINF, UNTARGETED, "always"
    ),
    "mifgsm": LibraryAttackSpec(ta.MIFGSM, "Iterative FGSM with momentum (Dong et al. 2018)", LINF),
    "nifgsm": LibraryAttackSpec(ta.NIFGSM, "Iterative FGSM with Nesterov momentum (Lin et al. 2020)", LINF),
    "sinifgsm": LibraryAttackSpec(ta.SINIFGSM, "NI-FGSM on scaled copies (Lin et al. 2020)", LINF),
    "vmifgsm": LibraryAttackSpec(ta.VMIFGSM, "MI-FGSM with variance tuning (Wang and He 2021)", LINF, random="always"),
    "vnifgsm": LibraryAttackSpec(ta.VNIFGSM, "NI-FGSM with variance tuning (Wang and He 2021)", LINF, random="always"),
    "difgsm": LibraryAttackSpec(
        ta.DIFGSM, "FGSM on resized and padded inputs (Xie et al. 2019)", LINF, random="always"
    ),
    "tifgsm": LibraryAttackSpec(
        ta.TIFGSM,
        "FGSM with smoothed gradients (Dong et al. 2019)",
        LINF,
        random="always",
        types={"kernel_name": Literal["gaussian", "linear", "uniform"]},
    ),
    "pifgsm": LibraryAttackSpec(
        ta.PIFGSM, "Patch-wise FGSM (Gao et al. 2020)", LINF, UNTARGETED, hidden=("momentum", "prob")
    ),
    "pifgsmpp": LibraryAttackSpec(
        ta.PIFGSMPP, "Patch-wise++ FGSM (Gao et al. 2020)", LINF, hidden=("momentum", "prob")
    ),
    "upgd": LibraryAttackSpec(
        ta.UPGD,
        "PGD with a choice of loss and momentum",
        LINF,
        random="start",
        types={"loss": Literal["ce", "margin", "dlr"]},
    ),
    "jitter": LibraryAttackSpec(ta.Jitter, "PGD on noisy scaled logits (Schwinn et al. 2021)", LINF, random="always"),
    "pgdrs": LibraryAttackSpec(ta.PGDRS, "PGD on a smoothed classifier (Salman et al. 2019)", LINF, random="always"),
    "pgdrsl2": LibraryAttackSpec(ta.PGDRSL2, "PGD on a smoothed classifier (Salman et al. 2019)", L2, random="always"),
    "spsa": LibraryAttackSpec(
        ta.SPSA, "Black box: estimated gradients (Uesato et al. 2018)", LINF, random="always", passes_per_step=2
    ),
    "apgd": LibraryAttackSpec(
        ta.APGD,
        "Auto-PGD (Croce and Hein 2020)",
        BOTH_NORMS,
        UNTARGETED,
        "always",
        types={"loss": Literal["ce", "dlr"]},
    ),
    "apgdt": LibraryAttackSpec(
        ta.APGDT, "Auto-PGD, every class a target (Croce and Hein 2020)", BOTH_NORMS, UNTARGETED, "always"
    ),
    "square": LibraryAttackSpec(
        ta.Square,
        "Black box: random squares (Andriushchenko et al. 2020)",
        BOTH_NORMS,
        random="always",
        passes_per_step=1,
        types={"loss": Literal["margin", "ce"]},
    ),
    "autoattack": LibraryAttackSpec(
        ta.AutoAttack,
        "AutoAttack with torchattacks' steps, not the paper's (Croce and Hein 2020)",
        BOTH_NORMS,
        UNTARGETED,
        "always",
        passes_per_step=5500,
        types={"version": Literal["standard", "plus", "rand"]},
    ),
    "fab": LibraryAttackSpec(
        ClosestTargetFab,
        "Fast adaptive boundary (Croce and Hein 2020)",
        BOTH_NORMS,
        UNTARGETED,
        "restarts",
        minimises=True,
        follows_norm=True,
    ),
    "cw": LibraryAttackSpec(ta.CW, "Carlini and Wagner (2017) with a fixed c", L2, minimises=True),
    "deepfool": LibraryAttackSpec(
        ta.DeepFool, "DeepFool (Moosavi-Dezfooli et al. 2016)", L2, UNTARGETED, minimises=True, passes_per_step=20
    ),
    "eaden": LibraryAttackSpec(
        ta.EADEN,
        "Elastic net, L1 and L2 (Chen et al. 2018)",
        **FOR_L1,
        types={"max_iterations": Annotated[int, Field(ge=10)]},
    ),
    "eadl1": LibraryAttackSpec(
        ta.EADL1,
        "Elastic net, L1 (Chen et al. 2018)",
        **FOR_L1,
        types={"max_iterations": Annotated[int, Field(ge=10)]},
    ),
    "sparsefool": LibraryAttackSpec(
        ta.SparseFool, "SparseFool (Modas et al. 2019)", **FOR_L0, goals=UNTARGETED, passes_per_step=1000
    ),
    "onepixel": LibraryAttackSpec(
        ta.OnePixel,
        "Black box: a few pixels by evolution (Su et al. 2019)",
        **FOR_L0,
        random="always",
        passes_per_step=1,
    ),
    "pixle": LibraryAttackSpec(
        ta.Pixle,
        "Black box: rearranged pixels (Pomponi et al. 2022)",
        **FOR_L0,
        random="always",
        passes_per_step=2,
        hidden=("update_each_iteration",),
        types={
            "pixel_mapping": Literal["random", "similarity", "similarity_random", "distance", "distance_random"],
        },
    ),
    "jsma": LibraryAttackSpec(
        ta.JSMA, "Jacobian saliency maps (Papernot et al. 2016)", **FOR_L0, goals=TARGETED, passes_per_step=1000
    ),
}

EXCLUDED = {
    "vanila": "it returns the images unchanged; use 'clean'.",
    "gn": "it adds noise of a fixed size, independent of eps; use 'noise'.",
    "multiattack": "it combines other attacks; use 'worst-case'.",
    "lgv": "it trains the attacked model on data that attacks have no access to.",
}

_SET_BY_HARNESS = frozenset({"model", "eps", "max_epsilon", "norm", "seed", "n_classes", "verbose"})
_OPTION_TYPES = {
    **dict.fromkeys(("steps", "max_iterations", "num_iter_set", "nb_iter", "nb_sample", "max_batch_size"), Count),
    **dict.fromkeys(("n_restarts", "restarts", "eot_iter", "N", "m", "n_queries", "binary_search_steps"), Count),
    **dict.fromkeys(("noise_batch_size", "batch_max", "len_kernel", "pixels", "popsize", "inf_batch"), Count),
    **dict.fromkeys(("alpha", "lr", "delta", "c", "scale", "lam", "nsig", "resize_rate", "initial_const"), Positive),
    **dict.fromkeys(("diversity_prob", "rho", "p_init", "alpha_max", "gamma"), Share),
    **dict.fromkeys(("x_dimensions", "y_dimensions"), tuple[int | float, int | float]),
    "kappa": float,
    "noise_type": Literal["guassian", "uniform"],
}
_MAX_THREE_CHANNELS = (ta.TIFGSM, ta.PIFGSM, ta.PIFGSMPP)
_MIN_FOUR_CLASSES = (ta.APGDT, ta.AutoAttack)


def _run_attack(spec: LibraryAttackSpec, request: AttackRequest, options: dict[str, Any]) -> Tensor:
    """Build the torchattacks attack, set its goal and run it."""
    images, channels = request.images, request.images.shape[1]
    if spec.attack_class in _MAX_THREE_CHANNELS:
        images = _pad_to_three_channels(images)
    attack = spec.attack_class(request.model, **_harness_options(spec, request), **options)
    attack.set_device(images.device)
    if isinstance(request.goal, Targeted):
        attack.set_mode_targeted_by_label(quiet=True)
    found: Tensor = attack(images, request.goal.classes)
    return found[:, :channels]


def _harness_options(spec: LibraryAttackSpec, request: AttackRequest) -> dict[str, Any]:
    """Return the options that the harness sets, of those that the attack accepts."""
    norm = {"linf": "Linf", "l2": "L2"}.get(request.norm)
    values = {"eps": request.eps, "max_epsilon": request.eps, "norm": norm, "seed": request.seed}
    accepted = inspect.signature(spec.attack_class).parameters
    if "n_classes" in accepted:
        values["n_classes"] = _count_classes(spec, request)
    return {name: value for name, value in values.items() if name in accepted}


def _count_classes(spec: LibraryAttackSpec, request: AttackRequest) -> int:
    """Return the number of the model's classes; the targeted DLR loss needs at least four."""
    first = request.select(torch.zeros(1, dtype=torch.long))
    with torch.no_grad():
        classes = int(first.model(first.images).shape[1])
    if spec.attack_class in _MIN_FOUR_CLASSES and classes < 4:
        raise UserError(
            f"{spec.attack_class.__name__} of torchattacks needs at least 4 classes, but the model has {classes}."
        )
    return classes


def _pad_to_three_channels(images: Tensor) -> Tensor:
    """Add zero channels for attacks that expect three; `LibraryModel` drops them."""
    channels = images.shape[1]
    if channels > 3:
        raise UserError(f"this attack of torchattacks supports at most 3 channels, but the images have {channels}.")
    return F.pad(images, (0, 0, 0, 0, 0, 3 - channels))


for _name, _spec in ATTACK_SPECS.items():
    register(f"torchattacks.{_name}", _spec, _run_attack, hidden=_SET_BY_HARNESS, types=_OPTION_TYPES)
for _name, _reason in EXCLUDED.items():
    ATTACKS.exclude(f"torchattacks.{_name}", _reason)
