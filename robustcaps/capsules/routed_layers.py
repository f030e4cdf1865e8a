"""Capsule layers that differ in nothing but their routing: 4x4 poses, 4x4 transforms, one activation per capsule.

A layer takes children, poses M_i (n, Q, B, 16) and activations a_i (n, Q, B), and returns `Parents`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.capsules.interventions import CONSTANT_SIGMA, UNIFORM, Intervention, fewer_iterations
from robustcaps.capsules.layers import (
    POSE_SIDE,
    POSE_SIZE,
    EMRules,
    MatrixCapsules,
    full_precision,
    learning_rate_scale,
)
from robustcaps.capsules.routing import (
    Competition,
    Routed,
    Step,
    Update,
    Wiring,
    dynamic_window_routing,
    inverted_attention_routing,
    length_logit,
    matrix_votes,
    routing_logits,
    self_attention_routing,
    self_routing,
    uniform_coupling,
    uniform_routing,
)
from robustcaps.capsules.routing.em import MAX_CPU_VOTES, _reuse_memory

Sharing = Literal["none", "slots", "children"]
"""What shares a transform: nothing (one per slot, child type and parent type), the slots of a window, or all children
of a parent type."""

SCALE_STEPS = 8
"""Iterations that find the initial scale of the transforms; each halves the error of its logarithm."""
UNIT_VOTE = POSE_SIZE**-0.5
"""Standard deviation of the components of a vote of length 1."""
TINY = 1e-12
"""Added to squared lengths: the direction of an empty capsule is 0 with a finite gradient."""


@dataclass(frozen=True, eq=False)
class Parents:
    """The capsules that a layer finds, and how its children were divided among them."""

    poses: Tensor
    """(n, P, C, 16)."""
    logits: Tensor
    """(n, P, C), unsaturated."""
    coefficients: Tensor
    """c_ij (n, P, C, I)."""

    @property
    def activations(self) -> Tensor:
        """The capsules' activations a (n, P, C) in [0,1]."""
        return self.logits.sigmoid()


