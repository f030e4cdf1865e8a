"""What a sweep over ten eps costs: our passes beside those of torchattacks and foolbox, counted at the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import foolbox
import torch
import torchattacks
from rich.table import Table
from torch import Tensor

import robustcaps as rc
from benchmarks.perf.timing import stopwatch
from robustcaps.attacks.counted import CountedModel, Counts
from robustcaps.data.base import Data

FOOLBOX: Any = foolbox  # it does not declare what it exports
SWEEP = [round(0.01 * k, 2) for k in range(1, 11)]
IMAGES = 200
STEPS = 10


@dataclass(frozen=True)
class Cost:
    """What a sweep cost per image, and which share of the images it left alone at each eps."""

    attack: str
    by: str
    seconds: float
    forwards: float
    backwards: float
    robust: list[float]


def measure_sweep() -> Table:
    """Return a table of the costs, a line for each attack and library."""
    grid = Table("attack", "by", "s", "forwards", "backwards", "robust accuracy at each eps in %")
    grid.title = f"ten eps on cnn, {IMAGES} toys; passes per image"
    for cost in costs():
        robust = " ".join(f"{100 * share:.1f}" for share in cost.robust)
        numbers = (f"{cost.seconds:.1f}", f"{cost.forwards:.1f}", f"{cost.backwards:.1f}")
        grid.add_row(cost.attack, cost.by, *numbers, robust)
    return grid


def costs(images: int = IMAGES) -> Iterator[Cost]:
    """Yield what FGSM and BIM cost by each library; an image counts as fooled at all larger eps, too.

    The loss is the libraries' cross-entropy. Ours by default, which does not underflow, fools a few more.
    """
    model = rc.load_model("cnn", data="toys", device="cpu")
    data = rc.load_data("toys", limit=images)
    yield _ours("fgsm", rc.load_attack("fgsm", loss="plain-ce", eps=SWEEP), model, data)
    yield _theirs("fgsm", "torchattacks", _torchattacks_fgsm, model, data)
    yield _theirs("fgsm", "foolbox", _foolbox(FOOLBOX.attacks.LinfFastGradientAttack()), model, data)
    bim = {"use": "bim", "loss": "plain-ce", "steps": STEPS, "step": 2 / STEPS}
    yield _ours("bim", rc.load_attack("worst-case", attacks=[bim], eps=SWEEP), model, data)
    yield _theirs("bim", "torchattacks", _torchattacks_bim, model, data)
    theirs = FOOLBOX.attacks.LinfBasicIterativeAttack(rel_stepsize=2 / STEPS, steps=STEPS)
    yield _theirs("bim", "foolbox", _foolbox(theirs), model, data)


def _ours(name: str, attack: rc.Attack, model: torch.nn.Module, data: Data) -> Cost:
    found = []
    seconds = stopwatch(lambda: found.append(rc.evaluate(model, data, attack)))
    (rows,) = found
    passes = rows[["forwards", "backwards"]].sum() / len(data)
    fooled = rows.pivot_table(index="index", columns="eps", values="fooled").cummax(axis=1)
    return Cost(
        name, "robustcaps", seconds, float(passes["forwards"]), float(passes["backwards"]), (1 - fooled.mean()).tolist()
    )


Attempt = Callable[[CountedModel, Tensor, Tensor], Iterator[Tensor]]
"""Yields the predictions on the images that a library makes for each eps."""


def _theirs(name: str, by: str, attempt: Attempt, model: torch.nn.Module, data: Data) -> Cost:
    counted = CountedModel(model, Counts.zeros(len(data)), originals=data.images)
    fooled: list[Tensor] = []

    def sweep() -> None:
        fooled.extend(prediction != data.labels for prediction in attempt(counted, data.images, data.labels))

    seconds = stopwatch(sweep)
    forwards, backwards = (float(count.mean()) for count in (counted.counts.forwards, counted.counts.backwards))
    robust = [float(1 - share) for share in torch.stack(fooled).cummax(0).values.double().mean(1)]
    return Cost(name, by, seconds, forwards, backwards, robust)


def _torchattacks_fgsm(model: CountedModel, images: Tensor, labels: Tensor) -> Iterator[Tensor]:
    for eps in SWEEP:
        yield model(torchattacks.FGSM(model, eps=eps)(images, labels)).argmax(1)


def _torchattacks_bim(model: CountedModel, images: Tensor, labels: Tensor) -> Iterator[Tensor]:
    for eps in SWEEP:
        attack = torchattacks.BIM(model, eps=eps, alpha=2 * eps / STEPS, steps=STEPS)
        yield model(attack(images, labels)).argmax(1)


def _foolbox(attack: Any) -> Attempt:
    def attempt(model: CountedModel, images: Tensor, labels: Tensor) -> Iterator[Tensor]:
        wrapped = FOOLBOX.PyTorchModel(model, bounds=(0, 1), device="cpu")
        _, _, fooled = attack(wrapped, images, labels, epsilons=SWEEP)
        for mask in fooled:
            yield torch.where(mask, labels + 1, labels)

    return attempt
