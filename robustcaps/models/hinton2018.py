"""The weights that the authors of Hinton et al. 2018 released: variables of their checkpoint -> our tensors.

Their code (google-research, capsule_em) names the variables conv1/{weights,biases}, conv_capsule1/weights,
conv_capsule1/conv_capsule1_act/weights, convCaps0, convCaps1 and capsule2/{weights,activation_biases,sigma_biases}.
Variables are found by their shapes, their scopes and the order of the scopes, so other names of scopes do no harm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robustcaps.capsules.layers import BETA_A_PER_ACTIVATION_BIAS, BETA_U_PER_SIGMA_BIAS, POSE_SIDE, POSE_SIZE
from robustcaps.errors import UserError
from robustcaps.models.cards import load_tensors
from robustcaps.models.tensorflow_checkpoint import TensorFlowCheckpoint, Variable
from robustcaps.models.zoo import build_model

MODEL = "matrix-capsnet"
SIZE = 32
"""Width and height of the network's input."""
KERNEL, CAPSULE_KERNEL = 5, 3
"""Widths of the kernels of the first convolution and of the convolutional capsule layers."""

AVERAGE = "/ExponentialMovingAverage"
"""End of the names of moving averages, which are preferred to the variables that they average."""
BOOKKEEPING = re.compile(r"(^|/)(global_step|beta[12]_power)$|/(Adam|RMSProp|Momentum)(_\d+)?$")
"""Variables of the training alone."""

Roles = dict[str, Variable]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CapsuleLayer:
    """The names of a layer of capsules: here, of its weights' number of dimensions in the checkpoint, and in order."""

    name: str
    dimensions: int
    order: int


CAPSULE_LAYERS = (CapsuleLayer("first", 5, 0), CapsuleLayer("second", 5, 1), CapsuleLayer("class_capsules", 3, 0))
"""weights are (in, K, K, 4, 4 out) in the convolutional layers and (in, 4, 4 out) in the class layer."""


@dataclass(frozen=True)
class ReleasedNetwork:
    """The released network with its weights, and where they come from."""

    model: nn.Module
    options: dict[str, Any]
    channels: int
    classes: int
    variables: dict[str, str]
    """Name in the checkpoint of each role, such as 'first.weights'."""
    unused: tuple[str, ...]
    """Other variables of the checkpoint that belong neither to a layer nor to the training."""


def load_released_network(checkpoint: TensorFlowCheckpoint) -> ReleasedNetwork:
    """Build the network that a checkpoint of the released code contains.

    Args:
        checkpoint: The checkpoint; sizes of layers are taken from the shapes of its variables.

    Returns:
        The network in eval mode with frozen parameters.
    """
    candidates = _select_candidates(checkpoint)
    roles = _assign_roles(checkpoint, candidates)
    arrays = {role: _read_finite(checkpoint, variable.name) for role, variable in roles.items()}
    filters, types, classes = _read_sizes(checkpoint, roles)
    options: dict[str, Any] = {"variant": "released", "filters": filters, "types": types}
    channels = roles["stem.weights"].shape[2]
    model = build_model(MODEL, classes=classes, channels=channels, size=SIZE, **options)
    load_tensors(model, {**model.state_dict(), **convert_variables(arrays)}, where=str(checkpoint.index))
    used = {variable.name for variable in roles.values()}
    unused = tuple(variable.name for variable in candidates if variable.name not in used and variable.shape)
    names = {role: variable.name for role, variable in roles.items()}
    return ReleasedNetwork(model.eval().requires_grad_(requires_grad=False), options, channels, classes, names, unused)


