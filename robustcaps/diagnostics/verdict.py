"""The verdict on a robust accuracy: all checks, their conclusion, and the robust accuracy after adaptive attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, get_args

import pandas as pd
from torch import Tensor, nn

from robustcaps.attacks.norms import NormName
from robustcaps.data.base import Data, Progress, as_data
from robustcaps.diagnostics.checks.attack_checks import fooled_by_any_attack
from robustcaps.diagnostics.checks.base import Diagnostic, Finding
from robustcaps.diagnostics.checks.baseline_attack import run_baseline
from robustcaps.diagnostics.checks.context import AttackOutcome, BaselineLoss, BaselineSettings, DiagnosisContext
from robustcaps.diagnostics.checks.evaluation_checks import find_model_problem
from robustcaps.diagnostics.checks.shielded_model import ModelFailed
from robustcaps.diagnostics.conclusion import Status, decide, summarise
from robustcaps.errors import UserError, did_you_mean
from robustcaps.models.inference import device_of, eval_mode
from robustcaps.options import validate_options
from robustcaps.registry import DIAGNOSTICS
from robustcaps.utils.seeds import derive_seed, seeded

COLUMNS = ("check", "kind", "flagged", "proof", "value", "threshold", "words", "meaning", "source", "remedy")
UNUSABLE_MODEL = (
    "The model cannot be diagnosed: it must map images (n, channels, height, width) in [0,1] to outputs (n, classes)."
)


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whether a robust accuracy can be trusted, and the worst case over all attacks of the diagnosis."""

    status: Status
    """'masked': gradient masking is proven; 'suspicious': signs of it, or the model cannot be diagnosed; 'trusted'."""
    checks: pd.DataFrame
    """One row per check: the measured value, its meaning, and the remedy."""
    attacks: pd.DataFrame
    """One row per attack: the number of samples that it was tried on, and of those that it fooled."""
    summary: str
    n: int
    """Number of samples."""
    clean: float
    """Accuracy without an attack."""
    naive: float
    """Robust accuracy under the baseline attack; NaN if the model cannot be diagnosed."""
    corrected: float
    """Robust accuracy under the per-sample worst case over all attacks."""
    confidence: float = float("nan")
    """Probability of the status: that the share of samples which only attacks without the model's own gradients fool
    exceeds its limit ('masked', 'suspicious') or stays below 5 % ('trusted'); NaN without the check 'gap'."""

    @property
    def masked(self) -> bool:
        """Whether gradient masking is proven."""
        return self.status == "masked"


