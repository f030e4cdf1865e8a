"""The interface of a diagnostic: a function that examines a model and returns a finding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from robustcaps.errors import UserError
from robustcaps.registry import DIAGNOSTICS

if TYPE_CHECKING:
    from robustcaps.diagnostics.checks.context import DiagnosisContext

Kind = Literal["cause", "effect", "attack", "other"]
"""A cause is a property of the gradients that can mislead attacks; an effect is an attack that was misled; 'attack' is
a weakness of the baseline attack alone, which stronger attacks make up for."""


@dataclass(frozen=True)
class Finding:
    """The result of a check. Its name, kind, meaning, source and remedy are filled in from the registration."""

    flagged: bool
    value: float
    """The measured value."""
    threshold: float
    """The value that it is compared with."""
    words: str
    """The measurement as a clause, without a full stop."""
    proof: bool = False
    """Whether this alone proves gradient masking; a flag without proof is only a sign of it."""
    check: str = ""
    kind: Kind = "other"
    meaning: str = ""
    source: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Diagnostic:
    """A check with its options set."""

    name: str
    function: Callable[..., Finding]
    options: Mapping[str, Any]
    kind: Kind
    meaning: str
    source: str
    remedy: str

    def __call__(self, context: DiagnosisContext) -> Finding:
        """Run the check and return its finding."""
        arguments = (context,) if _takes_context(self.function) else (context.model, context.data, context.eps)
        finding: Any = self.function(*arguments, **self.options)
        if not isinstance(finding, Finding):
            raise UserError(f"diagnostic '{self.name}' must return a Finding, not {finding!r}.")
        return replace(
            finding,
            check=self.name,
            kind=self.kind,
            meaning=self.meaning,
            source=self.source,
            remedy=self.remedy,
        )


Check = TypeVar("Check", bound=Callable[..., Finding])


def diagnostic(name: str, *, kind: Kind = "other", source: str = "", remedy: str = "") -> Callable[[Check], Check]:
    """Register a function (model, data, eps, *, options...) -> Finding as a diagnostic.

    A function with a single positional parameter gets a `DiagnosisContext` instead, which also holds what other checks
    have measured. The first line of the docstring explains what a flag means.

    Args:
        name: Name of the diagnostic in suites and on the command line.
        kind: A flagged 'cause' and a flagged 'effect' together prove gradient masking.
        source: The paper that the check comes from.
        remedy: What to do when the check is flagged.

    Returns:
        A decorator that registers the function and returns it unchanged.
    """

    def decorate(function: Check) -> Check:
        if not _takes_context(function) and len(_positional_parameters(function)) != 3:
            raise UserError(f"diagnostic function '{function.__name__}' must take (model, data, eps) or (context).")
        meaning = (inspect.getdoc(function) or "").partition("\n")[0]

        @functools.wraps(function)
        def build(**options: Any) -> Diagnostic:
            return Diagnostic(name, function, options, kind, meaning, source, remedy)

        DIAGNOSTICS.add(name, build)
        return function

    return decorate


def _positional_parameters(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]


def _takes_context(function: Callable[..., Any]) -> bool:
    return len(_positional_parameters(function)) == 1
