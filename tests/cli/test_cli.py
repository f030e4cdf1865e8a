from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from robustcaps.cli.app import app, main
from robustcaps.cli.options import console
from robustcaps.models.zoo import WEIGHTS


def digest_of_files(folder: Path, pattern: str) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob(pattern)}


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["train", "--help"], []])
def test_help_and_import_do_not_load_torch(words):
    code = (
        "import sys\n"
        f"sys.argv = ['robustcaps', *{words!r}]\n"
        "import robustcaps\n"
        "from robustcaps.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'pandas', 'numpy', 'seaborn', 'matplotlib', 'pyarrow', 'scipy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY []" in result.stdout
    assert "Usage" in result.stdout


def test_a_run_leaves_everything_and_a_second_one_computes_nothing(cli, suite, plugin, tmp_path):
    first = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert first.returncode == 0, first.stderr
    out = tmp_path / "o"
    tables = ("attack_comparisons", "comparisons", "differences", "ranking", "table", "targets")
    assert {path.name for path in out.iterdir()} == {
        *("cells", "figures", "report.html", "run.json"),
        *(f"{name}.{ending}" for name in tables for ending in ("csv", "md", "tex")),
    }
    drawn = ("accuracy", "cost", "targeted", "targets")
    names = {f"{name}.{ending}" for name in drawn for ending in ("png", "svg")}
    assert {path.name for path in (out / "figures").iterdir()} == names
    shown = ("accuracy under attack in %", "o: ranking, ", " table, ", "o/figures: accuracy, ", "o/report.html")
    assert all(text in first.stdout for text in shown)

    record = json.loads((out / "run.json").read_text())
    assert len(record["cells"]) == 10 and all(cell["status"] == "finished" for cell in record["cells"])
    assert {"python", "torch", "robustcaps"} <= set(record["versions"]) and record["suite"]["seeds"] == [0, 1]
    settings = record["cells"][0]["settings"]
    assert all(len(settings[part]["digest"]) == 64 for part in ("model", "data"))
    assert record["timings"]["run_seconds"] > 0 and "commit" in record

    table = pd.read_csv(out / "table.csv")
    clean = table[table["attack"] == "clean"].set_index("model")
    assert clean.loc["levels", "accuracy"] == 1 and clean.loc["levels", "n"] == 30
    assert clean.loc["levels", "accuracy_low"] == pytest.approx(0.8865, abs=1e-4)
    rows = pq.read_table(out / "cells" / f"{record['cells'][1]['id']}.parquet").to_pandas()
    assert len(rows) == 120

    cells = digest_of_files(out / "cells", "*")
    second = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert second.returncode == 0
    assert "Nothing to compute: all 10 cells were finished before" in second.stdout
    assert digest_of_files(out / "cells", "*") == cells
    for again in (cli("table", "o"), cli("figures", "o", "--published"), cli("report", "o")):
        assert again.returncode == 0 and "Written" in again.stdout
    assert pd.read_csv(out / "table.csv").equals(table)


def test_check_says_what_would_be_done(cli, suite, plugin, tmp_path):
    result = cli("check", suite, "--plugin", plugin)
    assert result.returncode == 0 and "fine. 10 cells, 1,320 rows" in result.stdout
    assert not (tmp_path / "out").exists()


def test_lists_show_plugins_and_options(cli, plugin):
    result = cli("list", "attacks", "--plugin", plugin)
    assert result.returncode == 0 and "darken" in result.stdout and "share=1.0" in result.stdout
    assert "fgsm" in result.stdout and "Goodfellow" in result.stdout


def test_lists_can_be_narrowed_down(cli):
    result = cli("list", "attacks", "*gsm")
    assert "fgsm" in result.stdout and "loss='log-odds'" in result.stdout and "bim" not in result.stdout


def test_names_of_shipped_weights_are_never_cut_off(cli):
    result = cli("list", "models", COLUMNS="50")
    assert "matrix-capsnet-small:sharpb" in result.stdout and "alive" in result.stdout


def test_the_name_of_a_model_is_no_emoji():
    assert str(console.render_str("cnn:a: 3")) == "cnn:a: 3"


def test_attack_prints_one_table(cli, plugin, tmp_path):
    words = ["attack", "levels", "darken", "--data", "dots", "--eps", "0,0.1,0.3", "--plugin", plugin]
    result = cli(*words, "--set", "share=0.5", "--rows", "rows.csv")
    assert result.returncode == 0, result.stderr
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert rows["linf"].max() == pytest.approx(0.15, abs=1e-6) and len(rows) == 3 * 60
    clean, table = (result.stdout.index(text) for text in ("Clean accuracy: 100.0 %", "accuracy under attack in %"))
    assert clean < table and "(95 % CI 94-100, n = 60)" in result.stdout


RANDOM = """
from torch import nn
import robustcaps as rc


@rc.model("random")
def random(*, classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
"""


@pytest.mark.parametrize("command", [["attack", "random", "clean"], ["diagnose", "random", "--check", "validity"]])
def test_a_model_without_trained_weights_is_refused_unless_allowed(cli, plugin, tmp_path, command):
    (second := tmp_path / "random_plugin.py").write_text(RANDOM)
    words = [*command, "--data", "dots", "--limit", "12", "--plugin", plugin, "--plugin", second]
    refused = cli(*words)
    assert refused.returncode == 2 and refused.stderr.strip().count("\n") == 0
    assert "model 'random' has no trained weights" in refused.stderr and "pretrained=True" in refused.stderr
    allowed = cli(*words, "--untrained")
    assert allowed.returncode == 0, allowed.stderr


def test_run_refuses_a_model_without_trained_weights(cli, suite, plugin, tmp_path):
    plugin.write_text(plugin.read_text().replace(", pretrained=True)", ")"))
    refused = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert refused.returncode == 2 and not (tmp_path / "o").exists()
    assert "models[0]: model 'levels' has no trained weights" in refused.stderr


def test_a_run_with_failures_names_them_and_ends_with_exit_code_1(cli, suite, plugin):
    suite.write_text(suite.read_text() + '\n[[attacks]]\nuse = "broken"\neps = [0.1]\n')
    result = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert result.returncode == 1
    assert "failed (raised): levels / dots / broken: RuntimeError: no luck" in result.stdout
    assert "2 cells failed" in result.stdout and "The same command retries just these." in result.stdout


def commands(group: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, those of subcommands included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*prefix, name))
        else:
            yield (*prefix, name)