class RoutedCapsules(nn.Module, ABC):
    """Base class: the transforms, and the votes a_i M_i W_ij."""

    windows: Tensor
    rivals: Tensor

    def __init__(
        self, wiring: Wiring, *, child_types: int, types: int, competition: Competition, sharing: Sharing
    ) -> None:
        super().__init__()
        self.child_types, self.types = child_types, types
        self.competition: Competition = "field" if len(wiring.windows) == 1 else competition
        self.pairs = {
            "none": (wiring.windows.shape[1], child_types, types),
            "slots": (child_types, types),
            "children": (types,),
        }[sharing]
        self.transforms = nn.Parameter(torch.randn(*self.pairs, POSE_SIDE, POSE_SIDE) / POSE_SIDE)
        self.register_buffer("windows", wiring.windows, persistent=False)
        self.register_buffer("rivals", wiring.rivals, persistent=False)

    @property
    def wiring(self) -> Wiring:
        """Which children each parent sees."""
        return Wiring(windows=self.windows, rivals=self.rivals)

    @property
    def all_transforms(self) -> Tensor:
        """The transforms as `matrix_votes` takes them."""
        if len(self.pairs) > 1:
            return self.transforms
        return self.transforms.expand(self.child_types, *self.transforms.shape)

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """The interventions that `forward` knows."""
        return (UNIFORM,)

    @full_precision
    def forward(self, poses: Tensor, activations: Tensor, intervention: Intervention | None = None) -> Parents:
        """Route the children to their parents, in parts of as many samples as suit the device."""
        samples = self._samples_per_part(poses)
        children = zip(torch.split(poses, samples), torch.split(activations, samples), strict=True)
        parts = [self.find_parents(*part, intervention) for part in children]
        return Parents(
            poses=torch.cat([part.poses for part in parts]),
            logits=torch.cat([part.logits for part in parts]),
            coefficients=torch.cat([part.coefficients for part in parts]),
        )

    @abstractmethod
    def find_parents(self, poses: Tensor, activations: Tensor, intervention: Intervention | None) -> Parents:
        """Route the children of a part of a batch."""

    def _samples_per_part(self, poses: Tensor) -> int:
        """Return how many samples to route together: on a CPU as many as fit its cache (see `em`)."""
        if poses.device.type != "cpu" or torch.compiler.is_compiling():
            return max(1, len(poses))
        _reuse_memory()
        votes = self.windows.numel() * self.child_types * self.types * POSE_SIZE
        return max(1, MAX_CPU_VOTES // votes)

    def coefficients(self, poses: Tensor, activations: Tensor) -> Tensor:
        """Return how each child is divided among its parents (n, P, C, I)."""
        parents: Parents = self(poses, activations)
        return parents.coefficients

    @abstractmethod
    def unrouted_logits(self, poses: Tensor, activations: Tensor) -> Tensor:
        """Return logits (n, P, C) of uniformly weighted votes."""

    @full_precision
    def votes(self, poses: Tensor, activations: Tensor) -> Tensor:
        """Return the votes (n, P, C, I, 16), scaled by the children's activations."""
        return matrix_votes(gate(poses, activations), self.all_transforms, self.wiring)

    def initialise(self, poses: Tensor, activations: Tensor) -> None:
        """Scale the transforms on real children so that logits start around 0."""
        with torch.no_grad():
            for _ in range(SCALE_STEPS):
                self.transforms.mul_((-0.25 * self(poses, activations).logits.mean()).exp())

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return a learning rate for each parameter that matches its scale (valid after `initialise`)."""
        others = [parameter for parameter in self.parameters() if parameter is not self.transforms]
        groups = [{"params": [self.transforms], "lr": lr * learning_rate_scale(self.transforms)}]
        return [*groups, {"params": others, "lr": lr}] if others else groups


def gate(poses: Tensor, activations: Tensor) -> Tensor:
    """Return a_i M_i: a vector whose length grows with the activation, as in vector capsules."""
    return poses * activations.unsqueeze(-1)


def _iterations(iterations: int, intervention: Intervention | None) -> int:
    """Return the number of iterations, changed by an intervention; the first one has uniform coefficients."""
    if intervention is None:
        return iterations
    return 1 if intervention.uniform else intervention.iterations or iterations


class LengthCapsules(RoutedCapsules):
    """Base class of routings whose activation is the length of the squashed parent s_j and whose pose its direction.

    Hence a_j M_j = squash(s_j), as in vector capsules.
    """

    def find_parents(self, poses: Tensor, activations: Tensor, intervention: Intervention | None) -> Parents:
        """Route the children of a part of a batch."""
        s, c = self.route(poses, activations, intervention)
        direction = s * (s.square().sum(dim=-1, keepdim=True) + TINY).rsqrt()
        return Parents(poses=direction, logits=length_logit(s), coefficients=c)

    @abstractmethod
    def route(self, poses: Tensor, activations: Tensor, intervention: Intervention | None) -> tuple[Tensor, Tensor]:
        """Return s_j (n, P, C, 16) and c_ij (n, P, C, I)."""

    @full_precision
    def unrouted_logits(self, poses: Tensor, activations: Tensor) -> Tensor:
        """Return log |squash(s_j)| of s_j = sum_i v_ij / J."""
        s = uniform_routing(gate(poses, activations), self.all_transforms, self.wiring, competition=self.competition)
        return F.logsigmoid(length_logit(s))


class UniformCapsules(LengthCapsules):
    """No routing: all coefficients are equal."""

    def route(self, poses: Tensor, activations: Tensor, _: Intervention | None) -> tuple[Tensor, Tensor]:
        """Return the sum of all votes / J, and 1/J."""
        options: dict[str, Any] = {"competition": self.competition}
        s = uniform_routing(gate(poses, activations), self.all_transforms, self.wiring, **options)
        c = uniform_coupling(self.wiring, s, types=self.types, **options).repeat_interleave(self.child_types, dim=1)
        return s, c.unsqueeze(1).expand(len(s), -1, self.types, -1)


class DynamicCapsules(LengthCapsules):
    """Dynamic routing."""

    def __init__(self, wiring: Wiring, *, iterations: int, update: Update, **body: Any) -> None:
        super().__init__(wiring, **body)
        self.iterations, self.update = iterations, update

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """Uniform coefficients, which are those of the first iteration, and fewer iterations."""
        return (UNIFORM, *fewer_iterations(self.iterations)[1:])

    def route(self, poses: Tensor, activations: Tensor, intervention: Intervention | None) -> tuple[Tensor, Tensor]:
        """Return the result of `dynamic_window_routing`."""
        return dynamic_window_routing(
            self.votes(poses, activations),
            self.wiring,
            iterations=_iterations(self.iterations, intervention),
            update=self.update,
            competition=self.competition,
        )


class SelfAttentionCapsules(LengthCapsules):
    """The self-attention of Efficient-CapsNet, with a prior that the slots share if they share transforms."""

    def __init__(self, wiring: Wiring, **body: Any) -> None:
        super().__init__(wiring, **body)
        self.prior = nn.Parameter(torch.zeros(self.pairs))

    def route(self, poses: Tensor, activations: Tensor, intervention: Intervention | None) -> tuple[Tensor, Tensor]:
        """Return the result of `self_attention_routing`; an intervention leaves the learned prior as it is."""
        prior = self.prior.expand(self.windows.shape[1], self.child_types, self.types).permute(2, 0, 1).flatten(1)
        return self_attention_routing(
            self.votes(poses, activations),
            self.wiring,
            prior=prior,
            competition=self.competition,
            uniform=intervention is not None and intervention.uniform,
        )


class InvertedAttentionCapsules(RoutedCapsules):
    """Inverted dot-product attention; the linear read-out of the class capsules gives every capsule's activation."""

    def __init__(self, wiring: Wiring, *, iterations: int, **body: Any) -> None:
        super().__init__(wiring, **body)
        self.iterations = iterations
        self.norm = nn.LayerNorm(POSE_SIZE)
        self.readout = nn.Linear(POSE_SIZE, 1)

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """Uniform coefficients, which are those of the first iteration, and fewer iterations."""
        return (UNIFORM, *fewer_iterations(self.iterations)[1:])

    def find_parents(self, poses: Tensor, activations: Tensor, intervention: Intervention | None) -> Parents:
        """Route the children of a part of a batch."""
        return self._route(self.votes(poses, activations), _iterations(self.iterations, intervention))

    @full_precision
    def unrouted_logits(self, poses: Tensor, activations: Tensor) -> Tensor:
        """Return the read-out of a single iteration, which weights all votes equally."""
        return self._route(self.votes(poses, activations), 1).logits

    def _route(self, votes: Tensor, iterations: int) -> Parents:
        p, c = inverted_attention_routing(
            votes,
            self.wiring,
            iterations=iterations,
            gain=self.norm.weight,
            bias=self.norm.bias,
            competition=self.competition,
        )
        return Parents(poses=p, logits=self.readout(p).squeeze(-1), coefficients=c)

    def initialise(self, poses: Tensor, activations: Tensor) -> None:
        """Scale the transforms so that votes have length 1, which makes the first attention soft."""
        with torch.no_grad():
            self.transforms.mul_(UNIT_VOTE / self.votes(poses, activations).std())


class SelfRoutingCapsules(RoutedCapsules):
    """Self-routing: a linear map of each child's pose decides on its coefficients.

    Activations do not depend on transforms: those of class capsules, whose poses no loss uses, stay as they are.
    """

    def __init__(self, wiring: Wiring, **body: Any) -> None:
        super().__init__(wiring, **body)
        self.weights = nn.Parameter(torch.randn(*self.pairs, POSE_SIZE) / POSE_SIZE**0.5)
        self.bias = nn.Parameter(torch.zeros(self.pairs))

    def find_parents(self, poses: Tensor, activations: Tensor, intervention: Intervention | None) -> Parents:
        """Route the children of a part of a batch; uniform coefficients leave nothing that tells the parents apart."""
        votes = matrix_votes(poses, self.all_transforms, self.wiring)
        logits = routing_logits(poses, self.weights, self.bias, self.wiring)
        if intervention is not None and intervention.uniform:
            logits = torch.zeros_like(logits)
        u, log_odds, c = self_routing(votes, activations, logits, self.wiring, competition=self.competition)
        return Parents(poses=u, logits=log_odds, coefficients=c)

    @full_precision
    def unrouted_logits(self, poses: Tensor, activations: Tensor) -> Tensor:
        """Return the mean routing logits of the children, weighted by their activations.

        Activations do not depend on the votes for poses: what a child says about a parent is its routing logit.
        """
        logits = routing_logits(poses, self.weights, self.bias, self.wiring)
        a = activations[:, self.windows].flatten(2).unsqueeze(2)
        return (logits * a).sum(dim=-1) / (a.sum(dim=-1) + TINY)

    @torch.no_grad()
    def initialise(self, poses: Tensor, activations: Tensor) -> None:
        """Scale weights and transforms on real children: routing logits and poses of parents get variance 1."""
        self.weights.div_(routing_logits(poses, self.weights, self.bias, self.wiring).std())
        self.transforms.div_(self(poses, activations).poses.std())


class EMCapsules(nn.Module):
    """EM routing, with the methods of `RoutedCapsules`."""

    def __init__(self, wiring: Wiring, *, child_types: int, types: int, sharing: Sharing, rules: EMRules) -> None:
        super().__init__()
        if len(wiring.windows) == 1:
            rules = replace(rules, competition="field")  # with a single window the types compete in any case
        self.capsules = MatrixCapsules(
            wiring, child_types=child_types, types=types, rules=rules, shared=sharing == "slots"
        )

    @property
    def wiring(self) -> Wiring:
        """Which children each parent sees."""
        return self.capsules.wiring

    @property
    def competition(self) -> Competition:
        """Which parents compete for a child."""
        return self.capsules.rules.competition

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """Uniform assignments, sigma constant in the logits, and fewer iterations."""
        return (UNIFORM, CONSTANT_SIGMA, *fewer_iterations(self.capsules.rules.iterations))

    def forward(self, poses: Tensor, activations: Tensor, intervention: Intervention | None = None) -> Routed:
        """Route the children to their parents."""
        if intervention is not None:
            return self.last_step(poses, activations, intervention).parents
        routed: Routed = self.capsules(poses, activations)
        return routed

    def last_step(self, poses: Tensor, activations: Tensor, intervention: Intervention | None = None) -> Step:
        """Return the last EM iteration; slow."""
        *_, last = self.capsules.steps(poses, activations, intervention)
        return last

    def votes(self, poses: Tensor, _: Tensor) -> Tensor:
        """Return the votes (n, P, C, I, 16); activations do not scale them."""
        return self.capsules.votes(poses)

    def coefficients(self, poses: Tensor, activations: Tensor) -> Tensor:
        """Return the assignments R_ij (n, P, C, I) of the last iteration; slow."""
        return self.last_step(poses, activations).assignments

    def unrouted_logits(self, poses: Tensor, activations: Tensor) -> Tensor:
        """Return the logits (n, P, C) of one M-step with uniform assignments."""
        return next(self.capsules.steps(poses, activations)).parents.logits

    def initialise(self, poses: Tensor, activations: Tensor) -> None:
        """Scale the parameters on real children."""
        self.capsules.initialise(poses, activations)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return a learning rate for each parameter that matches its scale (valid after `initialise`)."""
        return self.capsules.parameter_groups(lr)
