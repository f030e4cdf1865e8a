"""The checks for gradient masking; importing this package registers all of them."""

from __future__ import annotations

from robustcaps.diagnostics.checks import attack_checks, evaluation_checks, gap, gradient_checks

__all__ = ["attack_checks", "evaluation_checks", "gap", "gradient_checks"]