COMMANDS = list(commands(typer.main.get_command(app)))


def test_all_commands_are_there():
    plain = {
        "run",
        "check",
        "list",
        "attack",
        "diagnose",
        "inspect",
        "train",
        "table",
        "figures",
        "report",
        "merge",
        "compare",
    }
    nested = {("data", "get"), ("data", "export"), ("new", "attack"), ("import", "hinton2018")}
    assert set(COMMANDS) == {(name,) for name in plain} | nested


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_in_its_help(words):
    text = CliRunner().invoke(app, [*words, "--help"], terminal_width=200).output
    title, _, examples = text.partition("Examples")
    assert "Usage" in title and f"robustcaps {' '.join(words)}" in examples
    calls = [line.strip() for line in examples.splitlines() if line.strip()]
    assert calls and all(call.startswith("robustcaps ") for call in calls)


def test_completion_can_be_installed(cli):
    text = cli("--help").stdout
    assert "--install-completion" in text and "--show-completion" in text
    assert "Start with: robustcaps run quick" in text


BAD_CALLS = {
    "no suite": (["run", "none.toml"], "none.toml: no such suite file."),
    "no out folder": (["table", "nowhere"], "Is nowhere the out folder"),
    "unknown model": (["attack", "cn", "fgsm"], "unknown model 'cn'. Did you mean 'cnn'?"),
    "unknown attack": (["attack", "cnn", "fgs"], "unknown attack 'fgs'. Did you mean 'fgsm'?"),
    "unknown tag": (["attack", "cnn:q", "fgsm", "--limit", "5"], "no shipped weights for model 'cnn:q'"),
    "unknown data": (["attack", "cnn", "fgsm", "--data", "toy"], "unknown dataset 'toy'. Did you mean 'toys'?"),
    "unknown option": (["attack", "cnn", "bim", "--set", "stps=3"], "unknown option 'stps'. Did you mean 'steps'?"),
    "no number": (["attack", "cnn", "fgsm", "--eps", "big"], "--eps: 'big' is not a list of numbers"),
    "negative eps": (["attack", "cnn", "fgsm", "--eps", "-1"], "must not be negative"),
    "unknown list": (["list", "modles"], "Did you mean 'models'?"),
    "train nothing": (["train", "cmn"], "unknown model 'cmn'. Did you mean 'cnn'?"),
    "weights of another model": (
        ["attack", "cnn", "fgsm", "--weights", str(WEIGHTS / "toys" / "cnn-small-a.safetensors")],
        "weights of a different model: 'cnn-small:a' according to its card, not 'cnn'",
    ),
    "weights that are none": (["attack", "cnn", "fgsm", "--weights", __file__], "not a complete safetensors file"),
    "no such target": (["attack", "cnn", "fgsm", "--goal", "targeted", "--target", "²"], "unknown class '²'"),
    "huge eps": (["attack", "cnn", "fgsm", "--eps", "1e39"], "eps: must not be above"),
    "device without numbers": (["attack", "cnn", "fgsm", "--device", "meta"], "device 'meta' is not available: "),
    "no folder for rows": (["attack", "cnn", "fgsm", "--rows", "no/rows.csv"], "--rows no/rows.csv: no such folder."),
    "no empty folder": (["data", "export", "."], "choose an empty folder"),
    "unknown engine": (["run", "tiny.toml", "--engine", "rey"], "unknown engine 'rey'. Did you mean 'ray'?"),
    "unknown device": (["attack", "cnn", "fgsm", "--device", "gpu9"], "device 'gpu9' is not available: "),
    "no plugin": (["list", "--plugin", "mine.py"], "plugin mine.py: no such file."),
}


