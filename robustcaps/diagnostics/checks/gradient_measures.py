"""What gradients look like: measured once for a case, read by several checks and remedies."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.attacks.norms import L2
from robustcaps.diagnostics.checks.context import Case

HALF = 0.5
"""Two noisy readings of a gradient have the cosine S/(S+N), S and N the powers of signal and noise: below, N > S."""
SAMPLES = 64
"""How many samples are measured where that takes many passes."""
SURFACE_STREAM, DIRECTION_STREAM = 1_000_001, 1_000_002


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of each sample's two gradients, 0 where one of them is zero or not finite."""
    products = L2().ascent(a) * L2().ascent(b)
    return products.flatten(1).sum(1).nan_to_num(0.0, 0.0, 0.0)


def useless(gradient: Tensor) -> Tensor:
    """Return which samples' gradients are zero everywhere or not finite somewhere."""
    flat = gradient.flatten(1)
    return (flat == 0).all(1) | ~torch.isfinite(flat).all(1)


def margin_gradient(case: Case) -> Tensor:
    """Return the gradient of the outputs' margin at the images."""
    return case.slope(case.images, case.rows)


def repeatability(case: Case) -> float:
    """Return the cosine of the gradients of two passes over the same images: the mean over the samples."""
    first, second = case.once(margin_gradient), case.slope(case.images, case.rows)
    known = ~(useless(first) | useless(second))
    return float(cosine(first, second)[known].mean()) if bool(known.any()) else 1.0


def chance(case: Case) -> float:
    """Return which part of the margins is chance: their mean deviation from pass to pass over their mean size."""
    passes = torch.stack([case.margin(case.images, case.rows) for _ in range(8 if case.randomised else 2)])
    return float(passes.std(0).mean() / passes.abs().mean().clamp_min(1e-300))


def smoothness(case: Case) -> float:
    """Return the cosine of the gradients at an image and a tenth of eps beside it: the mean over the samples."""
    offset = case.budget.ball.random(case.draws(case.rows), tuple(case.images.shape[1:]), stream=SURFACE_STREAM)
    beside = case.images + 0.1 * case.budget.radius(case.images) * offset
    there = case.slope(beside.clamp(0.0, 1.0), case.rows)
    return float(cosine(case.once(margin_gradient), there).mean())


def agreement(case: Case) -> float:
    """Return how well autograd foretells what the margin does: the cosine of derivatives along random directions.

    Derivatives by central differences d over moves of several sizes against g.u by autograd, for each sample over its
    directions u; the size that agrees best counts, so that rounding, curvature and steps of a quantised input with a
    sound substitute gradient are forgiven.
    """
    largest = float(case.budget.radius(case.images[:1])) if case.budget.norm == "linf" else 0.1
    return max(_agreement_at(case, size) for size in (1e-3, 1e-2, max(largest, 2e-2)))


def _agreement_at(case: Case, size: float, directions: int = 12) -> float:
    rows = case.rows[:SAMPLES]
    images = case.images[rows].clamp(size, 1.0 - size) if size < 0.5 else case.images[rows]
    gradient = case.slope(images, rows).double()
    foretold, seen = [], []
    for number in range(directions):
        direction = _direction(case, rows, number)
        foretold.append((gradient * direction).flatten(1).sum(1))
        ahead, behind = (case.margin(images + sign * size * direction, rows) for sign in (1, -1))
        seen.append((ahead - behind) / (2.0 * size))
    pair = [torch.stack(each, 1)[:, :, None, None] for each in (foretold, seen)]
    return float(cosine(*pair).mean())


def _direction(case: Case, rows: Tensor, number: int) -> Tensor:
    """Return a random direction for each sample: -1 or 1 for every pixel, or for blocks of them by turns."""
    channels, height, width = case.images.shape[1:]
    block = 1 if number % 2 else 4
    coarse = (channels, -(-height // block), -(-width // block))
    signs = case.draws(rows).uniform(coarse, stream=DIRECTION_STREAM + number).ge(0.5).float() * 2.0 - 1.0
    return signs.repeat_interleave(block, 2).repeat_interleave(block, 3)[:, :, :height, :width]


def secant(case: Case) -> float:
    """Return log10 of the margin's gradient at the images over its mean slope on the way to images of other classes.

    By the mean value theorem the gradient is as large as that slope somewhere on the way, whatever the scale of the
    outputs: a gradient far below it means that the function is flat just where attacks begin.
    """
    other = _image_of_another_class(case)
    rise = case.margin(case.all_images[other], case.rows) - case.margin(case.images, case.rows)
    distance = L2().size(case.all_images[other] - case.images)
    slope = (rise / distance.clamp_min(1e-12)).clamp_min(0.0).mean()
    steepness = L2().size(case.once(margin_gradient)).nan_to_num(0.0, 0.0, 0.0).mean()
    return float(torch.log10(steepness.clamp_min(1e-45) / slope.clamp_min(1e-45)))


def _image_of_another_class(case: Case) -> Tensor:
    """Return for each sample the position of the nearest image of another class, by label and by answer."""
    answers = case.outputs.nan_to_num(0.0).argmax(1)
    distance = torch.cdist(case.images.flatten(1), case.all_images.flatten(1))
    own = case.labels[:, None]
    same = (answers[None, :] == own) | (case.all_labels[None, :] == own)
    return distance.masked_fill(same, torch.inf).argmin(1)
