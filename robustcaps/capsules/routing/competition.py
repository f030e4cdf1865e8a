"""Coupling coefficients: how a child's vote is divided among the parents that compete for it.

Symbols as in `em`: n samples, P parent positions with C types, I = S*B children in a window of S slots with B types.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import LOG_ZERO, Competition, first_parents, in_windows


def uniform_coupling(wiring: Wiring, like: Tensor, *, types: int, competition: Competition) -> Tensor:
    """Return c_ij = 1/J (P, S), where J parents compete for the children in a slot; the dtype is that of `like`."""
    return first_parents(wiring, types=types, competition=competition, start="uniform").to(like).reciprocal()


def log_coupling(logits: Tensor, wiring: Wiring, competition: Competition) -> Tensor:
    """Return log c_ij (n, P, C, I), c_i = softmax_j(b_i) over the parents j that compete for child i.

    `logits` b_ij is (n, P, C, I). Parents compete as in EM routing (see `Competition`): all types of all windows that
    contain the child (`field`), the types of each window (`position`), or the windows of each type (`type`).
    """
    if competition == "type":
        return logits - _log_sum_over_windows(logits, wiring)
    if competition == "position" or len(wiring.windows) == 1:
        return logits.log_softmax(dim=2)
    over_types = logits.logsumexp(dim=2, keepdim=True)
    return logits - _log_sum_over_windows(over_types, wiring)


def _log_sum_over_windows(logits: Tensor, wiring: Wiring) -> Tensor:
    """Return, for each entry (n, P, C, I), the logsumexp over all windows that contain its child."""
    n, positions, types, children = logits.shape
    slots = wiring.windows.shape[1]
    by_slot = logits.view(n, positions, types, slots, children // slots).transpose(2, 3).flatten(1, 2)
    padded = F.pad(by_slot, (0, 0, 0, 0, 0, 1), value=LOG_ZERO)
    per_child = in_windows(padded, wiring.rivals).logsumexp(dim=2)
    return in_windows(per_child, wiring.owners).transpose(2, 3).reshape(n, positions, types, children)