def convert_variables(arrays: Arrays) -> dict[str, Tensor]:
    """Return the tensors of `MatrixCapsNet` from the arrays of all roles."""
    tensors = {
        "stem.0.weight": arrays["stem.weights"].transpose(3, 2, 0, 1),
        "stem.0.bias": arrays["stem.biases"],
        **_convert_primary(arrays["primary.poses"], arrays["primary.activations"]),
    }
    for layer in CAPSULE_LAYERS:
        tensors[f"{layer.name}.transforms"] = _convert_transforms(arrays[f"{layer.name}.weights"])
        sigma, activation = (arrays[f"{layer.name}.{kind}_biases"].reshape(-1) for kind in ("sigma", "activation"))
        tensors[f"{layer.name}.beta_u"] = sigma.astype(np.float64) * BETA_U_PER_SIGMA_BIAS
        tensors[f"{layer.name}.beta_a"] = activation.astype(np.float64) * BETA_A_PER_ACTIVATION_BIAS
    return {name: torch.tensor(np.ascontiguousarray(array, np.float32)) for name, array in tensors.items()}


def _convert_primary(poses: NDArray[Any], activations: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the weights of the primary capsules.

    The released code concatenates both kernels to 17 B channels and then takes channels 17 t to 17 t + 15 as the pose
    of type t and channel 17 t + 16 as its activation, whichever kernel they came from.
    """
    channels, types = activations.shape[2:]
    kernel = np.concatenate([poses, activations], axis=3).reshape(channels, types, POSE_SIZE + 1)
    pose_weight = kernel[..., :POSE_SIZE].reshape(channels, -1).T
    return {
        "primary.pose.weight": pose_weight[..., None, None],
        "primary.activation.weight": kernel[..., POSE_SIZE].T[..., None, None],
    }


def _convert_transforms(weights: NDArray[Any]) -> NDArray[Any]:
    """Return the matrices W_ij, of which weights[i, ..., c * out + j] are the columns c."""
    children, *kernel = weights.shape[:-2]
    parents = weights.shape[-1] // POSE_SIDE
    slots = math.prod(kernel)
    matrices = weights.reshape(children, slots, POSE_SIDE, POSE_SIDE, parents).transpose(1, 0, 4, 2, 3)
    return matrices if kernel else matrices[0]


def _select_candidates(checkpoint: TensorFlowCheckpoint) -> list[Variable]:
    """Return the floating-point variables of the network itself; moving averages replace what they average."""
    names = checkpoint.variables.keys()
    return [
        variable
        for name, variable in checkpoint.variables.items()
        if f"{name}{AVERAGE}" not in names
        and not BOOKKEEPING.search(name)
        and variable.dtype is not None
        and variable.dtype.kind == "f"
    ]


def _assign_roles(checkpoint: TensorFlowCheckpoint, candidates: Sequence[Variable]) -> Roles:
    """Return the variable of each role; raise `UserError` unless there is exactly one."""
    kernels = [each for each in candidates if len(each.shape) == 4]
    stem = _only(checkpoint, "stem.weights", [each for each in kernels if each.shape[:2] == (KERNEL, KERNEL)])
    roles = {"stem.weights": stem}
    biases = [each for each in candidates if each.shape == stem.shape[3:] and _scope(each) == _scope(stem)]
    roles["stem.biases"] = _only(checkpoint, "stem.biases", biases)
    pointwise = [each for each in kernels if each.shape[:3] == (1, 1, stem.shape[3])]
    pairs = [(p, a) for p in pointwise for a in pointwise if p.shape[3] == POSE_SIZE * a.shape[3]]
    for role, position in (("primary.poses", 0), ("primary.activations", 1)):
        roles[role] = _only(checkpoint, role, [pair[position] for pair in pairs])
    for layer in CAPSULE_LAYERS:
        roles |= _assign_layer(checkpoint, candidates, layer)
    _refuse_extra(checkpoint, candidates, roles)
    return roles


def _assign_layer(checkpoint: TensorFlowCheckpoint, candidates: Sequence[Variable], layer: CapsuleLayer) -> Roles:
    """Return the variables of a layer of capsules: weights by shape and order, biases by scope and name."""
    expected = sum(each.dimensions == layer.dimensions for each in CAPSULE_LAYERS)
    found = sorted((each for each in candidates if len(each.shape) == layer.dimensions), key=_natural_order)
    if len(found) != expected:
        raise _mismatch(checkpoint, f"{layer.name}.weights", f"{len(found)} variables instead of {expected}")
    weights = found[layer.order]
    if weights.shape[-2] != POSE_SIDE or weights.shape[-1] % POSE_SIDE:
        raise _mismatch(checkpoint, f"{layer.name}.weights", f"{weights} does not end in (4, 4 x parents)")
    if weights.shape[1:-2] not in ((), (CAPSULE_KERNEL, CAPSULE_KERNEL)):
        raise _mismatch(checkpoint, f"{layer.name}.weights", f"{weights} is not a 3x3 kernel")
    parents = weights.shape[-1] // POSE_SIDE
    biases = [
        each
        for each in candidates
        if _scope(each) == _scope(weights) and each != weights and math.prod(each.shape) == parents
    ]
    roles = {f"{layer.name}.weights": weights}
    for kind, word in (("activation", "act"), ("sigma", "sigma")):
        role = f"{layer.name}.{kind}_biases"
        roles[role] = _only(checkpoint, role, [each for each in biases if word in _base_name(each).rpartition("/")[2]])
    return roles


def _read_sizes(checkpoint: TensorFlowCheckpoint, roles: Roles) -> tuple[int, tuple[int, int, int], int]:
    """Return A, (B, C, D) and the number of classes; raise `UserError` if layers do not fit each other."""
    filters, primary = roles["primary.activations"].shape[2:]
    sizes = [primary]
    for layer in CAPSULE_LAYERS:
        weights = roles[f"{layer.name}.weights"]
        if weights.shape[0] != sizes[-1]:
            raise _mismatch(checkpoint, f"{layer.name}.weights", f"{weights} does not fit {sizes[-1]} child types")
        sizes.append(weights.shape[-1] // POSE_SIDE)
    _, first, second, classes = sizes
    return filters, (primary, first, second), classes


def _refuse_extra(checkpoint: TensorFlowCheckpoint, candidates: Sequence[Variable], roles: Roles) -> None:
    """Refuse a variable in the scope of a layer that has no role: the layer would compute something else."""
    used = {variable.name for variable in roles.values()}
    scopes = {_scope(variable) for variable in roles.values()}
    for variable in candidates:
        if variable.name not in used and _scope(variable) in scopes:
            raise _mismatch(checkpoint, "the network", f"{variable} is a variable that the released code does not have")


def _read_finite(checkpoint: TensorFlowCheckpoint, name: str) -> NDArray[Any]:
    array = checkpoint.read(name)
    if not np.isfinite(array).all():
        raise UserError(f"{checkpoint.prefix}: variable '{name}' contains NaN or infinite values.")
    return array


def _only(checkpoint: TensorFlowCheckpoint, role: str, found: Sequence[Variable]) -> Variable:
    """Return the only candidate of a role."""
    if len(found) != 1:
        raise _mismatch(checkpoint, role, f"{len(found)} variables instead of 1")
    return found[0]


def _mismatch(checkpoint: TensorFlowCheckpoint, role: str, problem: str) -> UserError:
    return UserError(
        f"{checkpoint.index}: not the network of Hinton et al. 2018 as released: {role}: {problem}. "
        f"The checkpoint has: {_list_variables(checkpoint.variables.values())}."
    )


def _list_variables(variables: Iterable[Variable]) -> str:
    return ", ".join(str(variable) for variable in variables if not BOOKKEEPING.search(variable.name)) or "no variables"


def _base_name(variable: Variable) -> str:
    """Return the name of a variable without what TensorFlow appends."""
    return variable.name.removesuffix(":0").removesuffix(AVERAGE)


def _scope(variable: Variable) -> str:
    return _base_name(variable).rpartition("/")[0]


def _natural_order(variable: Variable) -> list[tuple[str, int]]:
    """Return a sort key that counts numbers in names as numbers."""
    return [(text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d*)", _base_name(variable))]
