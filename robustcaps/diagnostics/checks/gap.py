"""The gap: samples that withstand the model's own gradients but fall to attacks that do not rely on them.

Their share decides about masking. The samples stand for a population, so what is judged is the probability that the
share in the population exceeds a limit. Where that is uncertain, more is spent before the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from robustcaps.diagnostics.checks.adaptive_attacks import attack_with_more_restarts, select_adaptive_attacks
from robustcaps.diagnostics.checks.attack_checks import (
    fooled_by_any_attack,
    gradient_survivors,
    run_challenger,
    select_black_box_attacks,
)
from robustcaps.diagnostics.checks.base import Finding, diagnostic
from robustcaps.diagnostics.checks.challengers import Challenger
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.gradient_free import PROBED_SAMPLES, attack_with_more_queries
from robustcaps.diagnostics.checks.limits import PROOF_SHARE, SIGN_SHARE
from robustcaps.diagnostics.checks.wrong_gradients import has_wrong_gradients
from robustcaps.utils.statistics import probability_above

CERTAIN = 0.9
"""Probability that the gap exceeds the limit from which a model is called masked; at most 1/2 and it is trusted."""
UNDECIDED = (0.05, 0.95)
"""Probabilities between which more is spent before the decision."""
SELECTIONS = select_adaptive_attacks, select_black_box_attacks
OWN_ATTACKS = ("unsaturated losses", "more steps")
"""Challengers that use the model's own gradients."""


@dataclass(frozen=True, eq=False)
class Gap:
    """How many samples only attacks without the model's own gradients fool, and how certain it is what that means."""

    fooled: int
    n: int
    tried: float
    """Share of the survivors of the model's own gradients that random search was tried on."""
    limit: float

    def probability_above(self, share: float) -> float:
        """Return the probability that the gap exceeds a share."""
        return probability_above(share, self.fooled, self.n if self.fooled else self.n * self.tried)

    @property
    def probability(self) -> float:
        """The probability that the gap exceeds its limit."""
        return self.probability_above(self.limit)


def measure_gap(context: DiagnosisContext) -> Gap:
    """Run all challengers, and more of them where the gap is near its limit or the accuracy still to be corrected."""
    rows = context.cached(gradient_survivors)
    adaptive, black_box = (_run_all(context, select(context), rows) for select in SELECTIONS)
    gap = _gap(context, rows)
    left = torch.nonzero(~fooled_by_any_attack(context)).flatten()
    is_undecided = UNDECIDED[0] < gap.probability < UNDECIDED[1]
    is_to_be_corrected = gap.probability >= CERTAIN and len(left) > PROOF_SHARE * context.n
    if is_undecided or is_to_be_corrected:
        run_challenger(context, "more restarts", attack_with_more_restarts, left)
        left = torch.nonzero(~fooled_by_any_attack(context)).flatten()
        if is_undecided or bool((black_box & ~adaptive).any()):
            run_challenger(context, "more queries", attack_with_more_queries, left)
        gap = _gap(context, rows)
    return gap


def _run_all(context: DiagnosisContext, attacks: Mapping[str, Challenger], rows: Tensor) -> Tensor:
    """Return which samples (n,) any of the attacks fools."""
    fooled = torch.zeros(context.n, dtype=torch.bool, device=context.device)
    for name, attack in attacks.items():
        fooled = fooled | run_challenger(context, name, attack, rows)
    return fooled


def _gap(context: DiagnosisContext, rows: Tensor) -> Gap:
    """Return the gap; where gradients are wrong, also judge what more steps along them fool, by the larger limit."""
    outcomes = context.outcomes
    by_others = torch.stack([each.fooled for name, each in outcomes.items() if name not in OWN_ATTACKS]).any(0)
    by_more_steps = outcomes["more steps"].fooled
    tried = min(1.0, PROBED_SAMPLES / max(1, len(rows)))
    only_others = int((by_others & ~by_more_steps).sum())
    if not context.cached(has_wrong_gradients):
        return Gap(only_others, context.n, tried, PROOF_SHARE)
    gaps = (
        Gap(only_others, context.n, tried, SIGN_SHARE),
        Gap(int((by_others | by_more_steps).sum()), context.n, tried, PROOF_SHARE),
    )
    return max(gaps, key=lambda gap: gap.probability)


@diagnostic(
    "gap",
    kind="effect",
    source="Athalye, Carlini, Wagner 2018; Carlini et al. 2019; Tramer et al. 2020",
    remedy="Report the corrected robust accuracy, and attack with what closes the gap.",
)
def gap(context: DiagnosisContext) -> Finding:
    """All attacks together fool samples that withstand the model's own gradients, however long these are followed.

    Measures their share over all adaptive and gradient-free attacks. Flagged if it exceeds a limit with a probability
    of 0.9: 0.05, what far stronger attacks gain on sound models at most, or 0.02 where gradients are shown to be wrong,
    so that only the chance of two runs has to be excluded. Near the limit, more steps, restarts and queries are spent.
    """
    measured = context.cached(measure_gap)
    words = (
        f"{measured.fooled} of {measured.n} samples fall only to attacks without the model's own gradients; the "
        f"probability that this is more than {100 * measured.limit:.0f} % is {measured.probability:.2f}"
    )
    flagged = measured.probability >= CERTAIN
    return Finding(flagged, measured.fooled / measured.n, measured.limit, words, proof=flagged)
