"""How sure a comparison is: estimates with their intervals, contests between two, and what these say of a claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Any, Literal, NamedTuple, Self

from scipy.special import ndtri

from robustcaps.utils.statistics import wilson

Finding = Literal["agrees", "differs", "undecided"]
Line = Mapping[Any, Any]
NOTICEABLE = 10.0
"""An advantage of so many points is noticeable: the published ones under attack are 4 to 74."""


class Judgement(NamedTuple):
    """What our figures say of a claim, and the figures."""

    finding: Finding
    evidence: str


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; shares and their differences are in %."""

    value: float
    low: float
    high: float

    @classmethod
    def read(cls, line: Line, name: str, scale: float = 100.0) -> Self:
        """Return a column of a table's line, with the ends _low and _high."""
        return cls(*(scale * float(line[f"{name}{end}"]) for end in ("", "_low", "_high")))

    @classmethod
    def share(cls, share: float, n: int) -> Self:
        """Return a share of n with Wilson's interval; if it is a mean of n shares, they vary less than that says."""
        low, high = wilson(share * n, n)
        return cls(100 * share, 100 * float(low), 100 * float(high))

    def above(self, other: Estimate) -> int:
        """Return 1 if this is surely above another, -1 if surely below, 0 where the intervals overlap."""
        return int(self.low > other.high) - int(self.high < other.low)

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference of two, with the interval that theirs make (Newcombe 1998; Zou and Donner 2008).

        Of figures from the same samples, which go together, it is wider than need be.
        """
        value = self.value - other.value
        down, up = self.value - self.low, self.high - self.value
        return Estimate(
            value, value - hypot(down, other.high - other.value), value + hypot(up, other.value - other.low)
        )

    def __neg__(self) -> Estimate:
        """Return a difference the other way round."""
        return Estimate(-self.value, -self.high, -self.low)

    def __str__(self) -> str:
        return f"{self.value:.1f} % ({self.low:.1f}-{self.high:.1f})"

    @property
    def points(self) -> str:
        """The same in words for a difference."""
        return f"{self.value:.1f} points ({self.low:.1f} to {self.high:.1f})"


def paired_difference(only_first: int, only_second: int, n: int) -> Estimate:
    """Return the difference of two shares of the same n samples, from those that are right with one model alone.

    With half a sample added to each of the four counts, the normal interval holds (Agresti and Min 2005).
    """
    b, c, m = only_first + 0.5, only_second + 0.5, n + 2
    half = float(ndtri(0.975)) * sqrt(b + c - (b - c) ** 2 / m)
    return Estimate(100 * (only_first - only_second) / n, 100 * (b - c - half) / m, 100 * (b - c + half) / m)


class Contest(NamedTuple):
    """Two figures of which a claim says that the first is larger; `sure` is 1 if surely so, -1 if surely smaller."""

    names: tuple[str, str]
    first: Estimate
    second: Estimate
    sure: int
    n: int
    eps: float | None = None
    note: str = ""

    def __str__(self) -> str:
        where = "" if self.eps is None else f"at eps {self.eps:g}: "
        figures = f"{self.names[0]} {self.first}, {self.names[1]} {self.second}"
        return f"{where}{figures}, n = {self.n}{self.note}"


def tally(signs: Iterable[int]) -> Finding:
    """Agree if it is surely so (1) at least once and surely not so (-1) nowhere; differ the other way round."""
    seen = set(signs)
    if (1 in seen) == (-1 in seen):
        return "undecided"
    return "agrees" if 1 in seen else "differs"


def weigh(contests: Sequence[Contest], what: str) -> Judgement | None:
    """Judge a claim by all its contests (one per eps), and show the clearest; of none nothing can be said."""
    if not contests:
        return None
    signs = [contest.sure for contest in contests]
    clearest = max(contests, key=lambda each: (abs(each.sure), abs(each.first.value - each.second.value)))
    return Judgement(tally(signs), f"{what} {clearest}{count(signs)}")


def count(signs: Sequence[int], than: str = "") -> str:
    """Say at how many eps something is sure, where there are several."""
    if len(signs) < 2:
        return ""
    return f"; surely more{than} at {signs.count(1)}, surely less at {signs.count(-1)} of {len(signs)} eps"


def noticeable(advantages: Sequence[Estimate], sure: Sequence[bool]) -> bool | None:
    """Tell whether there is a noticeable advantage: yes if it is one, surely and by a test, on some line.

    No if on every line it is surely below `NOTICEABLE`; else unknown.
    """
    if all(advantage.high < NOTICEABLE for advantage in advantages):
        return False
    found = any(tested and advantage.low > NOTICEABLE for advantage, tested in zip(advantages, sure, strict=True))
    return True if found else None