@pytest.mark.parametrize(("words", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
@pytest.mark.usefixtures("suite")
def test_bad_calls_end_with_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path, words, message):
    before = set(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["robustcaps", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in said
    assert said.strip().count("\n") == 0
    assert set(tmp_path.iterdir()) == before


def test_missing_and_damaged_data_is_named(cli, suite, plugin, tmp_path):
    suite.write_text(suite.read_text().replace('"dots"', '"smallnorb"'))
    words = ("run", suite, "--plugin", plugin, "--out", "o", "--data-dir", tmp_path / "data")
    missing = cli(*words)
    assert missing.returncode == 2
    assert "data[0]: " in missing.stderr and "ROBUSTCAPS_DATA" in missing.stderr and "York University" in missing.stderr

    folder = tmp_path / "data" / "smallnorb"
    exported = cli("data", "export", folder, "--limit", "30", ROBUSTCAPS_CACHE=str(tmp_path / "cache"))
    assert exported.returncode == 0, exported.stderr
    (images,) = folder.glob("*testing-dat.mat")
    whole = images.read_bytes()
    for damaged, complaint in [(whole[:-5], "truncated"), (b"junk" + whole[4:], "magic")]:
        images.write_bytes(damaged)
        result = cli(*words)
        assert result.returncode == 2 and complaint in result.stderr and images.name in result.stderr
    assert not (tmp_path / "o").exists()


def test_a_bad_suite_or_out_folder_writes_nothing(cli, suite, plugin, tmp_path):
    (tmp_path / "file").write_text("in the way")
    blocked = cli("run", suite, "--plugin", plugin, "--out", "file/o")
    assert blocked.returncode == 2 and "out folder file/o: cannot be written" in blocked.stderr
    suite.write_text(suite.read_text().replace("[0.0, 0.05, 0.1]", "[-1]"))
    bad = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert bad.returncode == 2 and "attacks[3].eps" in bad.stderr and not (tmp_path / "o").exists()
