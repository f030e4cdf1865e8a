"""AutoAttack's strength and cost, ours beside the parts of torchattacks': `python -m benchmarks.perf.autoattack`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pandas as pd
import torch
import torchattacks
from torch import Tensor, nn

import robustcaps as rc
from benchmarks.perf.memory import ROOT
from robustcaps.attacks.norms import NormName
from robustcaps.data.base import Data

RESULTS = ROOT / "results" / "perf"
IMAGES = 100
STEPS, QUERIES = 100, 5000


class Case(NamedTuple):
    """A model of the zoo, trained on the toys, and the ball it is attacked in."""

    model: str
    norm: NormName
    eps: float


CASES = (
    Case("cnn-small", "l2", 0.6),
    Case("vector-capsnet-small", "linf", 0.03),
    Case("matrix-capsnet-small", "linf", 0.03),
)


class Cost(NamedTuple):
    """Who attacked what, how many images are still classified correctly, and the cost per image."""

    model: str
    norm: str
    eps: float
    by: str
    images: int
    correct: int
    forwards: float
    backwards: float
    cpu_seconds: float


class CountingModel(nn.Module):
    """Counts the images that pass through a model forwards and backwards, whoever sends them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()
        self.forwards = self.backwards = 0

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model(images)
        self.forwards += len(images)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)  # type: ignore[no-untyped-call]
        return logits

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def compare(cases: Iterable[Case] = CASES, *, images: int = IMAGES) -> pd.DataFrame:
    """Return the costs: two lines for each case, ours and theirs."""
    return pd.DataFrame(cost._asdict() for case in cases for cost in _compare(case, images))


def _compare(case: Case, images: int) -> Iterator[Cost]:
    model, data = rc.load_model(case.model, data="toys", device="cpu"), rc.load_data("toys", limit=images)
    for by, attack in (("robustcaps", _count_ours), ("torchattacks", _count_theirs)):
        counting = CountingModel(model)
        began = time.process_time()
        correct = attack(counting, data, case)
        seconds = time.process_time() - began
        passes = (counting.forwards / len(data), counting.backwards / len(data))
        yield Cost(*case, by, len(data), correct, *passes, seconds)


def _count_ours(model: nn.Module, data: Data, case: Case) -> int:
    """Return on how many images the model is right under our AutoAttack."""
    rows = rc.evaluate(model, data, rc.load_attack("autoattack", eps=case.eps, norm=case.norm))
    return int((rows["adv_pred"] == rows["label"]).sum())


def _count_theirs(model: nn.Module, data: Data, case: Case) -> int:
    """Return on how many images the model is right under torchattacks' parts with the paper's settings.

    Its own AutoAttack leaves APGD and FAB at 10 steps. As there, each part runs on the survivors of those before.
    """
    with torch.no_grad():
        survivors = torch.nonzero(model(data.images).argmax(1) == data.labels).flatten()
    for build in _parts(case, data.classes):
        if len(survivors) == 0:
            break
        images, labels = data.images[survivors], data.labels[survivors]
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its use of torch
            torch.manual_seed(0)
            adversarial = build(model)(images, labels)
        with torch.no_grad():
            survivors = survivors[model(adversarial).argmax(1) == labels]
    return len(survivors)


def _parts(case: Case, classes: int) -> list[Callable[[nn.Module], torchattacks.attack.Attack]]:
    ball = {"norm": {"linf": "Linf", "l2": "L2"}[case.norm], "eps": case.eps}
    return [
        lambda model: torchattacks.APGD(model, **ball, steps=STEPS, loss="ce"),
        lambda model: torchattacks.APGDT(model, **ball, steps=STEPS, n_classes=classes),
        lambda model: torchattacks.FAB(model, **ball, steps=STEPS, multi_targeted=True, n_classes=classes),
        lambda model: torchattacks.Square(model, **ball, n_queries=QUERIES),
    ]


def markdown(table: pd.DataFrame) -> str:
    """Return the costs as a Markdown table; passes and CPU time are per image."""
    head = ["model", "norm", "eps", "by", "correct of", "forwards", "backwards", "CPU s"]
    lines = [["---"] * 2 + ["---:", "---"] + ["---:"] * 4]
    for line in table.to_dict("records"):
        cells = [line["model"], line["norm"], f"{line['eps']:g}", line["by"], f"{line['correct']} of {line['images']}"]
        passes = [f"{line['forwards']:,.0f}", f"{line['backwards']:,.0f}"]
        lines.append([*cells, *passes, f"{line['cpu_seconds'] / line['images']:.2f}"])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, *lines]) + "\n"


def main() -> None:
    """Compare all cases, and write results/perf/autoattack.csv and .md."""
    table = compare()
    RESULTS.mkdir(parents=True, exist_ok=True)
    table.to_csv(RESULTS / "autoattack.csv", index=False, float_format="%.6g")
    (RESULTS / "autoattack.md").write_text(markdown(table), encoding="utf-8")
    print(markdown(table))


if __name__ == "__main__":
    main()
