"""Gradients by autograd against rebuilt ones: where they differ, something is detached, hooked or replaced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robustcaps.attacks.losses import margin_loss
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.gradient_measures import cosine, evenly_spaced, is_degenerate
from robustcaps.diagnostics.checks.rebuilt_model import RebuiltModel
from robustcaps.diagnostics.checks.recorded_pass import Substitution

REBUILT_COSINE = 0.99
"""Cosine below which two gradients differ by more than rounding: the same chain rule gives 1 up to about 1e-5."""
GRAPH_SAMPLES = 24
"""Number of samples whose gradients are rebuilt for the check."""


@dataclass(frozen=True, eq=False)
class GraphComparison:
    """Autograd's gradients of the margin beside rebuilt ones, for some samples."""

    differs: Tensor
    """(m,): whether it differs from both rebuilt gradients, with and without substitutes for steps."""
    cosine: float
    """Mean cosine with the closer one."""
    usable: bool
    """Whether the operations could be run again, with a gradient that is not zero."""
    has_steps: bool
    """Whether the model contains steps, such as rounding and comparisons."""


def compare_graph(context: DiagnosisContext) -> GraphComparison:
    """Compare autograd's gradients at some unperturbed images with rebuilt ones, each on the same random numbers."""
    rows = evenly_spaced(context.rows, GRAPH_SAMPLES)
    images = context.images[rows]
    own = _gradient(context, rows, None)
    rebuilt = [_gradient(context, rows, substitution) for substitution in ("none", "steps")]
    cosines = torch.stack([cosine(own, each) for each in rebuilt])
    silent = is_degenerate(own) & is_degenerate(rebuilt[0])  # a flat function: the chain rule gives 0 as well
    blocked = silent & ~is_degenerate(rebuilt[1])
    differs = (cosines.amax(0) < REBUILT_COSINE) & (~silent | blocked)
    usable = bool((~is_degenerate(rebuilt[1])).any())
    has_steps = usable and RebuiltModel(context.shielded).record(images[:1]).has_steps
    return GraphComparison(differs & usable, float(cosines.amax(0).mean()), usable, has_steps)


def _gradient(context: DiagnosisContext, rows: Tensor, substitution: Substitution | None) -> Tensor:
    """Return the gradient of the margin; every call starts from the same random state."""
    model = context.shielded if substitution is None else RebuiltModel(context.shielded, substitution)
    return context.loss_and_gradient(margin_loss, context.count(model), context.images[rows], rows).gradient
