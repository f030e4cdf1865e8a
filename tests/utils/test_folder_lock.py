"""The lock on a folder: one process at a time, and a word about who it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from robustcaps.errors import UserError
from robustcaps.utils.folder_lock import FolderLock

HOLD = """
import sys, time
from pathlib import Path
from robustcaps.utils.folder_lock import FolderLock
with FolderLock(Path(sys.argv[1])) as lock:
    lock.acquire()
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_held_folder_is_refused_with_the_process_that_holds_it(tmp_path):
    with FolderLock(tmp_path) as first, FolderLock(tmp_path) as second:
        first.acquire()
        with pytest.raises(UserError, match=rf"process {os.getpid()} on .* is at work in this folder\. Wait until"):
            second.acquire()
    assert not list(tmp_path.iterdir())
    with FolderLock(tmp_path) as third:
        third.acquire()


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with FolderLock(tmp_path) as lock, pytest.raises(UserError, match=rf"process {process.pid} on "):
            lock.acquire()
        process.kill()
        process.wait()
    with FolderLock(tmp_path) as lock:
        lock.acquire()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "[]", "{", "{}"])
def test_a_damaged_note_about_the_holder_is_no_problem(tmp_path, content):
    with FolderLock(tmp_path) as first, FolderLock(tmp_path) as second:
        first.acquire()
        first.holder.write_text(content)
        with pytest.raises(UserError, match="another process is at work in this folder"):
            second.acquire()
