"""A lock on an output folder, so that two processes never do the same work in it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from robustcaps.errors import UserError
from robustcaps.utils.files import read_json, remove_empty, write_atomically


class FolderLock:
    """Holds a folder from `acquire` to the end of the block; the system releases it when the process dies.

    Example:
        with FolderLock(out) as lock:
            ...             # check everything first
            lock.acquire()  # raises a UserError that names the process that holds it
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = FileLock(folder / ".lock", timeout=0)
        self.holder = folder / ".lock.json"
        self.new_folders: list[Path] = []
        """Folders to remove at the end of the block if nothing has been written into them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.lock.is_locked:
            self.holder.unlink(missing_ok=True)
            Path(self.lock.lock_file).unlink(missing_ok=True)
            self.lock.release()
        remove_empty(self.new_folders)

    def acquire(self) -> None:
        """Lock the folder, which must exist; raise `UserError` if another process holds it."""
        try:
            self.lock.acquire()
        except Timeout as error:
            raise UserError(
                f"{self.folder}: {self._describe_holder()} is at work in this folder. Wait until it ends, or choose "
                "another folder (--out)."
            ) from error
        started = datetime.now(UTC).isoformat(timespec="seconds")
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        holder = {"process": os.getpid(), "host": platform.node(), "started": started, "command": command}
        write_atomically(self.holder, json.dumps(holder))

    def _describe_holder(self) -> str:
        """Return which process holds the lock."""
        try:
            holder = read_json(self.holder)
            return f"process {holder['process']} on {holder['host']} (since {holder['started']}: {holder['command']})"
        except (UserError, OSError, KeyError, TypeError):  # it has just begun or ended
            return "another process"
