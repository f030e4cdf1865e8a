"""Models whose robustness is known: honest ones, and ones that hide from gradients; each label has a proof.

All tell where in a 28x28 image the bright blob is. The proof of a masked model is an attack by somebody who knows its
secret and does far better than the textbook's PGD; that of an honest one is that far more effort gains nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.gradient import Iterative
from robustcaps.data.base import Data
from robustcaps.utils.sample_random import Draws

EPS = 0.1
PLACES = torch.tensor([[7.0, 7.0], [7.0, 20.0], [20.0, 7.0], [20.0, 20.0], [13.5, 13.5]])


def blobs(n: int, *, seed: int) -> Data:
    """A bright blob near one of five places, two faint ones anywhere, and noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % len(PLACES)
    centres = PLACES[labels] + 3.0 * torch.rand(n, 2, generator=generator) - 1.5
    heights = 0.4 + 0.2 * torch.rand(n, generator=generator)
    images = 0.2 + heights[:, None, None] * _bumps(centres)
    for _ in range(2):
        faint = 0.2 * torch.rand(n, generator=generator)
        images += faint[:, None, None] * _bumps(28.0 * torch.rand(n, 2, generator=generator))
    images += 0.05 * torch.randn(images.shape, generator=generator)
    return Data(images.clamp(0.0, 1.0)[:, None], labels, tuple("abcde"), name="blobs")


def _bumps(centres: Tensor) -> Tensor:
    grid = torch.arange(28.0)
    rows = (grid[None, :] - centres[:, :1]).square()
    columns = (grid[None, :] - centres[:, 1:]).square()
    return torch.exp(-(rows[:, :, None] + columns[:, None, :]) / (2 * 2.5**2))


# Networks and how they are trained.


def small_cnn(activation: Callable[[], nn.Module] = nn.ReLU, *, norm: bool = False, pool: bool = False) -> nn.Module:
    """Two convolutions and a linear layer."""
    shrink = [nn.Conv2d(8, 16, 5, padding=2), nn.MaxPool2d(2)] if pool else [nn.Conv2d(8, 16, 5, stride=2, padding=2)]
    middle = [nn.BatchNorm2d(8)] if norm else []
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2, padding=2), *middle, activation()),
        *(*shrink, activation(), nn.Flatten(), nn.Linear(16 * 49, 5)),
    )


def mlp() -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 5))


def train(
    build: Callable[[], nn.Module],
    *,
    seed: int = 0,
    epochs: int = 5,
    smoothing: float = 0.0,
    temperature: float = 1.0,
    noise: float = 0.0,
    adversary: float = 0.0,
    weight_decay: float = 0.0,
) -> nn.Module:
    """Train on 1000 blobs, by Adam; `adversary` is the eps of the PGD images it is trained on."""
    data = blobs(1000, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=weight_decay)
        for _ in range(epochs):
            for rows in torch.randperm(len(data)).split(50):  # type: ignore[no-untyped-call]
                images, labels = data.images[rows], data.labels[rows]
                images = images + noise * torch.randn_like(images)
                if adversary:
                    images = attack(model, images, labels, adversary, steps=5)
                optimiser.zero_grad()
                F.cross_entropy(model(images) / temperature, labels, label_smoothing=smoothing).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    return model.eval()


def attack(
    model: nn.Module, images: Tensor, labels: Tensor, eps: float, *, steps: int, restarts: int = 1, eot: int = 1
) -> Tensor:
    """PGD on the margin of a model."""
    rows = torch.arange(len(images))
    made = Iterative(loss="margin", steps=steps, random_start=True, restarts=restarts, eot=eot, early_stop=eot == 1)
    counted = CountedModel(model, Counts.zeros(len(images)))
    return made.run(counted, images, Untargeted(labels), Budget(eps), Draws(0, rows)).detach()


@functools.cache
def plain() -> nn.Module:
    """The network that most specimens are made of."""
    return train(small_cnn)


@functools.cache
def other() -> nn.Module:
    """The same from other first weights."""
    return train(small_cnn, seed=7)


@functools.cache
def noisy() -> nn.Module:
    """The same, trained with noise."""
    return train(small_cnn, noise=0.3)


