"""Answers inside a network: parts that give a number for every class, before something behind them flattens it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradient import Iterative
from robustcaps.attacks.losses import logit_margin
from robustcaps.diagnostics.checks.context import Case
from robustcaps.diagnostics.checks.gradient_measures import cosine, useless
from robustcaps.diagnostics.checks.shielded_model import ModelFailed, Subject

MOST = 6
"""So many parts are attacked at most, the last ones."""
LOOKED_AT = 16
"""So many images tell which parts answer."""
SAME = 0.99
"""The cosine from which on two gradients lead to the same place."""


class Inner(nn.Module):
    """A network cut open: what one of its parts answers."""

    def __init__(self, model: nn.Module, part: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.part = part

    def forward(self, images: Tensor) -> Tensor:
        """Run the whole network and return what the part gave the last time it was called."""
        heard: list[Tensor] = []
        hook = self.part.register_forward_hook(lambda _, __, output: heard.append(output))
        try:
            self.model(images)
        finally:
            hook.remove()
        return heard[-1]


def inner_parts(case: Case) -> list[nn.Module]:
    """Return the parts that answer otherwise than the whole, up to a factor, or have another gradient."""
    heard: dict[nn.Module, Tensor] = {}

    def listen(part: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and output.shape == whole.shape and output.is_floating_point():
            answer = output.detach().float()
            if not any(torch.equal(answer, other) for other in heard.values()):  # a last layer is heard, its parent not
                heard[part] = answer

    images = case.all_images[:LOOKED_AT]
    whole = case.outputs[:LOOKED_AT]
    hooks = [part.register_forward_hook(listen) for part in case.model.modules() if part is not case.model]
    try:
        with torch.no_grad():
            case.subject.answer(images)
    finally:
        for hook in hooks:
            hook.remove()
    return [part for part, answer in heard.items() if _worth_climbing(case, part, answer, whole)][-MOST:]


def _alike(answer: Tensor, whole: Tensor) -> bool:
    """Tell whether two answers are equal up to a factor and a number added to all classes."""
    a, b = ((each - each.mean(1, keepdim=True)).flatten().double() for each in (answer, whole))
    return bool(a @ b >= (1.0 - 1e-6) * a.norm() * b.norm())


def _worth_climbing(case: Case, part: nn.Module, answer: Tensor, whole: Tensor) -> bool:
    """Tell whether a part has a gradient, and it or its answer is another than that of the whole."""
    rows = case.rows[:LOOKED_AT]
    slope = case.climbing(logit_margin, _asked(case, part), case.images[rows], rows).gradient
    if not bool(torch.isfinite(answer).all()) or bool(useless(slope).all()):
        return False
    same = float(cosine(slope, case.slope(case.images[rows], rows)).mean()) > SAME
    return not (same and _alike(answer, whole))


def _asked(case: Case, part: nn.Module) -> CountedModel:
    return CountedModel(Subject(Inner(case.model, part)), Counts.zeros(case.n))


def by_inner_answers(case: Case, rows: Tensor) -> Tensor:
    """Climb the margin of what inner parts answer; whether that fools is for the whole to say."""
    attack = Iterative(loss="margin", steps=case.textbook.steps, random_start=True, early_stop=False)
    best, left = case.images[rows], torch.arange(len(rows), device=rows.device)
    for part in case.once(inner_parts):
        try:
            best[left] = case.attack(attack, rows[left], model=_asked(case, part))
        except ModelFailed:  # a part that is not always asked
            continue
        left = left[~case.fooled(best[left], rows[left])]
    return best
