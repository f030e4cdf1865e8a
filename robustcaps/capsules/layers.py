"""Capsule layers: the parameters of the routing functions and their initialisation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.capsules.interventions import Intervention
from robustcaps.capsules.routing import (
    Activation,
    Competition,
    Routed,
    Start,
    Step,
    Update,
    Wiring,
    dynamic_routing,
    em_routing,
    em_steps,
    matrix_votes,
    squash,
    vector_votes,
)

POSE_SIDE = 4
POSE_SIZE = POSE_SIDE * POSE_SIDE

POSE_STD = 0.05
"""Initial standard deviation of poses and votes: small compared to the variance floor, which softens the E-step."""
LOGIT_STD = 0.15
"""Initial standard deviation of the capsules' logits."""
EMPTY_LOGIT = -2.0
"""Initial logit of a capsule without votes, so that empty capsules cannot win."""


Schedule = Literal["constant", "rising", "released"]
"""lambda over the EM iterations: constant, rising linearly to its final value, or as in the authors' released code:
lambda (1 - 0.95^t)."""
RELEASED_BASE = 0.95
RELEASED_POSE_STD, RELEASED_ACTIVATION_STD, RELEASED_ACTIVATION_BIAS = 0.5, 3.0, -1.0
"""The released primary capsules: standard deviations of the weights, and the bias of the activations."""
BETA_U_PER_SIGMA_BIAS = (math.log(2 * math.pi) + 1) / 2
BETA_A_PER_ACTIVATION_BIAS = -2500.0
"""beta_u and beta_a of the paper in terms of the released parameters b_sigma and b_act (which Adam steps through)."""


@dataclass(frozen=True)
class ReleasedScale:
    """Initial values of a layer of the released code."""

    transforms: float
    """Standard deviation of W."""
    sigma_bias: float
    activation_bias: float
    inverse_temperature: float
    """2 B, the limit of lambda_t."""


RELEASED_CONVOLUTIONAL = ReleasedScale(0.3, 0.5, 0.5, 0.02)
RELEASED_CLASSES = ReleasedScale(0.01, 2.0, 1.0, 0.005)


@dataclass(frozen=True)
class DynamicRules:
    """Options of dynamic routing."""

    iterations: int = 3
    update: Update = "increment"
    transforms: Literal["full", "shared"] = "full"


@dataclass(frozen=True)
class EMRules:
    """Options of EM routing."""

    iterations: int = 3
    competition: Competition = "field"
    activation: Activation = "cost"
    variance_floor: float = 0.1
    schedule: Schedule = "constant"
    poses: Literal["matrix", "vector"] = "matrix"
    """A pose is a 4x4 matrix with 4x4 transforms, or a vector of 16 with 16x16 transforms."""
    betas: Literal["type", "shared"] = "type"
    """beta_a and beta_u per parent type, or one of each for the whole layer."""
    mean_momentum: float = 0.0
    """m of mu_t = (1 - m) mean + m mu_(t-1); 0 in the paper, 0.1 in the released code."""
    start: Start = "uniform"
    vote_std: float = POSE_STD
    """Initial standard deviation of poses and votes; the larger against the variance floor, the sharper the E-step."""


Result = TypeVar("Result")


def full_precision(method: Callable[..., Result]) -> Callable[..., Result]:
    """Run a layer's method in float32 under autocast: densities and routing logits need more than bfloat16."""

    @functools.wraps(method)
    def run(layer: nn.Module, *tensors: Tensor) -> Result:
        kind = tensors[0].device.type
        if not torch.is_autocast_enabled(kind):
            return method(layer, *tensors)
        with torch.autocast(kind, enabled=False):
            return method(layer, *(tensor.float() for tensor in tensors))

    return run


