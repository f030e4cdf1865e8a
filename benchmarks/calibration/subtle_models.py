"""Models that are hard to judge: gradients that are wrong in part, and honest models that look suspicious."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import robustcaps as rc
from benchmarks.calibration.defences import AveragingEnsemble, InputTransform, OutputTransform, rounded, with_backward
from benchmarks.calibration.labels import LabelledModel
from benchmarks.calibration.networks import mlp, noise_trained_cnn, plain_cnn, small_cnn, train
from benchmarks.calibration.partial_gradients import (
    CutMatrixRouting,
    CutVectorRouting,
    DetachedCorrection,
    HookedInput,
    PartlySilentEnsemble,
    binarised,
    detached_statistics,
    flip_some,
    rounded_centre,
    silence_brightest,
    silence_some,
)
from benchmarks.calibration.proofs import averaged_effort, far_more_effort, gradient_of, window_search

BLOB, TOY = (1, 28, 28), (1, 32, 32)


@functools.cache
def zoo(name: str) -> nn.Module:
    """Return shipped weights for the toys."""
    return rc.load_model(name, data="toys", device="cpu")


@functools.cache
def noisy_mlp() -> nn.Module:
    """Return a small network whose gradients tell little about those of the others."""
    return train(mlp, noise=0.5, seed=3)


def hooked(model: Callable[[], nn.Module], hook: Callable[[Tensor], Tensor], **where: object) -> LabelledModel:
    """Return a model with a hook on its input, proven by the gradients without it."""
    return LabelledModel(masked=True, build=lambda: HookedInput(model(), hook), proof=gradient_of(model), **where)  # type: ignore[arg-type]


def masked(build: Callable[[], nn.Module], sound: Callable[[], nn.Module], **where: object) -> LabelledModel:
    """Return a masked model, proven by another module with the same outputs whose gradients are sound."""
    return LabelledModel(masked=True, build=build, proof=gradient_of(sound), **where)  # type: ignore[arg-type]


def honest(build: Callable[[], nn.Module], **where: object) -> LabelledModel:
    """Return an honest model, proven by far more effort gaining next to nothing."""
    return LabelledModel(masked=False, build=build, proof=far_more_effort, **where)  # type: ignore[arg-type]


def randomised(build: Callable[[], nn.Module], **where: object) -> LabelledModel:
    """Return an honest randomised model, proven by averaged gradients gaining next to nothing."""
    return LabelledModel(masked=False, build=build, proof=averaged_effort, **where)  # type: ignore[arg-type]


def noisy(sigma: float) -> Callable[[Tensor], Tensor]:
    """Return a function that adds Gaussian noise."""
    return lambda images: images + sigma * torch.randn_like(images)


class Sine(nn.Module):
    """A sine activation, which makes a loss surface curved everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(2.0 * x)


MASKED: dict[str, LabelledModel] = {
    "flipped on a fifth of the pixels": hooked(plain_cnn, flip_some(0.2, BLOB), eps=0.06),
    "silent on half of the pixels": hooked(plain_cnn, silence_some(0.5, BLOB), eps=0.06),
    "silent where it matters": hooked(plain_cnn, silence_brightest, eps=0.06),
    "shifted by a pixel": hooked(plain_cnn, lambda g: g.roll(2, 3), eps=0.06),
    "a silent member": masked(
        lambda: PartlySilentEnsemble(noisy_mlp(), plain_cnn()),
        lambda: AveragingEnsemble(noisy_mlp(), plain_cnn()),
        eps=0.08,
    ),
    "a detached shift": masked(
        lambda: DetachedCorrection(noise_trained_cnn(), lambda x: x.roll(2, 3)),
        lambda: InputTransform(lambda x: x.roll(2, 3), noise_trained_cnn()),
        eps=0.06,
    ),
    "rounded in the centre": masked(lambda: InputTransform(rounded_centre, plain_cnn()), plain_cnn, eps=0.08),
    "toys, flipped on some pixels": hooked(lambda: zoo("cnn-small"), flip_some(0.15, TOY), data="toys", eps=0.015),
    "toys, vector capsules, hooked": hooked(
        lambda: zoo("vector-capsnet-small"), silence_some(0.5, TOY), data="toys", eps=0.02
    ),
    "toys, vector capsules, votes cut": masked(
        lambda: CutVectorRouting(zoo("vector-capsnet-small"), 2),
        lambda: zoo("vector-capsnet-small"),
        data="toys",
        eps=0.02,
    ),
    "toys, matrix capsules, poses cut": masked(
        lambda: CutMatrixRouting(zoo("matrix-capsnet-small"), 8),
        lambda: zoo("matrix-capsnet-small"),
        data="toys",
        eps=0.02,
    ),
    "toys, matrix capsules, hooked": hooked(
        lambda: zoo("matrix-capsnet-small"), flip_some(0.15, TOY), data="toys", eps=0.015
    ),
}

HONEST: dict[str, LabelledModel] = {
    "a little noise": randomised(lambda: InputTransform(noisy(0.02), plain_cnn()), eps=0.06),
    "noise, trained with noise": randomised(lambda: InputTransform(noisy(0.05), noise_trained_cnn()), eps=0.06),
    "curved everywhere": honest(lambda: train(lambda: small_cnn(Sine)), eps=0.06),
    "binary images": LabelledModel(
        masked=False,
        build=lambda: InputTransform(binarised, train(small_cnn)),
        proof=window_search,  # it has no gradient to follow
        data="binary blobs",
    ),
    "binary images, straight-through": honest(
        lambda: InputTransform(with_backward(binarised, lambda g: g), train(small_cnn)), data="binary blobs"
    ),
    "fine rounding, straight-through": honest(
        lambda: InputTransform(with_backward(rounded(64), lambda g: g), plain_cnn()), eps=0.06
    ),
    "a detached blur": honest(lambda: DetachedCorrection(plain_cnn(), lambda x: F.avg_pool2d(x, 5, 1, 2)), eps=0.06),
    "detached statistics": honest(lambda: InputTransform(detached_statistics, plain_cnn()), eps=0.06),
    "a scaled gradient": honest(lambda: HookedInput(plain_cnn(), lambda g: 1e-4 * g), eps=0.06),
    "hidden logits": honest(lambda: OutputTransform(plain_cnn(), lambda z: 0.01 * torch.tanh(z / 20)), eps=0.06),
    "toys, few steps suffice not": honest(lambda: zoo("matrix-capsnet-small:b"), data="toys", eps=0.03),
    "toys, vector capsules, wrapped": honest(
        lambda: OutputTransform(zoo("vector-capsnet-small"), lambda z: 1e-6 * z), data="toys", eps=0.02
    ),
    "toys, matrix capsules, wrapped": honest(
        lambda: InputTransform(lambda x: x.clamp(0, 1), zoo("matrix-capsnet-small")), data="toys", eps=0.02
    ),
    "toys, cnn": honest(lambda: zoo("cnn-small"), data="toys", eps=0.02),
}

SUBTLE_MODELS = {**MASKED, **HONEST}
