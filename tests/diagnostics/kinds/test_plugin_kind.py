"""A plugin brings a whole new kind of diagnostic: rows, table, Markdown, figure and report section, in one file."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import robustcaps as rc
from robustcaps.diagnostics.kinds.base import all_kinds
from robustcaps.diagnostics.kinds.lookup import diagnostic_options, kind_of
from robustcaps.errors import UserError

KIND = '''
import pandas as pd


def measure_brightness(model, data, *, most: float = 0.5):
    """Return the mean of each image, and whether it is above `most`."""
    means = data.images.flatten(1).mean(1).numpy()
    return pd.DataFrame({"index": range(len(data)), "mean": means, "bright": means > most})


def tabulate(rows, models):
    grouped = rows.groupby(["suite", "data", "model", "diagnostic"], sort=False)
    return grouped.agg(n=("index", "size"), bright=("bright", "mean")).reset_index()


def grids(table):
    lines = [[line["model"], line["n"], f"{100 * line['bright']:.1f}"] for line in table.to_dict("records")]
    return [rc.make_grid(["model", "n", "bright %"], lines, title="Bright images:")]


def draw(rows, tables):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().bar(list(tables["brightness"]["model"]), list(tables["brightness"]["bright"]))
    yield "brightness", figure


rc.diagnostic_kind(
    rc.DiagnosticKind(
        name="brightness",
        measure=measure_brightness,
        tables=(rc.KindTable("brightness", tabulate, grids),),
        title="How bright the <images> are",
        note="Share of images whose mean exceeds a threshold.",
        draw=draw,
    )
)
'''

SUITE = """
[[data]]
use = "dots"

[[models]]
use = "levels"

[[diagnostics]]
use = "brightness"
most = 0.4
limit = 10
"""


def test_a_plugin_kind_is_in_tables_figures_console_and_report(cli, plugin, tmp_path):
    plugin.write_text(plugin.read_text() + KIND)
    suite, out = tmp_path / "bright.toml", tmp_path / "o"
    suite.write_text(SUITE)
    result = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Bright images:" in result.stdout
    (line,) = pd.read_csv(out / "brightness.csv").to_dict("records")
    assert line["model"] == "levels" and line["n"] == 10 and 0 <= line["bright"] <= 1
    assert "| levels | 10 |" in (out / "brightness.md").read_text()
    assert {path.name for path in (out / "figures").iterdir()} == {"brightness.png", "brightness.svg"}
    page = (out / "report.html").read_text()
    assert "How bright the &lt;images&gt; are" in page and "Share of images whose mean" in page

    (cell,) = json.loads((out / "run.json").read_text())["cells"]
    assert cell["kind"] == "brightness" and not {"eps", "norm"} & cell["settings"]["diagnostic"].keys()
    again = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert "Nothing to compute: all 1 cells" in again.stdout
    for command in ("table", "figures", "report"):
        assert cli(command, "o", "--plugin", plugin).returncode == 0
    assert (out / "figures" / "brightness.png").exists()
    page = (out / "report.html").read_bytes()
    for command in ("table", "figures", "report"):
        without = cli(command, "o")
        assert without.returncode == 2 and "'brightness' can be shown only with the plugin" in without.stderr
    assert (out / "report.html").read_bytes() == page and (out / "brightness.csv").exists()

    plugin.write_text(plugin.read_text().replace("means > most", "means > 2 * most"))
    changed = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert "Nothing to compute" not in changed.stdout, "its code is part of the cell's id"


def test_built_in_kinds_declare_everything_and_take_only_what_they_need():
    kinds = {kind.name: kind for kind in all_kinds()}
    assert list(kinds) == ["verdict", "gradients", "detection", "overlap", "views", "routing", "certify"]
    assert {name: kind.harness_parameters - {"progress"} for name, kind in kinds.items()} == {
        "verdict": {"eps", "norm", "seed"},
        "gradients": set(),
        "detection": {"eps", "norm", "seed"},
        "overlap": set(),
        "views": set(),
        "routing": set(),
        "certify": {"seed"},
    }
    for kind in kinds.values():
        assert kind.tables and kind.title and kind.passes >= 1
        empty = kind.tabulate(pd.DataFrame(), ())
        assert set(empty) == {table.name for table in kind.tables} and all(table.empty for table in empty.values())


def test_a_check_is_a_verdict_by_that_check_alone():
    assert kind_of("zero-gradient").name == "verdict"
    assert [check["use"] for check in diagnostic_options("zero-gradient", {})["checks"]] == ["zero-gradient"]
    assert kind_of("views").name == "views"


@pytest.mark.parametrize(
    ("use", "options", "message"),
    [
        ("overlaps", {}, "unknown diagnostic 'overlaps'. Did you mean 'overlap'?"),
        ("views", {"eps": 1}, "diagnostic 'views': unknown option 'eps'"),
        ("verdict", {"checks": ["zero"]}, "unknown diagnostic 'zero'"),
        ("detection", {"attacks": ["fgms"]}, "unknown attack 'fgms'. Did you mean 'fgsm'?"),
    ],
)
def test_wrong_names_and_options_are_named(use, options, message):
    with pytest.raises(UserError) as raised:
        diagnostic_options(use, options)
    assert message in str(raised.value)


def test_a_kind_without_tables_of_its_own_shows_its_rows(registries, tmp_path):
    kind = rc.diagnostic_kind(
        rc.DiagnosticKind(
            "plain", lambda model, data: pd.DataFrame({"a": [1.5], "b": ["x"]}), (rc.KindTable("plain"),), "P"
        )
    )
    rows = pd.DataFrame({"a": [1.5, float("nan")], "b": ["x", "y"]})
    section = kind.report_section(rows, kind.tabulate(rows, ()))
    assert section.title == "P"
    assert section.grids[0].markdown() == "| a | b |\n| ---: | --- |\n| 1.5 | x |\n|  | y |\n"
