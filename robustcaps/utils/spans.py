"""Spans of samples: half-open ranges of indices, and what some of them leave uncovered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """The samples from `start` to before `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start


def split_span(whole: Span, size: int) -> list[Span]:
    """Return consecutive spans of at most `size` samples."""
    return [Span(start, min(start + size, whole.stop)) for start in range(whole.start, whole.stop, size)]


def subtract_spans(whole: Span, taken: Iterable[Span]) -> list[Span]:
    """Return the parts of a span, in order, that no other span covers."""
    free, start = [], whole.start
    for span in sorted(taken):
        if span.start > start and start < whole.stop:
            free.append(Span(start, min(span.start, whole.stop)))
        start = max(start, span.stop)
    if start < whole.stop:
        free.append(Span(start, whole.stop))
    return free


def span_id(name: str, span: Span) -> str:
    """Return a name for a span of something that has a name."""
    return f"{name}-{span.start}-{span.stop}"


def parse_span_id(text: str) -> tuple[str, Span] | None:
    """Return the name and the span of which `span_id` made a text, or None for another text."""
    name, *ends = text.rsplit("-", 2)
    if len(ends) != 2 or not all(end.isdecimal() and end.isascii() for end in ends):
        return None
    return name, Span(*map(int, ends))
