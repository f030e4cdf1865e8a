"""EM routing between matrix capsules (Hinton, Sabour, Frosst, ICLR 2018), fully connected or convolutional.

Symbols: n samples; Q child positions with B capsule types; P parent positions with C types; a parent sees a window of
S slots, hence I = S*B children i; h runs over the H components of a pose (16). A fully connected layer has P = 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.capsules.kernels.backends import Backend, fused_em_routing
from robustcaps.capsules.routing.connectivity import Wiring

Competition = Literal["field", "position", "type"]
"""Which parents share a child's assignments, which sum to 1: those of all windows that contain the child and all types
(`field`, the paper); the types of each window (`position`); the windows of each type (`type`, the released code)."""
Start = Literal["uniform", "types"]
"""The first assignments: equal for all competing parents, or 1 / number of parent types (the released code)."""
Activation = Literal["cost", "mean-cost", "mixture"]
"""How a parent's activation is computed: see `parent_logits`."""

SUPPORT_EPS = 1e-12
"""Added to sum_i r_ij before dividing by it: a parent without support has a finite pose and gradient."""
SHARE_EPS = 1e-3
"""A parent's share of its layer is relative to 1 + SHARE_EPS: a parent with all the support has a finite logit."""
OUTLIER_EPS = 1e-7
"""Likelihood of an outlier relative to the best child, in the competition `type`."""
LOG_ZERO = -1e30
"""Log-likelihood of a non-existing parent (padding of `Wiring.rivals`)."""

MAX_CPU_VOTES = 2**21
"""Vote components processed at once on a CPU (8 MB): larger temporaries are dominated by page faults."""
KEPT_ALLOCATION = 8_000_000
"""Just below 32 MB of float32, the largest block whose release makes glibc keep such memory for reuse."""


@dataclass(frozen=True, eq=False)
class Routed:
    """The result of routing: parent capsules, each a Gaussian over its children's votes."""

    poses: Tensor
    """mu (n, P, C, H)."""
    logits: Tensor
    """Activation logits (n, P, C); see `parent_logits`."""
    variance: Tensor
    """sigma^2 (n, P, C, H), the floor included."""
    support: Tensor
    """sum_i r_ij (n, P, C): the children's activation assigned to a parent."""

    @property
    def activations(self) -> Tensor:
        """The capsules' activations a (n, P, C) in [0,1]."""
        return self.logits.sigmoid()


@dataclass(frozen=True, eq=False)
class Step:
    """One EM iteration: its assignments and the parents fitted to them."""

    assignments: Tensor
    """R_ij (n, P, C, I)."""
    squares: Tensor
    """(V_ij - mu_j)^2 (n, P, C, I, H)."""
    parents: Routed


def em_routing(
    poses: Tensor,
    activations: Tensor,
    transforms: Tensor,
    wiring: Wiring,
    *,
    beta_a: Tensor,
    beta_u: Tensor,
    inverse_temperature: Tensor,
    variance_floor: float,
    competition: Competition = "field",
    activation: Activation = "cost",
    mean_momentum: float = 0.0,
    start: Start = "uniform",
    offsets: Tensor | None = None,
    backend: Backend = "auto",
) -> Routed:
    """Route children, poses (n, Q, B, H) and activations (n, Q, B), to their parents.

    `transforms`, `offsets`: see `matrix_votes`; `backend`: see `fused_em_routing`; the rest: see `route_votes`.
    """
    learned, fixed = (poses, activations, transforms, beta_a, beta_u), (inverse_temperature, offsets)
    rules = {"competition": competition, "activation": activation, "mean_momentum": mean_momentum, "start": start}
    route = fused_em_routing(backend, wiring, learned, fixed, rules) or _route_in_parts
    routed: Routed = route(
        poses,
        activations,
        transforms,
        wiring,
        beta_a=beta_a,
        beta_u=beta_u,
        inverse_temperature=inverse_temperature,
        variance_floor=variance_floor,
        offsets=offsets,
        **rules,
    )
    return routed


def _route_in_parts(
    poses: Tensor, activations: Tensor, transforms: Tensor, wiring: Wiring, *, offsets: Tensor | None, **options: Any
) -> Routed:
    """Route by the definition, in parts of as many samples as suit the device.

    The first slot's offset, which all votes share, is added after routing to keep float32 precision.
    """
    samples = _samples_per_part(poses, transforms, wiring)
    common, relative_offsets = (0.0, None) if offsets is None else (offsets[0], offsets - offsets[0])
    options = {**options, "common": common}
    parts = [
        route_votes(matrix_votes(part_poses, transforms, wiring, relative_offsets), part_activations, wiring, **options)
        for part_poses, part_activations in zip(
            torch.split(poses, samples), torch.split(activations, samples), strict=True
        )
    ]
    return Routed(
        poses=torch.cat([part.poses for part in parts]),
        logits=torch.cat([part.logits for part in parts]),
        variance=torch.cat([part.variance for part in parts]),
        support=torch.cat([part.support for part in parts]),
    )


