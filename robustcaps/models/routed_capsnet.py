"""One network body with every routing, to compare routings at equal parameters and equal training.

Stem, primary capsules, one convolutional capsule layer and class capsules are the same; only the routing differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustcaps.capsules.health import assignment_entropy
from robustcaps.capsules.interventions import Intervention
from robustcaps.capsules.layers import EMRules, MatrixPrimaryCapsules, Schedule
from robustcaps.capsules.losses import margin_loss
from robustcaps.capsules.routed_layers import (
    UNIT_VOTE,
    DynamicCapsules,
    EMCapsules,
    InvertedAttentionCapsules,
    Parents,
    RoutedCapsules,
    SelfAttentionCapsules,
    SelfRoutingCapsules,
    UniformCapsules,
)
from robustcaps.capsules.routing import Competition, Routed, Start, Update, convolution, fully_connected
from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, Classifier, ClassifierOutput, TrainingRecipe
from robustcaps.models.inference import eval_mode
from robustcaps.models.normalise import Normalise, build_normaliser
from robustcaps.registry import MODELS

RoutingName = Literal[
    "uniform", "shared", "dynamic", "em", "self-routing", "self-attention", "inverted-attention", "cnn"
]
Layer = RoutedCapsules | EMCapsules

FILTERS = (32, 80)
"""Channels of the two convolutions of the stem."""
MIN_SIZE = 17
"""Smallest image that leaves one position after two convolutions with stride 2 and a layer of 3x3 windows."""
TYPES: dict[str, tuple[int, int]] = {"shared": (30, 8), "self-routing": (12, 6)}
"""Types of primary and of convolutional capsules, where they differ to keep parameters equal: shared transforms are
few, and self-routing has as many parameters for routing as for poses."""
DEFAULT_TYPES = (16, 8)
CNN_CHANNELS = 50
"""Channels of the convolution that takes the place of capsules."""

RECIPE = TrainingRecipe(epochs=5, batch_size=16, lr=2e-3, clip=10.0)
OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {"competition": "field"},
    "shared": {"competition": "field"},
    "dynamic": {"competition": "field", "iterations": 3, "update": "increment"},
    "em": {
        "competition": "field",
        "iterations": 3,
        "variance_floor": 0.1,
        "vote_std": 0.05,
        "mean_momentum": 0.0,
        "schedule": "constant",
        "start": "uniform",
    },
    "self-routing": {"competition": "field"},
    "self-attention": {"competition": "field"},
    "inverted-attention": {"competition": "field", "iterations": 2},
    "cnn": {},
}
"""The options of each routing and their defaults."""


def _stem(channels: int) -> nn.Sequential:
    """Return two convolutions with stride 2, each with batch normalisation."""
    first, second = FILTERS
    return nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=5, stride=2, bias=False),
        nn.BatchNorm2d(first),
        nn.ReLU(inplace=True),
        nn.Conv2d(first, second, kernel_size=3, stride=2, bias=False),
        nn.BatchNorm2d(second),
        nn.ReLU(inplace=True),
    )


def _grid(size: int) -> int:
    """Return the height and width of the stem's output."""
    if size < MIN_SIZE:
        raise UserError(f"routed-capsnet: images of {size}x{size} are too small; they must be at least 17x17.")
    return ((size - 5) // 2 + 1 - 3) // 2 + 1


class RoutedCapsNet(CapsuleClassifier):
    """Two convolutions, primary capsules, convolutional capsules with 3x3 windows, one capsule per class.

    All routings are trained with the margin loss on the activations, which it takes as they are: lengths, logistic
    functions or shares of the children.
    """

    recipe: ClassVar[TrainingRecipe] = RECIPE

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        size: int,
        normalise: Normalise,
        types: tuple[int, int],
        layer: Callable[..., Layer],
        pose_std: float = UNIT_VOTE,
        sharing: Literal["none", "children"] = "none",
    ) -> None:
        """`layer` builds a capsule layer; `pose_std` is the initial standard deviation of primary poses.

        `sharing` is that of the convolutional transforms; those of class capsules are the same at all positions.
        """
        super().__init__(classes=classes, channels=channels, size=size)
        grid = _grid(size)
        primary, convolutional = types
        self.types, self.pose_std = types, pose_std
        self.normaliser = build_normaliser(normalise)
        self.stem = _stem(channels)
        self.primary = MatrixPrimaryCapsules(FILTERS[-1], types=primary)
        self.convolutional = layer(convolution(grid, 3, 1), child_types=primary, types=convolutional, sharing=sharing)
        self.class_capsules = layer(
            fully_connected((grid - 2) ** 2),
            child_types=convolutional,
            types=classes,
            sharing="slots" if sharing == "none" else sharing,
        )

    @property
    def layers(self) -> dict[str, Layer]:
        """The layers with routing."""
        return {"convolutional": self.convolutional, "classes": self.class_capsules}

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return the class capsules' logits, their activations and poses."""
        parents: Parents | Routed = self.class_capsules(*self._below_classes(images))
        return ClassifierOutput(
            logits=parents.logits.squeeze(1), scores=parents.activations.squeeze(1), poses=parents.poses.squeeze(1)
        )

    def votes(self, images: Tensor) -> Tensor:
        """Return the votes for the class capsules (n, classes, children, 16)."""
        return self.class_capsules.votes(*self._below_classes(images)).squeeze(1)

    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class logits of uniformly weighted votes, and those of `classify`."""
        children = self._below_classes(images)
        with torch.no_grad():
            routed: Parents | Routed = self.class_capsules(*children)
        return self.class_capsules.unrouted_logits(*children).squeeze(1), routed.logits.squeeze(1)

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """Those of the routing: uniform coefficients, fewer iterations, for EM also sigma constant in the logits."""
        return self.class_capsules.interventions

    def intervened_logits(self, images: Tensor, intervention: Intervention) -> Tensor:
        """Return the logits (n, classes) with changed routing in both capsule layers."""
        children = self._below_classes(images, intervention)
        parents: Parents | Routed = self.class_capsules(*children, intervention)
        return parents.logits.squeeze(1)

    def routing_statistics(self, images: Tensor) -> dict[str, dict[str, Tensor]]:
        """Return the entropy of the coefficients, the activations, and for EM sigma over that of the floor."""
        found = {}
        poses, activations = self.primary(self.stem(self.normaliser(images)))
        for name, layer in self.layers.items():
            coefficients = layer.coefficients(poses, activations)
            parents: Parents | Routed = layer(poses, activations)
            found[name] = {
                "entropy": assignment_entropy(coefficients, layer.wiring, layer.competition),
                "activations": parents.activations.amax(dim=1),
            }
            if isinstance(parents, Routed) and isinstance(layer, EMCapsules):
                sigma = parents.variance.sqrt().flatten(1).mean(dim=1)
                found[name]["sigma_ratio"] = sigma / layer.capsules.rules.variance_floor**0.5
            poses, activations = parents.poses, parents.activations
        return found

    @torch.inference_mode()
    def health_metrics(self, images: Tensor) -> dict[str, float]:
        """Return the assignment entropy of each layer, {"classes_entropy": ...}: 1 is uniform."""
        statistics = self.routing_statistics(images)
        return {f"{name}_entropy": float(layer["entropy"].mean()) for name, layer in statistics.items()}

    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:  # noqa: ARG002
        """Return the margin loss of each sample (n,)."""
        scores = self.scores(images)
        return margin_loss(scores, F.one_hot(labels, self.classes).to(scores))

    @torch.no_grad()
    def initialise(self, images: Tensor) -> None:
        """Set the scales of all capsule layers, one after the other, from real images (64 suffice)."""
        with eval_mode(self):
            self.stem.train()  # use batch statistics: the running ones are not estimated yet
            features = self.stem(self.normaliser(images))
        self.primary.initialise(features, self.pose_std)
        primary = self.primary(features)
        self.convolutional.initialise(*primary)
        self.class_capsules.initialise(*self._route_convolutional(*primary))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return the parameters with their learning rates; call it after `initialise`."""
        groups = [group for part in (self.primary, *self.layers.values()) for group in part.parameter_groups(lr)]
        return [{"params": list(self.stem.parameters()), "lr": lr}, *groups]

    def _below_classes(self, images: Tensor, intervention: Intervention | None = None) -> tuple[Tensor, Tensor]:
        """Return poses and activations of the capsules that vote for the classes."""
        poses, activations = self.primary(self.stem(self.normaliser(images)))
        return self._route_convolutional(poses, activations, intervention)

    def _route_convolutional(
        self, poses: Tensor, activations: Tensor, intervention: Intervention | None = None
    ) -> tuple[Tensor, Tensor]:
        parents: Parents | Routed = self.convolutional(poses, activations, intervention)
        return parents.poses, parents.activations


