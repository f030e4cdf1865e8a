"""A checkpoint with the variables of the code released with Hinton et al. 2018, for a small network."""

from __future__ import annotations

import numpy as np

FILTERS, TYPES, CLASSES, CHANNELS = 6, (2, 3, 4), 5, 2


def released_variables(seed: int = 0, filters: int = FILTERS, types: tuple[int, int, int] = TYPES, **changes):
    """Return random variables by the names of the released code."""
    random = np.random.default_rng(seed)
    primary, first, second = types

    def normal(*shape: int, scale: float, mean: float = 0.0):
        return (mean + scale * random.normal(size=shape)).astype(np.float32)

    variables = {
        "conv1/weights": normal(5, 5, CHANNELS, filters, scale=0.2),
        "conv1/biases": normal(filters, scale=0.1),
        "conv_capsule1/weights": normal(1, 1, filters, 16 * primary, scale=0.5),
        "conv_capsule1/conv_capsule1_act/weights": normal(1, 1, filters, primary, scale=3),
        "global_step": np.array(1, np.float32),
        "beta1_power": np.array(0.5, np.float32),
    }
    for scope, children, parents in (("convCaps0", primary, first), ("convCaps1", first, second)):
        variables[f"{scope}/weights"] = normal(children, 3, 3, 4, 4 * parents, scale=0.3)
        variables[f"{scope}/activation_biases"] = normal(1, 1, parents, 1, 1, 1, 1, 1, scale=0.01, mean=0.02)
        variables[f"{scope}/sigma_biases"] = normal(1, 1, parents, 1, 1, 1, 1, 1, scale=0.1, mean=0.5)
    variables["capsule2/weights"] = normal(second, 4, 4 * CLASSES, scale=0.3)
    variables["capsule2/activation_biases"] = normal(1, 1, CLASSES, 1, 1, 1, scale=0.01, mean=0.02)
    variables["capsule2/sigma_biases"] = normal(1, 1, CLASSES, 1, 1, 1, scale=0.1, mean=0.5)
    slots = {f"{name}/{slot}": np.zeros_like(array) for name, array in variables.items() for slot in ("Adam", "Adam_1")}
    return {**{name: array for name, array in slots.items() if array.ndim}, **variables, **changes}
