"""Matrix capsules with EM routing (Hinton, Sabour, Frosst, ICLR 2018)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustcaps.capsules.health import routing_signs
from robustcaps.capsules.layers import POSE_SIDE, POSE_SIZE, EMRules, MatrixCapsules, MatrixPrimaryCapsules, Schedule
from robustcaps.capsules.losses import margin_loss, spread_loss, spread_margin
from robustcaps.capsules.routing import Activation, Competition, Routed, Step, convolution, everywhere
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
ActivationRule = Annotated[
    Activation,
    Field(description="a parent's activation: its description length, that of normalised votes, or its share of all"),
]
Poses = Annotated[Literal["matrix", "vector"], Field(description="4x4 poses and transforms, or 16 and 16x16")]
Betas = Annotated[Literal["type", "shared"], Field(description="prices of each capsule type, or one for a layer")]
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

    recipe: ClassVar[Recipe] = Recipe(epochs=10, batch_size=16, lr=1.5e-3, clip=10.0)
    """At twice this learning rate the votes for the classes can run away, and all activations end at 0."""

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
        if rules.activation == "mixture" and rules.iterations == 1:
            raise UserError(
                "matrix-capsnet: activation 'mixture' needs 2 iterations or more: at first all shares are equal."
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

    def routing_steps(self, images: Tensor) -> dict[str, list[Step]]:
        """Return the EM iterations of every capsule layer, to look at: {"first": [...], "second", "classes"}."""
        poses, activations = self.primary(self.stem(self.normaliser(images)))
        found = {}
        for name, layer in {"first": self.first, "second": self.second, "classes": self.class_capsules}.items():
            found[name] = list(layer.steps(poses, activations))
            poses, activations = found[name][-1].parents.poses, found[name][-1].parents.activations
        return found

    @torch.inference_mode()
    def vital_signs(self, images: Tensor) -> dict[str, float]:
        """Return the `routing_signs` of every layer's last EM iteration, over all images: {"first_entropy": ...}."""
        layers = {"first": self.first, "second": self.second, "classes": self.class_capsules}
        found: dict[str, list[Tensor]] = {}
        for image in torch.split(images, 1):  # its votes and their squares take 0.2 GB in the large network
            for name, steps in self.routing_steps(image).items():
                signs = routing_signs(steps[-1], layers[name].wiring, layers[name].rules.competition)
                for sign, values in signs.items():
                    found.setdefault(f"{name}_{sign}", []).append(values)
        whole = {name: torch.cat(values) for name, values in found.items()}
        return {name: float(v.min() if name.endswith("_min") else v.mean()) for name, v in whole.items()}

    def votes(self, images: Tensor) -> Tensor:
        """Return the votes for the class capsules (n, classes, children, 16)."""
        return self.class_capsules.votes(self._below_classes(images).poses).squeeze(1)

    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of one M-step with equal assignments, and those of `read`.

        In a mixture equal assignments give equal shares: there the votes' agreement -sum_h log sigma_j^h decides.
        """
        below = self._below_classes(images)
        equal = next(self.class_capsules.steps(below.poses, below.activations)).parents
        mixture = self.class_capsules.rules.activation == "mixture"
        unrouted = -0.5 * equal.variance.log().sum(dim=-1) if mixture else equal.logits
        with torch.no_grad():
            routed: Routed = self.class_capsules(below.poses, below.activations)
        return unrouted.squeeze(1), routed.logits.squeeze(1)

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
        capsules = (self.primary, self.first, self.second, self.class_capsules)
        groups = [group for layer in capsules for group in layer.parameter_groups(lr)]
        return [{"params": list(self.stem.parameters()), "lr": lr}, *groups]


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
    activation: ActivationRule = "cost",
    poses: Poses = "matrix",
    betas: Betas = "type",
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
        rules=EMRules(iterations, competition, activation, variance_floor, schedule, poses, betas),
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
    activation: ActivationRule = "cost",
    poses: Poses = "matrix",
    betas: Betas = "type",
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
        rules=EMRules(iterations, competition, activation, variance_floor, schedule, poses, betas),
        coordinates=coordinates,
        loss=loss,
    )
