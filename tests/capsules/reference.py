"""Routing as plain loops over scalars and single capsules in float64, straight from the papers' formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robustcaps.capsules.routing.em import OUTLIER_EPS, SHARE_EPS

Array = npt.NDArray[np.float64]
Child = tuple[int, int]
"""(position, type)."""
Parent = tuple[int, int]
"""(position, type)."""
Edge = tuple[int, int, int]
"""(child position, parent position, slot)."""
Votes = dict[tuple[Child, Parent], Array]


def squash(s: Array) -> Array:
    length = math.sqrt(sum(x * x for x in s))
    return length**2 / (1 + length**2) * s / length


def vector_votes(poses: Array, transforms: Array) -> Array:
    """One sample: u_hat_{j|i} = W_ij u_i, or W_j u_i where all children share their transforms."""
    children, parents = len(poses), transforms.shape[-3]
    votes = np.zeros((parents, children, transforms.shape[-2]))
    for j, i, o in np.ndindex(*votes.shape):
        W = transforms[j] if transforms.ndim == 3 else transforms[i, j]
        votes[j, i, o] = sum(w * u for w, u in zip(W[o], poses[i], strict=True))
    return votes


def dynamic_routing(votes: Array, iterations: int, update: str) -> Array:
    """One sample: votes[j, i] is u_hat_{j|i}; returns s[j]."""
    parents, children, pose = votes.shape
    b = np.zeros((children, parents))
    s = np.zeros((parents, pose))
    for _ in range(iterations):
        for j in range(parents):
            s[j] = 0
            for i in range(children):
                c_ij = math.exp(b[i, j]) / sum(math.exp(b[i, k]) for k in range(parents))
                s[j] += c_ij * votes[j, i]
        for i in range(children):
            for j in range(parents):
                agreement = float(votes[j, i] @ squash(s[j]))
                b[i, j] = agreement if update == "assign" else b[i, j] + agreement
    return s


@dataclass(frozen=True)
class Gaussian:
    """A parent's votes, summed up."""

    mu: Array
    variance: Array
    support: float


@dataclass(frozen=True)
class Rules:
    """Everything an EM layer learns or fixes beside its votes; beta_a and beta_u have one value per parent type."""

    beta_a: Array
    beta_u: Array
    inverse_temperature: Array
    variance_floor: float
    competition: str
    activation: str
    mean_momentum: float = 0.0
    start: str = "uniform"


def convolution_edges(size: int, kernel: int, stride: int) -> list[Edge]:
    """All edges of a convolution without padding."""
    out = (size - kernel) // stride + 1
    return [
        ((py * stride + ky) * size + px * stride + kx, py * out + px, ky * kernel + kx)
        for py in range(out)
        for px in range(out)
        for ky in range(kernel)
        for kx in range(kernel)
    ]


def matrix_votes(poses: Array, transforms: Array, offsets: Array | None, edges: list[Edge]) -> Votes:
    """One sample: V_ij = M_i W_ij, where the rows of M_i are as long as W_ij has rows, plus the offset of the slot."""
    child_types, types, side, _ = transforms.shape[-4:]
    votes = {}
    for (q, p, s), b, c in ((edge, b, c) for edge in edges for b in range(child_types) for c in range(types)):
        W = (transforms[b, c] if transforms.ndim == 4 else transforms[s, b, c]).tolist()
        rows = poses[q, b].reshape(-1, side).tolist()
        vote = [sum(row[y] * W[y][z] for y in range(side)) for row in rows for z in range(side)]
        votes[(q, b), (p, c)] = np.array(vote) if offsets is None else np.array(vote) + offsets[s]
    return votes


def em_routing(
    votes: Votes, activations: dict[Child, float], rules: Rules
) -> tuple[dict[Parent, Gaussian], dict[Parent, float]]:
    """One sample: EM on the graph whose edges are the keys of `votes`; returns the parents and their logits."""
    parents_of: dict[Child, list[Parent]] = {}
    children_of: dict[Parent, list[Child]] = {}
    for i, j in votes:
        parents_of.setdefault(i, []).append(j)
        children_of.setdefault(j, []).append(i)

    def rivals(i: Child, j: Parent) -> list[Parent]:
        """The parents that compete for i: all it is connected to, or those at the position or of the type of j."""
        same = {"field": slice(0), "position": slice(1), "type": slice(1, 2)}[rules.competition]
        return [k for k in parents_of[i] if k[same] == j[same]]

    types = len({kind for _, kind in children_of})
    R = {(i, j): 1 / (types if rules.start == "types" else len(rivals(i, j))) for i, j in votes}
    parents: dict[Parent, Gaussian] = {}
    logits: dict[Parent, float] = {}
    for scale in rules.inverse_temperature:
        if parents:
            joint = {(i, j): logistic(logits[j]) * density(vote, parents[j]) for (i, j), vote in votes.items()}
            outlier = outliers(joint) if rules.competition == "type" else {}
            R = {
                (i, j): joint[i, j] / (sum(joint[i, k] for k in rivals(i, j)) + outlier.get((i[1], j[1]), 0.0))
                for i, j in votes
            }
        for j, children in children_of.items():
            r = [R[i, j] * activations[i] for i in children]
            former = parents[j].mu if j in parents else np.zeros(16)
            parents[j] = fit([votes[i, j] for i in children], r, rules, former)
        logits = {j: logit(j, parents, rules, float(scale)) for j in parents}
    return parents, logits


def outliers(joint: dict[tuple[Child, Parent], float]) -> dict[tuple[int, int], float]:
    """The likelihood of an outlier for each (child type, parent type), relative to the best child in any window."""
    best: dict[tuple[int, int], float] = {}
    for (i, j), value in joint.items():
        best[i[1], j[1]] = max(best.get((i[1], j[1]), 0.0), value)
    return {types: OUTLIER_EPS * value for types, value in best.items()}


def fit(votes: list[Array], r: list[float], rules: Rules, former: Array) -> Gaussian:
    """The M-step of one parent, whose mean of the former iteration is given."""
    support = sum(r)
    mean = sum((r_i * V for r_i, V in zip(r, votes, strict=True)), np.zeros(16)) / support
    mu = (1 - rules.mean_momentum) * mean + rules.mean_momentum * former
    squares = sum((r_i * (V - mu) ** 2 for r_i, V in zip(r, votes, strict=True)), np.zeros(16))
    return Gaussian(mu, squares / support + rules.variance_floor, support)


def logit(j: Parent, parents: dict[Parent, Gaussian], rules: Rules, scale: float) -> float:
    """The activation of one parent before the logistic."""
    parent, (_, kind) = parents[j], j
    if rules.activation == "mixture":
        everything = (1 + SHARE_EPS) * sum(other.support for other in parents.values())
        return math.log(parent.support / (everything - parent.support))
    votes = parent.support if rules.activation == "cost" else 1.0
    cost = sum((rules.beta_u[kind] + math.log(math.sqrt(variance))) * votes for variance in parent.variance)
    return float(scale * (rules.beta_a[kind] - cost))


def density(vote: Array, parent: Gaussian) -> float:
    """N(vote; mu, diag sigma^2)."""
    p = 1.0
    for V, mu, variance in zip(vote.tolist(), parent.mu.tolist(), parent.variance.tolist(), strict=True):
        sigma = math.sqrt(variance)
        p *= math.exp(-((V - mu) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    return p


def logistic(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def slope(f: Callable[[float], float], h: float = 1e-4) -> float:
    """f'(0) by differences whose error falls with h^4."""
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)
