r"""Names that hold control characters, markup or formulas are shown escaped wherever they appear."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robustcaps.cli.app import main
from robustcaps.utils.printable import printable

BAD = "a\nb\x1b[31m\r\u202e\x07|<b>$\\\\x$,[red]c"
SHOWN = r"a\nb\x1b[31m\r\u202e\x07|<b>$\\x$,[red]c"
SUITE = r"""
title = "t\u001b\u0007<i>"
[[data]]
use = "dots"
name = "NAME data"
limit = 12
[[models]]
use = "levels"
name = "NAME model"
[[models]]
use = "levels"
name = "blunt"
sharpness = 10.0
data = ["NAME data"]
[[attacks]]
use = "fgsm"
name = "NAME attack"
eps = [0.02, 0.1]
models = ["NAME model", "blunt"]
[[attacks]]
use = "pgd"
steps = 2
eps = [0.02, 0.1]
[[attacks]]
use = "transfer"
surrogate = "NAME model"
eps = [0.1]
[[attacks]]
use = "broken"
name = "NAME broken"
eps = [0.1]
"""
IN_TOML = r"a\nb\u001b[31m\r\u202e\u0007|<b>$\\\\x$,[red]c"


def hidden(text: str, *allowed: str) -> list[str]:
    """Control characters in a text, other than line ends."""
    return [found for found in re.findall(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e]", text) if found not in allowed]


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".csv", ".md", ".svg", ".html"):
            yield path.name, path.read_text()


def without_library(text: str) -> str:
    """A page without the longest script, which is the library that draws its charts."""
    return text.replace(max(re.findall(r"<script.*?</script>", text, re.DOTALL), key=len, default=""), "")


@pytest.mark.usefixtures("registries")
def test_names_are_escaped_on_the_terminal_and_in_every_file(tmp_path, plugin, monkeypatch, capsys):
    (tmp_path / "x.toml").write_text(SUITE.replace("NAME", IN_TOML))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "argv", ["robustcaps", "run", "x.toml", "--plugin", str(plugin), "--out", "o"])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert stop.value.code == 1, said.err  # of the broken attack
    assert not hidden(said.out) and not hidden(said.err)
    assert f"{SHOWN} model / {SHOWN} data / {SHOWN} broken" in said.out
    files = dict(texts(tmp_path / "o"))
    assert {"table.csv", "table.md", "transfer.csv", "transfer.svg", "report.html"} <= set(files), said.err
    for name, text in files.items():
        assert not hidden(without_library(text)), name
    assert f"{SHOWN} model" in files["table.csv"]
    assert SHOWN.replace("|", r"\|") + " attack" in files["table.md"]
    escaped = SHOWN.replace("<b>", "&lt;b&gt;")
    assert f"{escaped} model" in files["report.html"]
    drawn = [text for name, text in files.items() if name.endswith(".svg")]
    assert drawn and any(f"{escaped} model" in text for text in drawn)


CASES = {
    "plain": ("cnn:a (5 %)", "cnn:a (5 %)"),
    "letters of any script": ("größe 図", "größe 図"),
    "newline": ("a\nb", r"a\nb"),
    "escape": ("\x1b[2J", r"\x1b[2J"),
    "direction": ("a\u202eb", r"a\u202eb"),
    "line separator": ("a\u2028b", r"a\u2028b"),
    "surrogate": ("a\udc80b", r"a\udc80b"),
}


@pytest.mark.parametrize(("text", "shown"), CASES.values(), ids=CASES)
def test_what_is_not_shown_is_escaped(text, shown):
    assert printable(text) == shown