def _samples_per_part(poses: Tensor, transforms: Tensor, wiring: Wiring) -> int:
    """Return how many samples to route together: all on an accelerator, on a CPU as many as fit its cache.

    Compiled code gets all of them, because every number of parts would need another compilation.
    """
    if poses.device.type != "cpu" or torch.compiler.is_compiling():
        return max(1, len(poses))
    _reuse_memory()
    child_types, types = transforms.shape[-4:-2]
    votes_per_sample = wiring.windows.numel() * child_types * types * poses.shape[-1]
    return max(1, MAX_CPU_VOTES // votes_per_sample)


@functools.cache
def _reuse_memory() -> None:
    """Make glibc reuse the memory of temporaries instead of returning it, which would cost a page fault per page."""
    torch.empty(KEPT_ALLOCATION, dtype=torch.float32)  # never written, so no memory is committed


def matrix_votes(poses: Tensor, transforms: Tensor, wiring: Wiring, offsets: Tensor | None = None) -> Tensor:
    """Return the votes V_ij = M_i W_ij (n, P, C, I, H) of poses M (n, Q, B, H).

    `transforms` is (S, B, C, side, side), or (B, C, side, side) if all slots share it. A pose is read as a matrix
    with rows of length `side`: 4x4 with side 4, a single vector with side 16.
    `offsets` (S, H) are added to the votes of a slot (coordinate addition).
    """
    side = transforms.shape[-1]
    children = in_windows(poses, wiring.windows)
    matrices = children.view(*children.shape[:-1], children.shape[-1] // side, side)
    equation = "npsbxy,bcyz->npcsbxz" if transforms.ndim == 4 else "npsbxy,sbcyz->npcsbxz"
    votes = torch.einsum(equation, matrices, transforms).flatten(-2)
    if offsets is not None:
        votes = votes + offsets[:, None]
    return votes.flatten(3, 4).contiguous()


def route_votes(votes: Tensor, activations: Tensor, wiring: Wiring, **options: Any) -> Routed:
    """Fit parents to votes (n, P, C, I, H) of children with activations (n, Q, B); options: see `em_steps`."""
    *_, last = em_steps(votes, activations, wiring, **options)
    return last.parents


def em_steps(
    votes: Tensor,
    activations: Tensor,
    wiring: Wiring,
    *,
    beta_a: Tensor,
    beta_u: Tensor,
    inverse_temperature: Tensor,
    variance_floor: float,
    competition: Competition = "field",
    activation: Activation = "cost",
    mean_momentum: float = 0.0,
    start: Start = "uniform",
    common: Tensor | float = 0.0,
    constant_sigma: bool = False,
) -> Iterator[Step]:
    """Yield the EM iterations, one per lambda_t, on votes (n, P, C, I, H) of children with activations (n, Q, B).

    `beta_a`, `beta_u` (C,) are the costs of activating a capsule and of describing a vote; `inverse_temperature` (T,)
    is lambda_t. mu_t = (1 - m) mean_t + m mu_(t-1) with `mean_momentum` m and mu_0 = 0; sigma^2 is the mean square
    around that mu. `competition`, `start`: see `Competition`, `Start`. Votes are taken relative to the first one, which
    keeps float32 precision for votes that agree far from 0; `common` (H,) is an offset of all votes that was left out
    of them for the same reason. `constant_sigma` is an intervention: logits are computed with the geometric mean of all
    sigma of the sample's layer.
    """
    n, _, types, _, _ = votes.shape
    centre = votes[..., :1, :].detach()
    votes, centre = votes - centre, centre + common
    child_activations = in_windows(activations, wiring.windows).flatten(2).unsqueeze(2)
    parents = first_parents(wiring, types=types, competition=competition, start=start)
    R = parents.to(votes).reciprocal().repeat_interleave(activations.shape[2], dim=1).unsqueeze(1)
    R = R.expand(n, -1, types, -1)
    step: Step | None = None
    for scale in inverse_temperature.unbind():
        former = 0.0 if step is None else step.parents.poses
        if step is not None:
            R = e_step(step.squares, step.parents, wiring, competition)
        r = R * child_activations
        mu, variance, support, squares = m_step(votes, r, variance_floor, centre, mean_momentum, former)
        in_logits = _geometric_mean(variance) if constant_sigma else variance
        logits = parent_logits(in_logits, support, beta_a, beta_u, scale, activation)
        step = Step(R, squares, Routed(poses=mu, logits=logits, variance=variance, support=support))
        yield step


def _geometric_mean(variance: Tensor) -> Tensor:
    """Return the geometric mean of a sample's variances (n, P, C, H) in the place of each."""
    return variance.log().mean(dim=(1, 2, 3), keepdim=True).exp().expand_as(variance)


def in_windows(children: Tensor, windows: Tensor) -> Tensor:
    """Gather values of child positions (n, Q, ...) into the slots of each window (n, P, S, ...)."""
    return children.index_select(1, windows.flatten()).view(len(children), *windows.shape, *children.shape[2:])


def first_parents(wiring: Wiring, *, types: int, competition: Competition, start: Start) -> Tensor:
    """Return the number of parents that the children in each slot (P, S) are first divided among."""
    copies = wiring.copies[wiring.owners]
    if start == "types" or competition == "position":
        return torch.full_like(copies, types)
    return copies if competition == "type" else types * copies


def m_step(
    votes: Tensor,
    r: Tensor,
    variance_floor: float,
    centre: Tensor | float = 0.0,
    momentum: float = 0.0,
    former: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fit each parent to its votes (n, P, C, I, H), relative to `centre`, weighted by r_ij = R_ij a_i (n, P, C, I).

    Returns mu, sigma^2, S_j = sum_i r_ij, and (V_ij - mu_j)^2, which the E-step reuses. mu is the weighted mean, or
    (1 - momentum) mean + momentum * former (n, P, C, H). The variance is computed in a second pass around mu: in
    float32, E[V^2] - mu^2 loses all digits if votes agree far from 0.
    """
    support = r.sum(dim=-1)
    share = (support + SUPPORT_EPS).reciprocal()[..., None, None]
    weights = r.unsqueeze(-2) * share
    mu = weights @ votes - SUPPORT_EPS * share * centre  # relative to the centre; 0 without votes
    if momentum:
        former = former.unsqueeze(-2) if isinstance(former, Tensor) else former
        mu = (1 - momentum) * mu + momentum * (former - centre)
    squares = F.mse_loss(votes, mu.expand_as(votes), reduction="none")  # one pass; (V - mu)^2 takes two
    variance = (weights @ squares).squeeze(-2) + variance_floor
    return (mu + centre).squeeze(-2), variance, support, squares


def parent_logits(
    variance: Tensor, support: Tensor, beta_a: Tensor, beta_u: Tensor, scale: Tensor, activation: Activation
) -> Tensor:
    """Return the logits (n, P, C) of parents with sigma^2 (n, P, C, H) and S_j = sum_i r_ij (n, P, C).

    `cost`: lambda (beta_a - S_j sum_h (beta_u + log sigma_j^h)), the paper's minimum description length.
    `mean-cost`: the same for normalised r_ij, hence without S_j.
    `mixture`: those of a_j = S_j / sum_k S_k over the layer, as in a Gaussian mixture; without beta and lambda.
    """
    if activation == "mixture":
        layer = support.sum(dim=(1, 2), keepdim=True)
        return (support + SUPPORT_EPS).log() - ((1 + SHARE_EPS) * layer - support + SUPPORT_EPS).log()
    cost = (beta_u.unsqueeze(-1) + 0.5 * variance.log()).sum(dim=-1)
    return scale * (beta_a - (cost if activation == "mean-cost" else support * cost))


def e_step(squares: Tensor, parents: Routed, wiring: Wiring, competition: Competition = "field") -> Tensor:
    """Return R_ij = a_j p_ij / sum_k a_k p_ik (n, P, C, I), p_ij = N(V_ij; mu_j, sigma_j^2), all in log space."""
    distance = (squares @ parents.variance.reciprocal().unsqueeze(-1)).squeeze(-1)
    log_volume = parents.variance.log().sum(dim=-1)
    log_joint = (F.logsigmoid(parents.logits) - 0.5 * log_volume).unsqueeze(-1) - 0.5 * distance  # up to a constant
    if competition == "position":
        return log_joint.softmax(dim=2)
    if competition == "type":
        return (log_joint - _log_evidence_per_type(log_joint, wiring)).exp()
    return (log_joint - _log_evidence(log_joint, wiring).unsqueeze(2)).exp()


def _log_evidence(log_joint: Tensor, wiring: Wiring) -> Tensor:
    """Return log sum_k a_k p_ik over all parents k of each child, of every window and type, as (n, P, I)."""
    n, positions, _, children = log_joint.shape
    child_types = children // wiring.windows.shape[1]
    in_window = log_joint.logsumexp(dim=2).view(n, wiring.windows.numel(), child_types)
    padded = F.pad(in_window, (0, 0, 0, 1), value=LOG_ZERO)
    per_child = in_windows(padded, wiring.rivals).logsumexp(dim=2)
    return in_windows(per_child, wiring.owners).view(n, positions, children)


def _log_evidence_per_type(log_joint: Tensor, wiring: Wiring) -> Tensor:
    """Return log(sum_k a_k p_ik + OUTLIER_EPS max) over the windows of each child, for every type, as (n, P, C, I).

    The maximum, a constant in gradients, is over all children of a type and all windows: children that fit nowhere are
    outliers, whose assignments sum to less than 1, as in the released code.
    """
    n, positions, types, children = log_joint.shape
    slots = wiring.windows.shape[1]
    by_slot = log_joint.view(n, positions, types, slots, children // slots).transpose(2, 3).flatten(1, 2)
    padded = F.pad(by_slot, (0, 0, 0, 0, 0, 1), value=LOG_ZERO)
    outlier = by_slot.detach().amax(dim=1, keepdim=True) + math.log(OUTLIER_EPS)
    per_child = torch.logaddexp(in_windows(padded, wiring.rivals).logsumexp(dim=2), outlier)
    return in_windows(per_child, wiring.owners).transpose(2, 3).reshape(n, positions, types, children)
