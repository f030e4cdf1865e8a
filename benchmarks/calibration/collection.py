"""Models with known labels for calibration: honest ones, and ones that mask their gradients; each label has a proof.

Most classify where in a 28x28 image the bright blob is, some the toys. A masked label is proven by an attack that knows
how the model masks its gradients and does far better than plain PGD; an honest one by far more effort gaining nothing.
The attacks of the proofs are written apart from the package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.calibration.defences import (
    AveragingEnsemble,
    BlendedOutputs,
    InputTransform,
    OutputTransform,
    SubstituteGradient,
    k_winners_cnn,
    median,
    outside_of_torch,
    ragged,
    random_blocks,
    root_of_zero,
    rounded,
    rounded_cosines,
    sharp_sigmoids,
    shattered,
    sign_cnn,
    spread_outputs,
    thermometer,
    with_backward,
)
from benchmarks.calibration.labels import LabelledModel
from benchmarks.calibration.networks import (
    EPS,
    mlp,
    noise_trained_cnn,
    other_cnn,
    plain_cnn,
    small_cnn,
    train,
)
from benchmarks.calibration.proofs import ProofAttack, averaged_effort, far_more_effort, gradient_of, window_search
from benchmarks.calibration.subtle_models import SUBTLE_MODELS


def transfer_from(surrogate: Callable[[], nn.Module]) -> ProofAttack:
    """Return an attack with adversarial examples of an unmasked surrogate."""
    return gradient_of(surrogate, steps=40, restarts=1)


def honest(build: Callable[[], nn.Module]) -> LabelledModel:
    """Return a model whose gradients are sound, proven by far more effort gaining next to nothing."""
    return LabelledModel(masked=False, build=build, proof=far_more_effort)


def masked(build: Callable[[], nn.Module], proof: ProofAttack = transfer_from(plain_cnn)) -> LabelledModel:  # noqa: B008
    """Return a model that masks its gradients, proven by an attack that knows how."""
    return LabelledModel(masked=True, build=build, proof=proof)


CLEAR_MODELS: dict[str, LabelledModel] = {
    "linear": honest(lambda: train(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 5)))),
    "mlp": honest(lambda: train(mlp)),
    "cnn": honest(plain_cnn),
    "cnn, tanh": honest(lambda: train(lambda: small_cnn(nn.Tanh))),
    "cnn, batch norm": honest(lambda: train(lambda: small_cnn(norm=True))),
    "cnn, max-pooling": honest(lambda: train(lambda: small_cnn(pool=True))),
    "trained long": honest(lambda: train(small_cnn, epochs=25)),
    "label-smoothed": honest(lambda: train(small_cnn, smoothing=0.2)),
    "weight decay": honest(lambda: train(small_cnn, weight_decay=1e-2)),
    "trained with noise": honest(noise_trained_cnn),
    "adversarially trained": honest(lambda: train(small_cnn, adversary=EPS, epochs=8)),
    "adversarially trained, smooth": honest(lambda: train(lambda: small_cnn(nn.ELU), adversary=EPS, epochs=8)),
    "tiny gradients": honest(lambda: OutputTransform(plain_cnn(), lambda z: 1e-6 * z)),
    "log-probabilities": honest(lambda: OutputTransform(plain_cnn(), lambda z: z.log_softmax(1))),
    "mild probabilities": honest(lambda: OutputTransform(plain_cnn(), lambda z: (z / 5).softmax(1))),
    "shifted outputs": honest(lambda: OutputTransform(plain_cnn(), lambda z: z + 100)),
    "two networks": honest(lambda: AveragingEnsemble(plain_cnn(), other_cnn())),
    "right straight-through": honest(lambda: InputTransform(with_backward(rounded(16), lambda g: g), plain_cnn())),
    "blurred": honest(lambda: InputTransform(lambda x: F.avg_pool2d(x, 3, 1, 1), noise_trained_cnn())),
    "saturated softmax": masked(lambda: OutputTransform(plain_cnn(), lambda z: (1000 * z).softmax(1))),
    "huge logits": masked(lambda: OutputTransform(plain_cnn(), lambda z: 1e4 * z)),
    "underflow": masked(lambda: OutputTransform(plain_cnn(), sharp_sigmoids)),
    "distilled": masked(lambda: train(small_cnn, temperature=100.0, epochs=10), far_more_effort),
    "labels only": masked(lambda: OutputTransform(plain_cnn(), lambda z: F.one_hot(z.argmax(1), 5).float())),
    "quantised": masked(lambda: InputTransform(rounded(8), plain_cnn())),
    "thermometer": masked(lambda: InputTransform(thermometer, plain_cnn())),
    "median filter": masked(lambda: InputTransform(median, plain_cnn())),
    "rounded cosines": masked(lambda: InputTransform(rounded_cosines, plain_cnn())),
    "detached": masked(lambda: InputTransform(torch.detach, plain_cnn())),
    "outside of torch": masked(lambda: InputTransform(outside_of_torch, plain_cnn())),
    "not a number": masked(lambda: InputTransform(root_of_zero, plain_cnn())),
    "shattered": masked(lambda: InputTransform(shattered, plain_cnn())),
    "ragged": masked(lambda: InputTransform(ragged, plain_cnn())),
    "k winners": masked(k_winners_cnn, window_search),
    "wrong straight-through": masked(lambda: InputTransform(with_backward(rounded(16), lambda g: -g), plain_cnn())),
    "shifted gradient": masked(
        lambda: InputTransform(with_backward(lambda x: x.clone(), lambda g: g.roll(9, 3)), plain_cnn())
    ),
    "gradient noise": masked(lambda: InputTransform(with_backward(lambda x: x.clone(), torch.randn_like), plain_cnn())),
    "another's gradient": masked(lambda: SubstituteGradient(plain_cnn(), train(mlp, noise=0.5, seed=3))),
    "blended": masked(lambda: BlendedOutputs(plain_cnn(), train(mlp, noise=0.5, seed=3))),
    "hidden signs": masked(lambda: sign_cnn(straight=False), transfer_from(lambda: sign_cnn(straight=True))),
    "random pixels": masked(
        lambda: InputTransform(lambda x: x * (torch.rand_like(x) < 0.5) * 2, noise_trained_cnn()), averaged_effort
    ),
    "random blocks": masked(lambda: InputTransform(random_blocks, noise_trained_cnn()), averaged_effort),
    "spread loss": masked(lambda: OutputTransform(plain_cnn(), spread_outputs)),
}

"""Models whose masking is complete, or that show no sign of it."""
COLLECTION = {**CLEAR_MODELS, **SUBTLE_MODELS}


@functools.cache
def build_model(name: str) -> nn.Module:
    """Return a model of the collection; it is built once."""
    return COLLECTION[name].build().eval()
