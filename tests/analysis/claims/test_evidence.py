from __future__ import annotations

import pytest

from robustcaps.analysis.claims.evidence import NOTICEABLE, Estimate, finding_of, noticeable, paired_difference

FINDINGS = ("agrees", "differs", "undecided")


def test_an_advantage_is_noticeable_where_one_line_alone_says_so():
    small, wide, large = Estimate(1.6, 0.7, 3.0), Estimate(4.0, -5.0, 13.0), Estimate(30.0, 20.0, 40.0)
    assert noticeable([small, wide], [True, False]) is None  # one is significant, another is open
    assert noticeable([small], [True]) is False
    assert noticeable([small, large], [True, True]) is True
    assert noticeable([small, large], [True, False]) is None


@pytest.mark.parametrize(
    ("signs", "finding"),
    [([1, 0], "agrees"), ([-1, 0], "differs"), ([1, -1], "undecided"), ([0], "undecided"), ([], "undecided")],
)
def test_a_finding_needs_one_comparison_for_it_and_none_against(signs, finding):
    assert finding_of(signs) == finding in FINDINGS


def test_a_paired_difference_is_narrower_than_one_of_independent_shares():
    paired = paired_difference(12, 8, 200)
    apart = Estimate.share(0.56, 200) - Estimate.share(0.54, 200)
    assert paired.value == pytest.approx(2.0) and apart.value == pytest.approx(2.0)
    assert apart.low < paired.low < 0 < paired.high < NOTICEABLE < apart.high
