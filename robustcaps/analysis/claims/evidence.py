"""Evidence for or against a claim: estimates with intervals, comparisons of two, and the finding they lead to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Any, Literal, NamedTuple, Self

from scipy.special import ndtri

from robustcaps.utils.statistics import wilson

Agreement = Literal["agrees", "differs", "undecided"]
Line = Mapping[Any, Any]
NOTICEABLE = 10.0
"""An advantage of so many points is noticeable: the published ones under attack are 4 to 74."""


class Judgement(NamedTuple):
    """What our results say about a claim, and the numbers."""

    finding: Agreement
    evidence: str


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; shares and their differences are in %."""

    value: float
    low: float
    high: float

    @classmethod
    def read(cls, line: Line, name: str, scale: float = 100.0) -> Self:
        """Return a column of a table's line, with the bounds _low and _high."""
        return cls(*(scale * float(line[f"{name}{end}"]) for end in ("", "_low", "_high")))

    @classmethod
    def share(cls, share: float, n: int) -> Self:
        """Return a share of n samples with Wilson's interval; for a mean of n shares the interval is conservative."""
        low, high = wilson(share * n, n)
        return cls(100 * share, 100 * float(low), 100 * float(high))

    def above(self, other: Estimate) -> int:
        """Return 1 if this interval lies above another, -1 if below, 0 where the two overlap."""
        return int(self.low > other.high) - int(self.high < other.low)

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference of two with its interval (Newcombe 1998; Zou and Donner 2008).

        For two shares of the same samples, which are correlated, it is conservative.
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
        """A difference as text."""
        return f"{self.value:.1f} points ({self.low:.1f} to {self.high:.1f})"


def paired_difference(only_first: int, only_second: int, n: int) -> Estimate:
    """Return the difference of two shares of the same n samples, from those that are right with one model alone.

    With half a sample added to each of the four counts, the normal interval holds (Agresti and Min 2005).
    """
    b, c, m = only_first + 0.5, only_second + 0.5, n + 2
    half = float(ndtri(0.975)) * sqrt(b + c - (b - c) ** 2 / m)
    return Estimate(100 * (only_first - only_second) / n, 100 * (b - c - half) / m, 100 * (b - c + half) / m)


Basis = Literal["test", "intervals"]
"""What decides a comparison: a test (p < 0.05, Holm), or 95 % intervals that do not overlap."""


class ClaimComparison(NamedTuple):
    """Two numbers of which a claim says that the first is larger; `sign` is 1 if it is, -1 if smaller, 0 if open."""

    names: tuple[str, str]
    first: Estimate
    second: Estimate
    sign: int
    n: int
    eps: float | None = None
    note: str = ""

    def __str__(self) -> str:
        where = "" if self.eps is None else f"at eps {self.eps:g}: "
        numbers = f"{self.names[0]} {self.first}, {self.names[1]} {self.second}"
        return f"{where}{numbers}, n = {self.n}{self.note}"


def finding_of(signs: Iterable[int]) -> Agreement:
    """Return 'agrees' if a comparison supports the claim (1) and none contradicts it (-1), 'differs' vice versa."""
    seen = set(signs)
    if (1 in seen) == (-1 in seen):
        return "undecided"
    return "agrees" if 1 in seen else "differs"


def judge_comparisons(comparisons: Sequence[ClaimComparison], what: str, basis: Basis) -> Judgement | None:
    """Judge a claim by all its comparisons (one per eps) and show the clearest; None without any."""
    if not comparisons:
        return None
    signs = [comparison.sign for comparison in comparisons]
    clearest = max(comparisons, key=lambda each: (abs(each.sign), abs(each.first.value - each.second.value)))
    return Judgement(finding_of(signs), f"{what} {clearest}{count_signs(signs, basis)}")


def count_signs(signs: Sequence[int], basis: Basis, than: str = "") -> str:
    """Return at how many eps a comparison is decided, where there are several."""
    if len(signs) < 2:
        return ""
    counts = f"more{than} at {signs.count(1)}, less at {signs.count(-1)} of {len(signs)} eps"
    if basis == "test":
        return f"; significantly (p < 0.05, Holm) {counts}"
    return f"; {counts} (95 % intervals do not overlap)"


def noticeable(advantages: Sequence[Estimate], significant: Sequence[bool]) -> bool | None:
    """Return whether there is a noticeable advantage on some line; None if that is open.

    True if one is significant and its whole interval lies above `NOTICEABLE`; False if all intervals lie below it.
    """
    if all(advantage.high < NOTICEABLE for advantage in advantages):
        return False
    found = any(
        tested and advantage.low > NOTICEABLE for advantage, tested in zip(advantages, significant, strict=True)
    )
    return True if found else None