class UnroutedCNN(Classifier):
    """The control: the same stem and loss, with a 3x3 convolution and a linear layer in the place of capsules."""

    recipe: ClassVar[TrainingRecipe] = RECIPE

    def __init__(self, *, classes: int, channels: int, size: int, normalise: Normalise, width: int) -> None:
        super().__init__(classes=classes, channels=channels, size=size)
        grid = _grid(size)
        self.normaliser = build_normaliser(normalise)
        self.stem = _stem(channels)
        self.head = nn.Sequential(
            nn.Conv2d(FILTERS[-1], width, kernel_size=3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(width * (grid - 2) ** 2, classes),
        )

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return the logits and their logistic function."""
        logits = self.head(self.stem(self.normaliser(images)))
        return ClassifierOutput(logits=logits, scores=logits.sigmoid())

    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:  # noqa: ARG002
        """Return the margin loss of each sample (n,)."""
        scores = self.scores(images)
        return margin_loss(scores, F.one_hot(labels, self.classes).to(scores))


def _capsule_layer(routing: RoutingName, options: dict[str, Any]) -> Callable[..., Layer]:
    """Return the constructor of a layer with this routing."""
    layers: dict[str, Callable[..., Layer]] = {
        "uniform": UniformCapsules,
        "shared": UniformCapsules,
        "dynamic": DynamicCapsules,
        "self-routing": SelfRoutingCapsules,
        "self-attention": SelfAttentionCapsules,
        "inverted-attention": InvertedAttentionCapsules,
    }
    return partial(EMCapsules, rules=EMRules(**options)) if routing == "em" else partial(layers[routing], **options)


def _routing_options(routing: RoutingName, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a routing; raise `UserError` if a chosen one does not apply to it."""
    defaults = OPTIONS[routing]
    given = {name: value for name, value in chosen.items() if value is not None}
    for name in given:
        if name not in defaults:
            applies = ", ".join(defaults) or "none"
            raise UserError(f"routed-capsnet: routing '{routing}' has no option '{name}'; its options: {applies}.")
    return {**defaults, **given}


@MODELS.register("routed-capsnet")
def routed_capsnet(
    *,
    classes: int,
    channels: int,
    size: int,
    normalise: Normalise = "image",
    routing: Annotated[RoutingName, Field(description="routing of the two capsule layers; cnn has none")] = "dynamic",
    types: Annotated[
        tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2)]] | None,
        Field(description="types of primary and convolutional capsules (default: equal parameters)"),
    ] = None,
    iterations: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Field(description="iterations of dynamic routing and EM (default 3) or inverted attention (2)"),
    ] = None,
    competition: Annotated[
        Competition | None,
        Field(description="parents compete for a child across all windows (field), within each, or per type"),
    ] = None,
    update: Annotated[
        Update | None, Field(description="dynamic routing: add the agreement to the routing logits, or assign it")
    ] = None,
    variance_floor: Annotated[
        Annotated[float, Field(gt=0)] | None, Field(description="EM: added to each sigma^2 (default 0.1)")
    ] = None,
    vote_std: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="EM: initial standard deviation of votes (default 0.05)"),
    ] = None,
    mean_momentum: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None, Field(description="EM: m of mu_t = (1 - m) mean + m mu_(t-1)")
    ] = None,
    schedule: Annotated[Schedule | None, Field(description="EM: lambda over the iterations")] = None,
    start: Annotated[Start | None, Field(description="EM: first assignments")] = None,
) -> Classifier:
    """One body with every routing: equal parameters (65 K at 32x32, 5 classes), loss and training."""
    shape: dict[str, Any] = {"classes": classes, "channels": channels, "size": size, "normalise": normalise}
    chosen = {
        "iterations": iterations,
        "competition": competition,
        "update": update,
        "variance_floor": variance_floor,
        "vote_std": vote_std,
        "mean_momentum": mean_momentum,
        "schedule": schedule,
        "start": start,
    }
    options = _routing_options(routing, chosen)
    if routing == "cnn":
        return UnroutedCNN(**shape, width=CNN_CHANNELS)
    return RoutedCapsNet(
        **shape,
        types=types or TYPES.get(routing, DEFAULT_TYPES),
        layer=_capsule_layer(routing, options),
        pose_std=options.get("vote_std", UNIT_VOTE),
        sharing="children" if routing == "shared" else "none",
    )
