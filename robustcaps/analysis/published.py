"""Published results on adversarial examples and test errors, shown beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

SOURCE = "Hinton et al. 2018 (smallNORB; eps unit not stated)"
SOURCE_DATA = "smallnorb"

_EPS = (0.05, 0.10, 0.20, 0.30, 0.50)
_ACCURACY = {
    ("CNN", "fgsm"): (0.84, 0.58, 0.16, 0.05, 0.03),
    ("CNN", "bim"): (None, 0.51, 0.12, 0.08, 0.05),
    ("matrix capsules", "fgsm"): (0.88, 0.86, 0.84, 0.79, 0.69),
    ("matrix capsules", "bim"): (0.91, 0.84, 0.75, 0.66, 0.55),
}
"""Read off the figure, to within 0.01."""

_TARGET_EPS = (0.0, 0.10, 0.25)
_SUCCESS = {
    ("CNN", "fgsm"): (0.20, 0.41, 0.59),
    ("CNN", "bim"): (0.20, 0.53, 0.84),
    ("matrix capsules", "fgsm"): (0.20, 0.21, 0.19),
    ("matrix capsules", "bim"): (0.20, 0.25, 0.24),
}
"""The mean over all five target classes, the true one included."""


def attack_curves(goal: str) -> pd.DataFrame:
    """Return the published curves for a goal: model, attack, eps, value (accuracy, or success if targeted)."""
    eps, curves = (_EPS, _ACCURACY) if goal == "untargeted" else (_TARGET_EPS, _SUCCESS)
    points = [
        {"model": model, "attack": attack, "eps": e, "value": value}
        for (model, attack), values in curves.items()
        for e, value in zip(eps, values, strict=True)
        if value is not None
    ]
    return pd.DataFrame(points)


SIZES_SOURCE = "Michels et al. 2019 (mean L2; other networks)"
_SIZES = {
    ("mnist", "cw"): (1.40, 1.82),
    ("mnist", "foolbox.boundary"): (3.07, 3.26),
    ("mnist", "deepfool"): (1.07, 2.02),
    ("fashion-mnist", "cw"): (0.51, 0.50),
    ("fashion-mnist", "foolbox.boundary"): (1.24, 0.93),
    ("fashion-mnist", "deepfool"): (0.31, 0.55),
    ("cifar10", "cw"): (0.37, 0.23),
    ("cifar10", "foolbox.boundary"): (1.38, 0.72),
    ("cifar10", "deepfool"): (0.23, 0.16),
}
"""Of the convolutional network, and of the capsule network."""


def published_size(model: str, data: str, attack: str) -> float | None:
    """Return the published mean L2 of the smallest perturbations of a network of this kind."""
    kinds = [kind for kind, word in enumerate(("cnn", "capsnet")) if word in model]
    sizes = _SIZES.get((data, attack))
    return sizes[kinds[0]] if kinds and sizes else None


def published_sizes(data: str) -> dict[str, dict[str, float]]:
    """Return the published means on a dataset, by kind of network and attack; none where no paper has it."""
    known = {attack: sizes for (name, attack), sizes in _SIZES.items() if name == data}
    return {
        kind: {attack: sizes[place] for attack, sizes in known.items()}
        for place, kind in enumerate(("CNN", "capsules"))
        if known
    }


ERRORS_SOURCE = "Hinton et al. 2018, table 1 (smallNORB, networks with A = B = C = D = 32)"
_ERRORS = {
    (1, "matrix", True, "spread", "cost"): 9.7,
    (2, "matrix", True, "spread", "cost"): 2.2,
    (3, "matrix", True, "spread", "cost"): 1.8,
    (5, "matrix", True, "spread", "cost"): 3.9,
    (3, "vector", True, "spread", "cost"): 2.9,
    (3, "matrix", False, "spread", "cost"): 2.6,
    (3, "vector", False, "spread", "cost"): 3.2,
    (3, "matrix", True, "margin", "cost"): 3.2,
    (3, "matrix", True, "cross-entropy", "cost"): 5.8,
    (3, "matrix", True, "spread", "mixture"): 4.5,
}
_CNN_ERROR = 5.2


def published_error(model: str, options: Mapping[str, Any], data: str = SOURCE_DATA) -> float | None:
    """Return the published test error in % of a network routed and trained in this way, of whatever size.

    None on datasets that are not like smallNORB, as the toys are.
    """
    if data not in (SOURCE_DATA, "toys"):
        return None
    if model == "cnn":
        return _CNN_ERROR
    rows = ("iterations", "poses", "coordinates", "loss", "activation")
    usual = {"paper": ("field", None), "released": ("type", None)}[options.get("variant", "paper")]
    if options.get("competition") not in usual or not all(name in options for name in rows):
        return None
    return _ERRORS.get(tuple(options[name] for name in rows))
