"""What nobody foresaw: a line and a log instead of a traceback, no silent success, and a word on how to go on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robustcaps.cli.app import main
from robustcaps.data.toys import blocks
from robustcaps.suite.estimate import estimate_file
from robustcaps.suite.resolve import RuntimeConfig
from tests.execution.test_runner import slow_plugin


def test_an_unforeseen_error_is_one_line_with_the_path_of_a_log(monkeypatch, capsys, tmp_path):
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody\nthought of it")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("robustcaps.cli.commands.listing.load_plugins", fail)
    monkeypatch.setattr(sys, "argv", ["robustcaps", "list"])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert stop.value.code == 1 and said.count("\n") == 1 and "Traceback" not in said
    found = re.search(r"error: unexpected ZeroDivisionError: nobody. The traceback is in (\S+\.log);", said)
    assert found is not None
    log = Path(found[1]).read_text()
    assert log.startswith("robustcaps list\n") and "Traceback" in log and "thought of it" in log


@pytest.mark.parametrize("place", ["the file", "its model"])
def test_a_plugin_that_ends_the_process_is_no_success(cli, suite, plugin, place):
    exits = "\nimport os\nos._exit(0)\n" if place == "the file" else ""
    text = plugin.read_text().replace("    1 / sharpness\n", "    import os\n    os._exit(0)\n")
    plugin.write_text(plugin.read_text() + exits if exits else text)
    result = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert result.returncode == 1 and result.stderr == "failed: a plugin ended the process with os._exit.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_run_says_how_to_go_on(suite, plugin, tmp_path, number):
    code = "from robustcaps.cli.app import main; main()"
    command = [sys.executable, "-c", code, "run", str(suite), "--plugin", str(slow_plugin(plugin)), "--out", "o"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    signal.signal(signal.SIGINT, before)
    with process:
        deadline = time.monotonic() + 100
        while not list((tmp_path / "o").glob("cells/*.parquet")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted. The same command continues where it stopped.\n")
    assert not (tmp_path / "o" / ".lock").exists()


TRAINING = """
[[data]]
use = "toys"
limit = 5
[[models]]
use = "cnn-small"
train = {epochs = 1}
[[attacks]]
use = "clean"
"""


def test_check_draws_no_dataset_to_find_out_its_size(tmp_path, monkeypatch):
    drawn = []
    draw = blocks.draw_blocks
    monkeypatch.setattr("robustcaps.data.toys.draw_blocks", lambda *of: drawn.append(of[:2]) or draw(*of))
    (tmp_path / "x.toml").write_text(TRAINING)
    (estimate,) = estimate_file(tmp_path / "x.toml", RuntimeConfig(device="cpu"))
    assert drawn == [("test", 5)]
    assert estimate.times[0].training > 0
