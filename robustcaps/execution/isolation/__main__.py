"""The worker process: `python -m robustcaps.execution.isolation` reads jobs and executes them until the run ends."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from io import FileIO


def main() -> None:
    """Execute jobs until the run that started this process ends."""
    requests, updates, output = _reserve_streams()
    jobs: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read_requests, args=(requests, jobs), daemon=True).start()
    # Imported after the streams are reserved, because importing takes seconds and may print.
    from robustcaps.execution.isolation.job_server import JobServer  # noqa: PLC0415
    from robustcaps.execution.isolation.protocol import END_OF_OUTPUT  # noqa: PLC0415

    server = JobServer(updates)
    while True:
        result = server.execute(jobs.get())
        sys.stdout.flush()
        sys.stderr.flush()
        output.write(END_OF_OUTPUT)
        server.send(result)


def _reserve_streams() -> tuple[FileIO, FileIO, FileIO]:
    """Return private copies of stdin, stdout and stderr; plugins get an empty stdin, and stderr for all output."""
    requests, updates, output = FileIO(os.dup(0), "r"), FileIO(os.dup(1), "w"), FileIO(os.dup(2), "w")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return requests, updates, output


def _read_requests(requests: FileIO, jobs: queue.Queue[bytes]) -> None:
    """Queue incoming jobs; when the run has ended, kill this process with all its children."""
    for line in requests:
        jobs.put(line)
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
