"""The attacks of torchattacks (Kim 2020), with the library's own options and defaults.

Its defaults are small: with alpha = 2/255 and 10 steps an attack gets no farther than 0.078. Set alpha and steps.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
import torchattacks as ta
from pydantic import Field
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
from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS

LINF, L2 = BOTH[:1], BOTH[1:]
ANY: dict[str, Any] = {"norms": BOTH, "minimal": True}
"""Attacks that minimise neither norm: what they find is measured in either, and drawn back where it is outside."""

NATIVE = {
    "fgsm": Native(ta.FGSM, "Fast gradient sign method (Goodfellow et al. 2015)", LINF),
    "bim": Native(ta.BIM, "Basic iterative method (Kurakin et al. 2017)", LINF),
    "rfgsm": Native(ta.RFGSM, "R+FGSM: a random step first (Tramer et al. 2018)", LINF, random="always"),
    "pgd": Native(ta.PGD, "Projected gradient descent (Madry et al. 2018)", LINF, random="start"),
    "pgdl2": Native(ta.PGDL2, "Projected gradient descent (Madry et al. 2018)", L2, random="start"),
    "eotpgd": Native(ta.EOTPGD, "PGD on averaged gradients (Zimmermann 2019)", LINF, random="start"),
    "ffgsm": Native(ta.FFGSM, "FGSM from a random start (Wong et al. 2020)", LINF, random="always"),
    "tpgd": Native(ta.TPGD, "PGD on the KL divergence, TRADES (Zhang et al. 2019)", LINF, UNTARGETED, "always"),
    "mifgsm": Native(ta.MIFGSM, "Iterative FGSM with momentum (Dong et al. 2018)", LINF),
    "nifgsm": Native(ta.NIFGSM, "Iterative FGSM with Nesterov momentum (Lin et al. 2020)", LINF),
    "sinifgsm": Native(ta.SINIFGSM, "NI-FGSM on scaled copies (Lin et al. 2020)", LINF),
    "vmifgsm": Native(ta.VMIFGSM, "MI-FGSM with variance tuning (Wang and He 2021)", LINF, random="always"),
    "vnifgsm": Native(ta.VNIFGSM, "NI-FGSM with variance tuning (Wang and He 2021)", LINF, random="always"),
    "difgsm": Native(ta.DIFGSM, "FGSM on resized and padded inputs (Xie et al. 2019)", LINF, random="always"),
    "tifgsm": Native(
        ta.TIFGSM,
        "FGSM with smoothed gradients (Dong et al. 2019)",
        LINF,
        random="always",
        types={"kernel_name": Literal["gaussian", "linear", "uniform"]},
    ),
    "pifgsm": Native(ta.PIFGSM, "Patch-wise FGSM (Gao et al. 2020)", LINF, UNTARGETED, hidden=("momentum", "prob")),
    "pifgsmpp": Native(ta.PIFGSMPP, "Patch-wise++ FGSM (Gao et al. 2020)", LINF, hidden=("momentum", "prob")),
    "upgd": Native(
        ta.UPGD,
        "PGD with a choice of loss and momentum",
        LINF,
        random="start",
        types={"loss": Literal["ce", "margin", "dlr"]},
    ),
    "jitter": Native(ta.Jitter, "PGD on noisy scaled logits (Schwinn et al. 2021)", LINF, random="always"),
    "pgdrs": Native(ta.PGDRS, "PGD on a smoothed classifier (Salman et al. 2019)", LINF, random="always"),
    "pgdrsl2": Native(ta.PGDRSL2, "PGD on a smoothed classifier (Salman et al. 2019)", L2, random="always"),
    "spsa": Native(ta.SPSA, "Black box: estimated gradients (Uesato et al. 2018)", LINF, random="always", weight=2),
    "apgd": Native(
        ta.APGD,
        "Auto-PGD (Croce and Hein 2020)",
        BOTH,
        UNTARGETED,
        "always",
        types={"loss": Literal["ce", "dlr"]},
    ),
    "apgdt": Native(ta.APGDT, "Auto-PGD, every class a target (Croce and Hein 2020)", BOTH, UNTARGETED, "always"),
    "square": Native(
        ta.Square,
        "Black box: random squares (Andriushchenko et al. 2020)",
        BOTH,
        random="always",
        weight=1,
        types={"loss": Literal["margin", "ce"]},
    ),
    "autoattack": Native(
        ta.AutoAttack,
        "AutoAttack with torchattacks' steps, not the paper's (Croce and Hein 2020)",
        BOTH,
        UNTARGETED,
        "always",
        weight=5500,
        types={"version": Literal["standard", "plus", "rand"]},
    ),
    "fab": Native(
        ta.FAB,
        "Fast adaptive boundary (Croce and Hein 2020)",
        BOTH,
        UNTARGETED,
        "restarts",
        minimal=True,
        follows_norm=True,
    ),
    "cw": Native(ta.CW, "Carlini and Wagner (2017) with a fixed c", L2, minimal=True),
    "deepfool": Native(ta.DeepFool, "DeepFool (Moosavi-Dezfooli et al. 2016)", L2, UNTARGETED, minimal=True, weight=20),
    "eaden": Native(
        ta.EADEN,
        "Elastic net, L1 and L2 (Chen et al. 2018)",
        **ANY,
        types={"max_iterations": Annotated[int, Field(ge=10)]},
    ),
    "eadl1": Native(
        ta.EADL1, "Elastic net, L1 (Chen et al. 2018)", **ANY, types={"max_iterations": Annotated[int, Field(ge=10)]}
    ),
    "sparsefool": Native(ta.SparseFool, "SparseFool (Modas et al. 2019)", **ANY, goals=UNTARGETED, weight=1000),
    "onepixel": Native(
        ta.OnePixel, "Black box: a few pixels by evolution (Su et al. 2019)", **ANY, random="always", weight=1
    ),
    "pixle": Native(
        ta.Pixle,
        "Black box: pixels moved about (Pomponi et al. 2022)",
        **ANY,
        random="always",
        weight=2,
        hidden=("update_each_iteration",),
        types={
            "pixel_mapping": Literal["random", "similarity", "similarity_random", "distance", "distance_random"],
        },
    ),
    "jsma": Native(ta.JSMA, "Jacobian saliency maps (Papernot et al. 2016)", **ANY, goals=TARGETED, weight=1000),
}

EXCLUDED = {
    "vanila": "it returns the images as they are; use 'clean'.",
    "gn": "it adds noise of one size, whatever eps is; use 'noise'.",
    "multiattack": "it is made of other attacks; evaluate those, tables take the worst case.",
    "lgv": "it trains the attacked model further, on data that attacks do not get.",
}

_SET_BY_US = frozenset({"model", "eps", "max_epsilon", "norm", "seed", "n_classes", "verbose"})
_TYPES = {
    **dict.fromkeys(("steps", "max_iterations", "num_iter_set", "nb_iter", "nb_sample", "max_batch_size"), Count),
    **dict.fromkeys(("n_restarts", "restarts", "eot_iter", "N", "m", "n_queries", "binary_search_steps"), Count),
    **dict.fromkeys(("noise_batch_size", "batch_max", "len_kernel", "pixels", "popsize", "inf_batch"), Count),
    **dict.fromkeys(("alpha", "lr", "delta", "c", "scale", "lam", "nsig", "resize_rate", "initial_const"), Positive),
    **dict.fromkeys(("diversity_prob", "rho", "p_init", "alpha_max", "gamma"), Share),
    **dict.fromkeys(("x_dimensions", "y_dimensions"), tuple[int | float, int | float]),
    "kappa": float,
    "noise_type": Literal["guassian", "uniform"],
}
_THREE_CHANNELS = (ta.TIFGSM, ta.PIFGSM, ta.PIFGSMPP)
_FOUR_CLASSES = (ta.APGDT, ta.AutoAttack)


def _propose(native: Native, request: Request, options: dict[str, Any]) -> Tensor:
    """Make the attack, set its goal and call it."""
    images, channels = request.images, request.images.shape[1]
    if native.make in _THREE_CHANNELS:
        images = _three_channels(images)
    attack = native.make(request.model, **_ours(native, request), **options)
    attack.set_device(images.device)
    if isinstance(request.goal, Targeted):
        attack.set_mode_targeted_by_label(quiet=True)
    found: Tensor = attack(images, request.goal.classes)
    return found[:, :channels]


def _ours(native: Native, request: Request) -> dict[str, Any]:
    """Return what the harness sets, of what the attack takes."""
    norm = {"linf": "Linf", "l2": "L2"}[request.norm]
    values = {"eps": request.eps, "max_epsilon": request.eps, "norm": norm, "seed": request.seed}
    accepted = inspect.signature(native.make).parameters
    if "n_classes" in accepted:
        values["n_classes"] = _classes(native, request)
    return {name: value for name, value in values.items() if name in accepted}


def _classes(native: Native, request: Request) -> int:
    """Ask the model how many classes there are; the targeted DLR loss is defined for four or more."""
    first = request.select(torch.zeros(1, dtype=torch.long))
    with torch.no_grad():
        classes = int(first.model(first.images).shape[1])
    if native.make in _FOUR_CLASSES and classes < 4:
        raise UserError(f"{native.make.__name__} of torchattacks needs 4 classes at least, the model has {classes}.")
    return classes


def _three_channels(images: Tensor) -> Tensor:
    """Add empty channels, which the model does not get to see, for attacks that are written for three."""
    channels = images.shape[1]
    if channels > 3:
        raise UserError(f"this attack of torchattacks works on 3 channels at most, the images have {channels}.")
    return F.pad(images, (0, 0, 0, 0, 0, 3 - channels))


for _name, _native in NATIVE.items():
    register(f"torchattacks.{_name}", _native, _propose, hidden=_SET_BY_US, types=_TYPES)
for _name, _reason in EXCLUDED.items():
    ATTACKS.exclude(f"torchattacks.{_name}", _reason)
