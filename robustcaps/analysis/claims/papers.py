"""The claims of papers: the suite and table with our numbers, and the rule that judges them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from robustcaps.analysis.claims import rules
from robustcaps.analysis.claims.evidence import Judgement
from robustcaps.analysis.published import published_size
from robustcaps.suite.spec import WORST_CASE

MATRIX, VECTOR, CNN = "matrix-capsnet-small", "vector-capsnet-small", "cnn"
"""The models that represent matrix capsules, capsules with dynamic routing, and CNNs."""
Judge = Callable[[pd.DataFrame], Judgement | None]


@dataclass(frozen=True)
class Paper:
    """A paper and the datasets it used: as ours are called, and in words."""

    name: str
    data: tuple[str, ...]
    words: str

    def cite(self, data: str) -> str:
        """Return the paper's name, and its own datasets where ours is another."""
        return self.name if data in self.data else f"{self.name} ({self.words})"


@dataclass(frozen=True)
class Claim:
    """A claim, the table (SUITE/NAME.csv) to judge it by, and the rule; of one dataset alone if `data` says so."""

    paper: Paper
    words: str
    suite: str
    table: str
    judge: Judge
    data: str | None = None


SABOUR = Paper("Sabour et al. 2017", ("multimnist",), "MultiMNIST")
HINTON = Paper("Hinton et al. 2018", ("smallnorb",), "smallNORB")
FROSST = Paper("Frosst et al. 2018", ("mnist", "fashion-mnist"), "MNIST, Fashion-MNIST, SVHN")
MICHELS = Paper("Michels et al. 2019", ("mnist", "fashion-mnist", "cifar10"), "MNIST, Fashion-MNIST, CIFAR-10")
GU = Paper("Gu et al. 2021", (), "other datasets")
HAHN = Paper("Hahn et al. 2019", ("cifar10", "smallnorb"), "CIFAR-10, SVHN, smallNORB")
ROBCAPS = Paper("Marchisio et al. 2023", ("mnist", "cifar10"), "MNIST, GTSRB, CIFAR-10")
LATER = Paper("later work", (), "Michels et al. 2019, Gu et al. 2021; other datasets")


def _matrix_against_cnn(rule: Callable[..., Judgement | None], **options: str) -> Judge:
    """Return a rule about matrix capsules and the CNN."""
    return partial(rule, mine=MATRIX, rival=CNN, **options)


def _larger(share: str, what: str, column: str, names: tuple[str, str], **fixed: str) -> Judge:
    """Return the rule that a share is larger where a column says one thing than where it says another."""
    more, less = ({column: name, **fixed} for name in names)
    return partial(rules.larger, share=share, what=what, more=more, less=less, names=names)


def _errs_more(worse: str, better: str) -> Judge:
    """Return the rule that a network of the ablation has a larger error than the standard one."""
    standard = {"model": "3 iterations"}
    rule = partial(rules.larger, what="test error of one training each:", names=(worse, better))
    return partial(rule, share="error", more={"model": worse}, less=standard, scale=1.0)


WHITE_BOX = [
    Claim(
        HINTON,
        f"matrix capsules keep noticeably more accuracy than a CNN under {words}",
        "attacks",
        "comparisons",
        _matrix_against_cnn(rules.more_robust, attack=attack),
    )
    for attack, words in {
        "fgsm": "FGSM",
        "bim": "BIM",
        "bim on the training loss": "BIM on the training loss, as papers attacked",
    }.items()
]
LIVING_MATRIX, LIVING_RIVAL = "matrix, vote std 0.2", "cnn-small"
"""The network of the suite 'sharpness' whose routing is alive at the accuracy of the others, and a CNN of its size."""
LIVING = [
    Claim(
        HINTON,
        f"matrix capsules whose routing is alive keep noticeably more accuracy than a CNN under {words}",
        "sharpness",
        "comparisons",
        partial(rules.more_robust, mine=LIVING_MATRIX, rival=LIVING_RIVAL, attack=attack),
    )
    for attack, words in {
        "fgsm": "FGSM",
        "bim, 10 steps": "BIM",
        "bim, 10 steps, training loss": "BIM on the training loss, as papers attacked",
        WORST_CASE: "the worst case of all attacks",
    }.items()
]
TARGETED = [
    Claim(
        HINTON,
        f"targeted {attack.upper()} stays near chance on matrix capsules while its success on a CNN rises",
        "attacks",
        "table",
        _matrix_against_cnn(rules.steered, attack=attack),
    )
    for attack in ("fgsm", "bim")
]
BLACK_BOX = [
    Claim(
        HINTON,
        f"matrix capsules are not noticeably better than another CNN on {attack.upper()} images made with a CNN",
        "blackbox",
        "comparisons",
        partial(rules.not_better, attack=f"{attack} from .*", mine=MATRIX, rivals=(CNN, "cnn-small")),
    )
    for attack in ("fgsm", "bim")
]
GRADIENTS = [
    Claim(
        HINTON,
        f"on the training loss, gradients of matrix capsules {words} than a CNN's",
        "gradients",
        "gradients",
        _matrix_against_cnn(rule, loss="training"),
    )
    for rule, words in (
        (rules.fewer_zeros, "have fewer exact zeros"),
        (rules.orders_smaller, "are about two orders of magnitude smaller"),
    )
]
VIEWS = [
    Claim(
        HINTON,
        f"novel {by} cost matrix capsules less than a CNN, at equal error on familiar ones",
        "viewpoints",
        "views",
        _matrix_against_cnn(rules.costs_less, by=by),
    )
    for by in ("azimuths", "elevations")
]
ABLATION = [
    Claim(
        HINTON,
        words,
        "ablation",
        "models",
        _errs_more(worse, better),
    )
    for worse, better, words in (
        ("1 iteration", "3 iterations", "3 iterations of routing err less than 1"),
        ("cross-entropy", "spread loss", "spread loss errs less than cross-entropy"),
        ("no coordinates", "with coordinates", "coordinate addition makes errors fewer"),
        ("vector poses", "matrix poses", "matrix poses err less than vector poses"),
    )
]
ORDER = {
    1: "a larger mean L2 on capsules than",
    0: "about the same mean L2 on capsules as",
    -1: "a smaller mean L2 on capsules than",
}


