"""Modules whose gradient is right in part: on most pixels, of most members, or up to a correction that is detached."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.capsules.routing import coupling_coefficients, length_logit
from robustcaps.models.matrix_capsnet import MatrixCapsNet
from robustcaps.models.vector_capsnet import VectorCapsNet


class HookedInput(nn.Module):
    """A model with a hook that changes the gradient of its input."""

    def __init__(self, model: nn.Module, hook: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.hook = model, hook

    def forward(self, images: Tensor) -> Tensor:
        seen = images.clone()
        if seen.requires_grad:
            seen.register_hook(self.hook)  # type: ignore[no-untyped-call]
        outputs: Tensor = self.model(seen)
        return outputs


class PartlySilentEnsemble(nn.Module):
    """An ensemble that averages the outputs of its members, the last of which has no gradient."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            silent = self.members[-1](images)
        return torch.stack([*(member(images) for member in self.members[:-1]), silent]).mean(0)


class DetachedCorrection(nn.Module):
    """A model of images corrected at test time, where autograd takes the correction for a constant."""

    def __init__(self, model: nn.Module, correct: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.correct = model, correct

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.model(images + (self.correct(images) - images).detach())
        return outputs


class CutVectorRouting(nn.Module):
    """A vector capsule network whose votes are detached for a share of the children."""

    def __init__(self, network: nn.Module, every: int, *, assignments: bool = False) -> None:
        super().__init__()
        if not isinstance(network, VectorCapsNet):
            raise TypeError("a vector capsule network is needed.")
        self.network, self.every, self.assignments = network, every, assignments

    def forward(self, images: Tensor) -> Tensor:
        votes = self.network.votes(F.pad(images, (0, 0) * 3 + (0, -len(images) % 8)))[: len(images)]
        rules = self.network.class_capsules.rules
        is_cut = torch.arange(votes.shape[2]) % self.every == 0
        mixed = torch.where(is_cut[:, None], votes.detach(), votes)
        c = coupling_coefficients(mixed, iterations=rules.iterations, update=rules.update)
        if self.assignments:
            c = c.detach()
        return length_logit((c.unsqueeze(2) @ mixed).squeeze(2))


class CutMatrixRouting(nn.Module):
    """A matrix capsule network whose poses below the classes are detached for some of the capsule types."""

    def __init__(self, network: nn.Module, kept: int) -> None:
        super().__init__()
        if not isinstance(network, MatrixCapsNet):
            raise TypeError("a matrix capsule network is needed.")
        self.network, self.kept = network, kept

    def forward(self, images: Tensor) -> Tensor:
        network = self.network
        first = network.first(*network.primary(network.stem(network.normaliser(images))))
        second = network.second(first.poses, first.activations)
        is_kept = torch.arange(second.poses.shape[2]) < self.kept
        poses = torch.where(is_kept[:, None], second.poses, second.poses.detach())
        routed = network.class_capsules(poses, second.activations)
        logits: Tensor = routed.logits.squeeze(1)
        return logits


def flip_some(share: float, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Return a function that negates the gradient on a random share of the pixels, always the same ones."""
    signs = torch.where(torch.rand(shape, generator=torch.Generator().manual_seed(5)) < share, -1.0, 1.0)
    return lambda gradient: gradient * signs


def silence_some(share: float, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Return a function that removes the gradient from a random share of the pixels, always the same ones."""
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(6)) >= share
    return lambda gradient: gradient * kept


def silence_brightest(gradient: Tensor) -> Tensor:
    """Remove the largest fifth of the gradient's entries of every sample."""
    flat = gradient.abs().flatten(1)
    threshold = flat.quantile(0.8, dim=1)[:, None, None, None]
    return gradient * (gradient.abs() <= threshold)


def rounded_centre(images: Tensor) -> Tensor:
    """Round the middle of an image without a gradient, and leave its border."""
    result = images.clone()
    middle = slice(images.shape[-1] // 4, 3 * images.shape[-1] // 4)
    result[..., middle, middle] = (images[..., middle, middle] * 8).round() / 8
    return result


def binarised(images: Tensor) -> Tensor:
    """Round images to 0 and 1, without a gradient."""
    return (images > 0.5).float()


def detached_statistics(images: Tensor) -> Tensor:
    """Subtract the mean of each image and add that of the data, as a constant in gradients."""
    return images - images.detach().mean((1, 2, 3), keepdim=True) + 0.27
