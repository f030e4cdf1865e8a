"""The verdict: all checks, what they add up to, and the robust accuracy before and after the remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import pandas as pd
from torch import Tensor, nn

from robustcaps.attacks.norms import NormName
from robustcaps.data.base import Data, Progress, as_data
from robustcaps.diagnostics.checks.attack_checks import fooled_in_all
from robustcaps.diagnostics.checks.base import Diagnostic, Finding
from robustcaps.diagnostics.checks.baseline_attack import textbook_attack
from robustcaps.diagnostics.checks.context import Case, Contest, Textbook, TextbookLoss
from robustcaps.diagnostics.checks.evaluation_checks import unfit
from robustcaps.diagnostics.checks.shielded_model import ModelFailed
from robustcaps.errors import UserError, did_you_mean
from robustcaps.models.inference import device_of, eval_mode
from robustcaps.options import validate_options
from robustcaps.registry import DIAGNOSTICS
from robustcaps.utils.seeds import derive_seed, seeded
from robustcaps.utils.statistics import wilson

Status = Literal["trusted", "suspicious", "masked"]
COLUMNS = ("check", "kind", "flagged", "proof", "value", "threshold", "words", "meaning", "source", "remedy")
ANY_IMAGE = "it must answer every image in [0,1]"
UNFIT = "The model cannot be judged: it must answer images (n, channels, height, width) with outputs (n, classes)."


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whether a robust accuracy can be trusted, and what it is when attacked with everything."""

    status: Status
    """'masked': proven that gradients mislead; 'suspicious': signs, no proof, or no way to tell; 'trusted': neither."""
    checks: pd.DataFrame
    """One row per check: what it saw, what that means, and what to do about it."""
    attacks: pd.DataFrame
    """One row per attack: on how many samples it was tried, since others had left them, and how many it fooled."""
    summary: str
    n: int
    """How many samples there were."""
    clean: float
    """Accuracy without an attack."""
    naive: float
    """Robust accuracy by the textbook attack; NaN where the model cannot be judged."""
    corrected: float
    """Robust accuracy after all attacks and remedies: the worst case, sample by sample."""

    @property
    def masked(self) -> bool:
        """Whether the model hides from gradient attacks."""
        return self.status == "masked"


