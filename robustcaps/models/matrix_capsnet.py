"""Matrix capsules with EM routing (Hinton, Sabour, Frosst, ICLR 2018)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustcaps.capsules.health import routing_statistics
from robustcaps.capsules.interventions import CONSTANT_SIGMA, UNIFORM, Intervention, fewer_iterations
from robustcaps.capsules.layers import (
    POSE_SIDE,
    POSE_SIZE,
    POSE_STD,
    RELEASED_CLASSES,
    RELEASED_CONVOLUTIONAL,
    EMRules,
    MatrixCapsules,
    MatrixPrimaryCapsules,
    Schedule,
)
from robustcaps.capsules.losses import margin_loss, released_spread_margin, spread_loss, spread_margin
from robustcaps.capsules.routing import (
    Activation,
    Competition,
    Pairing,
    Routed,
    Start,
    Step,
    convolution,
    fully_connected,
)
from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, ClassifierOutput, TrainingRecipe
from robustcaps.models.inference import eval_mode
from robustcaps.models.normalise import Normalise, build_normaliser
from robustcaps.registry import MODELS

Filters = Annotated[int, Field(ge=1, description="A: channels of the first convolution")]
Types = Annotated[
    tuple[
        Annotated[int, Field(ge=1)],
        Annotated[int, Field(ge=1)],
        Annotated[int, Field(ge=1)],
    ],
    Field(description="B, C, D: capsule types of the primary and the two convolutional layers"),
]
Iterations = Annotated[int, Field(ge=1, description="EM iterations")]
FieldCompetition = Annotated[
    Competition,
    Field(description="parents compete for a child across all windows (field) or within each window (position)"),
]
Coordinates = Annotated[bool, Field(description="add a child's image coordinates to its votes for the classes")]
LossName = Literal["spread", "margin", "cross-entropy"]
ActivationRule = Annotated[
    Activation,
    Field(description="activation of a parent: description length, that of normalised votes, or mixture weight"),
]
Poses = Annotated[
    Literal["matrix", "vector"],
    Field(description="4x4 matrices, or vectors of 16 with 16x16 transforms"),
]
Betas = Annotated[Literal["type", "shared"], Field(description="beta parameters per capsule type or per layer")]
LambdaSchedule = Annotated[Schedule, Field(description="lambda over the EM iterations")]
MeanMomentum = Annotated[
    float, Field(ge=0, lt=1, description="m of mu_t = (1 - m) mean + m mu_(t-1); 0 in the paper, 0.1 as released")
]
AssignmentStart = Annotated[
    Start, Field(description="first assignments: equal for competing parents, or 1 / parent types as released")
]
VoteStd = Annotated[
    float, Field(gt=0, description="initial standard deviation of votes; larger values sharpen assignments")
]
VarianceFloor = Annotated[float, Field(gt=0, description="added to each sigma^2; larger values soften assignments")]


Variant = Annotated[
    Literal["paper", "released"],
    Field(description="the network of the paper, or that of the authors' released code"),
]
LOGGED_STATISTICS = ("activation", "saturated", "sigma", "sigma_min", "entropy")
"""Statistics of routing in the training log."""
RELEASED_RULES: dict[str, Any] = {
    "competition": "type",
    "variance_floor": 5e-4,
    "schedule": "released",
    "mean_momentum": 0.1,
    "start": "types",
}
"""Options of EM routing in the released code, where it differs from the paper."""

RECEPTIVE_FIELD = 17
"""Width in pixels of the receptive field of a capsule in the second convolutional layer."""
STRIDE = 4
"""Distance in pixels between the receptive fields of neighbouring capsules."""


def coordinate_offsets(grid: int, size: int) -> Tensor:
    """Return the offsets that coordinate addition adds to the votes from each position (grid*grid, 16).

    The first two elements of the pose's right-hand column hold the centre (row, column) of the position's receptive
    field, as a fraction of the image size.
    """
    centres = (torch.arange(grid) * STRIDE + RECEPTIVE_FIELD / 2) / size
    offsets = torch.zeros(grid, grid, POSE_SIDE, POSE_SIDE)
    offsets[..., 0, -1] = centres[:, None]
    offsets[..., 1, -1] = centres[None, :]
    return offsets.view(grid * grid, POSE_SIZE)


def released_offsets(grid: int, size: int) -> Tensor:
    """Return the released offsets (grid*grid, 16): centres of receptive fields, in pixels / 100.

    Pixels are numbered from -size // 2. Each of its three convolutions of the coordinates swaps rows and columns, so
    that the column is in component 0 and the row in component 1.
    """
    centres = (torch.arange(grid) * STRIDE + RECEPTIVE_FIELD // 2 + -size // 2) / 100
    offsets = torch.zeros(grid, grid, POSE_SIZE)
    offsets[..., 0] = centres[None, :]
    offsets[..., 1] = centres[:, None]
    return offsets.view(grid * grid, POSE_SIZE)


class MatrixCapsNet(CapsuleClassifier):
    """Convolution, primary capsules, two convolutional capsule layers, one capsule per class."""

    recipe: ClassVar[TrainingRecipe] = TrainingRecipe(epochs=10, batch_size=16, lr=1.5e-3, clip=10.0)
    """At twice this learning rate the class votes can diverge, which drives all activations to 0."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        size: int,
        normalise: Normalise,
        filters: int,
        types: tuple[int, int, int],
        rules: EMRules,
        coordinates: bool,
        loss: LossName,
        variant: Literal["paper", "released"] = "paper",
    ) -> None:
        super().__init__(classes=classes, channels=channels, size=size)
        if size < RECEPTIVE_FIELD:
            raise UserError(f"matrix-capsnet: images of {size}x{size} are too small; they must be at least 17x17.")
        if rules.activation == "mixture" and rules.iterations == 1:
            raise UserError(
                "matrix-capsnet: activation 'mixture' needs at least 2 iterations: all mixture weights start equal."
            )
        self.loss: LossName = loss
        self.released = variant == "released"
        primary, first, second = types
        primary_grid = (size - 5) // 2 + 1
        first_grid = (primary_grid - 3) // 2 + 1
        second_grid = first_grid - 2
        self.normaliser = build_normaliser(normalise)
        self.stem = _released_stem(channels, filters) if self.released else _stem(channels, filters)
        self.primary = MatrixPrimaryCapsules(filters, types=primary, released=self.released)
        pairing: Pairing = "stride-1" if self.released and rules.competition == "type" else "child"
        scale = RELEASED_CONVOLUTIONAL if self.released else None
        convolutional: dict[str, Any] = {"rules": rules, "scale": scale}
        first_wiring = convolution(primary_grid, 3, 2, pairing=pairing)
        second_wiring = convolution(first_grid, 3, 1, pairing=pairing)
        self.first = MatrixCapsules(first_wiring, child_types=primary, types=first, **convolutional)
        self.second = MatrixCapsules(second_wiring, child_types=first, types=second, **convolutional)
        make_offsets = released_offsets if self.released else coordinate_offsets
        self.class_capsules = MatrixCapsules(
            fully_connected(second_grid**2),
            child_types=second,
            types=classes,
            rules=replace(rules, competition="field"),  # with a single window the classes compete in any case
            shared=True,
            offsets=make_offsets(second_grid, size) if coordinates else None,
            scale=RELEASED_CLASSES if self.released else None,
        )

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return the class capsules' logits (the arguments of the logistic function), activations and poses."""
        below = self._below_classes(images)
        routed: Routed = self.class_capsules(below.poses, below.activations)
        return ClassifierOutput(
            logits=routed.logits.squeeze(1), scores=routed.activations.squeeze(1), poses=routed.poses.squeeze(1)
        )

    @property
    def capsule_layers(self) -> dict[str, MatrixCapsules]:
        """The routed layers by name."""
        return {"first": self.first, "second": self.second, "classes": self.class_capsules}

    def routing_steps(self, images: Tensor, intervention: Intervention | None = None) -> dict[str, list[Step]]:
        """Return the EM iterations of every capsule layer: {"first": [...], "second": [...], "classes": [...]}."""
        poses, activations = self.primary(self.stem(self.normaliser(images)))
        steps = {}
        for name, layer in self.capsule_layers.items():
            steps[name] = list(layer.steps(poses, activations, intervention))
            last = steps[name][-1].parents
            poses, activations = last.poses, last.activations
        return steps

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """Uniform assignments, sigma constant in the logits (if they depend on it), and fewer iterations."""
        rules = self.class_capsules.rules
        sigma = () if rules.activation == "mixture" else (CONSTANT_SIGMA,)
        return (UNIFORM, *sigma, *fewer_iterations(rules.iterations))

    def intervened_logits(self, images: Tensor, intervention: Intervention) -> Tensor:
        """Return the logits (n, classes) with changed routing in all capsule layers."""
        logits = [
            self.routing_steps(image, intervention)["classes"][-1].parents.logits for image in torch.split(images, 1)
        ]
        return torch.cat(logits).squeeze(1)

    def routing_statistics(self, images: Tensor) -> dict[str, dict[str, Tensor]]:
        """Return statistics of each layer's last EM iteration and the capsules' activations."""
        found: dict[str, dict[str, list[Tensor]]] = {name: {} for name in self.capsule_layers}
        for image in torch.split(images, 1):  # the votes of one image take 0.2 GB in the large network
            for name, steps in self.routing_steps(image).items():
                layer, last = self.capsule_layers[name], steps[-1]
                values = routing_statistics(last, layer.wiring, layer.rules.competition)
                values["sigma_ratio"] = values["sigma"] / layer.rules.variance_floor**0.5
                values["activations"] = last.parents.activations.amax(dim=1)
                for key, value in values.items():
                    found[name].setdefault(key, []).append(value)
        return {name: {key: torch.cat(parts) for key, parts in layer.items()} for name, layer in found.items()}

    @torch.inference_mode()
    def health_metrics(self, images: Tensor) -> dict[str, float]:
        """Return `routing_statistics` of each layer's last EM iteration over all images: {"first_entropy": ...}."""
        metrics = {}
        for layer, statistics in self.routing_statistics(images).items():
            for name in LOGGED_STATISTICS:
                values = statistics[name]
                metrics[f"{layer}_{name}"] = float(values.min() if name.endswith("_min") else values.mean())
        return metrics

    def votes(self, images: Tensor) -> Tensor:
        """Return the votes for the class capsules (n, classes, children, 16)."""
        return self.class_capsules.votes(self._below_classes(images).poses).squeeze(1)

    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of one M-step with uniform assignments, and those of `classify`.

        Uniform assignments make all mixture weights equal; for activation 'mixture' the logits are therefore the
        agreement of the votes, -sum_h log sigma_j^h.
        """
        below = self._below_classes(images)
        uniform = next(self.class_capsules.steps(below.poses, below.activations)).parents
        mixture = self.class_capsules.rules.activation == "mixture"
        unrouted = -0.5 * uniform.variance.log().sum(dim=-1) if mixture else uniform.logits
        with torch.no_grad():
            routed: Routed = self.class_capsules(below.poses, below.activations)
        return unrouted.squeeze(1), routed.logits.squeeze(1)

    def _below_classes(self, images: Tensor) -> Routed:
        """Return the capsules of the second convolutional layer, which vote for the classes."""
        first: Routed = self.first(*self.primary(self.stem(self.normaliser(images))))
        second: Routed = self.second(first.poses, first.activations)
        return second

    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:
        """Return the configured loss of each sample (n,); the spread margin grows with `progress`."""
        output = self.classify(images)
        if self.loss == "cross-entropy":
            return F.cross_entropy(output.logits, labels, reduction="none")
        if self.loss == "margin":
            return margin_loss(output.scores, F.one_hot(labels, self.classes).to(output.scores))
        if self.released:
            return spread_loss(output.scores, labels, released_spread_margin(progress)) / self.classes
        return spread_loss(output.scores, labels, spread_margin(progress))

    @torch.no_grad()
    def initialise(self, images: Tensor) -> None:
        """Set the scales of all capsule layers, one after the other, from real images (64 suffice)."""
        with eval_mode(self):
            self.stem.train()  # use batch statistics: the running ones are not estimated yet
            features = self.stem(self.normaliser(images))
        self.primary.initialise(features, self.first.rules.vote_std)
        poses, activations = self.primary(features)
        for layer in (self.first, self.second, self.class_capsules):
            layer.initialise(poses, activations)
            routed: Routed = layer(poses, activations)
            poses, activations = routed.poses, routed.activations

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return the parameters with their learning rates; call it after `initialise`."""
        capsules = (self.primary, self.first, self.second, self.class_capsules)
        groups = [group for layer in capsules for group in layer.parameter_groups(lr)]
        return [{"params": list(self.stem.parameters()), "lr": lr}, *groups]


