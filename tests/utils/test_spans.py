"""Spans of samples: split and subtracted, they cover every sample exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.utils.spans import Span, parse_span_id, span_id, split_span, subtract_spans

SPANS = st.tuples(st.integers(0, 60), st.integers(1, 30)).map(lambda each: Span(each[0], each[0] + each[1]))


@given(SPANS, st.integers(1, 40))
def test_a_span_is_split_into_pieces_that_cover_it_once(whole, size):
    pieces = split_span(whole, size)
    assert [index for piece in pieces for index in range(*piece)] == list(range(*whole))
    assert all(piece.size == size for piece in pieces[:-1]) and 0 < pieces[-1].size <= size


@given(SPANS, st.lists(SPANS, max_size=6))
def test_what_is_left_is_what_no_span_covers(whole, taken):
    left = [index for span in subtract_spans(whole, taken) for index in range(*span)]
    assert left == [index for index in range(*whole) if not any(span.start <= index < span.stop for span in taken)]
    assert all(span.size > 0 for span in subtract_spans(whole, taken))


@given(st.text("abc0123-", min_size=1), SPANS)
def test_the_id_of_a_span_is_read_back(name, span):
    assert parse_span_id(span_id(name, span)) == (name, span)


@pytest.mark.parametrize("text", ["", "a", "a-1", "a-b-2", "a-1-²", "a-1-2x"])
def test_another_text_is_no_id_of_a_span(text):
    assert parse_span_id(text) is None