@functools.cache
def winners() -> nn.Module:
    """A network of k-winners-take-all layers, adversarially trained."""
    return train(functools.partial(small_cnn, Winners), adversary=EPS, epochs=8)


def signs(*, straight: bool) -> nn.Module:
    """A network of signs, trained with straight-through gradients, which it then shows or not."""
    model = train(lambda: small_cnn(Sign))
    for part in model.modules():
        if isinstance(part, Sign):
            part.straight = straight
    return model


# Attacks: what a textbook does, and what somebody does who knows better.


def textbook(model: nn.Module, data: Data, steps: int = 20) -> Tensor:
    """PGD on the cross-entropy, as it is usually written."""
    images = data.images
    current = (images + EPS * (2.0 * Draws(1, torch.arange(len(data))).uniform((1, 28, 28)) - 1.0)).clamp(0, 1)
    for _ in range(steps):
        current = current.detach().requires_grad_()
        try:
            loss = F.cross_entropy(model(current), data.labels, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, current)
        except RuntimeError:  # no gradient at all
            return current.detach()
        moved = current.detach() + 2.5 * EPS / steps * gradient.nan_to_num().sign()
        current = torch.minimum(torch.maximum(moved, images - EPS), images + EPS).clamp(0, 1)
    return current.detach()


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Which share is answered right, on the mean of ten passes."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        return float(torch.stack([(model(images).argmax(1) == labels).float().mean() for _ in range(10)]).mean())


Secret = Callable[[nn.Module, Data], Tensor]
"""(model, data) -> adversarial images."""


def crafted_on(twin: Callable[[], nn.Module]) -> Secret:
    """What fools a twin that hides nothing."""
    return lambda _, data: attack(twin(), data.images, data.labels, EPS, steps=20)


def by_effort(model: nn.Module, data: Data) -> Tensor:
    """The same with far more steps and starts, on a loss that no softmax flattens."""
    return attack(model, data.images, data.labels, EPS, steps=80, restarts=3)


def by_expectation(model: nn.Module, data: Data) -> Tensor:
    """The mean of many gradients at every step."""
    return attack(model, data.images, data.labels, EPS, steps=20, eot=30)


def by_search(model: nn.Module, data: Data) -> Tensor:
    """Random search, long enough."""
    search = load_attack("square", queries=2000, eps=EPS)
    counted = CountedModel(model, Counts.zeros(len(data)))
    return search.run(counted, data.images, Untargeted(data.labels), Budget(EPS), Draws(0, torch.arange(len(data))))


# Parts that honest models and defences are made of.


class Then(nn.Module):
    """A model and what is done with its outputs."""

    def __init__(self, model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.change = model, change

    def forward(self, images: Tensor) -> Tensor:
        return self.change(self.model(images))


class First(nn.Module):
    """What is done with the images, and a model."""

    def __init__(self, change: Callable[[Tensor], Tensor], model: nn.Module) -> None:
        super().__init__()
        self.model, self.change = model, change

    def forward(self, images: Tensor) -> Tensor:
        answer: Tensor = self.model(self.change(images))
        return answer


class Winners(nn.Module):
    """Keeps the largest tenth of the activations of a layer (k-winners-take-all)."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        threshold = flat.topk(flat.shape[1] // 10, dim=1).values[:, -1:]
        return (flat * (flat >= threshold)).view_as(x)


class Sign(nn.Module):
    """The sign, with the gradient of a clipped line or none at all."""

    straight = True

    def forward(self, x: Tensor) -> Tensor:
        line = x.clamp(-1.0, 1.0)
        return line + (x.sign() - line).detach() if self.straight else x.sign()


class Backward(torch.autograd.Function):
    """A forward pass with another backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Any, backward: Any) -> Tensor:
        ctx.backward_function = backward
        y: Tensor = forward(x)
        return y

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        return ctx.backward_function(gradient[0]), None, None


