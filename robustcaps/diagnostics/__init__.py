"""Can this number be trusted? One file per family of checks, and the verdict; importing this registers the checks."""

from __future__ import annotations

from robustcaps.diagnostics import contest, gradients, soundness
from robustcaps.diagnostics.base import Diagnostic, Finding, diagnostic
from robustcaps.diagnostics.by_loss import measure_gradients
from robustcaps.diagnostics.case import Case
from robustcaps.diagnostics.verdict import Verdict, diagnose, load_diagnostic

__all__ = [
    "Case",
    "Diagnostic",
    "Finding",
    "Verdict",
    "contest",
    "diagnose",
    "diagnostic",
    "gradients",
    "load_diagnostic",
    "measure_gradients",
    "soundness",
]
