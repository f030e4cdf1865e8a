"""Challenger attacks, which a sound gradient attack should not lose to: each returns one image per attacked sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradient_based.iterative import IterativeAttack, SingleStepAttack
from robustcaps.diagnostics.checks.baseline_attack import baseline_model
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.surrogate_model import attack_via_surrogate

SQUARE_QUERIES = (250, 1000)
"""Query budgets of a short Square attack and of the longer one that follows where the short one had some success."""

Challenger = Callable[[DiagnosisContext, Tensor], Tensor]
"""(context, rows) -> one image per row."""


class LogProbabilities(nn.Module):
    """The logarithm of a model's output probabilities: its logits up to a constant, without saturation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return log p, which stays finite where p has underflowed."""
        log: Tensor = self.model(images).clamp_min(1e-45).log()
        return log


class NoisyInput(nn.Module):
    """A model with Gaussian noise added to its input: its expected gradient is that of a smoothed model."""

    def __init__(self, model: nn.Module, sigma: float) -> None:
        super().__init__()
        self.model = model
        self.sigma = sigma

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs for noisy images, clipped to [0,1]; the gradient ignores the clipping."""
        noisy = (images + self.sigma * torch.randn_like(images)).clamp(0.0, 1.0)
        outputs: Tensor = self.model(noisy.detach() + (images - images.detach()))
        return outputs


def attack_with_noise(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Try random points of the ball."""
    return context.run_attack(load_attack("noise", tries=20, eps=context.eps, norm=context.budget.norm), rows)


def attack_with_one_step(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Take one step of size eps along the gradient of the baseline loss (FGSM)."""
    return context.run_attack(SingleStepAttack(loss=context.baseline_loss), rows, model=baseline_model(context))


def attack_with_unsaturated_losses(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Maximise the margin and the log-odds, of the outputs and, if these are probabilities, of their logarithm."""
    models = [context.counted]
    if outputs_are_probabilities(context):
        models.append(_counted(context, LogProbabilities(context.shielded)))
    losses = ("margin", "log-odds")
    attempts = [(loss, model) for model in models for loss in losses]
    best, remaining = context.images[rows], torch.arange(len(rows), device=rows.device)
    for loss, model in attempts:
        attack = IterativeAttack(loss=loss, steps=context.baseline.steps, random_start=True)  # type: ignore[arg-type]
        best[remaining] = context.run_attack(attack, rows[remaining], model=model)
        remaining = remaining[~context.is_fooled(best[remaining], rows[remaining])]
    return best


def attack_with_more_steps(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Run the baseline attack with twice the steps and two restarts."""
    attack = IterativeAttack(
        loss=context.baseline_loss, steps=2 * context.baseline.steps, random_start=True, restarts=2
    )
    return context.run_attack(attack, rows, model=baseline_model(context))


def attack_with_square(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Run the Square attack, first with few queries and then, if that fooled some samples but not all, with more.

    Random search gains most in its first queries; one that has gained nothing by then will not beat a gradient attack.
    """
    best, remaining = context.images[rows], torch.arange(len(rows), device=rows.device)
    for queries in SQUARE_QUERIES:
        square = load_attack("square", queries=queries, eps=context.eps, norm=context.budget.norm)
        best[remaining] = context.run_attack(square, rows[remaining])
        robust = remaining[~context.is_fooled(best[remaining], rows[remaining])]
        if len(robust) in (0, len(rows)):
            break
        remaining = robust
    return best


def attack_votes(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Attack the votes of a capsule network, which bypasses the routing (Gu et al. 2021)."""
    attack = load_attack("vote", steps=20, eps=context.eps, norm=context.budget.norm)
    return context.run_attack(attack, rows, model=_counted(context, context.model))


def attack_with_eot(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Average the gradients of a randomised model over several passes (expectation over transformation)."""
    return context.run_attack(IterativeAttack(loss="margin", steps=20, random_start=True, eot=10), rows)


def attack_with_smoothed_gradients(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Average gradients over a Gaussian neighbourhood of the current image."""
    sigma = 0.5 * context.eps if context.budget.norm == "linf" else 0.05
    attack = IterativeAttack(loss="margin", steps=20, random_start=True, eot=8, early_stop=False)
    return context.run_attack(attack, rows, model=_counted(context, NoisyInput(context.shielded, sigma)))


def attack_straight_through(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Replace the backward pass of shape-preserving custom modules by the identity (BPDA)."""
    with straight_through(context.model):
        return context.run_attack(IterativeAttack(loss="margin", steps=context.baseline.steps, random_start=True), rows)


def outputs_are_probabilities(context: DiagnosisContext) -> bool:
    """Return whether the outputs are non-negative and sum to 1."""
    sums = context.outputs.sum(1)
    return bool((context.outputs >= 0).all()) and bool((sums - 1.0).abs().max() < 1e-3)


def find_custom_modules(model: nn.Module) -> list[nn.Module]:
    """Return the submodules without parameters that are not part of torch: candidates for a defence's preprocessing."""
    return [
        module
        for module in model.modules()
        if module is not model and not type(module).__module__.startswith("torch.") and not list(module.parameters())
    ]


@contextmanager
def straight_through(model: nn.Module) -> Iterator[None]:
    """Pass gradients unchanged through shape-preserving custom modules inside the context (Athalye et al. 2018)."""

    def use_identity_gradient(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if len(inputs) != 1 or inputs[0].shape != output.shape:
            return output
        return inputs[0] + (output - inputs[0]).detach()

    hooks = [module.register_forward_hook(use_identity_gradient) for module in find_custom_modules(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _counted(context: DiagnosisContext, model: nn.Module) -> CountedModel:
    return CountedModel(model, Counts.zeros(context.n))


BLACK_BOX: dict[str, Challenger] = {"square": attack_with_square, "surrogate": attack_via_surrogate}
"""Attacks that do not use the model's gradients."""