def capsule_grid(features: Tensor, types: int) -> Tensor:
    """Return conv features (n, types*pose, height, width) as capsules (n, height*width, types, pose).

    All components of a capsule come from one position: channels are split first, then moved behind the positions.
    """
    n, channels, height, width = features.shape
    return features.reshape(n, types, channels // types, height * width).permute(0, 3, 1, 2)


def learning_rate_scale(weights: Tensor) -> float:
    """Return the factor on the learning rate for weights of this scale, which Adam's step size ignores."""
    return math.sqrt(float(weights.detach().std()) / 0.5)


class VectorPrimaryCapsules(nn.Module):
    """The first vector capsules: a convolution, squashed."""

    def __init__(self, channels: int, *, types: int, pose: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.types = types
        self.conv = nn.Conv2d(channels, types * pose, kernel_size=kernel, stride=stride)

    def forward(self, features: Tensor) -> Tensor:
        """Return the capsules u (n, positions*types, pose)."""
        return squash(capsule_grid(self.conv(features), self.types).flatten(1, 2).to(self.conv.weight))


class VectorCapsules(nn.Module):
    """Fully connected vector capsules with dynamic routing."""

    def __init__(self, *, children: int, child_pose: int, parents: int, pose: int, rules: DynamicRules) -> None:
        super().__init__()
        self.rules = rules
        pairs = (parents,) if rules.transforms == "shared" else (children, parents)
        self.transforms = nn.Parameter(0.1 * torch.randn(*pairs, pose, child_pose))

    @full_precision
    def votes(self, children: Tensor) -> Tensor:
        """Return the votes (n, parents, children, pose) of capsules (n, children, child pose)."""
        return vector_votes(children, self.transforms)

    @full_precision
    def forward(self, children: Tensor) -> Tensor:
        """Return the parents s (n, parents, pose) before squashing."""
        return dynamic_routing(self.votes(children), iterations=self.rules.iterations, update=self.rules.update)


class MatrixPrimaryCapsules(nn.Module):
    """The first matrix capsules: 1x1 convolutions, linear for poses and logistic for activations."""

    fixed_bias: Tensor | None

    def __init__(self, channels: int, *, types: int, released: bool = False) -> None:
        """`released`: no learned biases, activations sigmoid(x - 1), and the authors' initial scales."""
        super().__init__()
        self.types = types
        self.pose = nn.Conv2d(channels, types * POSE_SIZE, kernel_size=1, bias=not released)
        self.activation = nn.Conv2d(channels, types, kernel_size=1, bias=not released)
        if released:
            nn.init.trunc_normal_(self.pose.weight, std=RELEASED_POSE_STD, a=-1.0, b=1.0)
            nn.init.trunc_normal_(self.activation.weight, std=RELEASED_ACTIVATION_STD, a=-6.0, b=6.0)
            bias = torch.cat([torch.zeros(types * POSE_SIZE), torch.full((types,), RELEASED_ACTIVATION_BIAS)])
        else:
            nn.init.normal_(self.pose.weight, std=POSE_STD * (2 / channels) ** 0.5)
            nn.init.zeros_(self.pose.get_parameter("bias"))
        self.register_buffer("fixed_bias", bias if released else None, persistent=False)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return poses (n, positions, types, 16) and activations (n, positions, types)."""
        parts = (self.pose, self.activation)
        weight = torch.cat([part.weight for part in parts])
        bias = self.fixed_bias
        if bias is None:
            bias = torch.cat([part.get_parameter("bias") for part in parts])
        output = F.linear(features.flatten(2).transpose(1, 2), weight.flatten(1), bias)  # one product for both
        poses, logits = torch.split(output, [self.types * POSE_SIZE, self.types], dim=2)
        return poses.reshape(*logits.shape, POSE_SIZE), logits.sigmoid()

    @torch.no_grad()
    def initialise(self, features: Tensor, pose_std: float = POSE_STD) -> None:
        """Scale the pose convolution so that the poses of these features have this standard deviation."""
        if self.fixed_bias is not None:
            return
        scale = pose_std / self.pose(features).std()
        for parameter in self.pose.parameters():
            parameter.mul_(scale)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return a learning rate for each parameter that matches its scale (valid after `initialise`)."""
        if self.fixed_bias is not None:
            return [{"params": list(self.parameters()), "lr": lr}]
        return [
            {"params": list(self.pose.parameters()), "lr": lr * learning_rate_scale(self.pose.weight)},
            {"params": list(self.activation.parameters()), "lr": lr},
        ]


class MatrixCapsules(nn.Module):
    """Matrix capsules with EM routing; the wiring makes them convolutional or fully connected."""

    windows: Tensor
    rivals: Tensor
    groups: Tensor | None
    offsets: Tensor | None
    inverse_temperature: Tensor

    def __init__(
        self,
        wiring: Wiring,
        *,
        child_types: int,
        types: int,
        rules: EMRules,
        shared: bool = False,
        offsets: Tensor | None = None,
        scale: ReleasedScale | None = None,
    ) -> None:
        """`shared`: one transform per pair of types for all slots; `offsets` (slots, 16) are added to the votes.

        `scale`: initial values of the released code, which are not adapted to data.
        """
        super().__init__()
        self.rules, self.types, self.scale = rules, types, scale
        pairs = (child_types, types) if shared else (wiring.windows.shape[1], child_types, types)
        side = POSE_SIDE if rules.poses == "matrix" else POSE_SIZE
        self.transforms = nn.Parameter(torch.randn(*pairs, side, side) / side**0.5)
        typical_variance = torch.tensor(rules.variance_floor + rules.vote_std**2)
        betas = types if rules.betas == "type" else 1
        self.beta_u = nn.Parameter((-0.5 * typical_variance.log()).repeat(betas))
        self.beta_a = nn.Parameter(torch.zeros(betas))
        self.register_buffer("inverse_temperature", torch.tensor(0.3))
        self.register_buffer("windows", wiring.windows, persistent=False)
        self.register_buffer("rivals", wiring.rivals, persistent=False)
        self.register_buffer("groups", wiring.groups, persistent=False)
        self.register_buffer("offsets", offsets, persistent=False)
        if scale is not None:
            self._set_scale(scale)

    @torch.no_grad()
    def _set_scale(self, scale: ReleasedScale) -> None:
        """Set the initial values of the released code."""
        nn.init.trunc_normal_(self.transforms, std=scale.transforms, a=-2 * scale.transforms, b=2 * scale.transforms)
        self.beta_u.fill_(scale.sigma_bias * BETA_U_PER_SIGMA_BIAS)
        self.beta_a.fill_(scale.activation_bias * BETA_A_PER_ACTIVATION_BIAS)
        self.inverse_temperature.fill_(scale.inverse_temperature)

    @property
    def wiring(self) -> Wiring:
        """Which children each parent sees."""
        return Wiring(windows=self.windows, rivals=self.rivals, groups=self.groups)

    @property
    def inverse_temperatures(self) -> Tensor:
        """lambda_t of each EM iteration (iterations,)."""
        iterations = self.rules.iterations
        if self.rules.schedule == "constant":
            return self.inverse_temperature.expand(iterations)
        if self.rules.schedule == "released":
            t = torch.arange(1, iterations + 1, device=self.windows.device)
            return self.inverse_temperature * (1 - RELEASED_BASE**t)
        return self.inverse_temperature * torch.linspace(1 / iterations, 1, iterations, device=self.windows.device)

    @full_precision
    def votes(self, poses: Tensor) -> Tensor:
        """Return the votes (n, positions, types, children, 16) of poses (n, child positions, child types, 16)."""
        return matrix_votes(poses, self.transforms, self.wiring, self.offsets)

    @full_precision
    def forward(self, poses: Tensor, activations: Tensor) -> Routed:
        """Route children, poses (n, positions, types, 16) and activations (n, positions, types), to their parents."""
        options = self._options()
        return em_routing(poses, activations, self.transforms, self.wiring, offsets=self.offsets, **options)

    def steps(self, poses: Tensor, activations: Tensor, intervention: Intervention | None = None) -> Iterator[Step]:
        """Yield the EM iterations of `forward` one by one, changed by an intervention; slow, for introspection."""
        options = self._options()
        if intervention is not None:
            scales = options["inverse_temperature"]
            scales = scales[-1:] if intervention.uniform else scales[: intervention.iterations]
            options |= {"inverse_temperature": scales, "constant_sigma": intervention.constant_sigma}
        return em_steps(self.votes(poses), activations, self.wiring, **options)

    def _options(self) -> dict[str, Any]:
        """Return the arguments of routing other than children and transforms."""
        return {
            "beta_a": self.beta_a.expand(self.types),
            "beta_u": self.beta_u.expand(self.types),
            "inverse_temperature": self.inverse_temperatures,
            "variance_floor": self.rules.variance_floor,
            "competition": self.rules.competition,
            "activation": self.rules.activation,
            "mean_momentum": self.rules.mean_momentum,
            "start": self.rules.start,
        }

    @torch.no_grad()
    def initialise(self, poses: Tensor, activations: Tensor) -> None:
        """Scale the parameters on real children so that routing starts soft and no capsule is saturated.

        Votes get the standard deviation `vote_std` (before offsets). Logits z get mean 0, standard deviation
        `LOGIT_STD` from the agreement of votes (more if supports differ), and `EMPTY_LOGIT` for a capsule without
        votes. With S = sum_i r_ij, z = lambda (beta_a - S sum_h (beta_u + log sigma_h)) and
        delta = 2 / (lambda mean S), beta_u -= delta / 16 and beta_a = -mean S delta keep mean z at 0.
        `mean-cost` has no S and hence no cost of an empty capsule; `mixture` has no betas.
        """
        if self.scale is not None:
            return
        self.transforms.mul_(self.rules.vote_std / self._vote_std(poses))
        if self.rules.activation == "mixture":
            return
        routed = self(poses, activations)
        log_sigma = 0.5 * routed.variance.log()
        self.beta_u.fill_(-log_sigma.mean())
        fit = -(log_sigma - log_sigma.mean()).sum(dim=-1)
        last = self.inverse_temperatures[-1] / self.inverse_temperature  # of the schedule, 1 unless "released"
        if self.rules.activation == "mean-cost":
            self.inverse_temperature.copy_(LOGIT_STD / (last * fit.std()))
            return
        self.inverse_temperature.copy_(LOGIT_STD / (last * (routed.support * fit).std()))
        support = routed.support.mean()
        delta = -EMPTY_LOGIT / (last * self.inverse_temperature * support)
        self.beta_u.sub_(delta / POSE_SIZE)
        self.beta_a.fill_(-support * delta)

    def _vote_std(self, poses: Tensor) -> Tensor:
        """Return the standard deviation of all votes without offsets, a few samples at a time to save memory."""
        count, total, square = 0, torch.zeros(()).double(), torch.zeros(()).double()
        for some in torch.split(poses, 4):
            votes = matrix_votes(some, self.transforms, self.wiring).double().cpu()
            count, total, square = count + votes.numel(), total + votes.sum(), square + votes.square().sum()
        return (square / count - (total / count).square()).sqrt().to(poses)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return a learning rate for each parameter that matches its scale (valid after `initialise`)."""
        if self.scale is not None:
            return [
                {"params": [self.transforms], "lr": lr},
                {"params": [self.beta_u], "lr": lr * BETA_U_PER_SIGMA_BIAS},
                {"params": [self.beta_a], "lr": lr * abs(BETA_A_PER_ACTIVATION_BIAS)},
            ]
        return [
            {"params": [self.transforms], "lr": lr * learning_rate_scale(self.transforms)},
            {"params": [self.beta_u], "lr": lr * 0.1},
            {"params": [self.beta_a], "lr": lr * 5 / float(self.inverse_temperature)},
        ]
