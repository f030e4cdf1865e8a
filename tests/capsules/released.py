"""EM routing of the authors' released code, as plain loops over windows, slots and types of one sample in float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Place = tuple[int, int]
"""(row, column) of a position, or of a slot in a window."""
Parent = tuple[Place, int]
"""(window, type)."""
Child = tuple[Place, int]
"""(slot, type)."""
Votes = dict[Parent, dict[Child, Array]]
Numbers = dict[Parent, dict[Child, float]]

ITERATIONS = 3
VARIANCE_FLOOR = 5e-4
KEPT_MEAN = 0.1
OUTLIER = 1e-7


@dataclass(frozen=True)
class ReleasedLayer:
    """Children and parameters of one layer in the names and units of the released code."""

    poses: Array
    """(size, size, child types, 4, 4)."""
    activations: Array
    """(size, size, child types)."""
    b_sigma: Array
    """(types,)."""
    b_act: Array
    """(types,)."""
    final_beta: float
    """B of beta_t = B (1 - .95^t)."""
    support_eps: float
    """Added to sum_i r_ij: 1e-7 and 1e-5 as released."""


def route_convolution(layer: ReleasedLayer, transforms: Array, stride: int) -> tuple[Array, Array]:
    """Return poses (out, out, types, 4, 4) and activations; transforms are (k, k, child types, types, 4, 4).

    Types do not compete. The windows at which slot and window add up to the same place do, whatever the stride.
    """
    kernel, _, child_types, types, _, _ = transforms.shape
    out = (len(layer.poses) - kernel) // stride + 1
    votes: Votes = {}
    a: Numbers = {}
    for y, x, c, u, v, b in itertools.product(*map(range, (out, out, types, kernel, kernel, child_types))):
        parent, child = ((y, x), c), ((u, v), b)
        place = (y * stride + u, x * stride + v, b)
        votes.setdefault(parent, {})[child] = layer.poses[place] @ transforms[u, v, b, c]
        a.setdefault(parent, {})[child] = float(layer.activations[place])

    def normalise(log_joint: Numbers) -> Numbers:
        R: Numbers = {parent: {} for parent in votes}
        for b, c in itertools.product(range(child_types), range(types)):
            log = {
                (window, slot): value
                for (window, kind), children in log_joint.items()
                for (slot, child_kind), value in children.items()
                if (child_kind, kind) == (b, c)
            }
            top = max(log.values())
            sums: dict[Place, float] = {}
            for (window, slot), value in log.items():
                place = (window[0] + slot[0], window[1] + slot[1])
                sums[place] = sums.get(place, 0.0) + math.exp(value - top)
            for (window, slot), value in log.items():
                place = (window[0] + slot[0], window[1] + slot[1])
                R[window, c][slot, b] = math.exp(value - top) / (sums[place] + OUTLIER)
        return R

    poses, activations = np.zeros((out, out, types, 4, 4)), np.zeros((out, out, types))
    R = {parent: dict.fromkeys(children, 1 / types) for parent, children in votes.items()}
    mu: dict[Parent, Array] = dict.fromkeys(votes, np.zeros((4, 4)))
    for t in range(1, ITERATIONS + 1):
        variance, logits = fit_all(layer, votes, a, R, mu, t)
        R = normalise(log_joints(votes, mu, variance, logits))
    for (window, c), logit in logits.items():
        poses[(*window, c)], activations[(*window, c)] = mu[window, c], logistic(logit)
    return poses, activations


def route_classes(layer: ReleasedLayer, transforms: Array, grid: Array) -> tuple[Array, Array]:
    """Return poses (classes, 4, 4) and activations (classes,); all positions share transforms (child types, classes).

    Components 0 and 1 of a vote get the coordinates (size, size, 2) of its child. Classes compete for each child.
    """
    child_types, classes, _, _ = transforms.shape
    size = len(layer.poses)
    everywhere = (0, 0)
    votes: Votes = {(everywhere, c): {} for c in range(classes)}
    a: Numbers = {(everywhere, c): {} for c in range(classes)}
    for c, u, v, b in itertools.product(range(classes), range(size), range(size), range(child_types)):
        vote = layer.poses[u, v, b] @ transforms[b, c]
        vote[0, 0] += grid[u, v, 0]
        vote[0, 1] += grid[u, v, 1]
        votes[everywhere, c][(u, v), b] = vote
        a[everywhere, c][(u, v), b] = float(layer.activations[u, v, b])
    R = {parent: dict.fromkeys(children, 1 / classes) for parent, children in votes.items()}
    mu: dict[Parent, Array] = dict.fromkeys(votes, np.zeros((4, 4)))
    for t in range(1, ITERATIONS + 1):
        variance, logits = fit_all(layer, votes, a, R, mu, t)
        log_joint = log_joints(votes, mu, variance, logits)
        for child in R[everywhere, 0]:
            top = max(log_joint[parent][child] for parent in votes)
            joint = {parent: math.exp(log_joint[parent][child] - top) for parent in votes}
            for parent in votes:
                R[parent][child] = joint[parent] / sum(joint.values())
    poses = np.stack([mu[everywhere, c] for c in range(classes)])
    return poses, np.array([logistic(logits[everywhere, c]) for c in range(classes)])


def fit_all(
    layer: ReleasedLayer, votes: Votes, a: Numbers, R: Numbers, mu: dict[Parent, Array], t: int
) -> tuple[dict[Parent, Array], dict[Parent, float]]:
    """M-step: replace mu, and return the variances and logits of all parents."""
    variance, logits = {}, {}
    beta = layer.final_beta * (1 - 0.95**t)
    for parent, cast in votes.items():
        r = {child: R[parent][child] * a[parent][child] for child in cast}
        support = sum(r.values())
        mean = sum((r[i] * vote for i, vote in cast.items()), np.zeros((4, 4))) / (support + layer.support_eps)
        mu[parent] = (1 - KEPT_MEAN) * mean + KEPT_MEAN * mu[parent]
        squares = sum((r[i] * (vote - mu[parent]) ** 2 for i, vote in cast.items()), np.zeros((4, 4)))
        variance[parent] = squares / (support + layer.support_eps) + VARIANCE_FLOOR
        _, c = parent
        cost = np.log(variance[parent]).sum() + 16 * (math.log(2 * math.pi) + 1) * layer.b_sigma[c]
        logits[parent] = float(beta * (-support * cost - 5000 * layer.b_act[c]))
    return variance, logits


def log_joints(
    votes: Votes, mu: dict[Parent, Array], variance: dict[Parent, Array], logits: dict[Parent, float]
) -> Numbers:
    """Return log a_j + log p_ij."""
    return {
        parent: {
            child: math.log(logistic(logits[parent]))
            - 0.5 * float(((vote - mu[parent]) ** 2 / variance[parent] + np.log(2 * math.pi * variance[parent])).sum())
            for child, vote in cast.items()
        }
        for parent, cast in votes.items()
    }


def logistic(z: float) -> float:
    return 1 / (1 + math.exp(-z))
