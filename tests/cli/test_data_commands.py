from __future__ import annotations

import gzip
import hashlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from robustcaps.cli.progress import DownloadBars
from tests.data.loopback import Loopback, serving

CONTENT = np.random.default_rng(0).bytes(300_000)
PACKED = gzip.compress(CONTENT, mtime=0)
PROGRAM = f"""
import sys
from robustcaps.cli.app import main
if "--help" not in sys.argv:
    from robustcaps.data.sources import SOURCES, Digest, Source
    SOURCES["mnist"] = (Source("digits.gz", (), Digest("{hashlib.sha256(CONTENT).hexdigest()}", {len(CONTENT)})),)
try:
    main()
finally:
    print("torch" in sys.modules)
"""
"""The command line, for which mnist is one small file."""


@pytest.fixture
def server() -> Iterator[Loopback]:
    with serving() as server:
        server.files["/mnist/digits.gz"] = PACKED
        yield server


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "ROBUSTCAPS_DATA"}
    env = {**inherited, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "no_proxy": "*", **environment}
    command = [sys.executable, "-c", PROGRAM, "data", "get", *words]
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def test_get_fetches_once_and_says_where(tmp_path: Path, server: Loopback) -> None:
    words = ("mnist", "--mirror", f"{server.url}/nothing", "--mirror", server.url, "--data-dir", "mine")
    code, out, err = finish(start(tmp_path, *words))
    assert code == 0, err
    assert f"{server.url}/nothing/mnist/digits.gz: HTTP 404" in out
    assert f"mine/mnist/digits.gz: {len(PACKED):,} bytes from {server.url}/mnist/digits.gz" in out
    assert (tmp_path / "mine" / "mnist" / "digits.gz").read_bytes() == PACKED
    code, out, err = finish(start(tmp_path, "multimnist", ROBUSTCAPS_DATA="mine"))
    assert code == 0 and "mine/mnist/digits.gz: is there already, and right" in out, err
    assert len(server.asked) == 2


def test_a_killed_download_goes_on_where_it_stopped(tmp_path: Path, server: Loopback) -> None:
    part = tmp_path / "data" / "mnist" / "digits.gz.part"
    server.silent_after = 100_000
    with start(tmp_path, "mnist", "--mirror", server.url) as process:
        deadline = time.monotonic() + 120
        while not part.exists() or part.stat().st_size < 100_000:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert [path.name for path in part.parent.iterdir()] == [part.name]
    server.silent_after = None
    code, _, err = finish(start(tmp_path, "mnist", "--mirror", server.url))
    assert code == 0, err
    assert server.asked == [("/mnist/digits.gz", 0), ("/mnist/digits.gz", 100_000)]
    assert [path.name for path in part.parent.iterdir()] == ["digits.gz"]
    assert (part.parent / "digits.gz").read_bytes() == PACKED


def test_a_wrong_file_is_an_error_and_is_not_left_in_its_place(tmp_path: Path, server: Loopback) -> None:
    server.files["/mnist/digits.gz"] = gzip.compress(CONTENT[1:])
    code, _, err = finish(start(tmp_path, "mnist", "--mirror", server.url))
    assert code == 2
    assert "error: dataset 'mnist': cannot download digits.gz: " in err and "wrong content" in err
    assert "Traceback" not in err and err.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_what_needs_no_files_says_so(tmp_path: Path) -> None:
    code, out, err = finish(start(tmp_path, "toys"))
    assert code == 0 and "toys is built in: there is nothing to download." in out, err
    assert list(tmp_path.iterdir()) == []


def test_help_does_not_load_torch(tmp_path: Path) -> None:
    code, out, _ = finish(start(tmp_path, "--help"))
    assert code == 0 and "--mirror" in out and out.endswith("False\n")


def test_a_bar_shows_how_far_a_file_is() -> None:
    shown = io.StringIO()
    with DownloadBars(Console(file=shown, force_terminal=True, width=120)) as bars:
        bars.advanced("digits.gz", 500_000, None)
        bars.advanced("digits.gz", 1_500_000, 3_000_000)
        bars.bars.refresh()
    assert "digits.gz" in shown.getvalue() and "1.5/3.0 MB" in shown.getvalue() and "left" in shown.getvalue()
