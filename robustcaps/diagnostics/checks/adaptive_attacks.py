"""Adaptive attacks: gradients that go around what breaks the model's own, and which of them a model calls for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.gradient_based.iterative import IterativeAttack
from robustcaps.diagnostics.checks.autograd_graph import compare_graph
from robustcaps.diagnostics.checks.challengers import Challenger
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.convergence import NOISE_PASSES
from robustcaps.diagnostics.checks.finite_differences import compare_finite_differences
from robustcaps.diagnostics.checks.gradient_measures import (
    MIN_COSINE,
    clean_margin_gradient,
    evenly_spaced,
    gradient_smoothness,
    is_degenerate,
)
from robustcaps.diagnostics.checks.inner_logits import attack_inner_logits, find_inner_logits
from robustcaps.diagnostics.checks.rebuilt_model import RebuiltModel
from robustcaps.diagnostics.checks.recorded_pass import Substitution
from robustcaps.diagnostics.checks.shielded_model import ModelFailed
from robustcaps.models.base import CapsuleClassifier

UNROLLED_SAMPLES = 24
"""Number of samples that are attacked through the definition of routing, which is many times slower than kernels."""


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


def select_adaptive_attacks(context: DiagnosisContext) -> dict[str, Challenger]:
    """Return the adaptive attacks that the type of the model and its gradients call for."""
    gradient, graph = context.cached(clean_margin_gradient), context.cached(compare_graph)
    is_rough = context.cached(gradient_smoothness) < MIN_COSINE
    is_misleading = has_misleading_gradients(context)
    attacks: dict[str, Challenger] = {}
    if graph.usable and (is_misleading or bool(graph.differs.any())):
        attacks["rebuilt gradients"] = attack_with_rebuilt_gradients
    if find_capsules(context.model):
        attacks["votes"] = attack_votes
        if graph.usable and (is_misleading or is_rough):
            attacks["constant assignments"] = attack_with_constant_assignments
    if context.cached(find_inner_logits):
        attacks["inner logits"] = attack_inner_logits
    if context.is_randomised:
        attacks["expectation over transformation"] = attack_with_eot
    if (is_rough or is_misleading) and find_custom_modules(context.model):
        attacks["straight-through"] = attack_straight_through
    if is_rough and not bool(is_degenerate(gradient).all()):
        attacks["smoothed gradients"] = attack_with_smoothed_gradients
    return attacks


def has_misleading_gradients(context: DiagnosisContext) -> bool:
    """Return whether some gradients are zero or not finite, or disagree with finite differences or the operations."""
    is_blocked = bool(is_degenerate(context.cached(clean_margin_gradient)).any())
    differs = bool(context.cached(compare_graph).differs.any())
    return is_blocked or differs or bool(context.cached(compare_finite_differences).disagrees.any())


def attack_with_rebuilt_gradients(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Run PGD on gradients by the chain rule over the recorded operations, with and without substitutes for steps."""
    choices: list[Substitution] = ["steps", "none"] if context.cached(compare_graph).has_steps else ["none"]
    return _attack_rebuilt(context, rows, choices)


def attack_with_more_restarts(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Run the adaptive attack that suits the model best with more steps and restarts, and other random numbers."""
    model: nn.Module = context.shielded
    if context.cached(compare_graph).usable and has_misleading_gradients(context):
        model = RebuiltModel(context.shielded)
    is_averaged = context.is_randomised or context.cached(gradient_smoothness) < MIN_COSINE
    if is_averaged and not context.is_randomised:
        model = NoisyInput(model, _noise_of_smoothing(context))
    eot = NOISE_PASSES if is_averaged else 1
    options = {"steps": 3 * context.baseline.steps, "restarts": 1 if is_averaged else 3, "eot": eot}
    attack = IterativeAttack(loss="margin", random_start=True, early_stop=eot == 1, **options)
    return context.run_attack(attack, rows, model=context.count(model), repetition=7)


def attack_with_constant_assignments(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Run PGD on the unrolled routing, whose gradient passes assignments as constants; on some rows, for it is slow."""
    images, chosen = context.images[rows], torch.isin(rows, evenly_spaced(rows, UNROLLED_SAMPLES))
    model = context.count(RebuiltModel(context.shielded, "assignments"))
    attack = IterativeAttack(loss="margin", steps=context.baseline.steps, random_start=True)
    images[chosen] = context.run_attack(attack, rows[chosen], model=model)
    return images


def _attack_rebuilt(context: DiagnosisContext, rows: Tensor, choices: Sequence[Substitution]) -> Tensor:
    eot = NOISE_PASSES if context.is_randomised else 1
    losses = ("margin", "log-odds")
    best, remaining = context.images[rows], torch.arange(len(rows), device=rows.device)
    for number, (substitution, loss) in enumerate((choice, loss) for choice in choices for loss in losses):
        if not len(remaining):
            break
        model = context.count(RebuiltModel(context.shielded, substitution))
        steps = 2 * context.baseline.steps
        attack = IterativeAttack(loss=loss, steps=steps, random_start=True, eot=eot, early_stop=eot == 1)  # type: ignore[arg-type]
        best[remaining] = context.run_attack(attack, rows[remaining], model=model, repetition=number)
        remaining = remaining[~context.is_fooled(best[remaining], rows[remaining])]
    return best


def find_capsules(model: nn.Module) -> list[CapsuleClassifier]:
    """Return the capsule networks of the zoo in a model: itself, or what it wraps."""
    return [module for module in model.modules() if isinstance(module, CapsuleClassifier)]


def attack_votes(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Attack the votes of a capsule network, which bypasses the routing (Gu et al. 2021)."""
    attack = load_attack("vote", steps=20, eps=context.eps, norm=context.budget.norm)
    best, remaining = context.images[rows], torch.arange(len(rows), device=rows.device)
    for capsules in find_capsules(context.model):
        try:
            best[remaining] = context.run_attack(attack, rows[remaining], model=context.count(capsules))
        except (RuntimeError, ModelFailed):  # a wrapped network that takes other images
            continue
        remaining = remaining[~context.is_fooled(best[remaining], rows[remaining])]
    return best


def attack_with_eot(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Average the gradients of a randomised model over several passes (expectation over transformation)."""
    steps = context.baseline.steps
    attack = IterativeAttack(loss="margin", steps=steps, random_start=True, eot=NOISE_PASSES, early_stop=False)
    return context.run_attack(attack, rows)


def attack_with_smoothed_gradients(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Average gradients over a Gaussian neighbourhood of the current image."""
    sigma = _noise_of_smoothing(context)
    attack = IterativeAttack(loss="margin", steps=20, random_start=True, eot=8, early_stop=False)
    return context.run_attack(attack, rows, model=context.count(NoisyInput(context.shielded, sigma)))


def _noise_of_smoothing(context: DiagnosisContext) -> float:
    return 0.5 * context.eps if context.budget.norm == "linf" else 0.05


def attack_straight_through(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Replace the backward pass of shape-preserving custom modules by the identity (BPDA)."""
    with straight_through(context.model):
        return context.run_attack(IterativeAttack(loss="margin", steps=context.baseline.steps, random_start=True), rows)


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
