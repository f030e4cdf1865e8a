from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from robustcaps.cli.app import console, main
from robustcaps.execution.runner import run
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
    tables = ("attack_comparisons", "comparisons", "table", "targets")
    assert {path.name for path in out.iterdir()} == {
        *("cells", "figures", "report.html", "run.json"),
        *(f"{name}.{ending}" for name in tables for ending in ("csv", "md")),
    }
    drawn = ("accuracy", "cost", "targeted", "targets")
    names = {f"{name}.{ending}" for name in drawn for ending in ("png", "svg")}
    assert {path.name for path in (out / "figures").iterdir()} == names
    assert (
        "accuracy in %" in first.stdout and "o/table.csv" in first.stdout and "o/figures/accuracy.svg" in first.stdout
    )

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


def slow_plugin(plugin: Path) -> Path:
    """The tiny plugin with a model that takes its time, so that a kill finds the run in the middle."""
    text = plugin.read_text().replace("import torch\n", "import time\nimport torch\n", 1)
    text += (
        "\nclass Slow(nn.Sequential):\n"
        "    def forward(self, images):\n"
        "        time.sleep(0.02)\n"
        "        return super().forward(images)\n"
    )
    text = text.replace("model = nn.Sequential(", "model = Slow(")
    plugin.write_text(text)
    return plugin


def test_kill_at_any_moment_and_run_again_gives_the_same_table(cli, suite, plugin, tmp_path):
    slow_plugin(plugin)
    undisturbed = cli("run", suite, "--plugin", plugin, "--out", "whole")
    assert undisturbed.returncode == 0, undisturbed.stderr
    code = "from robustcaps.cli.app import main; main()"
    command = [sys.executable, "-c", code, "run", str(suite), "--plugin", str(plugin), "--out", "o"]
    cells = tmp_path / "o" / "cells"
    finished = {}
    for wanted in (1, 4, 7):
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
        ) as process:
            deadline = time.monotonic() + 120
            while len(list(cells.glob("*.parquet"))) < wanted and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        found = digest_of_files(cells, "*.parquet")
        assert finished.items() <= found.items()  # nothing that was finished is computed again
        finished = found
    assert wanted <= len(finished) < 10
    last = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert last.returncode == 0 and f"{len(finished)} of 10 cells are finished already" in last.stdout
    assert finished.items() <= digest_of_files(cells, "*.parquet").items()
    assert (tmp_path / "o" / "table.csv").read_bytes() == (tmp_path / "whole" / "table.csv").read_bytes()


@pytest.mark.parametrize("damage", ["cut", "zeroed"])
def test_a_damaged_cell_is_computed_again(cli, suite, plugin, tmp_path, damage):
    cli("run", suite, "--plugin", plugin, "--out", "o")
    table = (tmp_path / "o" / "table.csv").read_bytes()
    victim = next((tmp_path / "o" / "cells").glob("*.parquet"))
    content = victim.read_bytes()
    victim.write_bytes(content[:100] if damage == "cut" else content[:40] + bytes(200) + content[240:])
    again = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert again.returncode == 0 and "9 of 10 cells are finished already" in again.stdout
    assert (tmp_path / "o" / "table.csv").read_bytes() == table


def test_a_failing_cell_does_not_stop_the_others(cli, suite, plugin, tmp_path):
    suite.write_text(suite.read_text() + '\n[[attacks]]\nuse = "broken"\neps = [0.1]\n')
    result = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert result.returncode == 1
    assert "2 cells failed" in result.stdout and "RuntimeError: no luck" in result.stdout
    assert "Retry" in result.stdout
    failures = list((tmp_path / "o" / "cells").glob("*.failed.json"))
    assert len(failures) == 2
    assert "Traceback" in json.loads(failures[0].read_text())["traceback"]
    honest = {"clean", "fgsm", "pgd", "fgsm to every class", "worst case of all"}
    assert set(pd.read_csv(tmp_path / "o" / "table.csv")["attack"]) == honest
    plugin.write_text(plugin.read_text().replace('raise RuntimeError("no luck")', "return images"))
    mended = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert mended.returncode == 0, mended.stdout + mended.stderr


def test_order_and_batch_size_change_no_row(cli, suite, plugin, tmp_path):
    cli("run", suite, "--plugin", plugin, "--out", "a")
    blocks = suite.read_text().split("[[")
    head, data, models, attacks = blocks[0], blocks[1:2], blocks[2:4], blocks[4:]
    shuffled = tmp_path / "shuffled.toml"
    shuffled.write_text('name = "tiny"\n' + "[[".join([head, *attacks[::-1], *models[::-1], *data]))
    result = cli("run", shuffled, "--plugin", plugin, "--out", "b", "--batch-size", "7")
    assert result.returncode == 0, result.stderr
    keys = ["model", "attack", "goal", "eps"]
    one, two = (pd.read_csv(tmp_path / o / "table.csv").sort_values(keys, ignore_index=True) for o in "ab")
    pd.testing.assert_frame_equal(one, two)
    ids = [{path.name for path in (tmp_path / o / "cells").iterdir()} for o in "ab"]
    assert ids[0] == ids[1]
    for name in ids[0]:
        rows = [pq.read_table(tmp_path / o / "cells" / name).to_pandas() for o in "ab"]
        assert rows[0].equals(rows[1])


