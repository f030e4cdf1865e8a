"""Routing as plain loops over scalars and single capsules in float64, straight from the papers' formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Child = tuple[int, int]
"""(position, type)."""
Parent = tuple[int, int]
"""(position, type)."""


def squash(s: Array) -> Array:
    length = math.sqrt(sum(x * x for x in s))
    return length**2 / (1 + length**2) * s / length


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
    """A routed parent."""

    mu: Array
    variance: Array
    support: float
    logit: float


@dataclass(frozen=True)
class Prices:
    """Everything an EM layer learns or fixes beside its transforms; beta_a and beta_u are per parent type."""

    beta_a: Array
    beta_u: Array
    inverse_temperature: Array
    variance_floor: float


def convolution_edges(size: int, kernel: int, stride: int) -> list[tuple[int, int, int]]:
    """All (child position, parent position, slot) of a convolution without padding."""
    out = (size - kernel) // stride + 1
    return [
        ((py * stride + ky) * size + px * stride + kx, py * out + px, ky * kernel + kx)
        for py in range(out)
        for px in range(out)
        for ky in range(kernel)
        for kx in range(kernel)
    ]


def em_routing(
    votes: dict[tuple[Child, Parent], Array], activations: dict[Child, float], prices: Prices, competition: str
) -> dict[Parent, Gaussian]:
    """One sample: EM on the graph whose edges are the keys of `votes`."""
    edges = list(votes)
    parents = sorted({j for _, j in edges})

    def rivals(i: Child, j: Parent) -> list[Parent]:
        """The parents that compete for i: all it is connected to, or those at the position of j."""
        return [k for child, k in edges if child == i and (competition == "field" or k[0] == j[0])]

    rivals_of = {(i, j): rivals(i, j) for i, j in edges}
    R = {(i, j): 1 / len(rivals_of[i, j]) for i, j in edges}
    routed: dict[Parent, Gaussian] = {}
    for scale in prices.inverse_temperature:
        if routed:
            joint = {(i, j): logistic(routed[j].logit) * density(votes[i, j], routed[j]) for i, j in edges}
            R = {(i, j): joint[i, j] / sum(joint[i, k] for k in rivals_of[i, j]) for i, j in edges}
        for j in parents:
            children = [i for i, parent in edges if parent == j]
            r = {i: R[i, j] * activations[i] for i in children}
            routed[j] = fit({i: votes[i, j] for i in children}, r, prices, kind=j[1], scale=float(scale))
    return routed


def fit(votes: dict[Child, Array], r: dict[Child, float], prices: Prices, kind: int, scale: float) -> Gaussian:
    """The M-step of one parent."""
    support = sum(r.values())
    mu = sum((r[i] * votes[i] for i in votes), np.zeros(16)) / support
    variance = sum((r[i] * (votes[i] - mu) ** 2 for i in votes), np.zeros(16)) / support + prices.variance_floor
    cost = sum((prices.beta_u[kind] + math.log(math.sqrt(variance[h]))) * support for h in range(16))
    return Gaussian(mu, variance, support, scale * (prices.beta_a[kind] - cost))


def density(vote: Array, parent: Gaussian) -> float:
    """N(vote; mu, diag sigma^2)."""
    p = 1.0
    for h in range(16):
        sigma = math.sqrt(parent.variance[h])
        p *= math.exp(-((vote[h] - parent.mu[h]) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    return p


def logistic(z: float) -> float:
    return 1 / (1 + math.exp(-z))
