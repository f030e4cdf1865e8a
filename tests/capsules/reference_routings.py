"""Routings other than EM as loops over single capsules in float64, on the graph whose edges are the keys of votes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.capsules.reference import Array, Child, Parent, Votes, squash

Coefficients = dict[tuple[Child, Parent], float]
Poses = dict[Parent, Array]


def rivals(votes: Votes, i: Child, j: Parent, competition: str) -> list[Parent]:
    """The parents that compete with j for i, j included."""
    parents = [k for child, k in votes if child == i]
    same = {"field": lambda k: True, "position": lambda k: k[0] == j[0], "type": lambda k: k[1] == j[1]}
    return [k for k in parents if same[competition](k)]


def couple(votes: Votes, logits: Coefficients, competition: str) -> Coefficients:
    return {
        (i, j): math.exp(logits[i, j]) / sum(math.exp(logits[i, k]) for k in rivals(votes, i, j, competition))
        for i, j in votes
    }


def add_up(votes: Votes, weights: Coefficients) -> Poses:
    """sum_i w_ij v_ij."""
    sums: Poses = {}
    for (i, j), vote in votes.items():
        sums[j] = sums.get(j, np.zeros_like(vote)) + weights[i, j] * vote
    return sums


def uniform(votes: Votes, competition: str) -> tuple[Poses, Coefficients]:
    c = {(i, j): 1 / len(rivals(votes, i, j, competition)) for i, j in votes}
    return add_up(votes, c), c


def dynamic(votes: Votes, competition: str, *, iterations: int, update: str) -> tuple[Poses, Coefficients]:
    b = dict.fromkeys(votes, 0.0)
    for _ in range(iterations):
        c = couple(votes, b, competition)
        s = add_up(votes, c)
        for (i, j), vote in votes.items():
            b[i, j] = float(vote @ squash(s[j])) + (b[i, j] if update == "increment" else 0.0)
    return s, c


def self_attention(
    votes: Votes, competition: str, prior: Callable[[Child, Parent], float]
) -> tuple[Poses, Coefficients]:
    total = add_up(votes, dict.fromkeys(votes, 1.0))
    logits = {(i, j): float(vote @ total[j]) / math.sqrt(len(vote)) for (i, j), vote in votes.items()}
    c = couple(votes, logits, competition)
    return add_up(votes, {(i, j): value + prior(i, j) for (i, j), value in c.items()}), c


def inverted_attention(
    votes: Votes, competition: str, *, iterations: int, gain: Array, bias: Array
) -> tuple[Poses, Coefficients]:
    p = {j: np.zeros_like(vote) for (_, j), vote in votes.items()}
    for _ in range(iterations):
        logits = {(i, j): float(p[j] @ vote) / math.sqrt(len(vote)) for (i, j), vote in votes.items()}
        c = couple(votes, logits, competition)
        p = {j: gain * (s - s.mean()) / math.sqrt(s.var() + 1e-5) + bias for j, s in add_up(votes, c).items()}
    return p, c


def self_routing(
    votes: Votes, competition: str, activations: dict[Child, float], logits: Coefficients
) -> tuple[Poses, Coefficients, dict[Parent, float]]:
    """Returns poses, coefficients and activations."""
    c = couple(votes, logits, competition)
    r = {(i, j): c[i, j] * activations[i] for i, j in votes}
    support: dict[Parent, float] = {}
    for (_, j), share in r.items():
        support[j] = support.get(j, 0.0) + share
    poses = {j: s / support[j] for j, s in add_up(votes, r).items()}
    at_position = {j: sum(support[k] for k in support if k[0] == j[0]) for j in support}
    return poses, c, {j: support[j] / at_position[j] for j in support}