def test_ray_gives_the_same_table(cli, suite, plugin, tmp_path):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    for engine in ("local", "ray"):
        assert cli("run", suite, "--plugin", plugin, "--out", engine, "--engine", engine).returncode == 0
    assert (tmp_path / "ray" / "table.csv").read_bytes() == (tmp_path / "local" / "table.csv").read_bytes()


@pytest.mark.usefixtures("registries")
def test_a_run_whose_every_cell_fails_says_so(suite, plugin, tmp_path):
    """One failing cell under two names: there is nothing to show, and that is no mistake of the user's."""
    head, _, _ = suite.read_text().partition("[[attacks]]")
    twice = head.replace("sharpness = 10.0\n", "")
    suite.write_text(twice + '[[attacks]]\nuse = "broken"\neps = [0.1]\n')
    result = run(suite, tmp_path / "o", plugins=[plugin])
    assert result.table.empty and len(result.failures) == 1 and result.computed == 1


@pytest.mark.usefixtures("registries")
def test_a_plugin_may_be_given_again_and_old_figures_go(suite, plugin, tmp_path):
    run(suite, tmp_path / "o", plugins=[plugin])
    assert (tmp_path / "o" / "figures" / "targeted.svg").exists()
    suite.write_text(suite.read_text().partition('[[attacks]]\nuse = "fgsm"\nname')[0])
    again = run(suite, tmp_path / "o", plugins=[plugin])
    assert again.computed == 0 and again.reused == 8
    assert not (tmp_path / "o" / "figures" / "targeted.svg").exists()
    assert "Success of targeted" not in (tmp_path / "o" / "report.html").read_text()


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
    assert "fgsm" in result.stdout and "loss='ce'" in result.stdout and "bim" not in result.stdout


def test_the_name_of_a_model_is_no_emoji():
    assert str(console.render_str("cnn:a: 3")) == "cnn:a: 3"


def test_attack_prints_one_table(cli, plugin, tmp_path):
    words = ["attack", "levels", "darken", "--data", "dots", "--eps", "0,0.1,0.3", "--plugin", plugin]
    result = cli(*words, "--set", "share=0.5", "--rows", "rows.csv")
    assert result.returncode == 0, result.stderr
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert rows["linf"].max() == pytest.approx(0.15, abs=1e-6) and len(rows) == 3 * 60
    assert "accuracy in %" in result.stdout


BAD_CALLS = {
    "no suite": (["run", "none.toml"], "none.toml: no such suite file."),
    "no out folder": (["table", "nowhere"], "is nowhere the out folder"),
    "unknown model": (["attack", "cn", "fgsm"], "unknown model 'cn'. Did you mean 'cnn'?"),
    "unknown attack": (["attack", "cnn", "fgs"], "unknown attack 'fgs'. Did you mean 'fgsm'?"),
    "unknown tag": (["attack", "cnn:q", "fgsm", "--limit", "5"], "no weights are shipped for model 'cnn:q'"),
    "unknown data": (["attack", "cnn", "fgsm", "--data", "toy"], "unknown dataset 'toy'. Did you mean 'toys'?"),
    "unknown option": (["attack", "cnn", "bim", "--set", "stps=3"], "unknown option 'stps'. Did you mean 'steps'?"),
    "no number": (["attack", "cnn", "fgsm", "--eps", "big"], "--eps: 'big' is not a list of numbers"),
    "negative eps": (["attack", "cnn", "fgsm", "--eps", "-1"], "must not be negative"),
    "unknown list": (["list", "modles"], "Did you mean 'models'?"),
    "train nothing": (["train", "cmn"], "unknown model 'cmn'. Did you mean 'cnn'?"),
    "weights of another model": (
        ["attack", "cnn", "fgsm", "--weights", str(WEIGHTS / "toys" / "cnn-small-a.safetensors")],
        "weights of another model: its card says 'cnn-small:a', not 'cnn'",
    ),
    "weights that are none": (["attack", "cnn", "fgsm", "--weights", __file__], "not a whole safetensors file"),
    "no such target": (["attack", "cnn", "fgsm", "--goal", "targeted", "--target", "²"], "unknown class '²'"),
    "huge eps": (["attack", "cnn", "fgsm", "--eps", "1e39"], "eps: must not be above"),
    "device without numbers": (["attack", "cnn", "fgsm", "--device", "meta"], "device 'meta' is not available here"),
    "no folder for rows": (["attack", "cnn", "fgsm", "--rows", "no/rows.csv"], "--rows no/rows.csv: there is no such"),
    "no empty folder": (["data", "export", "."], "choose an empty folder"),
    "unknown engine": (["run", "tiny.toml", "--engine", "rey"], "unknown engine 'rey'. Did you mean 'ray'?"),
    "unknown device": (["attack", "cnn", "fgsm", "--device", "gpu9"], "device 'gpu9' is not available here"),
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
