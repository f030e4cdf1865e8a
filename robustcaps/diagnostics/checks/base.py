"""What a diagnostic is: a question about a model, answered by a finding with its figure and its threshold."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from robustcaps.errors import UserError
from robustcaps.registry import DIAGNOSTICS

if TYPE_CHECKING:
    from robustcaps.diagnostics.checks.context import Case

Kind = Literal["cause", "effect", "other"]
"""A cause is something about the gradients that can mislead attacks; an effect is an attack that was misled."""


@dataclass(frozen=True)
class Finding:
    """What a check saw. The last five fields come from the check's registration."""

    flagged: bool
    value: float
    """The figure."""
    threshold: float
    """What the figure is held against."""
    words: str
    """What was seen, in words."""
    proof: bool = False
    """Whether it shows by itself that the model hides from gradients; a flag without proof is a sign of it."""
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

    def __call__(self, case: Case) -> Finding:
        """Return what the check finds."""
        given = (case,) if _wants_case(self.function) else (case.model, case.data, case.eps)
        finding: Any = self.function(*given, **self.options)
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

    Instead of the three it may take one `case`, which also holds what other checks have computed. A flagged cause and a
    flagged effect together prove masking. `source` is the paper it comes from, `remedy` what to do when it is flagged;
    the first line of its docstring says what it means.
    """

    def decorate(function: Check) -> Check:
        if not _wants_case(function) and len(_positional(function)) != 3:
            raise UserError(f"diagnostic function '{function.__name__}' must take (model, data, eps), or (case).")
        meaning = (inspect.getdoc(function) or "").partition("\n")[0]

        @functools.wraps(function)
        def build(**options: Any) -> Diagnostic:
            return Diagnostic(name, function, options, kind, meaning, source, remedy)

        DIAGNOSTICS.add(name, build)
        return function

    return decorate


def _positional(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]


def _wants_case(function: Callable[..., Any]) -> bool:
    return _positional(function) == ["case"]