def _smallest() -> Iterator[Claim]:
    """Return the claims that the published means make, one per dataset and attack."""
    attacks = {"cw": "Carlini-Wagner", "foolbox.boundary": "Boundary", "deepfool": "DeepFool"}
    for data, (attack, words) in itertools.product(MICHELS.data, attacks.items()):
        capsules, cnn = (published_size(model, data, attack) for model in (VECTOR, CNN))
        if capsules is None or cnn is None:
            continue
        means = capsules, cnn
        claim = f"{words} needs {ORDER[rules.published_order(means)]} on a CNN ({capsules:.2f} and {cnn:.2f})"
        judge = partial(rules.sizes_as_published, attack=attack, mine=VECTOR, rival=CNN, published=means)
        yield Claim(MICHELS, claim, "minimal-l2", "sizes", judge, data)


VOTE = [
    Claim(
        GU,
        f"an attack on the votes of {model} fools more than {plain} with the same eps, steps and start",
        "vote",
        "attack_comparisons",
        partial(rules.fools_more, model=model, attack=vote, rival=plain),
    )
    for model in (VECTOR, MATRIX)
    for vote, plain in {"vote": "pgd", "vote from the image": "bim"}.items()
]
DETECTION = [
    *(
        Claim(
            FROSST,
            f"reconstruction flags most {attack.upper()} images that fool capsules",
            "detect",
            "detection",
            partial(rules.most_flagged, attack=attack, model=VECTOR),
        )
        for attack in ("fgsm", "bim")
    ),
    Claim(
        FROSST,
        "an attack that knows of the detector gets past it, more often than BIM",
        "detect",
        "detection",
        _larger("undetected", "fools undetected", "attack", ("bim that reconstructs", "bim"), model=VECTOR),
    ),
]
OVERLAP = Claim(
    SABOUR,
    "capsules see both of two overlapping digits more often than a CNN with as many parameters",
    "overlap",
    "overlap",
    _larger("both", "both seen:", "model", (VECTOR, "cnn, as large"), overlap="all"),
)
ONE_BODY = [
    Claim(paper, words, "routing", "auc", partial(rule, mine=mine, rival=rival))
    for paper, words, rule, mine, rival in (
        (HAHN, "self-routing resists attacks better than dynamic routing", rules.larger_auc, "self-routing", "dynamic"),
        (HAHN, "self-routing resists attacks better than EM routing", rules.larger_auc, "self-routing", "em, sharp"),
        (ROBCAPS, "capsules with dynamic routing resist attacks better than a CNN", rules.larger_auc, "dynamic", "cnn"),
        (ROBCAPS, "dynamic routing contributes little to robustness", rules.not_larger_auc, "dynamic", "uniform"),
    )
]
"""Judged on networks with one body and equally many parameters, of which only the routing differs."""
MASKED = Claim(
    LATER,
    "the robustness of matrix capsules against attacks on their training loss is only apparent",
    "trust",
    "verdicts",
    partial(rules.masked, model=MATRIX, diagnostic="on the training loss"),
)

CLAIMS: Sequence[Claim] = (
    *(*WHITE_BOX, *LIVING, *TARGETED, *BLACK_BOX, *GRADIENTS, *VIEWS, *ABLATION),
    *(OVERLAP, *DETECTION, *_smallest(), *VOTE, *ONE_BODY, MASKED),
)
