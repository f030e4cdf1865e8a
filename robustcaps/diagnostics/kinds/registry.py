"""What a suite may ask about a model beside attacks: a verdict, single checks, gradients; each answer is rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from torch import nn

from robustcaps.attacks.norms import NormName
from robustcaps.data.base import Data, Progress
from robustcaps.diagnostics.checks.context import TextbookLoss
from robustcaps.diagnostics.detection import detection_rows, load_attacks
from robustcaps.diagnostics.gradients import By, measure_gradients
from robustcaps.diagnostics.overlap import overlap_rows
from robustcaps.diagnostics.verdict import diagnose, load_diagnostic
from robustcaps.diagnostics.viewpoints import view_rows
from robustcaps.errors import UserError, did_you_mean
from robustcaps.options import validate_options
from robustcaps.registry import DIAGNOSTICS

GIVEN = frozenset({"eps", "norm", "seed", "progress"})
"""What an examination gets from the harness, not from options."""


def verdict_rows(
    model: nn.Module,
    data: Data,
    *,
    eps: float,
    norm: NormName,
    seed: int,
    progress: Progress | None,
    loss: TextbookLoss = "ce",
    steps: int = 20,
    step: float | None = None,
    checks: Sequence[str | dict[str, Any]] | None = None,
) -> pd.DataFrame:
    """Return the verdict as rows: one per check, each with the verdict that they add up to."""
    asked: dict[str, Any] = {"norm": norm, "loss": loss, "steps": steps, "step": step, "checks": checks}
    verdict = diagnose(model, data, eps, **asked, seed=seed, progress=progress)
    shares = {"clean": verdict.clean, "naive": verdict.naive, "corrected": verdict.corrected}
    setting = {"norm": norm, "eps": eps, "loss": loss, "seed": seed}
    return verdict.checks.assign(**setting, status=verdict.status, n=verdict.n, **shares, summary=verdict.summary)


def gradient_rows(
    model: nn.Module,
    data: Data,
    *,
    eps: float,  # noqa: ARG001  gradients are taken at the images themselves
    norm: NormName,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    progress: Progress | None,
    losses: Sequence[By] | None = None,
) -> pd.DataFrame:
    """Return the figures of each sample's gradient, by loss."""
    return measure_gradients(model, data, losses=losses, progress=progress)


Examination = Callable[..., pd.DataFrame]
EXAMINATIONS: dict[str, Examination] = {
    "verdict": verdict_rows,
    "gradients": gradient_rows,
    "detection": detection_rows,
    "overlap": overlap_rows,
    "views": view_rows,
}


def kind_of(use: str) -> str:
    """Return which kind of rows a diagnostic of a suite has: a check by name is a verdict by that check alone."""
    if use in EXAMINATIONS:
        return use
    names = (*EXAMINATIONS, *DIAGNOSTICS.names())
    if use not in names:
        raise UserError(f"unknown diagnostic '{use}'. {did_you_mean(use, names)}")
    return "verdict"


def examination_options(use: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a diagnostic of a suite, checked, defaults filled in."""
    kind = kind_of(use)
    where = f"diagnostic '{use}'"
    if use == kind:
        checked = validate_options(EXAMINATIONS[kind], options, where=where, given=GIVEN)
        for check in checked.get("checks") or ():
            load_diagnostic(check)
        load_attacks(checked.get("attacks") or ())
        return checked
    factory = DIAGNOSTICS.entry(use).factory
    check = {"use": use, **validate_options(factory, options, where=where)}
    return validate_options(EXAMINATIONS[kind], {"checks": [check]}, where=where, given=GIVEN)