def diagnose(
    model: nn.Module,
    data: Data | tuple[Tensor, Tensor],
    eps: float = 0.1,
    *,
    norm: NormName = "linf",
    loss: TextbookLoss = "ce",
    steps: int = 20,
    step: float | None = None,
    checks: Sequence[str | Mapping[str, Any]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Verdict:
    """Tell whether a gradient attack's robust accuracy on a model can be trusted, and correct it.

    The attack in question is PGD with these `steps` of size `step` (a share of eps), which climbs the plain
    cross-entropy of the outputs, or of a zoo model's scores ('ce-scores'), or its 'training' loss. `checks` are names,
    or tables with a name as 'use' and options; all by default.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model: must be an nn.Module, not {model!r}; load one by name with load_model.")
    if not isinstance(eps, (int, float)) or not eps > 0:
        raise UserError(f"eps: must be a number above 0, but is {eps!r}.")
    if loss not in get_args(TextbookLoss):
        raise UserError(f"loss: unknown loss '{loss}'. {did_you_mean(loss, get_args(TextbookLoss))}")
    if steps < 1 or (step is not None and not 0 < step <= 1):
        raise UserError(f"steps: at least one step, of a size in (0, 1] of eps, not {steps} of {step}.")
    chosen = [load_diagnostic(check) for check in (DIAGNOSTICS.names() if checks is None else checks)]
    textbook = Textbook(loss, steps, min(1.0, 2.5 / steps) if step is None else step)
    device = device_of(model)
    with _quiet(model), seeded(derive_seed(seed), device):
        case = Case(model, as_data(data), eps, norm=norm, textbook=textbook, seed=seed)
        problem = unfit(case)
        if problem:
            return _no_verdict(case, problem)
        try:
            return _verdict(case, list(_told(chosen, case, progress)))
        except ModelFailed as error:
            return _no_verdict(case, f"the model fails on images that an attack tries: {error}; {ANY_IMAGE}")


def load_diagnostic(check: str | Mapping[str, Any]) -> Diagnostic:
    """Return a check by name, or by a table with its name as 'use' and its options."""
    options = {"use": check} if isinstance(check, str) else dict(check)
    name = options.pop("use", None)
    if not isinstance(name, str):
        raise UserError(f"checks: a check needs a name, 'use = ...', in {check!r}.")
    factory = DIAGNOSTICS.entry(name).factory
    return factory(**validate_options(factory, options, where=f"diagnostic '{name}'"))


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, and keep its weights out of the gradients, as long as this lasts."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)  # noqa: FBT003
    try:
        with eval_mode(model):
            yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)  # noqa: FBT003


def _told(checks: Sequence[Diagnostic], case: Case, progress: Progress | None) -> Iterator[Finding]:
    """Run the checks and tell how many are done."""
    for done, check in enumerate(checks, start=1):
        yield check(case)
        if progress:
            progress(done, len(checks))


def _no_verdict(case: Case, problem: str) -> Verdict:
    finding = Finding(True, 1.0, 0.0, problem, check="validity", meaning=UNFIT)  # noqa: FBT003
    nothing = pd.DataFrame({"attack": [], "tried": [], "fooled": []})
    summary = f"Suspicious: {problem.rstrip('?')}."
    return Verdict("suspicious", _table([finding]), nothing, summary, len(case.data), *[float("nan")] * 3)


def _verdict(case: Case, findings: Sequence[Finding]) -> Verdict:
    n, textbook = len(case.data), case.once(textbook_attack).fooled
    contests = {"textbook": Contest(case.rows, textbook), **case.contests}
    table = pd.DataFrame(
        [(name, len(each.tried), int(each.fooled.sum())) for name, each in contests.items()],
        columns=["attack", "tried", "fooled"],
    )
    naive, corrected = ((case.n - int(mask.sum())) / n for mask in (textbook, fooled_in_all(case)))
    status = _status(findings)
    summary = _summary(status, findings, naive, corrected, n)
    return Verdict(status, _table(findings), table, summary, n, case.n / n, naive, corrected)


def _status(findings: Sequence[Finding]) -> Status:
    if _deciding(findings):
        return "masked"
    return "suspicious" if any(finding.flagged for finding in findings) else "trusted"


def _deciding(findings: Sequence[Finding]) -> list[Finding]:
    """Return what proves masking: single proofs, or else causes together with effects."""
    proofs = [finding for finding in findings if finding.proof]
    both = [finding for finding in findings if finding.flagged and finding.kind != "other"]
    complete = {finding.kind for finding in both} == {"cause", "effect"}
    return proofs or (both if complete else [])


def _summary(status: Status, findings: Sequence[Finding], naive: float, corrected: float, n: int) -> str:
    """Return the verdict in one or two sentences, with what decided it."""
    low, high = wilson(round(corrected * n), n)
    figures = f"naive {naive:.0%}, after remedy {corrected:.0%} (Wilson {low:.0%} to {high:.0%}, n = {n})"
    if status == "trusted":
        return f"Trusted: none of {len(findings)} checks found a sign of masking. Robust accuracy: {figures}."
    decided = _deciding(findings) or [finding for finding in findings if finding.flagged]
    told = "; ".join(f"{finding.check} ({finding.words})" for finding in decided)
    return f"{status.capitalize()}: robust accuracy {figures}. Decided by {told}."


def _table(findings: Sequence[Finding]) -> pd.DataFrame:
    return pd.DataFrame([asdict(finding) for finding in findings], columns=list(COLUMNS))
