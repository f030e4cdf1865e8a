"""What the findings of all checks add up to: a status, its confidence, and a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from robustcaps.diagnostics.checks.base import Finding
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.gap import measure_gap
from robustcaps.diagnostics.checks.limits import PROOF_SHARE
from robustcaps.utils.statistics import probability_above, wilson

Status = Literal["trusted", "suspicious", "masked"]
EVEN = 0.5
"""Probability that the gap exceeds its limit up to which a model is trusted."""


def decide(context: DiagnosisContext, findings: Sequence[Finding]) -> tuple[Status, float]:
    """Return the status and its probability, which is NaN if the check that measures the gap did not run.

    The gap decides: gradients that look odd but mislead no attack leave the robust accuracy as it is.
    """
    flagged = [finding for finding in findings if finding.flagged]
    if not any(finding.check == "gap" for finding in findings):
        return ("masked" if _evidence(findings) else "suspicious" if flagged else "trusted"), math.nan
    measured = context.cached(measure_gap)
    proofs = [finding for finding in flagged if finding.proof and finding.kind == "effect"]
    if proofs:
        shares = [min(1.0, max(0.0, finding.value)) for finding in proofs if finding.check != "gap"]
        by_checks = [probability_above(PROOF_SHARE, share * measured.n, measured.n) for share in shares]
        return "masked", max([measured.probability, *by_checks])
    if measured.probability > EVEN or any(_is_open(finding) for finding in flagged):
        return "suspicious", measured.probability
    return "trusted", 1.0 - measured.probability_above(PROOF_SHARE)


def _is_open(finding: Finding) -> bool:
    """Return whether a flagged finding stands although the strongest attacks gain nothing."""
    return finding.kind == "other" or finding.check == "steps-converged"


def _evidence(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that prove masking: proofs, or else flagged causes together with flagged effects."""
    proofs = [finding for finding in findings if finding.proof]
    flagged = [finding for finding in findings if finding.flagged and finding.kind in ("cause", "effect")]
    is_complete = {finding.kind for finding in flagged} == {"cause", "effect"}
    return proofs or (flagged if is_complete else [])


def summarise(
    status: Status, findings: Sequence[Finding], naive: float, corrected: float, n: int, confidence: float
) -> str:
    """Return the status, its confidence, both robust accuracies, and the findings behind the status."""
    low, high = wilson(round(corrected * n), n)
    accuracies = (
        f"robust accuracy {100 * naive:.0f} % under baseline PGD, {100 * corrected:.0f} % under all attacks "
        f"(95 % CI {100 * low:.0f} to {100 * high:.0f} %, n = {n})"
    )
    flagged = [finding for finding in findings if finding.flagged]
    headline = f"{status.capitalize()}: {accuracies}."
    if status == "trusted" and math.isnan(confidence):
        headline = f"No verdict, which needs the check 'gap': {accuracies.replace('all attacks', 'these checks')}."
    sentences = [headline, *_confidence_sentence(status, confidence)]
    if not flagged:
        sentences.append(f"Checks that found signs of gradient masking: none of {len(findings)}.")
    elif status == "trusted":
        names = ", ".join(finding.check for finding in flagged)
        sentences.append(f"Some gradients look odd ({names}), but mislead no attack.")
    else:
        decisive = (status == "masked" and _evidence(findings)) or flagged
        reasons = "; ".join(f"{finding.check} ({finding.words})" for finding in decisive)
        sentences.append(f"{'Evidence' if status == 'masked' else 'Signs'}: {reasons}.")
    return " ".join(sentences)


def _confidence_sentence(status: Status, confidence: float) -> list[str]:
    if math.isnan(confidence):
        return []
    if status == "trusted":
        return [f"The probability that its gradients hide less than 5 points is {confidence:.2f}."]
    return [f"The probability that masking raises the baseline's figure by more than chance is {confidence:.2f}."]
