"""Answers inside a network: parts that give a number for every class, before something behind them flattens it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustcaps.attacks.counted import CountedModel, Counts
from robustcaps.attacks.gradient import Iterative
from robustcaps.diagnostics.case import Case
from robustcaps.diagnostics.subject import ModelFailed, Subject

MOST = 4
"""So many parts are attacked at most, the last ones."""
LOOKED_AT = 16
"""So many images tell which parts answer."""


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
    """Return the parts that answer otherwise than the whole: not the same differences of classes, up to a factor."""
    heard: dict[nn.Module, Tensor] = {}

    def listen(part: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and output.shape == whole.shape and output.is_floating_point():
            heard.pop(part, None)
            heard[part] = output.detach().float()

    images = case.all_images[:LOOKED_AT]
    whole = case.outputs[:LOOKED_AT]
    hooks = [part.register_forward_hook(listen) for part in case.model.modules() if part is not case.model]
    try:
        with torch.no_grad():
            case.subject.answer(images)
    finally:
        for hook in hooks:
            hook.remove()
    return [part for part, answer in heard.items() if not _alike(answer, whole)][-MOST:]


def _alike(answer: Tensor, whole: Tensor) -> bool:
    """Tell whether two answers are equal up to a factor and a number added to all classes: the same to climb."""
    a, b = ((each - each.mean(1, keepdim=True)).flatten().double() for each in (answer, whole))
    if not bool(torch.isfinite(a).all()):
        return True  # nothing to climb
    return bool(a @ b >= (1.0 - 1e-6) * a.norm() * b.norm())


def by_inner_answers(case: Case, rows: Tensor) -> Tensor:
    """Climb the margin of what inner parts answer; whether that fools is for the whole to say."""
    attack = Iterative(loss="margin", steps=case.textbook.steps, random_start=True, early_stop=False)
    best, left = case.images[rows], torch.arange(len(rows), device=rows.device)
    for part in case.once(inner_parts):
        model = CountedModel(Subject(Inner(case.model, part)), Counts.zeros(case.n))
        try:
            best[left] = case.attack(attack, rows[left], model=model)
        except ModelFailed:  # a part that is not always asked
            continue
        left = left[~case.fooled(best[left], rows[left])]
    return best
