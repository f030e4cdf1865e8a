"""How errors of other code are said in a line."""

from __future__ import annotations

import pytest
import torch

from robustcaps.errors import MAX_CHARACTERS, describe_error

CASES = {
    "a line": (ValueError("no"), "ValueError: no"),
    "the first of two lines": (ValueError("no\nand why"), "ValueError: no"),
    "what a colon announces": (
        RuntimeError("Error(s):\n\tsize mismatch\n\tfor fc"),
        "RuntimeError: Error(s): size mismatch for fc",
    ),
    "nothing": (KeyError(), "KeyError"),
}


@pytest.mark.parametrize(("error", "words"), CASES.values(), ids=CASES)
def test_an_error_is_one_line(error, words):
    assert describe_error(error) == words


def test_weights_of_the_wrong_shape_are_explained():
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Linear(3, 2).load_state_dict(torch.nn.Linear(4, 2).state_dict())
    words = describe_error(caught.value)
    assert "size mismatch for weight" in words and "\n" not in words


def test_a_long_error_is_cut():
    assert len(describe_error(ValueError("x" * 10_000))) <= MAX_CHARACTERS + 30
