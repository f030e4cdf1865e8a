"""Tables as LaTeX: every text is shown as it is, and the table is well formed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.utils.grid import GridCell, escape_latex, grids_latex, make_grid


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("50 % & more", r"50 \% \& more"),
        ("a_b {c} $x$ #1", r"a\_b \{c\} \$x\$ \#1"),
        ("C:\\x~y^2", r"C:\textbackslash{}x\textasciitilde{}y\textasciicircum{}2"),
        ("p < 0.001 | [0,1]", r"p \textless{} 0.001 \textbar{} {[}0,1{]}"),
        ("44-58", "44--58"),
        ("-0.5 to 0.2", "$-$0.5 to 0.2"),
        ("cnn-small", "cnn-small"),
        ("line\nbreak", r"line\textbackslash{}nbreak"),
    ],
)
def test_texts_are_shown_as_they_are(text, latex):
    assert escape_latex(text) == latex


GRID = make_grid(
    ["model", "accuracy %"],
    [["cnn_a", GridCell("51.0", "44-58", bold=True)], ["caps & co", GridCell("")]],
    title="toys: accuracy in %:",
    note="Wilson 95 %.",
    numeric=["accuracy %"],
)


def test_a_grid_is_a_table_with_rules_caption_label_and_note():
    first, second = grids_latex([GRID, GRID], "my table").split("\\end{table}\n")[:2]
    assert first.startswith("% Needs \\usepackage{booktabs}.")
    assert "\\caption{toys: accuracy in \\%}\n\\label{tab:my-table}" in first and "{tab:my-table-2}" in second
    assert "\\begin{tabular}{lr}\n\\toprule\nmodel & accuracy \\% \\\\\n\\midrule" in first
    assert r"cnn\_a & \textbf{51.0} {\scriptsize (44--58)} \\" in first and r"caps \& co &  \\" in first
    assert first.index("\\bottomrule") < first.index("Wilson 95 \\%.")


@given(st.text(max_size=30))
def test_no_text_can_break_a_table(text):
    latex = make_grid(["x", "y"], [[text, GridCell(text, text)]]).latex()
    plain = re.sub(r"\\[&%$#_{}]", "", latex)  # without escaped characters
    assert plain.count("{") == plain.count("}") and "%" not in plain and "#" not in plain
    assert plain.count("&") == 2 and latex.count("\n") == 10
