"""Measurements of a model's gradients, shared by several checks and by the choice of adaptive attacks."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.attacks.norms import L2
from robustcaps.diagnostics.checks.context import DiagnosisContext

MIN_COSINE = 0.5
"""Two noisy estimates of a gradient have the expected cosine S/(S+N), where S and N are the powers of signal and noise:
below 0.5 there is more noise than signal."""
NEIGHBOUR_OFFSET = 0.1
"""Distance of the neighbouring image at which gradients are compared, as a fraction of eps."""
SURFACE_STREAM = 1_000_001


def evenly_spaced(rows: Tensor, most: int) -> Tensor:
    """Return at most so many of the rows, evenly spaced."""
    if len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most, device=rows.device).round().long()]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of two gradients per sample, 0 where one of them is zero or not finite."""
    products = L2().ascent(a) * L2().ascent(b)
    return products.flatten(1).sum(1).nan_to_num(0.0, 0.0, 0.0)


def is_degenerate(gradient: Tensor) -> Tensor:
    """Return which samples have a gradient that is zero everywhere or not finite somewhere."""
    flat = gradient.flatten(1)
    return (flat == 0).all(1) | ~torch.isfinite(flat).all(1)


def clean_margin_gradient(context: DiagnosisContext) -> Tensor:
    """Return the gradient of the output margin at the unperturbed images."""
    return context.margin_gradient(context.images, context.rows)


def gradient_repeatability(context: DiagnosisContext) -> float:
    """Return the mean cosine of the gradients of two passes over the same images."""
    first = context.cached(clean_margin_gradient)
    second = context.margin_gradient(context.images, context.rows)
    usable = ~(is_degenerate(first) | is_degenerate(second))
    return float(cosine(first, second)[usable].mean()) if bool(usable.any()) else 1.0


def margin_noise(context: DiagnosisContext) -> float:
    """Return the standard deviation of the margins between passes over their mean absolute value."""
    passes = torch.stack(
        [context.margins(context.images, context.rows) for _ in range(8 if context.is_randomised else 2)]
    )
    return float(passes.std(0).mean() / passes.abs().mean().clamp_min(1e-300))


def gradient_smoothness(context: DiagnosisContext) -> float:
    """Return the mean cosine of the gradients at an image and at a random neighbour 0.1 eps away."""
    shape = tuple(context.images.shape[1:])
    direction = context.budget.ball.random(context.draws(context.rows), shape, stream=SURFACE_STREAM)
    neighbours = context.images + NEIGHBOUR_OFFSET * context.budget.radius(context.images) * direction
    gradient = context.margin_gradient(neighbours.clamp(0.0, 1.0), context.rows)
    return float(cosine(context.cached(clean_margin_gradient), gradient).mean())


def gradient_to_secant(context: DiagnosisContext) -> float:
    """Return log10 of the mean gradient norm of the margin over its mean slope towards images of other classes.

    By the mean value theorem the gradient is at least as large as that slope somewhere on the line between the two
    images, at any scale of the outputs. A much smaller gradient means that the function is flat where attacks start.
    """
    nearest = _nearest_image_of_another_class(context)
    rise = context.margins(context.all_images[nearest], context.rows) - context.margins(context.images, context.rows)
    distance = L2().size(context.all_images[nearest] - context.images)
    slope = (rise / distance.clamp_min(1e-12)).clamp_min(0.0).mean()
    norm = L2().size(context.cached(clean_margin_gradient)).nan_to_num(0.0, 0.0, 0.0).mean()
    return float(torch.log10(norm.clamp_min(1e-45) / slope.clamp_min(1e-45)))


def _nearest_image_of_another_class(context: DiagnosisContext) -> Tensor:
    """Return per sample the position of the nearest image whose label and prediction are both of another class."""
    predictions = context.outputs.nan_to_num(0.0).argmax(1)
    distance = torch.cdist(context.images.flatten(1), context.all_images.flatten(1))
    own = context.labels[:, None]
    same = (predictions[None, :] == own) | (context.all_labels[None, :] == own)
    return distance.masked_fill(same, torch.inf).argmin(1)
