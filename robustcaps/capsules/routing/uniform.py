"""Capsules without routing: every parent weights the votes of its children equally.

Uniform coupling is the control of every routing. With transforms that all children share it is the Aff-CapsNet of Gu &
Tresp ('Improving the robustness of capsule networks to image affine transformations', CVPR 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.capsules.routing.competition import uniform_coupling
from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Competition, in_windows


def uniform_routing(poses: Tensor, transforms: Tensor, wiring: Wiring, *, competition: Competition = "field") -> Tensor:
    """Return s_j = sum_i v_ij / J (n, P, C, H) of poses (n, Q, B, H), where J parents compete for child i.

    `transforms` is as in `matrix_votes`. The sum is linear in the poses, so that no vote v_ij = M_i W_ij is stored.
    """
    side, types = transforms.shape[-1], transforms.shape[-3]
    c = uniform_coupling(wiring, poses, types=types, competition=competition)
    children = in_windows(poses, wiring.windows) * c[..., None, None]
    matrices = children.view(*children.shape[:-1], children.shape[-1] // side, side)
    equation = "npsbxy,bcyz->npcxz" if transforms.ndim == 4 else "npsbxy,sbcyz->npcxz"
    return torch.einsum(equation, matrices, transforms).flatten(-2)