def with_backward(forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Any:
    """Return a function with a backward pass of its own."""
    return lambda x: Backward.apply(x, forward, backward)  # type: ignore[no-untyped-call]


class Stolen(nn.Module):
    """The answers of one network with the gradients of another."""

    def __init__(self, model: nn.Module, gradient: nn.Module) -> None:
        super().__init__()
        self.model, self.gradient = model, gradient

    def forward(self, images: Tensor) -> Tensor:
        shown = self.gradient(images)
        answer: Tensor = shown + (self.model(images) - shown).detach()
        return answer


class Blend(nn.Module):
    """Mostly the answer of a network that is too sure to have a gradient, and a little that of another."""

    def __init__(self, sure: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.sure, self.other = sure, other

    def forward(self, images: Tensor) -> Tensor:
        answer: Tensor = 0.95 * (1000 * self.sure(images)).softmax(1) + 0.05 * self.other(images).softmax(1)
        return answer


class Mean(nn.Module):
    """The mean of several networks."""

    def __init__(self, *models: nn.Module) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([model(images) for model in self.models]).mean(0)


def rounded(levels: int) -> Callable[[Tensor], Tensor]:
    """Return the rounding to some levels."""
    return lambda x: (x * levels).round() / levels


def thermometer(images: Tensor) -> Tensor:
    """The images coded level by level, and decoded again: as coarse as 8 levels."""
    levels = torch.linspace(1 / 16, 15 / 16, 8).view(1, 8, 1, 1)
    code = (images >= levels).float()
    return code.mean(1, keepdim=True)


def median(images: Tensor) -> Tensor:
    """A 3x3 median, computed outside of autograd."""
    patches = F.unfold(F.pad(images.detach(), (1, 1, 1, 1), mode="replicate"), 3)
    return patches.median(1).values.view_as(images)


def cosines(images: Tensor) -> Tensor:
    """The cosine coefficients of 4x4 blocks, rounded, as JPEG does."""
    k = torch.arange(4.0)
    basis = torch.cos(torch.pi * (k[None, :] + 0.5) * k[:, None] / 4)
    basis = basis / basis.norm(dim=1, keepdim=True)
    n, _, height, width = images.shape
    blocks = images.view(n, height // 4, 4, width // 4, 4)
    coded = torch.einsum("nhawb,ia,jb->nhiwj", blocks, basis, basis)
    back = torch.einsum("nhiwj,ia,jb->nhawb", (coded * 8).round() / 8, basis, basis)
    return back.reshape(n, 1, height, width)


def sharp_sigmoids(z: Tensor) -> Tensor:
    """Sigmoids so steep that all but the nearest to the boundary underflow."""
    middle = z.topk(2, dim=1).values.mean(1, keepdim=True)
    return torch.sigmoid(200 * (z - middle.detach()))


def spread_outputs(z: Tensor) -> Tensor:
    """Minus the spread loss of each class, with activations far past the margin: flat where it is met."""
    a = sharp_sigmoids(z)
    difference = a[:, :, None] - a[:, None, :]
    return -F.relu(0.2 - difference).square().sum(2)


def random_blocks(images: Tensor) -> Tensor:
    """A random half of the 4x4 blocks."""
    kept = (torch.rand(len(images), 1, 7, 7) < 0.5).float()
    return 2 * images * F.interpolate(kept, scale_factor=4)


def shattered(images: Tensor) -> Tensor:
    """Add ripples too fine to see: gradients point anywhere."""
    return images + 0.02 * torch.sin(2000.0 * images)


def ragged(images: Tensor) -> Tensor:
    """Round, and add ripples."""
    return (images * 10).floor() / 10 + 0.02 * torch.cos(3000.0 * images)


def outside_of_torch(images: Tensor) -> Tensor:
    """Leave the graph."""
    return torch.from_numpy(images.numpy().copy())


def root(images: Tensor) -> Tensor:
    """The images, by way of a root of zero: its gradient is not a number."""
    return images + (images - images).sqrt()


# The collection.


@dataclass(frozen=True)
class Specimen:
    """A model, whether it hides from gradients, and the attack that proves it."""

    masked: bool
    build: Callable[[], nn.Module]
    proof: Secret


def honest(build: Callable[[], nn.Module]) -> Specimen:
    """A specimen whose robustness is what gradients say."""
    return Specimen(masked=False, build=build, proof=by_effort)


def masked(build: Callable[[], nn.Module], proof: Secret = crafted_on(plain)) -> Specimen:  # noqa: B008
    """A specimen that hides, and the attack by somebody who knows how."""
    return Specimen(masked=True, build=build, proof=proof)


COLLECTION: dict[str, Specimen] = {
    "linear": honest(lambda: train(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 5)))),
    "mlp": honest(lambda: train(mlp)),
    "cnn": honest(plain),
    "cnn, tanh": honest(lambda: train(lambda: small_cnn(nn.Tanh))),
    "cnn, batch norm": honest(lambda: train(lambda: small_cnn(norm=True))),
    "cnn, max-pooling": honest(lambda: train(lambda: small_cnn(pool=True))),
    "trained long": honest(lambda: train(small_cnn, epochs=25)),
    "label-smoothed": honest(lambda: train(small_cnn, smoothing=0.2)),
    "weight decay": honest(lambda: train(small_cnn, weight_decay=1e-2)),
    "trained with noise": honest(noisy),
    "adversarially trained": honest(lambda: train(small_cnn, adversary=EPS, epochs=8)),
    "adversarially trained, smooth": honest(lambda: train(lambda: small_cnn(nn.ELU), adversary=EPS, epochs=8)),
    "tiny gradients": honest(lambda: Then(plain(), lambda z: 1e-6 * z)),
    "log-probabilities": honest(lambda: Then(plain(), lambda z: z.log_softmax(1))),
    "mild probabilities": honest(lambda: Then(plain(), lambda z: (z / 5).softmax(1))),
    "shifted outputs": honest(lambda: Then(plain(), lambda z: z + 100)),
    "two networks": honest(lambda: Mean(plain(), other())),
    "right straight-through": honest(lambda: First(with_backward(rounded(16), lambda g: g), plain())),
    "blurred": honest(lambda: First(lambda x: F.avg_pool2d(x, 3, 1, 1), noisy())),
    "saturated softmax": masked(lambda: Then(plain(), lambda z: (1000 * z).softmax(1))),
    "huge logits": masked(lambda: Then(plain(), lambda z: 1e4 * z)),
    "underflow": masked(lambda: Then(plain(), sharp_sigmoids)),
    "distilled": masked(lambda: train(small_cnn, temperature=100.0, epochs=10), by_effort),
    "labels only": masked(lambda: Then(plain(), lambda z: F.one_hot(z.argmax(1), 5).float())),
    "quantised": masked(lambda: First(rounded(8), plain())),
    "thermometer": masked(lambda: First(thermometer, plain())),
    "median filter": masked(lambda: First(median, plain())),
    "rounded cosines": masked(lambda: First(cosines, plain())),
    "detached": masked(lambda: First(torch.detach, plain())),
    "outside of torch": masked(lambda: First(outside_of_torch, plain())),
    "not a number": masked(lambda: First(root, plain())),
    "shattered": masked(lambda: First(shattered, plain())),
    "ragged": masked(lambda: First(ragged, plain())),
    "k winners": masked(winners, by_search),
    "wrong straight-through": masked(lambda: First(with_backward(rounded(16), lambda g: -g), plain())),
    "shifted gradient": masked(lambda: First(with_backward(lambda x: x.clone(), lambda g: g.roll(9, 3)), plain())),
    "gradient noise": masked(lambda: First(with_backward(lambda x: x.clone(), torch.randn_like), plain())),
    "another's gradient": masked(lambda: Stolen(plain(), train(mlp, noise=0.5, seed=3))),
    "blended": masked(lambda: Blend(plain(), train(mlp, noise=0.5, seed=3))),
    "hidden signs": masked(lambda: signs(straight=False), crafted_on(lambda: signs(straight=True))),
    "random pixels": masked(lambda: First(lambda x: x * (torch.rand_like(x) < 0.5) * 2, noisy()), by_expectation),
    "random blocks": masked(lambda: First(random_blocks, noisy()), by_expectation),
    "spread loss": masked(lambda: Then(plain(), spread_outputs)),
}


@functools.cache
def specimen(name: str) -> nn.Module:
    """Build a model of the collection, once."""
    return COLLECTION[name].build().eval()
