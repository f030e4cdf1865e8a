"""Suite files: what they may say, and how mistakes in them are named."""

from __future__ import annotations

import pytest

from robustcaps.errors import UserError
from robustcaps.suite.spec import load_suite

HEAD = '[[data]]\nuse = "dots"\n[[models]]\nuse = "levels"\n'
GOOD = HEAD + '[[attacks]]\nuse = "fgsm"\neps = [0.1]\n'
ASKING = HEAD + "[[diagnostics]]\n"

MISTAKES = {
    "malformed": ("[[data]\n", "x.toml: not valid TOML: "),
    "unknown key": (GOOD + "[[atacks]]\n", "x.toml: unknown key 'atacks'. Did you mean 'attacks'?"),
    "no attacks": (HEAD, "x.toml: a suite needs attacks or diagnostics"),
    "empty attacks": ("attacks = []\n" + HEAD, "x.toml: a suite needs attacks or diagnostics"),
    "negative eps": (
        GOOD.replace("[0.1]", "[0.1, -0.2]"),
        "x.toml: attacks[0].eps[1]: must not be negative (given: -0.2)",
    ),
    "eps a word": (
        GOOD.replace("[0.1]", '"large"'),
        "x.toml: attacks[0].eps[0]: must be a finite number (given: 'large')",
    ),
    "eps nan": (GOOD.replace("[0.1]", "nan"), "must be a finite number (given: nan)"),
    "eps empty": (GOOD.replace("[0.1]", "[]"), "x.toml: attacks[0].eps: list should have at least 1 item"),
    "diagnosis without a ball": (ASKING + "eps = 0\n", "x.toml: diagnostics[0].eps[0]: input should be greater than 0"),
    "model for nothing": (
        GOOD.replace('"levels"', '"levels"\ndata = []'),
        "x.toml: models[0].data: list should have at least 1 item",
    ),
    "a seed twice": ("seeds = [0, 1, 0]\n" + GOOD, "x.toml: seeds: 0 is listed twice; every seed counts once"),
    "a reserved name": (
        GOOD + 'name = "worst case of all"\n',
        "x.toml: attacks[0]: 'worst case of all' is the name of a line that tables compute; choose another name",
    ),
    "a reserved name in other letters": (GOOD + 'name = "Worst  case of all"\n', "choose another name"),
    "a blank name": (GOOD + 'name = " "\n', "x.toml: attacks[0].name: must not be blank (given: ' ')"),
    "limit": (GOOD.replace('"dots"', '"dots"\nlimit = 0'), "x.toml: data[0].limit: input should be greater than"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_with_file_and_place(tmp_path, text, message):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_suite(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
