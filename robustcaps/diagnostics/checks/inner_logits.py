"""Logits inside a network: submodules with one output per class, before later layers saturate or replace them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradient_based.iterative import IterativeAttack
from robustcaps.attacks.losses import margin_loss
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.gradient_measures import cosine, is_degenerate
from robustcaps.diagnostics.checks.shielded_model import ModelFailed, ShieldedModel

MAX_MODULES = 6
"""Number of submodules to attack at most: the last ones."""
PROBE_IMAGES = 16
"""Number of images that the submodules are probed with."""
SAME_GRADIENT_COSINE = 0.99
"""Cosine above which two gradients count as the same."""


class InnerLogits(nn.Module):
    """A network that returns the output of one of its submodules."""

    def __init__(self, model: nn.Module, module: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        """Run the whole network and return the output of the submodule's last call."""
        captured: list[Tensor] = []
        hook = self.module.register_forward_hook(lambda _, __, output: captured.append(output))
        try:
            self.model(images)
        finally:
            hook.remove()
        return captured[-1]


def find_inner_logits(context: DiagnosisContext) -> list[nn.Module]:
    """Return the submodules with one output per class that differ from the model's outputs, or in their gradient."""
    captured: dict[nn.Module, Tensor] = {}

    def capture(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and output.shape == outputs.shape and output.is_floating_point():
            logits = output.detach().float()
            if not any(torch.equal(logits, other) for other in captured.values()):  # skips parents of a last layer
                captured[module] = logits

    images = context.all_images[:PROBE_IMAGES]
    outputs = context.outputs[:PROBE_IMAGES]
    hooks = [each.register_forward_hook(capture) for each in context.model.modules() if each is not context.model]
    try:
        with torch.no_grad():
            context.shielded.checked_outputs(images)
    finally:
        for hook in hooks:
            hook.remove()
    return [module for module, logits in captured.items() if _is_worth_attacking(context, module, logits, outputs)][
        -MAX_MODULES:
    ]


def attack_inner_logits(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Maximise the margin of inner logits, one submodule after another, on the samples not yet fooled."""
    attack = IterativeAttack(loss="margin", steps=context.baseline.steps, random_start=True, early_stop=False)
    best, remaining = context.images[rows], torch.arange(len(rows), device=rows.device)
    for module in context.cached(find_inner_logits):
        try:
            best[remaining] = context.run_attack(attack, rows[remaining], model=_inner_model(context, module))
        except ModelFailed:  # the submodule is not called for every batch
            continue
        remaining = remaining[~context.is_fooled(best[remaining], rows[remaining])]
    return best


def _is_worth_attacking(context: DiagnosisContext, module: nn.Module, logits: Tensor, outputs: Tensor) -> bool:
    """Return whether inner logits have a usable gradient, and differ from the outputs in value or gradient."""
    rows = context.rows[:PROBE_IMAGES]
    images = context.images[rows]
    gradient = context.loss_and_gradient(margin_loss, _inner_model(context, module), images, rows).gradient
    if not bool(torch.isfinite(logits).all()) or bool(is_degenerate(gradient).all()):
        return False
    same_gradient = float(cosine(gradient, context.margin_gradient(images, rows)).mean()) > SAME_GRADIENT_COSINE
    return not (same_gradient and _are_equivalent(logits, outputs))


def _are_equivalent(logits: Tensor, outputs: Tensor) -> bool:
    """Return whether logits and outputs are equal up to a factor and a constant per image."""
    a, b = ((each - each.mean(1, keepdim=True)).flatten().double() for each in (logits, outputs))
    return bool(a @ b >= (1.0 - 1e-6) * a.norm() * b.norm())


def _inner_model(context: DiagnosisContext, module: nn.Module) -> CountedModel:
    return CountedModel(ShieldedModel(InnerLogits(context.model, module)), Counts.zeros(context.n))
