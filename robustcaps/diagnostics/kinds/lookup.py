"""Which kind a diagnostic of a suite is, and its options: a kind by name, or one check, which is a verdict by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robustcaps.diagnostics.kinds.base import DiagnosticKind
from robustcaps.errors import UserError, did_you_mean
from robustcaps.options import validate_options
from robustcaps.registry import DIAGNOSTICS, KINDS

VERDICT = "verdict"


def kind_of(use: str) -> DiagnosticKind:
    """Return the kind of a diagnostic; a single check is a verdict by that check alone."""
    if use in KINDS.names_in_order():
        return KINDS.entry(use).factory()
    names = (*KINDS.names(), *DIAGNOSTICS.names())
    if use not in names:
        raise UserError(f"unknown diagnostic '{use}'. {did_you_mean(use, names)}")
    return KINDS.entry(VERDICT).factory()


def diagnostic_options(use: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a diagnostic, validated, defaults filled in."""
    kind = kind_of(use)
    where = f"diagnostic '{use}'"
    if use == kind.name:
        return kind.options(options, where=where)
    check = {"use": use, **validate_options(DIAGNOSTICS.entry(use).factory, options, where=where)}
    return kind.options({"checks": [check]}, where=where)
