"""What a sweep over ten eps costs: our passes beside those of torchattacks and foolbox, counted at the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import foolbox
import pandas as pd
import torch
import torchattacks
from torch import Tensor

import robustcaps as rc
from benchmarks.perf.timing import stopwatch
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.data.base import Data

FOOLBOX: Any = foolbox  # it does not declare what it exports
SWEEP = [round(0.01 * k, 2) for k in range(1, 11)]
IMAGES = 500
STEPS = 10


class Cost(NamedTuple):
    """What a sweep cost per image, and the accuracy in % that it left at each eps."""

    attack: str
    by: str
    seconds: float
    forwards: float
    backwards: float
    robust: str


def measure_sweep() -> pd.DataFrame:
    """Return the costs, a line for each attack and library."""
    return pd.DataFrame(cost._asdict() for cost in costs())


def markdown(passes: pd.DataFrame) -> str:
    """Return the costs as a Markdown table: passes per image, and the accuracy that is left at each eps."""
    head = ["attack", "by", "forwards", "backwards", *(f"{eps:g}" for eps in SWEEP)]
    lines = [["---", "---", *["---:"] * (len(head) - 2)]]
    for line in passes.to_dict("records"):
        lines.append([line["attack"], line["by"], f"{line['forwards']:.1f}", f"{line['backwards']:.1f}"])
        lines[-1] += str(line["robust"]).split()
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, *lines]) + "\n"


def costs(images: int = IMAGES) -> Iterator[Cost]:
    """Yield what FGSM and BIM cost by each library; an image counts as fooled at all larger eps, too.

    The loss is the libraries' cross-entropy. Ours by default, which does not underflow, fools a few more.
    """
    model = rc.load_model("cnn", data="toys", device="cpu")
    data = rc.load_data("toys", limit=images)
    yield _ours("fgsm", rc.load_attack("fgsm", loss="ce", eps=SWEEP), model, data)
    yield _theirs("fgsm", "torchattacks", _torchattacks_fgsm, model, data)
    yield _theirs("fgsm", "foolbox", _foolbox(FOOLBOX.attacks.LinfFastGradientAttack()), model, data)
    bim = {"use": "bim", "loss": "ce", "steps": STEPS, "step": 2 / STEPS}
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
    cost = (float(passes["forwards"]), float(passes["backwards"]))
    return Cost(name, "robustcaps", seconds, *cost, _percents(1 - fooled.mean()))


Attempt = Callable[[CountedModel, Tensor, Tensor], Iterator[Tensor]]
"""Yields the predictions on the images that a library makes for each eps."""


def _theirs(name: str, by: str, attempt: Attempt, model: torch.nn.Module, data: Data) -> Cost:
    counted = CountedModel(model, Counts.zeros(len(data)), originals=data.images)
    fooled: list[Tensor] = []

    def sweep() -> None:
        fooled.extend(prediction != data.labels for prediction in attempt(counted, data.images, data.labels))

    seconds = stopwatch(sweep)
    forwards, backwards = (float(count.mean()) for count in (counted.counts.forwards, counted.counts.backwards))
    robust = 1 - torch.stack(fooled).cummax(0)[0].double().mean(1)
    return Cost(name, by, seconds, forwards, backwards, _percents(robust.tolist()))


def _percents(shares: Iterable[float]) -> str:
    return " ".join(f"{100 * share:.1f}" for share in shares)


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
