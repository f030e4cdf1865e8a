"""Routing as the papers' formulas are usually written in PyTorch: the votes of a whole batch in memory, broadcast.

The reference for speed and memory, not for numbers (that is `robustcaps.capsules.routing`), yet it computes the same.
`matrix_capsnet` and `vector_capsnet` return a copy of one of our networks that routes this way.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.capsules.layers import MatrixCapsules, VectorCapsules
from robustcaps.capsules.routing import Routed
from robustcaps.models.matrix_capsnet import MatrixCapsNet
from robustcaps.models.vector_capsnet import VectorCapsNet

EPSILON = 1e-12
"""Keeps quotients finite where a parent has no children, or a vector no length."""


def matrix_capsnet(model: MatrixCapsNet) -> MatrixCapsNet:
    """Return a copy of a matrix capsule network, with the same weights, that routes by the textbook."""
    plain = copy.deepcopy(model)
    for name in ("first", "second", "class_capsules"):
        setattr(plain, name, PlainMatrixCapsules(getattr(plain, name)))
    return plain


def vector_capsnet(model: VectorCapsNet) -> VectorCapsNet:
    """Return a copy of a vector capsule network, with the same weights, that routes by the textbook."""
    plain = copy.deepcopy(model)
    setattr(plain, "class_capsules", PlainVectorCapsules(plain.class_capsules))  # noqa: B010 - another type, knowingly
    return plain


class PlainMatrixCapsules(nn.Module):
    """EM routing (Hinton et al. 2018, procedure 1) with the weights of a layer of ours.

    Symbols: n samples, P parent positions of C types, I children in the window of each, poses of 16 = 4x4 numbers.
    """

    windows: Tensor
    offsets: Tensor | None

    def __init__(self, layer: MatrixCapsules) -> None:
        super().__init__()
        if (layer.rules.activation, layer.rules.poses) != ("cost", "matrix"):
            raise ValueError("the textbook has 4x4 poses and the activation of the paper only.")
        self.rules, self.types = layer.rules, layer.types
        self.transforms, self.beta_u, self.beta_a = layer.transforms, layer.beta_u, layer.beta_a
        self.inverse_temperatures = layer.inverse_temperatures.tolist()
        self.register_buffer("windows", layer.windows)
        self.register_buffer("offsets", layer.offsets)

    def forward(self, poses: Tensor, activations: Tensor) -> Routed:
        """Route children, poses (n, positions, types, 16) and activations (n, positions, types), to parents."""
        votes = self.votes(poses)
        a = activations[:, self.windows].flatten(2).unsqueeze(2)
        R = self.equal_assignments(activations)
        first, *later = self.inverse_temperatures
        parents = self.m_step(votes, R * a, first)
        for scale in later:
            R = self.e_step(votes, parents, children=activations)
            parents = self.m_step(votes, R * a, scale)
        return parents

    def votes(self, poses: Tensor) -> Tensor:
        """Return V_ij = M_i W_ij (n, P, C, I, 16), with the coordinates of the children added where there are any."""
        n, (positions, slots) = len(poses), self.windows.shape
        M = poses[:, self.windows].reshape(n, positions, 1, slots, -1, 4, 4)
        W = self.transforms if self.transforms.ndim == 5 else self.transforms.unsqueeze(0)
        votes = (M @ W.permute(2, 0, 1, 3, 4)).flatten(-2)
        if self.offsets is not None:
            votes = votes + self.offsets[:, None]
        return votes.flatten(3, 4)

    def equal_assignments(self, activations: Tensor) -> Tensor:
        """Return R_ij = 1 / the number of parents that child i has (1, P, 1, I)."""
        _, positions, child_types = activations.shape
        windows_of_child = torch.bincount(self.windows.flatten(), minlength=positions)
        if self.rules.competition == "position":
            windows_of_child = torch.ones_like(windows_of_child)
        R = 1 / (self.types * windows_of_child[self.windows].to(activations))
        return R.repeat_interleave(child_types, dim=1)[None, :, None]

    def m_step(self, votes: Tensor, r: Tensor, scale: float) -> Routed:
        """Fit each parent to the votes for it, weighted by r_ij = R_ij a_i (n, P, C, I)."""
        r = r.unsqueeze(-1)
        support = r.sum(dim=3)
        mu = (r * votes).sum(dim=3) / (support + EPSILON)
        deviation = votes - mu.unsqueeze(3)
        variance = (r * deviation**2).sum(dim=3) / (support + EPSILON) + self.rules.variance_floor
        cost = (self.beta_u[:, None] + 0.5 * torch.log(variance)) * support
        logits = scale * (self.beta_a - cost.sum(dim=-1))
        return Routed(poses=mu, logits=logits, variance=variance, support=support.squeeze(-1))

    def e_step(self, votes: Tensor, parents: Routed, *, children: Tensor) -> Tensor:
        """Return R_ij = a_j p_ij / sum_k a_k p_ik (n, P, C, I), p_ij = N(V_ij; mu_j, sigma_j^2), in log space."""
        mu, variance = parents.poses.unsqueeze(3), parents.variance.unsqueeze(3)
        log_p = (-((votes - mu) ** 2) / (2 * variance) - 0.5 * torch.log(variance)).sum(dim=-1)
        log_joint = F.logsigmoid(parents.logits).unsqueeze(-1) + log_p
        if self.rules.competition == "position":
            return log_joint.softmax(dim=2)
        return self.share_out(log_joint, children)

    def share_out(self, log_joint: Tensor, children: Tensor) -> Tensor:
        """Return exp(log_joint), normalised over all parents of a child, of every position and type."""
        n, positions, types, _ = log_joint.shape
        slots = self.windows.flatten()
        per_slot = log_joint.view(n, positions, types, self.windows.shape[1], -1).transpose(1, 2).flatten(2, 3)
        child_of_slot = slots[None, :, None].expand(n, -1, children.shape[2])
        top = torch.full_like(children, -torch.inf)
        top = top.scatter_reduce(1, child_of_slot, per_slot.detach().amax(dim=1), "amax")
        joint = (per_slot - top[:, None, slots]).exp()
        evidence = torch.zeros_like(children).index_add(1, slots, joint.sum(dim=1))
        R = joint / evidence[:, None, slots]
        return R.view(n, types, positions, -1).transpose(1, 2)


class PlainVectorCapsules(nn.Module):
    """Dynamic routing (Sabour et al. 2017, procedure 1) with the weights of a layer of ours."""

    def __init__(self, layer: VectorCapsules) -> None:
        super().__init__()
        if (layer.rules.update, layer.rules.transforms) != ("increment", "full"):
            raise ValueError("the textbook adds to b, and has one transform per pair of capsules.")
        self.iterations = layer.rules.iterations
        self.transforms = layer.transforms

    def forward(self, u: Tensor) -> Tensor:
        """Return the parents s (n, parents, out) before squashing, of children u (n, children, in)."""
        W = self.transforms.expand(len(u), *self.transforms.shape)
        u_hat = (W @ u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(u_hat.shape[:3], dtype=u.dtype, device=u.device)
        for t in range(self.iterations):
            c = F.softmax(b, dim=2)
            s = (c.unsqueeze(-1) * u_hat).sum(dim=1)
            if t + 1 < self.iterations:
                b = b + (u_hat * squash(s).unsqueeze(1)).sum(dim=-1)
        return s


def squash(s: Tensor) -> Tensor:
    """Return |s|^2 / (1 + |s|^2) * s / |s|."""
    squared = (s**2).sum(dim=-1, keepdim=True)
    return squared / (1 + squared) * s / torch.sqrt(squared + EPSILON)
