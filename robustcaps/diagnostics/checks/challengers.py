"""Attacks that a sound gradient attack should not lose against: each proposes images for the samples it left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradient import Iterative, OneStep
from robustcaps.diagnostics.checks.baseline_attack import textbook_model
from robustcaps.diagnostics.checks.context import Case
from robustcaps.diagnostics.checks.surrogate_model import by_surrogate

SEARCHES = (250, 1000)
"""Queries of a search without gradients: of a first one, and of a second."""

Propose = Callable[[Case, Tensor], Tensor]
"""(case, samples) -> one image for each of them."""


class Logarithm(nn.Module):
    """The logarithm of a model's probabilities: its logits again, up to a constant, unflattened."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return log p; what has underflowed stays finite."""
        log: Tensor = self.model(images).clamp_min(1e-45).log()
        return log


class Jittered(nn.Module):
    """A model behind Gaussian noise: the mean of its gradients is that of a smoothed function."""

    def __init__(self, model: nn.Module, sigma: float) -> None:
        super().__init__()
        self.model = model
        self.sigma = sigma

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs for noisy images; none leaves [0,1], and gradients pass as if none had wanted to."""
        noisy = (images + self.sigma * torch.randn_like(images)).clamp(0.0, 1.0)
        outputs: Tensor = self.model(noisy.detach() + (images - images.detach()))
        return outputs


def by_noise(case: Case, rows: Tensor) -> Tensor:
    """Try random points of the ball."""
    return case.attack(load_attack("noise", tries=20, eps=case.eps, norm=case.budget.norm), rows)


def by_one_step(case: Case, rows: Tensor) -> Tensor:
    """Take one step of size eps along the gradient that the textbook attack follows, too."""
    return case.attack(OneStep(loss=case.objective), rows, model=textbook_model(case))


def by_unsaturated_losses(case: Case, rows: Tensor) -> Tensor:
    """Climb what no softmax flattens: the margin, the log-odds, and the log of outputs that are probabilities."""
    models = [case.counted]
    if outputs_are_probabilities(case):
        models.append(_counted(case, Logarithm(case.subject)))
    losses = ("margin", "ce")
    attempts = [(loss, model) for model in models for loss in losses]
    best, left = case.images[rows], torch.arange(len(rows), device=rows.device)
    for loss, model in attempts:
        attack = Iterative(loss=loss, steps=case.textbook.steps, random_start=True)  # type: ignore[arg-type]
        best[left] = case.attack(attack, rows[left], model=model)
        left = left[~case.fooled(best[left], rows[left])]
    return best


def by_more_steps(case: Case, rows: Tensor) -> Tensor:
    """Run the textbook attack twice as long, from two starts."""
    attack = Iterative(loss=case.objective, steps=2 * case.textbook.steps, random_start=True, restarts=2)
    return case.attack(attack, rows, model=textbook_model(case))


def by_square(case: Case, rows: Tensor) -> Tensor:
    """Search at random, with the outputs alone: a while for all samples, then longer if that fooled any.

    The search gains most at its beginning; one that has gained nothing by then will not overturn a gradient attack.
    """
    best, left = case.images[rows], torch.arange(len(rows), device=rows.device)
    for queries in SEARCHES:
        best[left] = case.attack(
            load_attack("square", queries=queries, eps=case.eps, norm=case.budget.norm), rows[left]
        )
        missed = left[~case.fooled(best[left], rows[left])]
        if len(missed) in (0, len(rows)):
            break
        left = missed
    return best


def by_votes(case: Case, rows: Tensor) -> Tensor:
    """Climb around the routing of a capsule network, on its votes."""
    attack = load_attack("vote", steps=20, eps=case.eps, norm=case.budget.norm)
    return case.attack(attack, rows, model=_counted(case, case.model))


def by_expectation(case: Case, rows: Tensor) -> Tensor:
    """Climb the mean of a randomised model's gradients (EOT)."""
    return case.attack(Iterative(loss="margin", steps=20, random_start=True, eot=10), rows)


def by_smoothing(case: Case, rows: Tensor) -> Tensor:
    """Climb the mean of gradients around the point, which is smooth where the function is not."""
    sigma = 0.5 * case.eps if case.budget.norm == "linf" else 0.05
    attack = Iterative(loss="margin", steps=20, random_start=True, eot=8, early_stop=False)
    return case.attack(attack, rows, model=_counted(case, Jittered(case.subject, sigma)))


def by_straight_through(case: Case, rows: Tensor) -> Tensor:
    """Climb with the identity in place of the gradients of parts that keep an image's shape (BPDA)."""
    with straight_through(case.model):
        return case.attack(Iterative(loss="margin", steps=case.textbook.steps, random_start=True), rows)


def outputs_are_probabilities(case: Case) -> bool:
    """Return whether the outputs lie in [0,1] and add up to 1."""
    sums = case.outputs.sum(1)
    return bool((case.outputs >= 0).all()) and bool((sums - 1.0).abs().max() < 1e-3)


def replaceable_parts(model: nn.Module) -> list[nn.Module]:
    """Return the modules without weights that torch does not bring: what a defence puts in a network's way."""
    return [
        part
        for part in model.modules()
        if part is not model and not type(part).__module__.startswith("torch.") and not list(part.parameters())
    ]


@contextmanager
def straight_through(model: nn.Module) -> Iterator[None]:
    """Let gradients pass the replaceable parts unchanged, as long as this lasts (Athalye et al. 2018)."""

    def pass_on(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if len(given) != 1 or given[0].shape != output.shape:
            return output
        return given[0] + (output - given[0]).detach()

    hooks = [part.register_forward_hook(pass_on) for part in replaceable_parts(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _counted(case: Case, model: nn.Module) -> CountedModel:
    return CountedModel(model, Counts.zeros(case.n))


BLACK_BOX: dict[str, Propose] = {"square": by_square, "surrogate": by_surrogate}
"""What needs no gradient of the model."""
