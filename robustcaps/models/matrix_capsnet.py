"""Matrix capsules with EM routing (Hinton, Sabour, Frosst, ICLR 2018)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustcaps.capsules.layers import POSE_SIDE, POSE_SIZE, EMRules, MatrixCapsules, MatrixPrimaryCapsules, Schedule
from robustcaps.capsules.losses import margin_loss, spread_loss, spread_margin
from robustcaps.capsules.routing import Competition, Routed, convolution, everywhere
from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, Reading, Recipe
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
    Field(description="a child is shared among all parents that see it (field), or anew in each window (position)"),
]
Coordinates = Annotated[bool, Field(description="add a child's place in the image to its votes for the classes")]
LossName = Literal["spread", "margin", "cross-entropy"]
LambdaSchedule = Annotated[Schedule, Field(description="lambda over the EM iterations")]
VarianceFloor = Annotated[float, Field(gt=0, description="added to every sigma^2; a large one softens the assignments")]


RECEPTIVE_FIELD = 17
"""Pixels across that a capsule of the second convolutional layer sees; its neighbour sees `STRIDE` pixels further."""
STRIDE = 4


def coordinate_offsets(grid: int, size: int) -> Tensor:
    """Return what coordinate addition adds to the votes from each position (grid*grid, 16).

    The centre (row, column) of the position's receptive field, as a share of the image, goes to the first two elements
    of the pose's right-hand column.
    """
    centres = (torch.arange(grid) * STRIDE + RECEPTIVE_FIELD / 2) / size
    offsets = torch.zeros(grid, grid, POSE_SIDE, POSE_SIDE)
    offsets[..., 0, -1] = centres[:, None]
    offsets[..., 1, -1] = centres[None, :]
    return offsets.view(grid * grid, POSE_SIZE)


class MatrixCapsNet(CapsuleClassifier):
    """Convolution, primary capsules, two convolutional capsule layers, one capsule per class."""

    recipe: ClassVar[Recipe] = Recipe(epochs=5, batch_size=16, lr=1e-3, clip=10.0)
    """A higher lr (3e-3) can saturate all activations, where the spread loss has no gradient left."""

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
            raise UserError(f"matrix-capsnet: images of {size}x{size} are too small; it needs 17x17 or more.")
        self.loss: LossName = loss
        primary, first, second = types
        primary_grid = (size - 5) // 2 + 1
        first_grid = (primary_grid - 3) // 2 + 1
        second_grid = first_grid - 2
        self.normaliser = build_normaliser(normalise)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, filters, kernel_size=5, stride=2, bias=False), nn.BatchNorm2d(filters), nn.ReLU()
        )
        self.primary = MatrixPrimaryCapsules(filters, types=primary)
        self.first = MatrixCapsules(convolution(primary_grid, 3, 2), child_types=primary, types=first, rules=rules)
        self.second = MatrixCapsules(convolution(first_grid, 3, 1), child_types=first, types=second, rules=rules)
        self.class_capsules = MatrixCapsules(
            everywhere(second_grid**2),
            child_types=second,
            types=classes,
            rules=rules,
            shared=True,
            offsets=coordinate_offsets(second_grid, size) if coordinates else None,
        )

    def read(self, images: Tensor) -> Reading:
        """Return the arguments of the class capsules' logistic, their activations and poses."""
        below = self._below_classes(images)
        routed: Routed = self.class_capsules(below.poses, below.activations)
        return Reading(
            logits=routed.logits.squeeze(1), scores=routed.activations.squeeze(1), poses=routed.poses.squeeze(1)
        )

    def votes(self, images: Tensor) -> Tensor:
        """Return the votes for the class capsules (n, classes, children, 16)."""
        return self.class_capsules.votes(self._below_classes(images).poses).squeeze(1)

    def _below_classes(self, images: Tensor) -> Routed:
        """Return the capsules that vote for the classes."""
        first: Routed = self.first(*self.primary(self.stem(self.normaliser(images))))
        second: Routed = self.second(first.poses, first.activations)
        return second

    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:
        """Return the chosen loss of each sample (n,); the spread margin grows with `progress`."""
        reading = self.read(images)
        if self.loss == "cross-entropy":
            return F.cross_entropy(reading.logits, labels, reduction="none")
        if self.loss == "margin":
            return margin_loss(reading.scores, F.one_hot(labels, self.classes).to(reading.scores))
        return spread_loss(reading.scores, labels, spread_margin(progress))

    @torch.no_grad()
    def initialise(self, images: Tensor) -> None:
        """Set the scales of all capsule layers, one after the other, on real images (64 are enough)."""
        mode = self.training
        self.eval()
        self.stem.train()  # batch statistics: the running ones know nothing yet
        features = self.stem(self.normaliser(images))
        self.train(mode)
        self.primary.initialise(features)
        poses, activations = self.primary(features)
        for layer in (self.first, self.second, self.class_capsules):
            layer.initialise(poses, activations)
            routed: Routed = layer(poses, activations)
            poses, activations = routed.poses, routed.activations

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return the parameters with their learning rates; call it after `initialise`."""
        capsules = (self.first, self.second, self.class_capsules)
        groups = [group for layer in capsules for group in layer.parameter_groups(lr)]
        return [{"params": [*self.stem.parameters(), *self.primary.parameters()], "lr": lr}, *groups]


@MODELS.register("matrix-capsnet")
def matrix_capsnet(
    *,
    classes: int,
    channels: int,
    size: int,
    normalise: Normalise = "image",
    filters: Filters = 32,
    types: Types = (32, 32, 32),
    iterations: Iterations = 3,
    competition: FieldCompetition = "field",
    coordinates: Coordinates = True,
    loss: LossName = "spread",
    variance_floor: VarianceFloor = 0.1,
    schedule: LambdaSchedule = "constant",
) -> MatrixCapsNet:
    """Capsule network of Hinton et al. 2018, EM routing (0.3 M parameters; `filters=256` for CIFAR-10)."""
    return MatrixCapsNet(
        classes=classes,
        channels=channels,
        size=size,
        normalise=normalise,
        filters=filters,
        types=types,
        rules=EMRules(iterations, competition, variance_floor, schedule),
        coordinates=coordinates,
        loss=loss,
    )


@MODELS.register("matrix-capsnet-small")
def matrix_capsnet_small(
    *,
    classes: int,
    channels: int,
    size: int,
    normalise: Normalise = "image",
    filters: Filters = 64,
    types: Types = (8, 16, 16),
    iterations: Iterations = 3,
    competition: FieldCompetition = "field",
    coordinates: Coordinates = True,
    loss: LossName = "spread",
    variance_floor: VarianceFloor = 0.1,
    schedule: LambdaSchedule = "constant",
) -> MatrixCapsNet:
    """The small network of Hinton et al. 2018, EM routing (67 K parameters)."""
    return MatrixCapsNet(
        classes=classes,
        channels=channels,
        size=size,
        normalise=normalise,
        filters=filters,
        types=types,
        rules=EMRules(iterations, competition, variance_floor, schedule),
        coordinates=coordinates,
        loss=loss,
    )
