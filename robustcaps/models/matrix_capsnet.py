"""Matrix capsules with EM routing (Hinton, Sabour, Frosst, ICLR 2018)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustcaps.capsules.health import routing_statistics
from robustcaps.capsules.layers import POSE_SIDE, POSE_SIZE, EMRules, MatrixCapsules, MatrixPrimaryCapsules, Schedule
from robustcaps.capsules.losses import margin_loss, spread_loss, spread_margin
from robustcaps.capsules.routing import Activation, Competition, Routed, Step, convolution, fully_connected
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
VarianceFloor = Annotated[float, Field(gt=0, description="added to each sigma^2; larger values soften assignments")]


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
    ) -> None:
        super().__init__(classes=classes, channels=channels, size=size)
        if size < RECEPTIVE_FIELD:
            raise UserError(f"matrix-capsnet: images of {size}x{size} are too small; they must be at least 17x17.")
        if rules.activation == "mixture" and rules.iterations == 1:
            raise UserError(
                "matrix-capsnet: activation 'mixture' needs at least 2 iterations: all mixture weights start equal."
            )
        self.loss: LossName = loss
        primary, first, second = types
        primary_grid = (size - 5) // 2 + 1
        first_grid = (primary_grid - 3) // 2 + 1
        second_grid = first_grid - 2
        self.normaliser = build_normaliser(normalise)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, filters, kernel_size=5, stride=2, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(inplace=True),
        )
        self.primary = MatrixPrimaryCapsules(filters, types=primary)
        self.first = MatrixCapsules(convolution(primary_grid, 3, 2), child_types=primary, types=first, rules=rules)
        self.second = MatrixCapsules(convolution(first_grid, 3, 1), child_types=first, types=second, rules=rules)
        self.class_capsules = MatrixCapsules(
            fully_connected(second_grid**2),
            child_types=second,
            types=classes,
            rules=rules,
            shared=True,
            offsets=coordinate_offsets(second_grid, size) if coordinates else None,
        )

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return the class capsules' logits (the arguments of the logistic function), activations and poses."""
        below = self._below_classes(images)
        routed: Routed = self.class_capsules(below.poses, below.activations)
        return ClassifierOutput(
            logits=routed.logits.squeeze(1), scores=routed.activations.squeeze(1), poses=routed.poses.squeeze(1)
        )

    def routing_steps(self, images: Tensor) -> dict[str, list[Step]]:
        """Return the EM iterations of every capsule layer: {"first": [...], "second": [...], "classes": [...]}."""
        poses, activations = self.primary(self.stem(self.normaliser(images)))
        steps = {}
        for name, layer in {"first": self.first, "second": self.second, "classes": self.class_capsules}.items():
            steps[name] = list(layer.steps(poses, activations))
            last = steps[name][-1].parents
            poses, activations = last.poses, last.activations
        return steps

    @torch.inference_mode()
    def health_metrics(self, images: Tensor) -> dict[str, float]:
        """Return `routing_statistics` of each layer's last EM iteration over all images: {"first_entropy": ...}."""
        layers = {"first": self.first, "second": self.second, "classes": self.class_capsules}
        metrics: dict[str, list[Tensor]] = {}
        for image in torch.split(images, 1):  # the votes of one image take 0.2 GB in the large network
            for name, steps in self.routing_steps(image).items():
                signs = routing_statistics(steps[-1], layers[name].wiring, layers[name].rules.competition)
                for sign, values in signs.items():
                    metrics.setdefault(f"{name}_{sign}", []).append(values)
        combined = {name: torch.cat(values) for name, values in metrics.items()}
        return {name: float(v.min() if name.endswith("_min") else v.mean()) for name, v in combined.items()}

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
        return spread_loss(output.scores, labels, spread_margin(progress))

    @torch.no_grad()
    def initialise(self, images: Tensor) -> None:
        """Set the scales of all capsule layers, one after the other, from real images (64 suffice)."""
        with eval_mode(self):
            self.stem.train()  # use batch statistics: the running ones are not estimated yet
            features = self.stem(self.normaliser(images))
        self.primary.initialise(features)
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
        competition: FieldCompetition = "field",
        activation: ActivationRule = "cost",
        poses: Poses = "matrix",
        betas: Betas = "type",
        coordinates: Coordinates = True,
        loss: LossName = "spread",
        variance_floor: VarianceFloor = 0.1,
        schedule: LambdaSchedule = "constant",
    ) -> MatrixCapsNet:
        return MatrixCapsNet(
            classes=classes,
            channels=channels,
            size=size,
            normalise=normalise,
            filters=filters,
            types=types,
            rules=EMRules(iterations, competition, activation, variance_floor, schedule, poses, betas),
            coordinates=coordinates,
            loss=loss,
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
