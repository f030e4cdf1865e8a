"""The checks behind a verdict; importing this package registers them all."""

from __future__ import annotations

from robustcaps.diagnostics.checks import attack_checks, evaluation_checks, gradient_checks

__all__ = ["attack_checks", "evaluation_checks", "gradient_checks"]