def diagnose(
    model: nn.Module,
    data: Data | tuple[Tensor, Tensor],
    eps: float = 0.1,
    *,
    norm: NormName = "linf",
    loss: BaselineLoss = "ce",
    steps: int = 20,
    step: float | None = None,
    checks: Sequence[str | Mapping[str, Any]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Verdict:
    """Check whether the robust accuracy of a model under PGD is due to gradient masking, and correct it.

    Args:
        model: Any module from images in [0,1] to outputs (n, classes).
        data: A dataset, or a pair of tensors (images, labels).
        eps: Radius of the ball.
        norm: Norm of the ball.
        loss: Loss of the baseline attack: the cross-entropy of the outputs ('ce') or, for models of the zoo, of the
            scores ('ce-scores'), or the training loss ('training').
        steps: Number of steps of the baseline attack.
        step: Step size as a fraction of eps; by default 2.5 / steps, at most 1.
        checks: Names of checks, or tables with a name as 'use' and options; all checks by default.
        seed: Seed of all random numbers.
        progress: Called with the number of finished checks and of all checks.

    Returns:
        The verdict, with the naive and the corrected robust accuracy.
    """
    _validate_arguments(model, eps, loss, steps, step)
    chosen = [load_diagnostic(check) for check in (DIAGNOSTICS.names() if checks is None else checks)]
    baseline = BaselineSettings(loss, steps, min(1.0, 2.5 / steps) if step is None else step)
    device = device_of(model)
    with _frozen(model), seeded(derive_seed(seed), device):
        context = DiagnosisContext(model, as_data(data), eps, norm=norm, baseline=baseline, seed=seed)
        problem = find_model_problem(context)
        if problem:
            return _inconclusive_verdict(context, problem)
        try:
            return _conclude(context, list(_run_checks(chosen, context, progress)))
        except ModelFailed as error:
            problem = f"the model fails on perturbed images: {error}; it must accept every image in [0,1]"
            return _inconclusive_verdict(context, problem)


def _validate_arguments(model: object, eps: object, loss: str, steps: int, step: float | None) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model: must be an nn.Module, not {model!r}; load one by name with load_model.")
    if not isinstance(eps, (int, float)) or not eps > 0:
        raise UserError(f"eps: must be a positive number, not {eps!r}.")
    if loss not in get_args(BaselineLoss):
        raise UserError(f"loss: unknown loss '{loss}'. {did_you_mean(loss, get_args(BaselineLoss))}")
    if steps < 1:
        raise UserError(f"steps: must be at least 1, not {steps}.")
    if step is not None and not 0 < step <= 1:
        raise UserError(f"step: must be a fraction of eps in (0, 1], not {step}.")


def load_diagnostic(check: str | Mapping[str, Any]) -> Diagnostic:
    """Return a check by name, or by a table with its name as 'use' and its options."""
    options = {"use": check} if isinstance(check, str) else dict(check)
    name = options.pop("use", None)
    if not isinstance(name, str):
        raise UserError(f"checks: {check!r} must name a check with 'use'.")
    factory = DIAGNOSTICS.entry(name).factory
    return factory(**validate_options(factory, options, where=f"diagnostic '{name}'"))


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode and freeze its parameters; restore both afterwards."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)  # noqa: FBT003
    try:
        with eval_mode(model):
            yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)  # noqa: FBT003


def _run_checks(
    checks: Sequence[Diagnostic], context: DiagnosisContext, progress: Progress | None
) -> Iterator[Finding]:
    """Yield the finding of each check, reporting progress after it."""
    for done, check in enumerate(checks, start=1):
        yield check(context)
        if progress:
            progress(done, len(checks))


def _inconclusive_verdict(context: DiagnosisContext, problem: str) -> Verdict:
    finding = Finding(True, 1.0, 0.0, problem, check="validity", meaning=UNUSABLE_MODEL)  # noqa: FBT003
    no_attacks = pd.DataFrame({"attack": [], "tried": [], "fooled": []})
    summary = f"Suspicious: {problem.rstrip('?')}."
    return Verdict("suspicious", _table([finding]), no_attacks, summary, len(context.data), *[float("nan")] * 4)


def _conclude(context: DiagnosisContext, findings: Sequence[Finding]) -> Verdict:
    n, baseline_fooled = len(context.data), context.cached(run_baseline).fooled
    outcomes = {"baseline": AttackOutcome(context.rows, baseline_fooled), **context.outcomes}
    attacks = pd.DataFrame(
        [(name, len(outcome.tried), int(outcome.fooled.sum())) for name, outcome in outcomes.items()],
        columns=["attack", "tried", "fooled"],
    )
    masks = baseline_fooled, fooled_by_any_attack(context)
    naive, corrected = ((context.n - int(mask.sum())) / n for mask in masks)
    status, confidence = decide(context, findings)
    summary = summarise(status, findings, naive, corrected, n, confidence)
    return Verdict(status, _table(findings), attacks, summary, n, context.n / n, naive, corrected, confidence)


def _table(findings: Sequence[Finding]) -> pd.DataFrame:
    return pd.DataFrame([asdict(finding) for finding in findings], columns=list(COLUMNS))


def measure_verdict(
    model: nn.Module,
    data: Data,
    *,
    eps: float,
    norm: NormName,
    seed: int,
    progress: Progress | None,
    loss: BaselineLoss = "ce",
    steps: int = 20,
    step: float | None = None,
    checks: Sequence[str | dict[str, Any]] | None = None,
) -> pd.DataFrame:
    """Return the verdict as rows: one per check, each with the verdict that they add up to."""
    attack: dict[str, Any] = {"norm": norm, "loss": loss, "steps": steps, "step": step}
    verdict = diagnose(model, data, eps, **attack, checks=checks, seed=seed, progress=progress)
    shares = {"clean": verdict.clean, "naive": verdict.naive, "corrected": verdict.corrected}
    setting = {"norm": norm, "eps": eps, "loss": loss, "seed": seed}
    conclusion = {"status": verdict.status, "confidence": verdict.confidence, "n": verdict.n, **shares}
    return verdict.checks.assign(**setting, **conclusion, summary=verdict.summary)