def _stem(channels: int, filters: int) -> nn.Sequential:
    """Return the first convolution with batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(channels, filters, kernel_size=5, stride=2, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU(inplace=True),
    )


def _released_stem(channels: int, filters: int) -> nn.Sequential:
    """Return the first convolution of the released code: with a bias, without batch normalisation."""
    convolution = nn.Conv2d(channels, filters, kernel_size=5, stride=2)
    nn.init.trunc_normal_(convolution.weight, std=0.05, a=-0.1, b=0.1)
    nn.init.constant_(convolution.get_parameter("bias"), 0.1)
    return nn.Sequential(convolution, nn.ReLU(inplace=True))


def _register(name: str, summary: str, *, filters: int, types: tuple[int, int, int]) -> None:
    """Register a matrix capsule network of these sizes."""

    def build(
        *,
        classes: int,
        channels: int,
        size: int,
        normalise: Normalise = "image",
        filters: Filters = filters,
        types: Types = types,
        iterations: Iterations = 3,
        variant: Variant = "paper",
        competition: FieldCompetition | None = None,
        activation: ActivationRule = "cost",
        poses: Poses = "matrix",
        betas: Betas = "type",
        coordinates: Coordinates = True,
        loss: LossName = "spread",
        variance_floor: VarianceFloor | None = None,
        schedule: LambdaSchedule | None = None,
        mean_momentum: MeanMomentum | None = None,
        start: AssignmentStart | None = None,
        vote_std: VoteStd = POSE_STD,
    ) -> MatrixCapsNet:
        chosen = {
            "competition": competition,
            "variance_floor": variance_floor,
            "schedule": schedule,
            "mean_momentum": mean_momentum,
            "start": start,
        }
        rules = RELEASED_RULES if variant == "released" else {}
        rules = {**rules, **{option: value for option, value in chosen.items() if value is not None}}
        return MatrixCapsNet(
            classes=classes,
            channels=channels,
            size=size,
            normalise=normalise,
            filters=filters,
            types=types,
            rules=EMRules(
                iterations=iterations, activation=activation, poses=poses, betas=betas, vote_std=vote_std, **rules
            ),
            coordinates=coordinates,
            loss=loss,
            variant=variant,
        )

    build.__doc__ = summary
    MODELS.add(name, build)


_register(
    "matrix-capsnet",
    "Capsule network of Hinton et al. 2018, EM routing (0.3 M parameters; `filters=256` for CIFAR-10).",
    filters=32,
    types=(32, 32, 32),
)
_register(
    "matrix-capsnet-small",
    "The small network of Hinton et al. 2018, EM routing (67 K parameters).",
    filters=64,
    types=(8, 16, 16),
)
