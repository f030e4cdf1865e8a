"""Whether gradients are shown to be wrong, by comparing them with independent ones instead of by attacks."""

from __future__ import annotations

from robustcaps.diagnostics.checks.autograd_graph import compare_graph
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.finite_differences import compare_finite_differences
from robustcaps.diagnostics.checks.gradient_measures import (
    MIN_COSINE,
    clean_margin_gradient,
    gradient_repeatability,
    is_degenerate,
)
from robustcaps.diagnostics.checks.limits import PROOF_SHARE, lower_bound


def has_wrong_gradients(context: DiagnosisContext) -> bool:
    """Return whether gradients are shown to be wrong on more than 5 % of the samples, whatever attacks say.

    Those of a randomised model are, too, if a single pass has more noise than signal.
    """
    if context.is_randomised and context.cached(gradient_repeatability) < MIN_COSINE:
        return True
    degenerate = is_degenerate(context.cached(clean_margin_gradient))
    graph, differences = context.cached(compare_graph), context.cached(compare_finite_differences)
    counts = (
        (int(degenerate.sum()), context.n),
        (int(graph.differs.sum()), len(graph.differs)),
        (int(differences.disagrees.sum()), int(differences.judged.sum())),
    )
    return any(lower_bound(count, n) > PROOF_SHARE for count, n in counts)
