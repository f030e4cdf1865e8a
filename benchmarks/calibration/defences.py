"""Building blocks of the calibration models: input and output transforms, activations, and custom gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.calibration.networks import EPS, small_cnn, train


class OutputTransform(nn.Module):
    """A model followed by a transform of its outputs."""

    def __init__(self, model: nn.Module, transform: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.transform = model, transform

    def forward(self, images: Tensor) -> Tensor:
        return self.transform(self.model(images))


class InputTransform(nn.Module):
    """A model preceded by a transform of its input."""

    def __init__(self, transform: Callable[[Tensor], Tensor], model: nn.Module) -> None:
        super().__init__()
        self.model, self.transform = model, transform

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.model(self.transform(images))
        return outputs


class KWinners(nn.Module):
    """An activation that keeps the largest tenth of the values in a layer (k-winners-take-all)."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        threshold = flat.topk(flat.shape[1] // 10, dim=1).values[:, -1:]
        return (flat * (flat >= threshold)).view_as(x)


class Sign(nn.Module):
    """The sign function, with the straight-through gradient of hardtanh or without a gradient."""

    straight = True

    def forward(self, x: Tensor) -> Tensor:
        line = x.clamp(-1.0, 1.0)
        return line + (x.sign() - line).detach() if self.straight else x.sign()


class CustomBackward(torch.autograd.Function):
    """A function with a custom backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Any, backward: Any) -> Tensor:
        ctx.backward_function = backward
        y: Tensor = forward(x)
        return y

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        return ctx.backward_function(gradient[0]), None, None


def with_backward(forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Any:
    """Return a function with a custom backward pass."""
    return lambda x: CustomBackward.apply(x, forward, backward)  # type: ignore[no-untyped-call]


class SubstituteGradient(nn.Module):
    """The outputs of one network with the gradients of another."""

    def __init__(self, model: nn.Module, gradient: nn.Module) -> None:
        super().__init__()
        self.model, self.gradient = model, gradient

    def forward(self, images: Tensor) -> Tensor:
        source = self.gradient(images)
        outputs: Tensor = source + (self.model(images) - source).detach()
        return outputs


class BlendedOutputs(nn.Module):
    """The outputs of a saturated network without a gradient, plus 5 % of those of another network."""

    def __init__(self, saturated: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.saturated, self.other = saturated, other

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = 0.95 * (1000 * self.saturated(images)).softmax(1) + 0.05 * self.other(images).softmax(1)
        return outputs


class AveragingEnsemble(nn.Module):
    """An ensemble that averages the outputs of several networks."""

    def __init__(self, *models: nn.Module) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([model(images) for model in self.models]).mean(0)


def rounded(levels: int) -> Callable[[Tensor], Tensor]:
    """Return a function that rounds images to multiples of 1 / levels."""
    return lambda x: (x * levels).round() / levels


def thermometer(images: Tensor) -> Tensor:
    """Encode images with 8 levels as a thermometer code, and decode them again."""
    levels = torch.linspace(1 / 16, 15 / 16, 8).view(1, 8, 1, 1)
    code = (images >= levels).float()
    return code.mean(1, keepdim=True)


def median(images: Tensor) -> Tensor:
    """Apply a 3x3 median filter outside of autograd."""
    patches = F.unfold(F.pad(images.detach(), (1, 1, 1, 1), mode="replicate"), 3)
    return patches.median(1).values.view_as(images)


def rounded_cosines(images: Tensor) -> Tensor:
    """Round the cosine coefficients of 4x4 blocks, as JPEG does."""
    k = torch.arange(4.0)
    basis = torch.cos(torch.pi * (k[None, :] + 0.5) * k[:, None] / 4)
    basis = basis / basis.norm(dim=1, keepdim=True)
    n, _, height, width = images.shape
    blocks = images.view(n, height // 4, 4, width // 4, 4)
    coded = torch.einsum("nhawb,ia,jb->nhiwj", blocks, basis, basis)
    back = torch.einsum("nhiwj,ia,jb->nhawb", (coded * 8).round() / 8, basis, basis)
    return back.reshape(n, 1, height, width)


def sharp_sigmoids(z: Tensor) -> Tensor:
    """Return sigmoids of the logits so steep that they underflow except close to the decision boundary."""
    middle = z.topk(2, dim=1).values.mean(1, keepdim=True)
    return torch.sigmoid(200 * (z - middle.detach()))


def spread_outputs(z: Tensor) -> Tensor:
    """Return the negative spread loss of each class, which is flat where the margin is met."""
    a = sharp_sigmoids(z)
    difference = a[:, :, None] - a[:, None, :]
    return -F.relu(0.2 - difference).square().sum(2)


def random_blocks(images: Tensor) -> Tensor:
    """Keep a random half of the 4x4 blocks."""
    kept = (torch.rand(len(images), 1, 7, 7) < 0.5).float()
    return 2 * images * F.interpolate(kept, scale_factor=4)


def shattered(images: Tensor) -> Tensor:
    """Add fine ripples, which make the gradient point anywhere."""
    return images + 0.02 * torch.sin(2000.0 * images)


def ragged(images: Tensor) -> Tensor:
    """Round images and add fine ripples."""
    return (images * 10).floor() / 10 + 0.02 * torch.cos(3000.0 * images)


def outside_of_torch(images: Tensor) -> Tensor:
    """Copy images outside of the autograd graph."""
    return torch.from_numpy(images.numpy().copy())


def root_of_zero(images: Tensor) -> Tensor:
    """Add a square root of zero, whose gradient is NaN."""
    return images + (images - images).sqrt()


@functools.cache
def k_winners_cnn() -> nn.Module:
    """Return an adversarially trained network with k-winners-take-all activations."""
    return train(functools.partial(small_cnn, KWinners), adversary=EPS, epochs=8)


def sign_cnn(*, straight: bool) -> nn.Module:
    """Return a network with sign activations, trained with straight-through gradients, which it keeps or loses."""
    model = train(lambda: small_cnn(Sign))
    for module in model.modules():
        if isinstance(module, Sign):
            module.straight = straight
    return model
